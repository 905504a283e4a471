"""Sequences: slots whose ids a model takes one by one and in order, and labels of several tasks.

A sequence of max_length L is L slots to the pulling operator, one an id, the last ones empty where
an instance has fewer: the fused pull then gives (B, cells, width) without pooling anything, its
backward needs nothing new, and ids that two slots share share their row. The lengths, from which a
model makes its mask, stand behind the dense features, a float a sequence.

    history  7 9 | 4 |         L = 3, B = 3
    offsets  0     2   3   3
    parted   0 1 2 2   3 3 3   3 3 3

Letters: B = instances, S = sparse slots of a table, C = cells, the places of all its slots.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paddlebox.config import Slots


class Positions:
    """Of the slots of one table.

    Args:
        sequences: names of slots. of_slot: the table of each sparse slot. table: which one.
    """

    def __init__(
        self, slots: Slots, sequences: Sequence[str], of_slot: Sequence[int] = (), table: int = 0
    ) -> None:
        own = of_slot or (table,) * len(slots.sparse)
        every = zip(slots.sparse, slots.positions(sequences), own, strict=True)
        chosen = [(slot.name in sequences, places) for slot, places, of in every if of == table]
        places = np.array([count for _, count in chosen], np.int64)
        self._slot_of_cell = np.repeat(np.arange(len(places)), places)
        starts = np.repeat(np.cumsum(places) - places, places)
        self._place_of_cell = np.arange(len(starts)) - starts
        self._pooled = np.array([not sequence for sequence, _ in chosen])[self._slot_of_cell]
        self._sequences = [number for number, (sequence, _) in enumerate(chosen) if sequence]
        self._slots = len(places)

    @property
    def any(self) -> bool:
        return bool(self._sequences)

    @property
    def cells(self) -> int:
        """C"""
        return len(self._slot_of_cell)

    def part(self, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """offsets: (B * S + 1). Returns those of the cells, (B * C + 1) int32, and the lengths of
        the sequences, (B, their number) float32.

        Raises: ValueError for a sequence that is longer than its max_length, as only instances that
            were merged have them.
        """
        lengths = np.diff(offsets).reshape(-1, self._slots)
        of_cells = lengths[:, self._slot_of_cell]
        of_cells = np.where(self._pooled, of_cells, of_cells > self._place_of_cell)
        parted = np.zeros(of_cells.size + 1, np.int32)
        np.cumsum(of_cells.reshape(-1), out=parted[1:])
        if parted[-1] != offsets[-1]:
            raise ValueError(
                f"sequences: {offsets[-1] - parted[-1]} ids of the batch are beyond max_length: "
                "instances that are merged cannot hold sequences"
            )
        return parted, np.ascontiguousarray(lengths[:, self._sequences], np.float32)


def task_columns(slots: Slots) -> tuple[list[int], list[int]]:
    """Of the floats that the feeder holds: the columns of the labels but the first, and those of
    the dense features."""
    labels: list[int] = []
    features: list[int] = []
    at = 0
    for slot in slots.feed_dense:
        own = labels if slot.name in slots.tasks else features
        own.extend(range(at, at + slot.dim))
        at += slot.dim
    return labels, features
