"""Keeps the sinks of a run up to date with its saves. Each sink has a thread and an own pace: when
one is behind, the next version that it gets covers all saves that it lacks."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TextIO

from paddlebox.closing import Closing
from paddlebox.config.checkpoint import Bounds, PublishConfig, is_redis
from paddlebox.errors import StoreLockedError
from paddlebox.saves import donefile
from paddlebox.saves.meta import event_time
from paddlebox.saves.reader import open_save
from paddlebox.serving.follow import Follower, Reported, Served
from paddlebox.serving.gate import Gate
from paddlebox.store.remote import shown
from paddlebox.tools.publish.folder import FolderSink
from paddlebox.tools.publish.redis_sink import RedisSink
from paddlebox.tools.publish.sink import Change, Sink, id_of

log = logging.getLogger("paddlebox")

# Retries while another process writes, such as that of a trainer that was just killed.
_LOCKED_S, _LOCKED_TRIES = 0.2, 300
_RETRY_S, _MOST_RETRY_S = 1.0, 60.0  # between two tries after another error

#: Returns the results, and whether to try again.
CatchUp = Callable[[], tuple[list[Served], bool]]


def sink_of(place: str, precision: str) -> Sink:
    """Raises: StoreError, ConfigError."""
    return RedisSink(place, precision) if is_redis(place) else FolderSink(place, precision)


class Turn(Closing):
    """The right to publish the saves of a folder, which one process has at a time."""

    def __init__(self, saves: Path) -> None:
        self._path, self._guard = saves / "publish.lock", threading.Lock()
        self._descriptor: int | None = None

    def take(self) -> None:
        """Raises: StoreLockedError if another process has it; OSError."""
        with self._guard:
            if self._descriptor is not None:
                return
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(descriptor)
                raise StoreLockedError(
                    f"{self._path}: another process publishes these saves, expected none: it is "
                    "that of a run that was killed, and ends by itself, or a second run"
                ) from error
            self._descriptor = descriptor

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class SinkFollower:
    """Publishes the newest save to a sink. open_sink: returns the sink. newest: the name of the
    save to publish; empty: none yet."""

    def __init__(
        self, saves: Path, place: str, open_sink: Callable[[], Sink], newest: Callable[[], str]
    ) -> None:
        self._saves, self._open_sink, self._newest = saves, open_sink, newest
        self._place = place
        self.failure = Reported(place).failure

    def catch_up(self) -> tuple[list[Served], bool]:
        """Raises: StoreLockedError."""
        name = ""
        try:
            name = self._newest()
            return (self._publish(name) if name else []), False
        except StoreLockedError:
            raise
        except Exception as error:  # the next try may succeed
            return self.failure(name or self._saves, error), True

    def _publish(self, name: str) -> list[Served]:
        started = time.perf_counter()
        sink, save = self._open_sink(), open_save(self._saves / name)
        held = sink.held()
        if held == id_of(save):
            return []
        sink.write(Change(save, held))
        number, seconds = int(save.meta["pass_number"]), time.perf_counter() - started
        newest = event_time(save.meta)
        return [Served(self._place, name, number, time.time(), seconds, event_time=newest)]


class Worker(threading.Thread):
    """Calls catch_up after each `wake`, and again, at growing intervals, after a failure. report:
    called with each result. then: workers to wake after each call."""

    def __init__(
        self,
        catch_up: CatchUp,
        report: Callable[[Served], None],
        then: Sequence[Worker] = (),
    ) -> None:
        super().__init__(daemon=True)
        self._catch_up, self._report, self._next = catch_up, report, then
        self._woken, self._ends = threading.Event(), False

    def wake(self) -> None:
        self._woken.set()

    def end(self) -> None:
        """Let it catch up once more and end."""
        self._ends = True
        self._woken.set()

    def run(self) -> None:
        wait = None
        ends = False
        while not ends:
            self._woken.wait(wait)
            self._woken.clear()
            ends = self._ends
            failed = self._once()
            for worker in self._next:
                worker.wake()
            wait = min(2 * (wait or _RETRY_S), _MOST_RETRY_S) if failed else None

    def _once(self) -> bool:
        """Returns whether to try again."""
        for _ in range(_LOCKED_TRIES):
            try:
                results, failed = self._catch_up()
            except StoreLockedError as error:
                locked = error
                time.sleep(_LOCKED_S)
                continue
            for served in results:
                self._report(served)
            return failed
        log.error("publish: %s", locked)
        return True


class _File:
    """The export file, and which save it has: the other sinks get no save before it."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self.newest = ""

    def catch_up(self) -> tuple[list[Served], bool]:
        """Raises: StoreLockedError."""
        try:
            results, failed = self._follower.catch_up(), self._follower.failed
            self.newest = self._follower.newest() or ""
        except StoreLockedError:
            raise
        except Exception as error:  # the next try may succeed
            return self._follower.failure(self._follower.path, error), True
        return results, failed


def _newest_in(saves: Path) -> str:
    """The name of the newest complete save; empty: none yet. Raises: CorruptionError."""
    return donefile.last(saves) or ""


def follow(
    saves: Path, publish: PublishConfig, bounds: Bounds, requests: TextIO, answers: TextIO
) -> None:
    """Publish the saves in a trainer's OUT until `requests` ends. A line of `requests` means that a
    save may be complete; `answers` gets each `Served` as a line of JSON."""
    writing, turn = threading.Lock(), Turn(saves)
    file = None
    if publish.file:
        gate = Gate(publish.gate_files, bounds) if publish.gate_files else None
        path, precision, onnx = Path(publish.file), publish.precision, publish.onnx
        file = _File(Follower(saves, path, precision=precision, gate=gate, onnx=onnx))

    def report(served: Served) -> None:
        with writing:
            print(json.dumps(asdict(served)), file=answers, flush=True)

    def newest() -> str:
        turn.take()
        return file.newest if file is not None else _newest_in(saves)

    def read() -> None:
        try:
            while requests.readline():
                first.wake()
        finally:
            first.end()

    sinks = []
    for place in publish.to:
        open_sink = partial(sink_of, place, publish.precision)
        sinks.append(Worker(SinkFollower(saves, shown(place), open_sink, newest).catch_up, report))
    catch_up = file.catch_up if file is not None else lambda: ([], False)
    first = Worker(catch_up, report, sinks)
    threading.Thread(target=read, daemon=True).start()
    for sink in sinks:
        sink.start()
    first.run()  # in this thread, because an export builds Paddle programs
    for sink in sinks:
        sink.end()
    for sink in sinks:
        sink.join()
    turn.close()
