"""How often feasigns without a row have occurred: the admission filter, as of each pass."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from paddlebox.errors import PassError


class KeyCounts:
    """Passes are counted ahead of their commit; each commit has the counts up to its own pass.

    Args:
        native: the core's table, whose filter it is.
    """

    def __init__(self, native: Any) -> None:
        self._native = native
        self._mutex = threading.Lock()
        self._counted = 0  # calls of count
        self._before: dict[int, bytes] = {}  # the filter before each that no commit has

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
        """The number of the last count; 0 before one."""
        with self._mutex:
            return self._counted

    def take_back(self, counted: int) -> None:
        """Raises: PassError for a count that is not the last."""
        with self._mutex:
            if counted != self._counted:
                raise PassError(
                    f"count {counted} is not the last one, {self._counted}: passes are given up in "
                    "the reverse order"
                )
            self._native.set_admission_state(self._before.pop(counted))
            self._counted -= 1

    def after(self, counted: int) -> np.ndarray:
        """The filter as of a count. What came before it is forgotten."""
        with self._mutex:
            following = counted + 1
            state = self._before.get(following)
            if state is None:
                state = self._native.admission_state()
            for done in [number for number in self._before if number < following]:
                del self._before[done]
            return np.frombuffer(state, np.uint8)
