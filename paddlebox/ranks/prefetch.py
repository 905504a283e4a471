"""Rows that travel early: while the dense part of a step computes, rows of the next one come from
their owners, but for those that this step changes, which follow when their owner has changed them.
A rank sees the same bits as without.

Only an owner knows what all ranks change; it tells each, ahead of steps, which rows are late.

Letters: R = ranks, u = unique rows of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Late(NamedTuple):
    """Of one step."""

    asked: list[np.ndarray]  # (R) bool: of the rows that each rank asks of this owner
    own: np.ndarray  # (u) bool: of those that this rank asks of all owners


class Changes:
    """Which rows of an owner the step before changes.

    Args:
        rows: of the owner, in this pass. train: False: steps change nothing.
    """

    def __init__(self, rows: int, train: bool) -> None:
        self._changed, self._train = np.zeros(rows, np.bool_), train
        self._before: list[np.ndarray] = []

    def late(self, asked: Sequence[np.ndarray]) -> list[np.ndarray]:
        """(R) bool: of the rows that each rank asks for in the next step, those that the step
        before it changes. asked: (R) int32, -1 for no row; each step once, in their order."""
        late = [self._changed[ids] & (ids >= 0) for ids in asked]
        if self._train:
            for ids in self._before:
                self._changed[ids] = False
            self._before = [ids[ids >= 0] for ids in asked]
            for ids in self._before:
                self._changed[ids] = True
        return late


def pack(late: Sequence[Sequence[np.ndarray]], rank: int) -> np.ndarray:
    """What an owner tells a rank, of several steps: one bit a row. late: of each step (R) bool."""
    return np.packbits(np.concatenate([of_step[rank] for of_step in late]))


def unpack(found: Sequence[np.ndarray], counts: np.ndarray) -> list[np.ndarray]:
    """Of each step (u) bool. found: (R) what each owner has packed. counts: (steps, R) int64 of
    rows that were asked of each owner."""
    parts = [
        np.split(np.unpackbits(bits, count=int(of_owner.sum())), np.cumsum(of_owner)[:-1])
        for bits, of_owner in zip(found, counts.T, strict=True)
    ]
    return [
        np.concatenate([of_owner[step] for of_owner in parts]).astype(np.bool_)
        for step in range(len(counts))
    ]
