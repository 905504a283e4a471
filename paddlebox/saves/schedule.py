"""When a run saves by itself, and how it does so beside its next passes.

What was done is read from the donefiles, so a run that is taken up again goes on with its chain.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from paddlebox.config.save import BaseEvery, SaveConfig
from paddlebox.errors import PaddleBoxError
from paddlebox.saves.meta import BASE, DELTA
from paddlebox.saves.reader import Save
from paddlebox.saves.saver import Saver

log = logging.getLogger("paddlebox")


def _due(saver: Saver, config: SaveConfig) -> tuple[str, str] | None:
    """Kind and name of what is due after a pass that has no save."""
    last = saver.last()
    base, delta = f"{saver.date}/base", f"{saver.date}/delta-{saver.pass_number}"
    # Rows that a version changed which was gone back from have no delta_score that says so.
    anew = last is None or not saver.is_own(last)
    if anew or (config.base_every is BaseEvery.DATE and not saver.is_done(BASE, base)):
        return BASE, saver.free_name(base)
    if _is_delta_due(saver.pass_number, config):
        return DELTA, saver.free_name(delta)
    return None


def _is_delta_due(number: int, config: SaveConfig) -> bool:
    return config.delta_every > 0 and number % config.delta_every == 0


def _report(save: Save, started: float) -> dict[str, Any]:
    return {
        "name": save.name,
        "kind": save.meta["kind"],
        "rows": save.rows,
        "deleted": save.deletions,
        "seconds": time.perf_counter() - started,
    }


class SavesBesidePasses:
    """Writes what is due in the background, one save at a time. Leave it by `finish`, or `close`.

    No commit comes between a pass and its save: the next one waits until the save is done. So
    whoever is killed or fails finds, when it is taken up, the version that the save is of, and
    writes it again; the saves and rows of a run do not depend on where it was interrupted. What
    goes wrong is raised by that commit, the next call of `due`, or `finish`.
    """

    def __init__(
        self,
        saver: Saver,
        config: SaveConfig,
        done: Callable[[str], None] = lambda _: None,
    ) -> None:
        """done: hears the kind of each save, once it is done, in the thread that wrote it."""
        self._saver, self._config, self._done = saver, config, done
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="paddlebox-save")
        self._running: Future[dict[str, Any]] | None = None
        self._date_of_base: str | None = None  # only deltas are due in it any more

    def due(self, number: int = 0, date: str = "") -> dict[str, Any] | None:
        """Begins the save that is due after the last pass, before the next one begins; waits for
        the one before it, and for the pass's commit if one may be due.

        Args:
            number, date: of the pass, so that the commit need not be waited for to know them.

        Returns: its name, kind and `waited_s`; None where none is due.
        """
        started = time.perf_counter()
        self._wait()
        if number and date == self._date_of_base and not _is_delta_due(number, self._config):
            return None
        self._date_of_base = date if number else None
        self._saver.commit_ended()
        done = self._saver.of_last_pass()
        due = (done.meta["kind"], done.name) if done is not None else self._due()
        if due is None:
            return None
        if done is None:
            running = self._running = self._thread.submit(self._timed, self._saver.later(*due))
            self._saver.begin_anew(due[0], until=lambda: _ended(running))
        elif not self._saver.has_begun_anew(done):
            self._saver.begin_anew(due[0])
        return {"name": due[1], "kind": due[0], "waited_s": time.perf_counter() - started}

    def _due(self) -> tuple[str, str] | None:
        """As the first rank finds: all do the same."""
        due = self._saver.as_first(_due(self._saver, self._config))
        return tuple(due) if due is not None else None

    def finish(self) -> None:
        """Waits for the last save. Raises: as `Saver.base`."""
        self._wait()
        self._saver.settle()

    def _timed(self, save: Callable[[], Save]) -> dict[str, Any]:
        started = time.perf_counter()
        report = _report(save(), started)
        log.info("saved %(name)s in %(seconds).2f s: %(rows)d rows, %(deleted)d deleted", report)
        self._done(report["kind"])
        return report

    def _wait(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def close(self) -> None:
        """Lets a save that is being written end; what goes wrong is logged."""
        try:
            self._wait()
        except PaddleBoxError as error:
            log.error("a save was not made: %s", error)
        finally:
            self._thread.shutdown()


def _ended(running: Future[Any]) -> None:
    running.result()
