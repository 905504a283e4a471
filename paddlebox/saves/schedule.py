"""The saves that a run makes by itself, in the background of its next passes.

The donefiles tell which saves exist, so that a resumed run continues its chain.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from paddlebox.config.save import SaveConfig
from paddlebox.errors import PaddleBoxError
from paddlebox.saves.meta import BASE, DELTA
from paddlebox.saves.reader import Save
from paddlebox.saves.saver import Saver

log = logging.getLogger("paddlebox")


def _due(saver: Saver, config: SaveConfig) -> tuple[str, str] | None:
    """Kind and name of the save that is due after a pass without a save; None if none is."""
    last = saver.last()
    base, delta = f"{saver.date}/base", f"{saver.date}/delta-{saver.pass_number}"
    # If the last save is of a discarded version, delta_score does not show which rows differ from
    # the save, so only a base is correct.
    if last is None or not saver.is_own(last.meta):
        return BASE, saver.free_name(base)
    if not saver.is_done(BASE, base):
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


class BackgroundSaves:
    """Writes the due saves in the background, one at a time. End it with `finish`, or `close`.

    The commit after a pass waits until the save of that pass is complete. So a run that is killed
    and resumed still finds the version to save, and writes the save again: saves and rows do not
    depend on where a run was interrupted. An error of a save is raised by the waiting commit, the
    next call of `due`, or `finish`.
    """

    def __init__(
        self,
        saver: Saver,
        config: SaveConfig,
        done: Callable[[], None] = lambda: None,
    ) -> None:
        """done: called after each complete save, in the thread that wrote it."""
        self._saver, self._config, self._done = saver, config, done
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="paddlebox-save")
        self._running: Future[dict[str, Any]] | None = None
        self._date_of_base: str | None = None  # on this date only deltas can still be due

    def due(self, number: int = 0, date: str = "") -> dict[str, Any] | None:
        """Start the save that is due after the last pass. Call it before the next pass begins.

        It waits for the previous save. It waits for the commit of the pass only if a save may be
        due.

        Args:
            number, date: number and date of the pass, if known. With both, the method can often
                return without waiting for the commit.

        Returns: name, kind and `waited_s` in seconds; None if no save is due.
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
            self._saver.reset_delta(due[0], until=lambda: _ended(running))
        elif not self._saver.has_reset_delta(done):
            self._saver.reset_delta(due[0])
        return {"name": due[1], "kind": due[0], "waited_s": time.perf_counter() - started}

    def _due(self) -> tuple[str, str] | None:
        """The save that is due, as decided by the first rank for all."""
        due = self._saver.as_first(_due(self._saver, self._config))
        return tuple(due) if due is not None else None

    def finish(self) -> None:
        """Wait for the last save. Raises: the errors of `Saver.base`."""
        self._wait()
        self._saver.settle()

    def _timed(self, save: Callable[[], Save]) -> dict[str, Any]:
        started = time.perf_counter()
        report = _report(save(), started)
        log.info("saved %(name)s in %(seconds).2f s: %(rows)d rows, %(deleted)d deleted", report)
        self._done()
        return report

    def _wait(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def close(self) -> None:
        """Wait for a save in progress. Its errors are logged, not raised."""
        try:
            self._wait()
        except PaddleBoxError as error:
            log.error("a save failed: %s", error)
        finally:
            self._thread.shutdown()


def _ended(running: Future[Any]) -> None:
    running.result()
