"""Sequences: slots whose ids a model reads one by one, in order. Also the labels of several tasks.

The pulling operator sees a sequence of max_length L as L slots with one id each. If an instance has
fewer ids, its last slots are empty. The fused pull then returns (B, cells, width) without pooling.
Its backward is unchanged. An id in two sequences uses one row. The lengths of the sequences are
appended to the dense features, one float per sequence; a model computes its mask from them.

    history  7 9 | 4 |         L = 3, B = 3
    offsets  0     2   3   3
    parted   0 1 2 2   3 3 3   3 3 3

With `dedup_slots`, the cells of a sequence share their ids: each id of the batch is one list
(ops/row/shared_ids.h), however many cells have it.

Letters: B = instances, S = sparse slots of a table, C = cells: one for each pooled slot, L for each
sequence.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from paddlebox.config import Slots, SlotType
from paddlebox.config.check import did_you_mean
from paddlebox.errors import ConfigError


class Positions:
    """The cells of the slots of one table. shares: (C) uint8, 1 for the cells that share their ids.

    Args:
        sequences: names of the slots that are sequences.
        of_slot: the table of each sparse slot; empty: all are of this table.
        table: number of this table.
        sharing: names of the sequences whose cells share their ids.
    """

    def __init__(
        self,
        slots: Slots,
        sequences: Sequence[str],
        of_slot: Sequence[int] = (),
        table: int = 0,
        sharing: Collection[str] = (),
    ) -> None:
        own = of_slot or (table,) * len(slots.sparse)
        every = list(zip(slots.sparse, slots.positions(sequences), own, strict=True))
        chosen = [(slot.name in sequences, places) for slot, places, of in every if of == table]
        places = np.array([count for _, count in chosen], np.int64)
        self._slot_of_cell = np.repeat(np.arange(len(places)), places)
        starts = np.repeat(np.cumsum(places) - places, places)
        self._place_of_cell = np.arange(len(starts)) - starts
        self._pooled = np.array([not sequence for sequence, _ in chosen])[self._slot_of_cell]
        names = [slot.name for slot, _, of in every if of == table]
        self.shares = np.array([name in sharing for name in names], np.uint8)[self._slot_of_cell]
        self.shares[self._pooled] = 0
        self._sequences = [number for number, (sequence, _) in enumerate(chosen) if sequence]
        self._slots = len(places)

    @property
    def any(self) -> bool:
        return bool(self._sequences)

    @property
    def cells(self) -> int:
        """C"""
        return len(self._slot_of_cell)

    def repeats(self, list_of: np.ndarray, without: np.ndarray | None = None) -> np.ndarray:
        """(B * C) uint8, 1 for the cells of pooled slots that repeat the list of the instance
        before. list_of: (B * S) the list of each slot (ops/row/lists.h). without: (B) the instances
        whose ids are left out; None: none."""
        of_slots = list_of.reshape(-1, self._slots)
        same = np.zeros(of_slots.shape, np.uint8)
        same[1:] = of_slots[1:] == of_slots[:-1]
        if without is not None:
            same[1:][without[1:] != without[:-1]] = 0
        return np.ascontiguousarray(same[:, self._slot_of_cell] * self._pooled).reshape(-1)

    def part(self, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The offsets of the cells, (B * C + 1) int32, and the lengths of the sequences, (B, number
        of sequences) float32. offsets: (B * S + 1) of the slots. Raises: ValueError for a sequence
        over its max_length, which only merged instances have."""
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


def sparse_numbers(slots: Slots, call: str, names: Sequence[str]) -> list[int]:
    """Positions of these slots among the sparse slots. Raises: ConfigError, naming the call, for
    another name."""
    known = [slot.name for slot in slots.sparse]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigError(
            f"{call}: {', '.join(unknown)}: not a sparse slot; expected {', '.join(known)}"
            + did_you_mean(unknown, known)
        )
    return [known.index(name) for name in names]


def task_columns(slots: Slots) -> tuple[list[int], list[int]]:
    """The columns of the feeder's floats with further labels (all but the first), and with dense
    features."""
    return _columns(slots, SlotType.LABEL), _columns(slots, SlotType.DENSE)


def columns_beside(slots: Slots) -> dict[str, int]:
    """The columns of the feeder's floats with the weight, counts and the mark of late lines, by
    slot."""
    kinds = dict.fromkeys(slot.type for slot in slots.beside)
    names = [slot.name for kind in kinds for slot in slots.beside if slot.type is kind]
    return dict(zip(names, (at for kind in kinds for at in _columns(slots, kind)), strict=True))


def _columns(slots: Slots, kind: SlotType) -> list[int]:
    found: list[int] = []
    at = 0
    for slot in slots.feed_dense:
        if slot.type is kind:
            found.extend(range(at, at + slot.dim))
        at += slot.dim
    return found
