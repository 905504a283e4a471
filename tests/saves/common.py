"""A small table and passes over it, for the tests of saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import paddle

from paddlebox import ops
from paddlebox.config import TableConfig
from paddlebox.config.table import LifeConfig, RowPrecision
from paddlebox.saves.reader import Save
from paddlebox.store.committer import When
from paddlebox.store.table import Table, sorted_unique_keys
from paddlebox.store.tiered_table import TieredTable

D = 4
FIRST_DAY = 19723  # 2024-01-01
BOOKKEEPING = (3, 5)  # delta_score and life_seq: words that a save leaves out
Rows = dict[int, bytes]


def config(row_precision: RowPrecision = RowPrecision.FLOAT32, **life: Any) -> TableConfig:
    settings = {"delta_threshold": 0.0, "base_threshold": 0.5, **life}
    return TableConfig(
        embedx_dim=D,
        embedx_threshold=0.5,
        row_precision=row_precision,
        life=LifeConfig(**settings),
    )


def open_table(folder: Path | None, table: TableConfig | None = None, **settings: Any) -> Table:
    paddle.disable_static()
    defaults: dict[str, Any] = {"mem_budget_bytes": 1 << 20, "max_segment_bytes": 1 << 16}
    if folder is None:
        defaults["mem_budget_bytes"] = 64 << 20
    return Table(table or config(), folder=folder, **{**defaults, **settings})


def train(
    table: Table,
    feasigns: np.ndarray,
    number: int,
    *,
    day: int = FIRST_DAY,
    show: float = 5,
    background: bool = False,
) -> None:
    """A pass that pushes each feasign once, show times, with gradients that follow from both."""
    staged = table.stage(sorted_unique_keys(feasigns), day=day)
    table.begin(staged)
    grad = np.full((len(feasigns), 3 + D), show, np.float32)
    grad[:, 1] = (feasigns % 2).astype(np.float32)
    grad[:, 2:] = np.sin(feasigns[:, None].astype(np.float64) + np.arange(1 + D) + number) * 0.1
    ops.push_box_sparse(paddle.to_tensor(feasigns.view(np.int64)), paddle.to_tensor(grad))
    table.end(number)
    when = When.BACKGROUND if background else When.NOW
    dense = {"w": np.full(3, number, np.float32)}
    table.commit(when=when, pass_number=number, day=day, dense=dense)


def feasigns(first: int, count: int) -> np.ndarray:
    return np.arange(first, first + count, dtype=np.uint64)


def base_of(table: Table | TieredTable) -> Rows:
    """What a base saved now would hold, by the table's own word."""
    held: Rows = {}

    def visit(found: np.ndarray, rows: np.ndarray) -> None:
        rows = rows.copy()
        rows[:, list(BOOKKEEPING)] = 0
        held.update(zip(found.tolist(), (row.tobytes() for row in rows), strict=True))

    one = table.first if isinstance(table, Table) else table
    one.visit(visit, one.save_filter())
    return held


def apply(saves: list[Save]) -> Rows:
    """The documented way to put a chain together, a row at a time."""
    held: Rows = {}
    for save in saves:
        for gone in save.deleted():
            for feasign in gone.tolist():
                del held[feasign]  # a deletion is of a row that is served
        for found, rows in save:
            held.update(zip(found.tolist(), (row.tobytes() for row in rows), strict=True))
    return held


def files_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
