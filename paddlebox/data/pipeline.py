"""The stages of a pass: their times, a trace of them, and the threads that run them.

    read ─▶ parse ─▶ key ─▶ stage ─▶ pack ─▶ train ─▶ commit

A stage has three times per pass: of its work, of its waits for the stage before (nothing to do),
and of those for the stage after it (no space for results). They are wall times, summed over the
threads of the stage.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from paddlebox import _native
from paddlebox.closing import Closing
from paddlebox.store.files import store_errors

STAGES = ("read", "parse", "key", "stage", "pack", "train", "commit")
WORK, BEFORE, AFTER = "work_s", "before_s", "after_s"
_CATEGORIES = {WORK: "work", BEFORE: "waits for the stage before", AFTER: "waits for the next"}
_SHORT_WAIT_NS = 50_000  # shorter waits are counted, but not put into a trace
MAX_EVENTS = 200_000  # of a trace; about 25 MB of JSON

T = TypeVar("T")
R = TypeVar("R")


class Tracer:
    """Collects the events of all threads, for Perfetto (ui.perfetto.dev) or chrome://tracing. It
    keeps the newest `max_events`, so that the file of a run of any length is bounded."""

    def __init__(self, max_events: int = MAX_EVENTS) -> None:
        # (name, category, thread, begin ns, length ns, pass); appending to a deque takes no lock.
        self._events: deque[tuple[str, str, str, int, int, int]] = deque(maxlen=max_events)
        self._added = 0

    def add(
        self, name: str, category: str, begin_ns: int, end_ns: int, pass_number: int = 0
    ) -> None:
        """Add an event of the calling thread. begin_ns, end_ns: from time.perf_counter_ns."""
        # Threads are identified by name: a new thread with the name of an ended one continues its
        # line.
        thread = threading.current_thread().name
        self._added += 1  # not atomic: the reported number may be too small
        self._events.append((name, category, thread, begin_ns, end_ns - begin_ns, pass_number))

    def write(self, path: Path) -> None:
        """Write Chrome's JSON object format. Raises: StoreError if the file cannot be written."""
        process = os.getpid()
        events = list(self._events)
        start = min((event[3] for event in events), default=0)
        threads = {name: tid for tid, name in enumerate(sorted({e[2] for e in events}), 1)}
        lines = [
            {"ph": "M", "name": "thread_name", "pid": process, "tid": tid, "args": {"name": name}}
            for name, tid in threads.items()
        ]
        for name, category, thread, begin, length, number in events:
            own = {"ph": "X", "name": name, "cat": category, "args": {"pass": number}}
            times = {"ts": (begin - start) / 1e3, "dur": length / 1e3}  # microseconds
            lines.append({**own, "pid": process, "tid": threads[thread], **times})
        dropped = {"events_dropped": max(0, self._added - len(events))}
        content = {"displayTimeUnit": "ms", "otherData": dropped, "traceEvents": lines}
        with store_errors(str(path), "write the trace"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content))


