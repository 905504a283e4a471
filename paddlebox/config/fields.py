"""Where a model finds the slots of an instance among its inputs."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paddlebox.config.slots import Slots
from paddlebox.errors import ConfigError


@dataclass(frozen=True)
class Fields:
    """Spans are [begin, end).

    Letters: C = cells: a place for each slot that is pooled, max_length for a sequence.
    W = floats of all dense slots.
    """

    cells: Mapping[str, tuple[int, int]]  # of each sparse slot, among C
    dense: Mapping[str, tuple[int, int]]  # of each dense slot, among W
    sequences: Mapping[str, int]  # column of a sequence's length, among W + their number

    @property
    def cell_count(self) -> int:
        return max((end for _, end in self.cells.values()), default=0)

    @property
    def dense_width(self) -> int:
        """W"""
        return max((end for _, end in self.dense.values()), default=0)

    def check(self, names: Sequence[str], key: str) -> None:
        """Raises: ConfigError naming one that is neither a sparse nor a dense slot. key: who names
        them."""
        known = [*self.cells, *self.dense]
        for name in names:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
                raise ConfigError(f"{key}: no slot {name!r}; {hint}")


def fields_of(slots: Slots, sequences: Sequence[str] = ()) -> Fields:
    """The fields of slots that are all of one table.

    Args:
        sequences: sparse slots that are fed id by id.

    Raises: ConfigError for one that is no sparse slot, or has no max_length.
    """
    at = 0
    cells = {}
    for slot, places in zip(slots.sparse, slots.positions(sequences), strict=True):
        cells[slot.name] = (at, at + places)
        at += places
    at = 0
    dense = {}
    for slot in slots.dense:
        dense[slot.name] = (at, at + slot.dim)
        at += slot.dim
    ordered = [slot.name for slot in slots.sparse if slot.name in sequences]
    return Fields(cells, dense, {name: at + place for place, name in enumerate(ordered)})
