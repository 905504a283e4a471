"""Fetches rows a step early, while the dense part of the previous step computes.

*Late* rows are the rows that the previous step changes. They are fetched after their owner has
changed them, so a rank gets the same bits as without prefetching. Only the owner knows which of its
rows the ranks change. It tells each rank ahead of the steps which rows are late.

Letters: R = ranks, u = unique rows of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Late(NamedTuple):
    """Which rows of a step are late."""

    asked: list[np.ndarray]  # (R) bool, by row that each rank needs from this one
    own: np.ndarray  # (u) bool, by row that this rank needs


class Changes:
    """Tracks which rows of this owner the previous step changes.

    Args:
        rows: number of the owner's rows in this pass.
        train: whether steps change rows.
    """

    def __init__(self, rows: int, train: bool) -> None:
        self._changed, self._train = np.zeros(rows, np.bool_), train
        self._before: list[np.ndarray] = []

    def late(self, asked: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Find the late rows of the next step. Call it once per step, in order.

        Args:
            asked: (R) int32 rows that each rank needs, -1 for none.

        Returns: (R) bool.
        """
        late = [self._changed[ids] & (ids >= 0) for ids in asked]
        if self._train:
            for ids in self._before:
                self._changed[ids] = False
            self._before = [ids[ids >= 0] for ids in asked]
            for ids in self._before:
                self._changed[ids] = True
        return late


def pack(late: Sequence[Sequence[np.ndarray]], rank: int) -> np.ndarray:
    """Pack the late rows of several steps for a rank, one bit per row. late: (steps, R) bool."""
    return np.packbits(np.concatenate([of_step[rank] for of_step in late]))


def unpack(found: Sequence[np.ndarray], counts: np.ndarray) -> list[np.ndarray]:
    """Unpack what the owners packed.

    Args:
        found: (R) the bits of each owner.
        counts: (steps, R) int64 number of rows that this rank needs from each owner.

    Returns: (steps) (u) bool.
    """
    parts = [
        np.split(np.unpackbits(bits, count=int(of_owner.sum())), np.cumsum(of_owner)[:-1])
        for bits, of_owner in zip(found, counts.T, strict=True)
    ]
    return [
        np.concatenate([of_owner[step] for of_owner in parts]).astype(np.bool_)
        for step in range(len(counts))
    ]
