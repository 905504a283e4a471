"""KeyCounts: how often feasigns without a row have occurred, up to each pass (docs/design.md)."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from paddlebox.errors import PassError


class KeyCounts:
    """Several passes may be counted before the first of them is committed; each commit gets the
    counts up to its own pass.

    Args:
        native: the core's table, which has the filter that counts.
    """

    def __init__(self, native: Any) -> None:
        self._native = native
        self._mutex = threading.Lock()
        self._counted = 0  # calls of count
        self._before: dict[int, bytes] = {}  # count not committed yet -> the filter before it

    def count(self, keys: np.ndarray, counts: np.ndarray) -> int:
        """Returns the number of this count, for `after` and `take_back`."""
        with self._mutex:
            self._before[self._counted + 1] = self._native.admission_state()
            self._native.count_keys(
                np.ascontiguousarray(keys, np.uint64), np.ascontiguousarray(counts, np.uint32)
            )
            self._counted += 1
            return self._counted

    @property
    def last(self) -> int:
        """The number of the last count; 0 before the first."""
        with self._mutex:
            return self._counted

    def take_back(self, counted: int) -> None:
        """Undoes a count. Raises: PassError if it is not the last one."""
        with self._mutex:
            if counted != self._counted:
                raise PassError(
                    f"count {counted} is not the last one, {self._counted}: counts are taken back "
                    "in the reverse order"
                )
            self._native.set_admission_state(self._before.pop(counted))
            self._counted -= 1

    def after(self, counted: int) -> np.ndarray:
        """The filter after a count. The states before it are dropped."""
        with self._mutex:
            following = counted + 1
            state = self._before.get(following)
            if state is None:
                state = self._native.admission_state()
            for done in [number for number in self._before if number < following]:
                del self._before[done]
            return np.frombuffer(state, np.uint8)
