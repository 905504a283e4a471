"""Run dirs whose passes a test makes: it feeds columns as a training does, and pushes gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from paddlebox._native import core
from paddlebox.config import Config, Slots
from paddlebox.data.options import LoadOptions
from paddlebox.store.group import ALL_KEYS
from paddlebox.store.table_set import StagedSet, TableSet
from paddlebox.training.config_changes import description
from tests.support.configs import make_config

MIB = 1 << 20


class StoredRun:
    """A run of one rank, or one rank of several: the rows of other keys are left out."""

    def __init__(
        self,
        store: Path,
        config: Config,
        slots: Slots,
        ranks: int = 1,
        key_range: tuple[int, int] = ALL_KEYS,
        **options: Any,
    ) -> None:
        self.config, self.slots, self._ranks, self._own = config, slots, ranks, key_range
        self.group = TableSet(
            config.tables,
            folder=store,
            slots=slots if len(config.tables) > 1 else None,
            hbm_budget_bytes=64 * MIB,
            mem_budget_bytes=8 * MIB,
            **{"compaction": None, **options},
        )
        self._passes = 0

    def feed(self, **columns: Sequence[Any]) -> list[np.ndarray]:
        """(S) the feasigns of each sparse slot, over all rows of columns of Arrow."""
        schema = LoadOptions(self.config.data, self.slots).schema()
        chunk = core.parse_columns(schema, [pa.record_batch(columns)])
        assert not chunk.bad_lines, chunk.first_bad
        lengths, feasigns = chunk.sample(chunk.instances)
        slots = len(self.slots.sparse)
        slot_of = np.repeat(np.tile(np.arange(slots), chunk.instances), lengths)
        return [feasigns[slot_of == slot] for slot in range(slots)]

    def train(self, of_slot: Sequence[np.ndarray]) -> None:
        """A pass that pushes each feasign of (S) slots once, and its commit. The gradients are
        those of the keys, whatever else is in the pass."""
        self._passes += 1
        staged, keys = self._staged(of_slot, train=True)
        self.group.begin(staged)
        show_click, nothing = np.array([[1, 0]], np.float32), np.empty(0, np.int32)
        one = np.array([0, 1], np.int32)
        for table, part, own in zip(self.group.members, staged.parts, keys, strict=True):
            columns = np.arange(table.config.embedx_dim + 3, dtype=np.uint64)
            gradients = ((own[:, None] >> columns) % np.uint64(16)).astype(np.float32) / 16
            for row, gradient in zip(part.row_of_key, gradients, strict=True):  # batches of one
                ids = np.array([row], np.int32)
                table.native.push_pooled(ids, one, 1, True, show_click, nothing, gradient[None])
        self.group.end(self._passes)
        self.group.commit(
            pass_number=self._passes,
            cursor={"pass": self._passes, "ranks": self._ranks},
            config=description(self.config, self.slots),
        )

    def pulled(self, slot: str, feasigns: np.ndarray) -> np.ndarray:
        """(n, 1 + D) float32, embed_w and embedx as evaluation pulls them for (n) feasigns."""
        names = [sparse.name for sparse in self.slots.sparse]
        of_slot = [feasigns if name == slot else feasigns[:0] for name in names]
        staged, keys = self._staged(of_slot, train=False)
        self.group.begin(staged)
        table = self.slots.tables(self.group.names)[names.index(slot)]
        member, part = self.group.members[table], staged.parts[table]
        places = np.searchsorted(keys[table], core.keys_of(feasigns))
        rows = np.empty((len(feasigns), member.config.embedx_dim + 1), np.float32)
        each = np.arange(len(feasigns) + 1, dtype=np.int32)
        member.native.pull_pooled(part.row_of_key[places], each, 1, False, rows)
        self.group.abandon(evaluation=True)
        return rows

    def _staged(
        self, of_slot: Sequence[np.ndarray], train: bool
    ) -> tuple[StagedSet, list[np.ndarray]]:
        """The staged pass, and the keys of each table."""
        keys, slots = [], []
        tables = self.slots.tables(self.group.names)
        for table in range(len(self.group.members)):
            mine = [slot for slot in range(len(of_slot)) if tables[slot] == table]
            of_table = np.concatenate([core.keys_of(of_slot[slot]) for slot in mine])
            numbers = np.repeat(mine, [len(of_slot[slot]) for slot in mine])
            distinct, first = np.unique(of_table, return_index=True)  # the lowest slot is first
            own = (distinct >= np.uint64(self._own[0])) & (distinct <= np.uint64(self._own[1]))
            keys.append(distinct[own])
            slots.append(numbers[first][own].astype(np.uint16))
        staged = self.group.stage(np.concatenate(keys), np.concatenate(slots), train=train)
        return staged, keys


@contextmanager
def stored_run(store: Path, slots: Slots, **sections: Any) -> Iterator[StoredRun]:
    """sections: of the config; `data.format` is parquet."""
    table = {"embedx_dim": 4, "embedx_threshold": 0.15}  # a vector from the second show on
    sections = {"table": table, **sections}
    sections["data"] = {"format": "parquet", **sections.get("data", {})}
    run = StoredRun(store, make_config(**sections), slots)
    try:
        yield run
    finally:
        run.group.close()
