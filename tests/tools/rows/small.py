"""A small run, made without training: rows of three slots, some without an embedx, and a decay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from paddlebox import ops
from paddlebox._native import core, paddle
from paddlebox.config import Config
from paddlebox.store.table import Table, sorted_unique_keys
from paddlebox.training.config_changes import description
from tests.support.configs import make_config, make_slots

SLOTS = make_slots(click="label", user="sparse", item="sparse", tag={"hash": True})
DAY = 20000


def config_of(**sections: Any) -> Config:
    table = {"embedx_dim": 4, "embedx_threshold": 1.5, **sections.pop("table", {})}
    data = {"key_space": "per_slot", **sections.pop("data", {})}
    return make_config(table=table, data=data, **sections)


def feasigns_of(ids: np.ndarray) -> np.ndarray:
    """Feasigns of ids, of which slot id % 3 has each."""
    pairs = zip(ids.tolist(), (ids % 3).tolist(), strict=True)
    return np.array([core.feasign_in_slot(number, slot) for number, slot in pairs], np.uint64)


def push(table: Table, config: Config, ids: np.ndarray, number: int) -> None:
    """A pass that pushes each id once."""
    feasigns = feasigns_of(ids)
    order = np.argsort(core.keys_of(feasigns))
    feasigns, ids = feasigns[order], ids[order]
    slots = (ids % 3).astype(np.uint16)
    table.begin(table.stage(sorted_unique_keys(feasigns), slots, day=DAY + number))
    width = 3 + config.table.embedx_dim
    grad = np.random.default_rng(number).normal(0, 1, (len(ids), width)).astype(np.float32)
    grad[:, 0], grad[:, 1] = 1.0, ids % 2
    ops.push_box_sparse(paddle.to_tensor(feasigns.view(np.int64)), paddle.to_tensor(grad))
    table.end(number)
    table.commit(
        day=DAY + number,
        pass_number=number,
        dense={"w": np.full((2, 3), number, np.float32), "b": np.ones(2, np.float32)},
        cursor={"pass": number, "epoch": 0},
        config_hash=config.fingerprint(),
        config=description(config, SLOTS),
    )


def open_run(folder: Path, config: Config) -> Table:
    paddle.disable_static()
    return Table(
        config.table, folder=folder / "store", mem_budget_bytes=1 << 20, compaction=None,
        keep_versions=9, seed=config.seed,
    )  # fmt: skip


def make_run(folder: Path, config: Config, *passes: np.ndarray, decay: bool = True) -> Path:
    """A run with a version for each pass, and one for a decay after them."""
    with open_run(folder, config) as table:
        for number, ids in enumerate(passes, 1):
            push(table, config, ids, number)
        if decay:
            table.life.end_of_day(DAY + len(passes), 0.5)
    return folder


def ids(first: int, last: int) -> np.ndarray:
    return np.arange(first, last + 1, dtype=np.uint64)


def rows_in(run: Path, version: int | None = None) -> dict[int, bytes]:
    """The bytes of each row."""
    with Table(
        config_in(run).table, folder=run / "store", mem_budget_bytes=1 << 20, read_only=True,
        version=version, seed=config_in(run).seed,
    ) as table:  # fmt: skip
        feasigns, rows = table.read_all()
    return {int(feasign): row.tobytes() for feasign, row in zip(feasigns, rows, strict=True)}


def config_in(run: Path) -> Config:
    from paddlebox.store import run_config

    return run_config.of_newest(run)[0]


def digest_of(run: Path) -> str:
    with open_run(run, config_in(run)) as table:
        return table.digest()
