"""What the stages of a pass do and wait for, threads that work in order, and how many of them.

    read ─▶ parse ─▶ key ─▶ stage ─▶ pack ─▶ train ─▶ commit

Each stage has three sums a pass: its work, what it waited for the stage before it (nothing to do),
and for the stage after it (no room). Seconds are wall time of a thread, added over its threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from paddlebox import _native
from paddlebox.closing import Closing
from paddlebox.data.trace import Tracer

STAGES = ("read", "parse", "key", "stage", "pack", "train", "commit")
WORK, BEFORE, AFTER = "work_s", "before_s", "after_s"
_CATEGORIES = {WORK: "work", BEFORE: "waits for the stage before", AFTER: "waits for the next"}
_SHORT_WAIT_NS = 50_000  # shorter waits are counted, but would only fill a trace

T = TypeVar("T")
R = TypeVar("R")


class StageTimes:
    """The sums of one pass, by stage. Any thread may add to them."""

    def __init__(self, tracer: Tracer | None = None, pass_number: int = 0) -> None:
        self._tracer = tracer
        self._pass_number = pass_number
        self._lock = threading.Lock()
        self._sums = {stage: dict.fromkeys((WORK, BEFORE, AFTER), 0) for stage in STAGES}
        self._spans: dict[str, tuple[int, int]] = {}

    def add(self, stage: str, kind: str, begin_ns: int, end_ns: int) -> None:
        """kind: WORK, BEFORE or AFTER, of the calling thread. Times are of perf_counter_ns."""
        self.count(stage, kind, begin_ns, end_ns)
        self.trace(stage, kind, begin_ns, end_ns)

    def trace(self, stage: str, kind: str, begin_ns: int, end_ns: int) -> None:
        """Only into the trace."""
        if self._tracer is not None and (kind == WORK or end_ns - begin_ns >= _SHORT_WAIT_NS):
            name = stage if kind == WORK else f"{stage} {_CATEGORIES[kind]}"
            self._tracer.add(name, _CATEGORIES[kind], begin_ns, end_ns, self._pass_number)

    def count(self, stage: str, kind: str, begin_ns: int, end_ns: int) -> None:
        """As `add`, for what no thread stood still for: a pass that waited to be taken up."""
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

    def seconds(self, stage: str, kind: str = WORK) -> float:
        return self._sums[stage][kind] / 1e9

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
    """A number of threads that may change while they work."""

    now: int
    most: int

    def more(self) -> None:
        self.now = min(self.most, self.now + 1)

    def all(self) -> None:
        self.now = self.most


class InOrder(Closing, Generic[T, R]):
    """Iterates over work(item) for the items of a source, in their order, made by several threads.

    A thread takes an item from the source itself, one thread at a time, and works on it where it
    lies warm. At most `ahead` items are being worked on or wait to be taken. An error of source or
    work is raised in its place, and is the last.

    Args:
        threads: looked at with each result, so that whoever holds it may change it.
        times: get what `worker` and `consumer` do, and the source as stage `source` unless None.
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
        self._end: int | None = None  # items of the source, once it is known
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
        """Ends the threads, after the item each is at. May be called twice."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        for _ in self._workers:
            self._room.release()
        for thread in self._workers:
            thread.join()
        self._ready.clear()
        close = getattr(self._source, "close", None)  # of a generator: it may hold a file open
        if close is not None:
            close()

    def _wanted(self) -> int:
        return max(1, self._threads.now)

    def _adjust(self) -> None:
        """Starts threads that are missing; those too many leave by themselves."""
        with self._changed:
            missing = 0 if self._stopped or self._end is not None else self._wanted()
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
            done = self._stopped or self._end is not None or self._running > self._wanted()
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
            except BaseException as error:  # raised again where results are taken
                self._put(number, None, error)
            else:
                self._put(number, result, None)

    def _next_item(self) -> tuple[int, Any, bool]:
        """(its number, the item, whether there was one). Holds `_reading`."""
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


_BESIDE_TRAINING = 0.7  # of a pass's training time is what loading the next may take
_WAITS = 0.01  # of a pass: a trainer that waits longer for a stage gets it more threads


class LoadThreads(Threads):
    """How many threads read, parse and key the next pass: as few as are done in time, since each
    takes a core from the trainer; all of them while the trainer waits.
    """

    def __init__(self, most: int) -> None:
        super().__init__(most, most)
        self._chosen = most  # `now` is above it where the trainer waited
        self._least = 1  # fewer were tried, and were too few

    def after_pass(self, thread_s: float, train_s: float, waited_s: float) -> None:
        """Chooses for the pass that is loaded next.

        Args:
            thread_s: work of the last load, all threads together. train_s: of the pass that
                trained beside it. waited_s: how long the trainer waited for that load.
        """
        needed = -int(-thread_s // max(1e-9, _BESIDE_TRAINING * train_s))
        if waited_s > _WAITS * train_s:
            self._least = min(self.most, 2 * self._chosen)
        self.now = self._chosen = min(self.most, max(self._least, needed))


class PackThreads(Threads):
    """How many threads pack batches: one more whenever the trainer waited for batches. Those with
    nothing to do sleep, so none is taken away."""

    _EVERY = 32  # batches between two looks

    def watch(self, batches: InOrder[Any, Any]) -> Iterator[Any]:
        """Goes through batches, and adds a thread where they come too slowly."""
        waited, since = 0, 0
        for number, batch in enumerate(batches):
            if number % self._EVERY == 0:
                now = time.perf_counter_ns()
                # For the first one everybody waits.
                if number > 0 and batches.waited_ns - waited > _WAITS * (now - since):
                    self.more()
                waited, since = batches.waited_ns, now
            yield batch
