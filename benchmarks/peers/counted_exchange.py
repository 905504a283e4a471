"""Counts the messages, bytes and requests of many ranks, which are threads of one process.

Planning and exchange are those of a job (paddlebox/ranks). Only the table of a rank is simulated:
it has no values, and a row has an embedx or has none. many_ranks.py runs this module.

Letters: R = ranks, H = hosts, B = batch of a rank, C = columns.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import report

sys.path.insert(0, str(report.ROOT))

from paddlebox import _native
from paddlebox.config import HbmPlace, TableConfig
from paddlebox.config.trainer import RanksConfig, Wire
from paddlebox.ranks import World, exchange
from paddlebox.ranks.channel import DENSE
from paddlebox.ranks.messages import pack_ids
from paddlebox.ranks.plans import STEP, Step
from paddlebox.ranks.row_messages import BareMessages, RowFormat
from paddlebox.store.table_set import StagedSet
from paddlebox.store.tiered_table import StagedPass
from tests.ranks.threads import Counts, coordination

core = _native.core

#: (B, C) feasigns of a rank's batch, 0 for none. Arguments: the rank and the step.
Batches = Callable[[int, int], np.ndarray]
STAMP = 1
_PATIENCE_S = 3600.0  # 512 threads share the cores


@dataclass(frozen=True)
class Setting:
    """What is counted."""

    ranks: int  # R
    per_host: int
    steps: int
    dim: int = 16  # D
    bare: float = 0.0  # share of keys whose rows have no embedx
    dense: int = 1000  # values of a sum


@dataclass(frozen=True)
class Counted:
    """What was counted. All figures but the first two are means of a host and step."""

    waits: float  # exchanges between hosts, one after the other, of the step with most of them
    messages_waited_for: float  # of a rank, one after the other, of the step with most of them
    requests: float  # to the job's store
    most_messages: float  # sent and received by a host, of one exchange
    messages: float  # sent by a host
    sent_bytes: float  # without sums
    least_bytes: float  # ids, rows and gradients in their format, and nothing else
    sum_bytes: float

    @property
    def over_least(self) -> float:
        return self.sent_bytes / self.least_bytes


def mixed(feasigns: np.ndarray) -> np.ndarray:
    """uint64 keys that are spread evenly (splitmix64)."""
    keys = feasigns.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        keys = (keys ^ (keys >> np.uint64(shift))) * np.uint64(factor)
    return keys ^ (keys >> np.uint64(31))


class _Table:
    """What `SharedTables` use of a `TieredTable`. It is its own native table."""

    def __init__(self, rank: int, setting: Setting) -> None:
        self.name = f"counted{rank}"
        self.config = TableConfig(name=self.name, embedx_dim=setting.dim)
        self.options = SimpleNamespace(hbm_place=HbmPlace.HOST, threads=1, late_lines=False)
        self.native, self._bare = self, setting.bare
        self.has_embedx = np.empty(0, np.uint8)  # of each row of the pass

    def unregister(self) -> None: ...

    def stage(self, keys: np.ndarray, slots: np.ndarray, *, train: bool, day: int) -> StagedPass:
        del slots, day
        self.has_embedx = (keys % np.uint64(1000) >= int(1000 * self._bare)).astype(np.uint8)
        return StagedPass(STAMP, len(keys), np.arange(len(keys), dtype=np.int32), {}, train)


class _Core:
    """The functions of the core that read or change a table."""

    Table = core.Table

    @staticmethod
    def pull_into(table: _Table, ids: np.ndarray, rows: np.ndarray) -> None:
        del table, ids
        rows[:] = 0

    @staticmethod
    def have_embedx(table: _Table, ids: np.ndarray) -> np.ndarray:
        found: np.ndarray = table.has_embedx[ids]
        return found

    @staticmethod
    def push_planned(
        table: _Table, plan: np.ndarray, gradients: np.ndarray, late: bool
    ) -> None: ...


@contextmanager
def _simulated(setting: Setting) -> Iterator[None]:
    """Tables without rows, on the hosts of the setting."""
    hosts = ",".join(f"host{rank // setting.per_host}:1" for rank in range(setting.ranks))
    exchange.core = _Core  # type: ignore[assignment]
    try:
        with mock.patch.dict(os.environ, {"PADDLE_TRAINER_ENDPOINTS": hosts}):
            yield
    finally:
        exchange.core = core


def counted(setting: Setting, batches: Batches) -> Counted:
    """Runs one pass of R ranks and counts its steps. Staging is not counted."""
    counts, steps = Counts(), setting.steps

    def work(world: World) -> tuple[int, int, int]:
        return _pass_of(world, setting, batches, counts)

    with _simulated(setting):
        found = coordination(setting.ranks, work, setting.per_host, counts, _PATIENCE_S)
    of_rank, waits, waited_for = zip(*found, strict=True)
    hosts = -(-setting.ranks // setting.per_host)
    of_hosts = hosts * steps
    per_exchange = [
        counts.messages[name] / counts.exchanges[name] for name in counts.exchanges if hosts > 1
    ]
    sums = counts.sent_bytes[DENSE]
    return Counted(
        max(waits),
        max(waited_for),
        sum(counts.requests.values()) / steps,
        2 * max(per_exchange),  # each message that a host sends, another receives
        sum(counts.messages.values()) / of_hosts,
        (sum(counts.sent_bytes.values()) - sums) / of_hosts,
        sum(of_rank) / of_hosts,
        sums / of_hosts,
    )


def _pass_of(
    world: Any, setting: Setting, batches: Batches, counts: Counts
) -> tuple[int, int, int]:
    """Runs the pass of one rank.

    Returns: the least bytes of the parts that it gets and sends; the waits, and the messages waited
        for, of the step with most of them: from where a step has its rows to where the next step
        has its rows.
    """
    table: Any = _Table(world.rank, setting)
    tables = world.connect([table], RanksConfig())
    of_steps = [batches(world.rank, step) for step in range(setting.steps)]
    keys = [mixed(batch[batch != 0]) for batch in of_steps]
    all_keys, places = np.unique(np.concatenate(keys), return_inverse=True)
    staged = tables.stage(table, all_keys, None, train=True, day=0)
    of_set = StagedSet(
        STAMP, staged.rows, staged.row_of_key, {}, names=(table.name,), parts=(staged,)
    )
    tables.begin(of_set)
    ends = np.cumsum([len(of_step) for of_step in keys])
    feeds = [
        _feed(part.astype(np.int32), len(batch))
        for part, batch in zip(np.split(places, ends[:-1]), of_steps, strict=True)
    ]
    world.wait("staged")
    if world.rank == 0:
        counts.clear()
    least, dense, began = 0, np.zeros(setting.dense, np.float32), list[tuple[int, int]]()
    for feed in tables.feeds(of_set, len(feeds), iter(feeds), lambda: feeds[0]):
        if world.rank == 0:
            counts.requests.pop("steps", None)  # once a pass
        step: Step = feed[STEP]
        with tables.step(feed):
            began.append(world.rounds.at)
            world.sum_over_hosts(dense, pushed=True)
        least += _least_bytes(step, world, setting)
    began.append(world.rounds.at)
    world.wait("counted")
    if world.rank == 0:
        del counts.requests["counted"]
    tables.close()
    waits, messages = np.diff(began, axis=0).max(axis=0).tolist()
    return least, waits, messages


def _feed(places: np.ndarray, instances: int) -> dict[str, Any]:
    offsets = np.arange(len(places) + 1, dtype=np.int32)
    return {
        "box_ids": places,
        "box_plan": core.Table.build_plan(places, offsets, STAMP),
        "box_show_click": np.ones((instances, 2), np.float32),
    }


def _least_bytes(step: Step, world: World, setting: Setting) -> int:
    """Of the rows that ranks of other hosts need from this one: their ids, the rows with one bit
    each, and their gradients."""
    assert step.bare is not None
    sizes = [len(ids) for ids in step.asked]
    form = RowFormat(Wire.FLOAT32, 3 + setting.dim)
    of_rows = BareMessages(form, 3, step.bare.asked, sizes).sizes
    return sum(
        len(pack_ids(step.asked[rank])) + 2 * of_rows[rank] + (sizes[rank] + 7) // 8
        for rank in range(world.size)
        if rank not in world.hosts.near
    )


def zipf_batches(batch: int, columns: int = 26, keys: int = 2_000_000) -> Batches:
    """The slots of benchmarks/ranks.py: ids of Zipf 1.05."""

    def batches(rank: int, step: int) -> np.ndarray:
        rng = np.random.default_rng((rank, step))
        ids = rng.zipf(1.05, (batch, columns)) % (keys // columns)
        return ids * columns + np.arange(columns) + 1

    return batches


def batches_of(rows: np.ndarray, ranks: int, batch: int) -> Batches:
    """Batches of (n, C) feasigns. The rows begin again after the last one."""

    def batches(rank: int, step: int) -> np.ndarray:
        first = (step * ranks + rank) * batch
        return rows[np.arange(first, first + batch) % len(rows)]

    return batches
