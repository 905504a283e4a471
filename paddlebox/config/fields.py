"""The positions of slots in the inputs of a model."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paddlebox.config.slots import Slots
from paddlebox.errors import ConfigError


@dataclass(frozen=True)
class Fields:
    """The positions of all slots. Spans are [begin, end).

    C = number of cells: one per pooled slot, max_length per sequence. W = floats of all dense
    slots.
    """

    cells: Mapping[str, tuple[int, int]]  # sparse slot -> its span in C
    dense: Mapping[str, tuple[int, int]]  # dense slot -> its span in W
    sequences: Mapping[str, int]  # sequence -> column of its length, from W on

    @property
    def cell_count(self) -> int:
        """C"""
        return max((end for _, end in self.cells.values()), default=0)

    @property
    def dense_width(self) -> int:
        """W"""
        return max((end for _, end in self.dense.values()), default=0)

    def check(self, names: Sequence[str], key: str) -> None:
        """Check that names are slots.

        Args:
            names: the names.
            key: the key of the config that holds them, for messages.

        Raises:
            ConfigError: a name is neither a sparse nor a dense slot.
        """
        known = [*self.cells, *self.dense]
        for name in names:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
                raise ConfigError(f"{key}: no slot {name!r}; {hint}")


def fields_of(slots: Slots, sequences: Sequence[str] = ()) -> Fields:
    """The positions of slots that all belong to one table.

    Args:
        slots: the slots.
        sequences: sparse slots whose ids are fed one by one.

    Raises:
        ConfigError: a sequence is not a sparse slot, or has no max_length.
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
