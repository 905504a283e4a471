"""The inputs of a model: sizes and positions."""

from __future__ import annotations

from dataclasses import dataclass

from paddlebox.config.fields import Fields
from paddlebox.errors import ConfigError
from paddlebox.nn import PooledSlots, TableSlots


@dataclass(frozen=True)
class Inputs:
    """The sizes of a batch, as a model needs them to create its layers."""

    slots: int  # S, sparse slots of the table; with sequences, the cells of `fields`
    embedx_dim: int  # D
    dense_width: int  # W, floats of all dense slots
    table: str = ""  # name of the table
    more: tuple[TableSlots, ...] = ()  # the other tables
    tasks: tuple[str, ...] = ("click",)  # (T) names of the labels
    fields: Fields | None = None  # the position of each slot; None if there are several tables
    counts: int = 0  # counts of a row besides show and click

    def of_one_table(self) -> Fields:
        """The position of each slot. Raises: ConfigError if there are several tables."""
        if self.fields is None:
            raise ConfigError("this model reads the slots of one table: remove extra_tables")
        return self.fields

    def pooled_slots(self, use_cvm: bool) -> PooledSlots:
        """Create the sparse part of a model that reads one table."""
        return PooledSlots(self.slots, self.embedx_dim, use_cvm, self.table, self.counts)

    def width(self, of_slot: int) -> int:
        """S * of_slot + W, the width of the result of `paddlebox.nn.flat`."""
        return self.slots * of_slot + self.dense_width