class StageTimes:
    """The times of one pass, by stage. Any thread may add to them."""

    def __init__(self, tracer: Tracer | None = None, pass_number: int = 0) -> None:
        self._tracer = tracer
        self.pass_number = pass_number
        self._lock = threading.Lock()
        self._sums = {stage: dict.fromkeys((WORK, BEFORE, AFTER), 0) for stage in STAGES}
        self._spans: dict[str, tuple[int, int]] = {}

    def add(self, stage: str, kind: str, begin_ns: int, end_ns: int) -> None:
        """Add a time of the calling thread to the sums and to the trace. kind: WORK, BEFORE or
        AFTER. begin_ns, end_ns: from time.perf_counter_ns."""
        self.count(stage, kind, begin_ns, end_ns)
        self.trace(stage, kind, begin_ns, end_ns)

    def trace(self, stage: str, kind: str, begin_ns: int, end_ns: int) -> None:
        """As `add`, but only to the trace."""
        if self._tracer is not None and (kind == WORK or end_ns - begin_ns >= _SHORT_WAIT_NS):
            name = stage if kind == WORK else f"{stage} {_CATEGORIES[kind]}"
            self._tracer.add(name, _CATEGORIES[kind], begin_ns, end_ns, self.pass_number)

    def count(self, stage: str, kind: str, begin_ns: int, end_ns: int) -> None:
        """As `add`, but only to the sums: a pass waited, but no thread."""
        with self._lock:
            self._sums[stage][kind] += end_ns - begin_ns
            if kind == WORK:
                first, last = self._spans.get(stage, (begin_ns, end_ns))
                self._spans[stage] = (min(first, begin_ns), max(last, end_ns))

    @contextmanager
    def time(self, stage: str, kind: str = WORK) -> Iterator[None]:
        begin = time.perf_counter_ns()
        try:
            yield
        finally:
            self.add(stage, kind, begin, time.perf_counter_ns())

    def seconds(self, stage: str) -> float:
        return self._sums[stage][WORK] / 1e9

    def as_dict(self) -> dict[str, dict[str, float]]:
        with self._lock:
            return {
                stage: {kind: ns / 1e9 for kind, ns in sums.items()}
                for stage, sums in self._sums.items()
            }

    def spans(self) -> dict[str, list[float]]:
        """[begin, end] of each stage, from its first work to its last, in seconds since 1970."""
        offset = time.time_ns() - time.perf_counter_ns()
        with self._lock:
            return {
                stage: [round((ns + offset) / 1e9, 4) for ns in span]
                for stage, span in self._spans.items()
            }


@dataclass
class Threads:
    now: int
    most: int


