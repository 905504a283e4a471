"""The inputs of a model: sizes and positions."""

from __future__ import annotations

from dataclasses import dataclass

from paddlebox.config.fields import Fields
from paddlebox.errors import ConfigError
from paddlebox.nn import JoinedTables, PooledSlots, TableSlots


@dataclass(frozen=True)
class Inputs:
    """The sizes of a batch, as a model needs them to create its layers."""

    #: S, sparse slots of the first table, and for models that use `pooled_slots` of all tables;
    #: with sequences, the cells of `fields`.
    slots: int
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

    def pooled_slots(self, use_cvm: bool) -> PooledSlots | JoinedTables:
        """Create the sparse part of a model whose slots have vectors of one width."""
        if self.more:
            own = self.slots - sum(table.slots for table in self.more)
            first = TableSlots(own, self.embedx_dim, self.table, self.counts)
            return JoinedTables([first, *self.more], use_cvm)
        return PooledSlots(self.slots, self.embedx_dim, use_cvm, self.table, self.counts)

    def width(self, of_slot: int) -> int:
        """S * of_slot + W, the width of the result of `paddlebox.nn.flat`."""
        return self.slots * of_slot + self.dense_width
