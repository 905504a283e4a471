"""Table: a set of one table, with the methods that only a single table has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.config import TableConfig
from paddlebox.store.life import SaveFilter
from paddlebox.store.options import TableOptions
from paddlebox.store.table_set import TableSet
from paddlebox.store.tiered_table import sorted_unique_keys

__all__ = ["Table", "sorted_unique_keys"]


class Table(TableSet):
    """Opens a table, and its store if there is a folder.

    Args:
        config: the table, section `table` of docs/config.md; a mapping is validated.
        options: how to open it; None: the defaults of `TableOptions`.
        slot_rates: (S) factors of the learning rates by sparse slot (`learning_rate_factor`).
        changes: fields of `TableOptions` that differ from options, such as `folder` of the store
            (None: nothing is committed), `mem_budget_bytes` of the rows in memory between passes
            (at least 1 MiB), `hbm_budget_bytes` of the rows of passes, `seed` and `read_only`.

    Raises: as `TableSet`.
    """

    def __init__(
        self,
        config: TableConfig | Mapping[str, Any],
        options: TableOptions | None = None,
        *,
        slot_rates: Sequence[float] = (),
        **changes: Any,
    ) -> None:
        super().__init__([config], options, slot_rates=[slot_rates], **changes)

    @property
    def config(self) -> TableConfig:
        """The config of the table."""
        return self.first.config

    @property
    def folder(self) -> Path | None:
        """The folder of the store; None without one."""
        return self.first.folder

    # ---- rows

    def read_all(self) -> tuple[np.ndarray, np.ndarray]:
        """All rows: (n) uint64 feasigns in the order of keys, and (n, words) float32 rows
        (docs/formats/row.md). Waits for the commit in the background. Raises: PassError if the rows
        in memory differ from the last commit; CorruptionError."""
        return self.first.read_all()

    def lookup(
        self, feasigns: np.ndarray, chosen: Mapping[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The committed rows of feasigns: (n) integers in any order; -1 is 2^64 - 1. chosen: a
        SaveFilter, as a dict; None: all rows.

        Returns: (n) bool, which feasigns have a row that the filter chooses, and the fields of the
            rows (`fields_of_rows`), each with n values or n lines. Those of other feasigns are 0.

        Raises: ValueError for feasigns that are not one list of integers; as `TieredTable.lookup`.
        """
        given = np.asarray(feasigns)
        if given.ndim != 1 or (given.dtype.kind not in "iu" and given.size):
            raise ValueError(
                f"feasigns: found {given.dtype} of shape {given.shape}, expected (n) integers"
            )
        unsigned = given.astype(np.int64 if given.dtype.kind == "i" else np.uint64).view(np.uint64)
        order = np.argsort(_native.core.keys_of(unsigned))
        found, rows = self.first.lookup(unsigned[order], chosen)
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        rows = np.where(found[:, None], rows, np.float32(0))[back]
        return found[back], fields_of_rows(dict(self.first.native.layout), rows)

    def rows_of_base(
        self, visit: Callable[[np.ndarray, np.ndarray], None], *, day: int | None = None
    ) -> SaveFilter:
        """`TieredTable.visit` with the rows of a base (PaddleBox's save mode 2). day: of the save;
        default: the property `day`. Give the filter to `TableLife.reset_delta` once the rows are
        saved."""
        return self.first.visit(visit, self.first.save_filter(day=day))

    def rows_of_delta(
        self, visit: Callable[[np.ndarray, np.ndarray], None], *, day: int | None = None
    ) -> SaveFilter:
        """As `rows_of_base`, for a delta (save mode 1): rows that changed enough since a save."""
        return self.first.visit(visit, self.first.save_filter(delta=True, day=day))

    def compact(self, *, full: bool = False) -> None:
        """As `Compactor.compact`. Raises: StoreError without a folder of its own."""
        self.first.compactor.compact(full=full)


def fields_of_rows(layout: Mapping[str, int], rows: np.ndarray) -> dict[str, np.ndarray]:
    """The fields of (n, words) float32 rows: slot uint16, has_embedx bool, show, click, delta_score
    float32, last_seen_day, life_seq uint32 and embed_w float32 (n); embed_state, embedx_w,
    embedx_state float32 (n, width), and if the layout has them expand_w, expand_state and
    counts."""
    words = rows.view(np.uint32)
    fields = {
        "slot": (words[:, 0] & 0xFFFF).astype(np.uint16),
        "has_embedx": (words[:, 0] >> 16 & 1).astype(bool),
        "show": rows[:, 1],
        "click": rows[:, 2],
        "delta_score": rows[:, 3],
        "last_seen_day": words[:, 4],
        "life_seq": words[:, 5],
        "embed_w": rows[:, 6],
    }
    counts = rows.shape[1] - layout["counts"]
    begin = 7
    for name, width in (
        ("embed_state", layout["embed_state"]),
        ("embedx_w", layout["embedx_dim"]),
        ("embedx_state", layout["embedx_state"]),
    ):
        fields[name] = rows[:, begin : begin + width]
        begin += width
    if layout["expand_dim"]:
        fields["expand_w"] = rows[:, begin : begin + layout["expand_dim"]]
        fields["expand_state"] = rows[:, begin + layout["expand_dim"] : counts]
    if layout["counts"]:
        fields["counts"] = rows[:, counts:]
    return fields
