"""Hooks that write elsewhere: saves, copies of commits, and what is published.

A separate process publishes the saves (tools/publish): an export builds Paddle programs, which are
global state of a process, and in another thread than training it caused a segfault.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from paddlebox.config import Config, Slots
from paddlebox.config.checkpoint import AlertsConfig, PublishConfig, is_redis
from paddlebox.errors import ConfigError, StoreError
from paddlebox.saves.remote import SaveCopier
from paddlebox.saves.saver import BackgroundSaves, Saver
from paddlebox.store.copies import Copier
from paddlebox.store.group import Group
from paddlebox.store.remote import open_filesystem, shown
from paddlebox.store.table_set import TableSet
from paddlebox.training.hooks import Hook
from paddlebox.training.pass_line import Line
from paddlebox.training.plan import PlannedPass
from paddlebox.training.run_dir import append_json, copies_of
from paddlebox.watch.watch import Watch

log = logging.getLogger("paddlebox")


class Save(Hook):
    """Writes the saves that the config schedules (`save`), and copies them, while passes train.
    slots: of the run, with what it has chosen. saved: called after each save, in the thread that
    wrote it."""

    def __init__(
        self, config: Config, slots: Slots, table: TableSet, saved: Callable[[], None]
    ) -> None:
        extra = {
            "slots.yaml": slots.as_yaml().encode(),
            "config.json": config.canonical_json().encode(),
        }
        saver = Saver(table, config.save.out, extra=extra)
        self._heartbeat = table.world.heartbeat
        copies = config.save.copy_to and table.world.rank == 0
        self._copier = SaveCopier(config.save.out, config.save.copy_to) if copies else None

        def done() -> None:
            saved()
            if self._copier is not None:
                self._copier.offer()

        daily = config.data.stream is None
        self._saves = BackgroundSaves(saver, config.save, done, daily=daily)
        if self._copier is not None:
            self._copier.offer()  # what an earlier, killed run did not copy

    def catch_up(self, line: Line | None, passes: int, on_any_rank: bool) -> None:
        if not passes:
            return
        due = self._saves.due()  # an earlier, killed run may not have written it
        if line is not None:
            line["save"] = due

    def after_pass(self, line: Line, planned: PlannedPass) -> None:
        line["save"] = self._saves.due(planned.number, planned.date)

    def end(self) -> None:
        self._saves.finish()
        if self._copier is not None:
            self._copier.finish(self._heartbeat)

    def close(self, error: BaseException | None) -> None:
        try:
            self._saves.close()
        finally:
            if self._copier is not None:
                self._copier.close()


class Copy(Hook):
    """Copies each version in the background after its commit."""

    def __init__(self, config: Config, table: TableSet, store: Path, world: Group) -> None:
        uri = copies_of(config, world.rank)
        # With several ranks, each copies every version, so that all have some pass in common.
        every_one = world.size > 1
        self._table = table
        self._copier = Copier(str(store), uri, every_one=every_one)
        table.committer.after_commit.append(self._copier.offer)

    def end(self) -> None:
        self._copier.finish(self._table.head)

    def close(self, error: BaseException | None) -> None:
        self._copier.close()


class Publisher:
    """The process that publishes, and a thread that reads its reports. saves: folder of the saves.
    report: called for each save and sink with the fields of `Served`, in the reading thread."""

    def __init__(
        self,
        saves: str,
        publish: PublishConfig,
        bounds: AlertsConfig,
        report: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._arguments = [saves, publish.model_dump_json(), bounds.model_dump_json()]
        self._report = report
        self._start()  # also publishes saves that an earlier, killed run did not publish

    def _start(self) -> None:
        package = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "paddlebox.tools.publish", *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert self._process.stdin is not None
        # If the pipe is full, the process knows that there are saves.
        os.set_blocking(self._process.stdin.fileno(), False)
        self._thread = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._thread.start()
        self.offer()

    def offer(self) -> None:
        """Tell the process that a save is done. Does not wait for it."""
        if self._process.poll() is not None:
            log.error("publish: the process exited with code %d; restarting it", self._code())
            self._start()
            return
        assert self._process.stdin is not None
        with suppress(BrokenPipeError, BlockingIOError):
            os.write(self._process.stdin.fileno(), b"\n")

    def close(self) -> None:
        """Publish the saves that are done, and wait for the process to end."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._thread.join()
        if self._code() != 0:
            log.error("publish: the process exited with code %d", self._code())

    def _code(self) -> int:
        return self._process.wait()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._report(json.loads(line))


def _check_sink(place: str) -> None:
    if not is_redis(place):
        open_filesystem(place)
    elif importlib.util.find_spec("redis") is None:
        raise ConfigError(
            f"publish.to {shown(place)}: expected the package redis, found none: "
            "pip install 'paddlebox[redis]'"
        )


class Publish(Hook):
    """Publishes each save of a run to its sinks. RUN_DIR/served.jsonl records when a sink showed a
    save, and how old its data were by then. Raises: ConfigError, StoreError for a sink that cannot
    be one."""

    on_every_rank = False

    def __init__(self, config: Config, run_dir: Path, watch: Watch) -> None:
        for place in config.publish.to:
            _check_sink(place)
        self._run_dir, self._watch = run_dir, watch
        self._publisher = Publisher(config.save.out, config.publish, config.alerts, self._served)

    def saved(self) -> None:
        """Note that a save is done. Thread-safe."""
        self._publisher.offer()

    def after_pass(self, line: Line, planned: PlannedPass) -> None:
        line["published"] = self._watch.published()

    def _served(self, served: Mapping[str, Any]) -> None:
        staleness = self._watch.served(served)
        try:
            append_json(self._run_dir / "served.jsonl", {**served, "staleness_s": staleness})
        except StoreError as error:
            log.error("%s", error)

    def close(self, error: BaseException | None) -> None:
        self._publisher.close()
