"""What a model is fed."""

from __future__ import annotations

from dataclasses import dataclass

from paddlebox.config.fields import Fields
from paddlebox.errors import ConfigError
from paddlebox.nn import PooledSlots, TableSlots


@dataclass(frozen=True)
class Inputs:
    """Sizes of a batch, as a model sees them."""

    slots: int  # S, sparse slots of the table
    embedx_dim: int  # D
    dense_width: int  # W, floats of all dense slots
    table: str = ""  # its name
    more: tuple[TableSlots, ...] = ()  # further tables, with theirs
    tasks: tuple[str, ...] = ("click",)  # (T) names of the labels
    fields: Fields | None = None  # where each slot is; of one table. S counts its cells then

    def of_one_table(self) -> Fields:
        """Where each slot is. Raises: ConfigError for several tables."""
        if self.fields is None:
            raise ConfigError("this model reads slots of one table: leave extra_tables out")
        return self.fields

    def pooled_slots(self, use_cvm: bool) -> PooledSlots:
        """The sparse part of a model of one table."""
        return PooledSlots(self.slots, self.embedx_dim, use_cvm, self.table)

    def width(self, of_slot: int) -> int:
        """S * of_slot + W: what `paddlebox.nn.flat` makes."""
        return self.slots * of_slot + self.dense_width