class InOrder(Closing, Generic[T, R]):
    """Iterates over work(item) for the items of a source, in order. Several threads do the work.

    Each thread reads its items from the source itself, so that they are in the cache of its core.
    Only one thread reads at a time. At most `ahead` items are in work or waiting for the consumer.
    An error of the source or of work is raised in place of the result, and ends the iteration.

    `worker`, `consumer` and `source_stage` are the stages whose times are added. The number of
    threads is read again after each result.
    """

    def __init__(
        self,
        source: Iterator[T],
        work: Callable[[T], R],
        threads: Threads,
        *,
        ahead: int,
        times: StageTimes,
        worker: str,
        consumer: str,
        source_stage: str | None = None,
    ) -> None:
        self._source = source
        self._work = work
        self._threads = threads
        self._times = times
        self._worker, self._consumer, self._source_stage = worker, consumer, source_stage
        self._room = threading.Semaphore(ahead)
        self._reading = threading.Lock()  # guards the source and _read
        self._read = 0
        self._changed = threading.Condition()  # guards what follows
        self._ready: dict[int, tuple[R | None, BaseException | None]] = {}
        self._end: int | None = None  # number of items of the source, once it is known
        self._taken = 0
        self._stopped = False
        self._workers: list[threading.Thread] = []
        self._running = 0
        self.waited_ns = 0  # by the consumer
        self._adjust()

    def __iter__(self) -> Iterator[R]:
        return self

    def __next__(self) -> R:
        begin = time.perf_counter_ns()
        with self._changed:
            while self._taken not in self._ready:
                if self._stopped or self._end == self._taken:
                    raise StopIteration
                self._changed.wait()
            result, error = self._ready.pop(self._taken)
            self._taken += 1
        end = time.perf_counter_ns()
        self.waited_ns += end - begin
        self._times.add(self._consumer, BEFORE, begin, end)
        self._room.release()
        if error is not None:
            self.close()
            raise error
        self._adjust()
        return result  # type: ignore[return-value]

    def close(self) -> None:
        """End the threads, each after its current item. Further calls have no effect."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        for _ in self._workers:
            self._room.release()
        for thread in self._workers:
            thread.join()
        self._ready.clear()
        close = getattr(self._source, "close", None)  # a generator may hold a file open
        if close is not None:
            close()

    def _adjust(self) -> None:
        """Start missing threads. Superfluous ones end by themselves."""
        with self._changed:
            missing = 0 if self._stopped or self._end is not None else max(1, self._threads.now)
            missing -= self._running
            if missing <= 0:
                return
            self._running += missing
        for _ in range(missing):
            name = f"paddlebox-{self._worker}-{len(self._workers)}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._workers.append(thread)
            thread.start()

    def _leaves(self) -> bool:
        with self._changed:
            superfluous = self._running > max(1, self._threads.now)
            done = superfluous or self._stopped or self._end is not None
            self._running -= done
            return done

    def _run(self) -> None:
        _native.core.release_thread_affinity()
        while not self._leaves():
            with self._times.time(self._worker, AFTER):
                self._room.acquire()
            begin = time.perf_counter_ns()
            with self._reading:
                self._times.add(self._worker, BEFORE, begin, time.perf_counter_ns())
                number, item, found = self._next_item()
            if not found:
                self._room.release()
                continue
            try:
                with self._times.time(self._worker):
                    result = self._work(item)
            except BaseException as error:  # `__next__` raises it
                self._put(number, None, error)
            else:
                self._put(number, result, None)

    def _next_item(self) -> tuple[int, Any, bool]:
        """Its number, the item, whether there was one. REQUIRES: the caller holds `_reading`."""
        number = self._read
        if self._stopped or self._end is not None:
            return number, None, False
        begin = time.perf_counter_ns()
        try:
            item = next(self._source)
        except StopIteration:
            with self._changed:
                self._end = number
                self._changed.notify_all()
            return number, None, False
        except BaseException as error:
            with self._changed:
                self._end = number + 1
            self._put(number, None, error)
            return number, None, False
        finally:
            if self._source_stage is not None:
                self._times.add(self._source_stage, WORK, begin, time.perf_counter_ns())
        self._read += 1
        return number, item, True

    def _put(self, number: int, result: R | None, error: BaseException | None) -> None:
        with self._changed:
            self._ready[number] = (result, error)
            if number == self._taken:
                self._changed.notify_all()


_BESIDE_TRAINING = 0.7  # loading the next pass may take this share of a pass's training time
_WAITS = 0.01  # a stage gets more threads if the trainer waits for it longer than this share


class LoadThreads(Threads):
    """Chooses the smallest number of threads that load the next pass in time, because each takes a
    core from the trainer. While the trainer waits, all threads run."""

    def __init__(self, most: int) -> None:
        super().__init__(most, most)
        self._chosen = most  # `now` is larger if the trainer waited
        self._least = 1  # fewer threads have been too slow

    def after_pass(self, thread_s: float, train_s: float, waited_s: float) -> None:
        """Choose the number for the next load. thread_s: work of the last load, summed over
        threads. train_s: time of the pass that trained meanwhile. waited_s: how long the trainer
        waited for that load."""
        needed = -int(-thread_s // max(1e-9, _BESIDE_TRAINING * train_s))
        if waited_s > _WAITS * train_s:
            self._least = min(self.most, 2 * self._chosen)
        self.now = self._chosen = min(self.most, max(self._least, needed))


class PackThreads(Threads):
    """One more thread packs batches whenever the trainer has waited for them. The number never
    decreases, because idle threads sleep."""

    _EVERY = 32  # batches between two checks

    def watch(self, batches: InOrder[Any, Any]) -> Iterator[Any]:
        """Iterate over the batches, and add a thread if they come too slowly."""
        waited, since = 0, 0
        for number, batch in enumerate(batches):
            if number % self._EVERY == 0:
                now = time.perf_counter_ns()
                # The trainer always waits for the first batch.
                if number > 0 and batches.waited_ns - waited > _WAITS * (now - since):
                    self.now = min(self.most, self.now + 1)
                waited, since = batches.waited_ns, now
            yield batch


_MAX_THREADS = 8  # if they are chosen while running
_MAX_PACK_THREADS = 4


def _cores(most: int) -> int:
    return max(1, min(most, len(os.sched_getaffinity(0))))


def load_threads(number: int) -> Threads:
    """The threads that read, parse and key. number: 0: chosen while running, at most 8."""
    return Threads(number, number) if number else LoadThreads(_cores(_MAX_THREADS))


def pack_threads(number: int) -> PackThreads:
    """The threads that pack batches. number: 0: chosen while running, at most half the cores."""
    most = max(1, _cores(2 * _MAX_PACK_THREADS) // 2)
    return PackThreads(number or 1, number or most)
