"""What is made durable beside training: one call at a time, on a thread of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Background:
    """The thread of commits. One caller waits before it starts the next call, so that it hears what
    went wrong in the one before.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._running: Future[Any] | None = None

    def start(self, call: Callable[[], T]) -> Future[T]:
        """Runs call on the thread; `wait` raises what goes wrong in it."""
        future = self._thread.submit(call)
        self._running = future
        return future

    def wait(self) -> float:
        """Waits for the call that was started last and raises what went wrong in it, once; returns
        the seconds that took."""
        running, started = self._running, time.perf_counter()
        if running is not None:
            running.exception()  # waits; a signal that ends this loses nothing
            self._running = None
            running.result()
        return time.perf_counter() - started

    def raise_error(self) -> None:
        """Raises what went wrong in the call that was started last, if it is over; waits for
        nothing."""
        if self._running is not None and self._running.done():
            self.wait()

    def settle(self) -> None:
        """As `wait`, and for a call that a signal kept `start` from noting."""
        self.wait()
        self._thread.submit(int).result()

    def close(self) -> None:
        """Ends the thread after what it was given. May be called twice."""
        self._thread.shutdown()
