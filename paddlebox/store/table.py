"""Table: a set of one table, and what a program asks of that table alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox.config import TableConfig
from paddlebox.store.life import SaveFilter
from paddlebox.store.options import TableOptions
from paddlebox.store.staged import sorted_unique_keys
from paddlebox.store.table_set import TableSet

__all__ = ["Table", "sorted_unique_keys"]


class Table(TableSet):
    """A table, and the store in `TableOptions.folder`.

    Args:
        config: layout, accessor and rules.
        options: how it is opened; default: `TableOptions()`.
        slot_rates: of slot 0, 1, ...: what the learning rates of its rows are multiplied by;
            `config.slot_learning_rates` by the order of slots. Empty: 1 for all.
        changes: fields of `TableOptions` that differ from options, such as folder.

    Raises: as `TableSet`.
    """

    def __init__(
        self,
        config: TableConfig,
        options: TableOptions | None = None,
        *,
        slot_rates: Sequence[float] = (),
        **changes: Any,
    ) -> None:
        super().__init__([config], options, slot_rates=[slot_rates], **changes)

    @property
    def config(self) -> TableConfig:
        return self.first.config

    @property
    def folder(self) -> Path | None:
        return self.first.folder

    def read_all(self) -> tuple[np.ndarray, np.ndarray]:
        """As `TieredTable.read_all`."""
        return self.first.read_all()

    def lookup(
        self, feasigns: np.ndarray, chosen: Mapping[str, Any] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """As `TieredTable.lookup`."""
        return self.first.lookup(feasigns, chosen)

    def rows_of_base(
        self, visit: Callable[[np.ndarray, np.ndarray], None], *, day: int | None = None
    ) -> SaveFilter:
        """As `TieredTable.rows_of_base`."""
        return self.first.rows_of_base(visit, day=day)

    def rows_of_delta(
        self, visit: Callable[[np.ndarray, np.ndarray], None], *, day: int | None = None
    ) -> SaveFilter:
        """As `TieredTable.rows_of_delta`."""
        return self.first.rows_of_delta(visit, day=day)

    def compact(self, *, full: bool = False) -> None:
        """As `TieredTable.compact`."""
        self.first.compact(full=full)
