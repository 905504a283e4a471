"""CompactionThread: merges segments during training (compaction.py decides which)."""

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

_BATCH_BYTES = 512 << 20  # inputs of one commit: about a second of work
_PARALLEL_MERGES = min(8, len(os.sched_getaffinity(0)))
_NICE = 10  # training goes first


def _yield_to_training() -> None:
    # On Linux each thread has its own priority.
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


class CompactionThread:
    """Each time it is woken, it plans, merges and commits until nothing is due.

    Args:
        plan, merge, commit: as in `Compactor`.
        cancel: ends the running merges soon.
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
        """Makes merges urgent and waits until done() is true or no merge is left; logs why it
        waits. Returns the seconds it waited. Raises the error of a merge in the background."""
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
        """Waits until no merge is due. Raises the error of a merge in the background."""
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
