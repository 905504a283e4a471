"""Compactor: merges the segments of a store, in the background and on demand (compaction.py decides
which), within the bytes that the disk and the store's budget leave."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from paddlebox.errors import OutOfSpaceError
from paddlebox.store import compaction, files
from paddlebox.store.compaction import Merge, Policy
from paddlebox.store.erasures import Erasures
from paddlebox.store.options import TableOptions
from paddlebox.store.record import with_stamps
from paddlebox.store.version_store import VersionStore

log = logging.getLogger("paddlebox")

_ALL = 1 << 62  # bytes of inputs
_BATCH_BYTES = 512 << 20  # inputs of one commit: about a second of work
_PARALLEL_MERGES = min(8, len(os.sched_getaffinity(0)))
_NICE = 10  # training goes first


class DiskBudget:
    """budget_bytes: limit for all files of the store; 0: only the disk limits them."""

    def __init__(self, folder: Path, budget_bytes: int) -> None:
        self.folder = folder
        self.budget_bytes = budget_bytes

    def free_bytes(self) -> int:
        stat = os.statvfs(self.folder)
        free = stat.f_bavail * stat.f_frsize
        if self.budget_bytes:
            free = min(free, self.budget_bytes - files.used_bytes(str(self.folder)))
        return max(0, free)

    def check(self, needed: int, what: str) -> None:
        """Raises: OutOfSpaceError if fewer bytes are free. what: "<object> needs"."""
        free = self.free_bytes()
        if needed > free:
            raise OutOfSpaceError(f"{self.folder}: {what} {needed} bytes, {free} are free")

    def holds_pass(self, rows: int, row_bytes: int, stored: int) -> bool:
        return sum(_of_pass(rows, row_bytes, stored)) <= self.free_bytes()

    def check_pass(self, rows: int, row_bytes: int, stored: int) -> None:
        """Checks that a pass can be committed while a merge runs. row_bytes: of a stored row;
        stored: bytes in the store. Raises: OutOfSpaceError."""
        needed, reserve = _of_pass(rows, row_bytes, stored)
        free = self.free_bytes()
        if needed + reserve > free:
            budget = f", disk_budget_bytes {self.budget_bytes}" * bool(self.budget_bytes)
            raise OutOfSpaceError(
                f"{self.folder}: a pass of {rows} rows needs {needed} bytes to be committed and a "
                f"merge {reserve}, {free} are free{budget}; the pass is not started. Make room"
                f"{' or raise ssd.disk_budget_bytes' * bool(budget)}, and start again: the last "
                "commit stands"
            )
        if self.budget_bytes and free < self.budget_bytes // 5:
            log.warning(
                "%s: %d of disk_budget_bytes %d are left", self.folder, free, self.budget_bytes
            )


def _of_pass(rows: int, row_bytes: int, stored: int) -> tuple[int, int]:
    """Bytes of the segments of a pass, and of a merge of one range."""
    return segment_bytes(rows, row_bytes), stored // 64


def segment_bytes(rows: int, row_bytes: int) -> int:
    """An upper bound for the segments of so many rows, with keys, filters and fences."""
    return rows * (row_bytes + 8) * 11 // 10


def _yield_to_training() -> None:
    # On Linux each thread has its own priority.
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


class CompactionThread:
    """Plans, merges and commits until nothing is due. cancel: ends the running merges soon."""

    def __init__(self, compactor: Compactor, cancel: Callable[[], None]) -> None:
        self._compactor, self._cancel = compactor, cancel
        self._mutex = threading.Condition()
        self._due = False
        self._busy = False
        self._urgent = 0
        self._closed = False
        self._error: BaseException | None = None
        self._pool = ThreadPoolExecutor(
            _PARALLEL_MERGES, "paddlebox-merge", initializer=_yield_to_training
        )
        self._thread = threading.Thread(target=self._work, name="paddlebox-compact", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """A version was committed: starts the merges that are due."""
        with self._mutex:
            self._due = True
            self._mutex.notify_all()

    def raise_error(self) -> None:
        """Raises the error of a merge in the background, once."""
        with self._mutex:
            error, self._error = self._error, None
        if error is not None:
            raise error

    def wait_until(self, done: Callable[[], bool], why: Callable[[], str] | None = None) -> float:
        """Makes merges urgent and waits until done() or no merge is left; logs why. Returns the
        seconds waited. Raises: the error of a merge in the background."""
        if done():
            return 0.0
        started = time.perf_counter()
        if why is not None:
            log.warning("waiting for compaction: %s", why())
        with self._mutex:
            self._urgent += 1
            self._due = True
            self._mutex.notify_all()
            try:
                while not self._closed and self._error is None and (self._due or self._busy):
                    self._mutex.wait(0.1)
                    if done():
                        break
            finally:
                self._urgent -= 1
        self.raise_error()
        return time.perf_counter() - started

    def wait_idle(self) -> None:
        self.wait_until(lambda: False)

    def close(self) -> None:
        """Cancels the running merges and waits for their end. May be called twice."""
        with self._mutex:
            self._closed = True
            self._mutex.notify_all()
        self._cancel()
        self._thread.join()
        self._pool.shutdown()
        if self._error is not None:  # not raised yet; the store is intact, but not merged
            log.error("compaction failed: %s", self._error)
            self._error = None

    def _work(self) -> None:
        while True:
            with self._mutex:
                self._busy = False
                self._mutex.notify_all()
                self._mutex.wait_for(lambda: self._due or self._closed)
                if self._closed:
                    return
                self._due, self._busy = False, True
            try:
                self._run()
            except BaseException as error:
                with self._mutex:
                    if not self._closed:  # a cancelled merge is not an error
                        self._error = error

    def _run(self) -> None:
        while not self._closed:
            merges = self._compactor.plan(_BATCH_BYTES) or self._compactor.plan_erasures()
            if not merges:
                return
            finished, errors = [], []
            tasks = [
                self._pool.submit(self._compactor.merge, merge, self._urgent > 0)
                for merge in merges
            ]
            for merge, task in zip(merges, tasks, strict=True):
                try:
                    finished.append((merge, task.result()))
                except Exception as error:
                    errors.append(error)
            if finished:
                self._compactor.record(finished)
            if errors:
                raise errors[0]


class Compactor:
    """options: it uses compaction and disk_budget_bytes. settle: waits for the commit in the
    background."""

    def __init__(
        self,
        native: Any,
        versions: VersionStore,
        options: TableOptions,
        settle: Callable[[], object],
    ) -> None:
        self._native = native
        self._versions = versions
        self._settle = settle
        self.budget = DiskBudget(Path(versions.folder), options.disk_budget_bytes)
        self._policy = options.compaction
        self._dead: compaction.Dead = {}  # as of the last plan
        self._erasures = Erasures(versions)
        self._thread: CompactionThread | None = None
        if options.compaction is not None:
            self._thread = CompactionThread(self, native.cancel_merges)
        self.wake()

    def wake(self) -> None:
        if self._thread is not None:
            self._thread.wake()

    def make_room(self, rows: int) -> float:
        """Prepares for a pass: waits while there are too many segments, or they take too much
        space. Returns the seconds waited. Raises: OutOfSpaceError if the pass could not be
        committed; the error of a commit or merge in the background."""
        waited = 0.0
        if self._thread is not None:
            self._thread.raise_error()
            waited = self._thread.wait_until(lambda: not self._over_ceiling(), self._describe)
        stored = sum(segment["bytes"] for segment in self._versions.last.segments)
        row_bytes, unwritten = self._native.stored_row_bytes, self._native.unwritten_rows
        # The previous pass's commit needs space too. `settle` waits for the end of that commit.
        if unwritten and not self.budget.holds_pass(rows + unwritten, row_bytes, stored):
            self._settle()
        self.budget.check_pass(rows, row_bytes, stored)
        return waited

    def compact(self, *, full: bool = False) -> None:
        """Makes the merges that are due. With `full`, merges until no two segments overlap. Raises:
        OutOfSpaceError; the error of a commit or merge in the background."""
        self._settle()
        if self._thread is not None:
            self._thread.wait_idle()  # idle until the next commit
        while merges := self.plan(_ALL) or self.plan_erasures():
            self._make(merges)
        if full:
            dead = self._native.dead_shares()
            for merge in compaction.plan_all(self._versions.last.segments, dead):
                self._make([merge])

    def plan(self, limit: int) -> list[Merge]:
        with self._versions.committing:
            head = self._versions.head
        if head is None:
            return []
        self._dead = self._native.dead_shares()
        policy = self._policy or Policy()
        return compaction.plan(head.segments, head.live_rows, policy, limit, self._dead)

    def plan_erasures(self) -> list[Merge]:
        """Merges that remove erased rows. If there are none left, the keys leave the newest version
        too."""
        return self._erasures.plan()

    def merge(self, merge: Merge, urgent: bool) -> dict[str, Any]:
        """Writes segments that no version names yet. urgent: do not pause while rows are read."""
        self.budget.check(merge.bytes, f"a merge of {len(merge.inputs)} segments needs")
        return dict(self._native.merge(list(merge.inputs), urgent))

    def record(self, finished: list[tuple[Merge, dict[str, Any]]]) -> None:
        """Commits a version with the outputs of merges in place of their inputs."""
        gone = {id_ for merge, _ in finished for id_ in merge.inputs}
        made = with_stamps(s for _, result in finished for s in result["segments"])
        with self._versions.committing:
            last = self._versions.last
            segments = [*(s for s in last.segments if s["id"] not in gone), *made]
            live_rows = last.live_rows - sum(result["keys_gone"] for _, result in finished)
            self._versions.record(
                "compaction",
                segments=segments,
                live_rows=compaction.live_rows_within(segments, live_rows),
                bytes_written=last.bytes_with("compaction", made),
            )
            self._native.replace_segments(sorted(gone), made)
            self._versions.retention.drop_old()

    def close(self) -> None:
        if self._thread is not None:
            self._thread.close()
            self._thread = None

    def _make(self, merges: list[Merge]) -> None:
        self.record([(merge, self.merge(merge, True)) for merge in merges])

    def _shape(self) -> compaction.StoreShape:
        head = self._versions.head
        if head is None:
            return compaction.StoreShape(0, 0, 0)
        return compaction.shape(head.segments, head.live_rows, self._dead)

    def _over_ceiling(self) -> bool:
        policy, shape = self._policy, self._shape()
        return policy is not None and (
            shape.depth > policy.max_depth
            or (shape.bytes >= policy.min_bytes and shape.space_ratio > policy.space_ceiling)
        )

    def _describe(self) -> str:
        policy, shape = self._policy or Policy(), self._shape()
        return (
            f"{self._versions.folder}: {shape.bytes} bytes for {shape.live_bytes} of live rows "
            f"(ceiling {policy.space_ceiling:g} times), up to {shape.depth} segments over a key "
            f"(ceiling {policy.max_depth})"
        )
