"""CompactionThread: merges segments while training goes on (compaction.py says which)."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from paddlebox.store.compaction import Merge

log = logging.getLogger("paddlebox")

_BATCH_BYTES = 512 << 20  # of inputs merged before they are committed: about a second of work
_PARALLEL_MERGES = min(8, len(os.sched_getaffinity(0)))
_NICE = 10  # training goes first


def _yield_to_training() -> None:
    # On Linux a priority is a thread's own; another thread's is not touched.
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


class CompactionThread:
    """Plans, merges and commits until nothing is due, each time it is woken.

    Args:
        plan: the merges that are due, of at most so many bytes of inputs.
        merge: one merge; urgent: without waiting for readers.
        commit: names the outputs of finished merges in place of their inputs.
        cancel: makes the merges under way end soon.
    """

    def __init__(
        self,
        plan: Callable[[int], list[Merge]],
        merge: Callable[[Merge, bool], dict[str, Any]],
        commit: Callable[[list[tuple[Merge, dict[str, Any]]]], None],
        cancel: Callable[[], None],
    ) -> None:
        self._plan, self._merge, self._commit, self._cancel = plan, merge, commit, cancel
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
        """Something was committed: look whether merges are due."""
        with self._mutex:
            self._due = True
            self._mutex.notify_all()

    def raise_error(self) -> None:
        """Raises what went wrong in the background, once."""
        with self._mutex:
            error, self._error = self._error, None
        if error is not None:
            raise error

    def wait_until(self, done: Callable[[], bool], why: Callable[[], str] | None = None) -> float:
        """Makes merging urgent and waits until done() or nothing is left to merge; returns the
        seconds that took, and logs why. Raises what goes wrong meanwhile."""
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
        """Waits until nothing is due. Raises what went wrong."""
        self.wait_until(lambda: False)

    def close(self) -> None:
        """Cancels what is under way and waits for it. May be called twice."""
        with self._mutex:
            self._closed = True
            self._mutex.notify_all()
        self._cancel()
        self._thread.join()
        self._pool.shutdown()
        if self._error is not None:  # nobody asked since: the store is whole, but not merged
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
                    if not self._closed:  # a cancelled merge is no error
                        self._error = error

    def _run(self) -> None:
        while not self._closed:
            merges = self._plan(_BATCH_BYTES)
            if not merges:
                return
            finished, errors = [], []
            tasks = [self._pool.submit(self._merge, merge, self._urgent > 0) for merge in merges]
            for merge, task in zip(merges, tasks, strict=True):
                try:
                    finished.append((merge, task.result()))
                except Exception as error:
                    errors.append(error)
            if finished:
                self._commit(finished)
            if errors:
                raise errors[0]
