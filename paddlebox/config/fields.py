"""The positions of slots in the inputs of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from paddlebox.config.check import nearest
from paddlebox.config.models import ModelConfig
from paddlebox.config.slots import Slots
from paddlebox.errors import ConfigError


@dataclass(frozen=True)
class Fields:
    """The positions of all slots. Spans are [begin, end). C = cells: one per pooled slot,
    max_length per sequence. W = floats of all dense slots, and of the click priors after them."""

    cells: Mapping[str, tuple[int, int]]  # sparse slot -> its span in C
    dense: Mapping[str, tuple[int, int]]  # dense slot -> its span in W, encoded if the model does
    sequences: Mapping[str, int]  # sequence -> column of its length, from W on
    click_priors: int = 0  # floats of click priors (models/click_prior.py)

    @property
    def cell_count(self) -> int:
        """C"""
        return max((end for _, end in self.cells.values()), default=0)

    @property
    def dense_width(self) -> int:
        """W"""
        return max((end for _, end in self.dense.values()), default=0) + self.click_priors

    def encoded(self, columns: Sequence[int], click_priors: int) -> Fields:
        """The positions if each float of a dense slot becomes so many columns, and click priors of
        so many floats follow. REQUIRES: neither has been done."""
        at = [0, *accumulate(columns)]
        dense = {name: (at[begin], at[end]) for name, (begin, end) in self.dense.items()}
        more = at[-1] + click_priors - len(columns)
        moved = {name: place + more for name, place in self.sequences.items()}
        return replace(self, dense=dense, sequences=moved, click_priors=click_priors)

    def check(self, names: Sequence[str], key: str) -> None:
        """Raises: ConfigError, with the key of the config, if a name is no sparse or dense slot."""
        known = [*self.cells, *self.dense]
        for name in names:
            if name not in known:
                raise ConfigError(f"{key}: no slot {name!r}{nearest(name, known)}")


def fields_of(slots: Slots, sequences: Sequence[str] = ()) -> Fields:
    """The positions of slots of one table. The ids of `sequences` are fed one by one. Raises:
    ConfigError if one is not a sparse slot, or has no max_length."""
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


def click_slots(model: ModelConfig, slots: Slots) -> tuple[int, ...]:
    """(K) the sparse slots with click priors, by position: those that the model reads, except
    sequences, or those of them that `click_prior` names. None without `click_prior`."""
    if not model.has_click_priors:
        return ()
    left_out, read = {*model.sequences}, model.slots or [slot.name for slot in slots.sparse]
    if isinstance(model.click_prior, tuple):
        left_out |= {*read} - {*model.click_prior}
    return tuple(
        number
        for number, slot in enumerate(slots.sparse)
        if slot.name in read and slot.name not in left_out
    )


def click_cells(model: ModelConfig, slots: Slots) -> tuple[int, ...]:
    """(K) the cells of `click_slots`."""
    cells = fields_of(slots, model.sequences).cells
    return tuple(cells[slots.sparse[number].name][0] for number in click_slots(model, slots))
