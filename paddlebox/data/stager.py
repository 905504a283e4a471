"""Stager: holds the open pass and the next one, and stages the rows of their parts."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager

import numpy as np

from paddlebox import _native
from paddlebox.data.passes import Pass, Staged
from paddlebox.data.pipeline import AFTER
from paddlebox.store.table_set import TableSet

log = logging.getLogger(__name__)


class Stager:
    """Stages one part at a time in its own thread, once the part before it has begun to train.
    `current` is the open pass, `next` the loaded one; None if there is none."""

    def __init__(self, table: TableSet) -> None:
        self._table = table
        self._thread = ThreadPoolExecutor(
            1, "paddlebox-stage", initializer=_native.core.release_thread_affinity
        )
        self._lock = threading.Lock()  # guards `current`, `next` and their attribute `staged`
        self.current: Pass | None = None
        self.next: Pass | None = None

    @property
    def newest(self) -> Pass | None:
        return self.next or self.current

    def add(self, loaded: Pass) -> None:
        with self._lock:
            self.next = loaded
            self._stage_when_free()

    def open_next(self) -> Pass:
        assert self.next is not None
        with self._lock:
            opened = self.current = self.next
            self.next = None
            self._stage_when_free()
        return opened

    def part_begun(self, current: Pass) -> None:
        """The staged part of the open pass has begun to train. Stage the next part."""
        with self._lock:
            current.staged = None
            current.begun += 1
            current.free_ns = time.perf_counter_ns()
            self._stage_when_free()

    def end(self) -> None:
        """Close the open pass. An evaluation pass that waited for this is staged now."""
        with self._lock:
            self.current = None
            self._stage_when_free()

    def forget(self) -> Pass | None:
        """Close the open pass without a commit."""
        forgotten, self.current = self.current, None
        return forgotten

    def take_back(self) -> Pass:
        """Forget the loaded pass, and drop its staged rows."""
        assert self.next is not None
        with self._lock:
            taken, self.next = self.next, None
            self._unstage(taken)
        return taken

    @contextmanager
    def rearranging(self, loaded: Pass) -> Iterator[None]:
        """A context for changing the order of the loaded pass, which may change its parts."""
        with self._lock:
            if loaded.staged is not None and len(loaded.loaded.ranges) > 1:
                self._drop(loaded)
                loaded.stats.hits.update(dict.fromkeys(loaded.stats.hits, 0))
                loaded.stats.hits_of.clear()
            elif loaded.staged is not None:
                wait([loaded.staged])
            yield
            self._stage_when_free()

    def close(self) -> None:
        self._thread.shutdown()
        if self.current is not None:
            self._drop(self.current)
        if self.next is not None:
            self._unstage(self.next)

    def _unstage(self, loaded: Pass) -> None:
        """Drop what was staged of a pass that has not begun, and its counts of keys."""
        self._drop(loaded)
        if loaded.counted is not None:
            self._table.uncount_keys(loaded.counted)
            loaded.counted = None

    def _stage_when_free(self) -> None:
        """Begin to stage the next part of the open pass, or of the loaded one if the open pass has
        none left. The caller holds the lock."""
        current = self.current
        for owner in (current, self.next):
            if owner is None or owner.begun == len(owner.loaded.ranges):
                continue
            # An evaluation pass reads the rows that a training pass has trained, so it waits for
            # the end of the training pass.
            must_wait = current is not None and current.train and not owner.train
            if owner.staged is None and not must_wait:
                owner.staged = self._thread.submit(self._stage, owner, owner.begun)
            return

    def _stage(self, owner: Pass, number: int) -> Staged:
        started, times = time.perf_counter_ns(), owner.stats.times
        times.count("key", AFTER, owner.free_ns, started)
        with times.time("stage"):
            if owner.to_count is not None:
                # Not earlier: parts of the previous pass must be staged without these counts.
                owner.counted = self._table.count_keys(*owner.to_count)
                owner.to_count = None
            part = owner.loaded.part(number)
            staged = self._table.stage(part.keys, part.slots, train=owner.train, day=owner.day)
            row_of_position = np.full(owner.loaded.instances.unique_keys, -1, np.int32)
            row_of_position[part.positions] = staged.row_of_key
        owner.stats.add_staged(staged)
        owner.free_ns = time.perf_counter_ns()
        return Staged(part, staged, row_of_position)

    def _drop(self, owner: Pass) -> None:
        """Drop the part of a pass that is staged but has not begun, if there is one."""
        staged, owner.staged = owner.staged, None
        try:
            if staged is not None:
                self._table.drop_staged(staged.result().pass_table)
        except Exception as error:
            log.debug("a staged pass could not be dropped: %s", error)
