"""SharedTables: the `TableExchange` of several ranks. ShardedTable: one of its tables, of which
this rank owns a key range, with access to the rows of all ranks.

A rank owns the same key range in all tables. Each range has its own store. All tables use the same
channels, in the same order on all ranks, so that the messages of a table match. The keys of a pass
are sorted by hash, so the keys that a rank needs from an owner are one slice:

    once per pass  keys go to their owners, and row ids come back; with click priors also counts of
                   clicks (here)
    each batch     the ids of its rows go to the owners, ahead of its step (step_planner.py)
    before a step  its rows come from the owners; between hosts, most of them come during the
                   previous step (plans.py)
    after a step   merged gradients go to the owners; the rows of the next step follow at once, so
                   that a rank's work between steps delays no other rank. Between hosts, both are
                   exchanged during the sum of the dense gradients (stepping.py, exchange.py)

Operators see only the rows of one batch (ops/table/batch_table.h).

Letters: R = ranks, K = keys of a pass on this rank.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from paddlebox import _native
from paddlebox.config import HbmPlace, TableConfig
from paddlebox.config.trainer import RanksConfig
from paddlebox.errors import ConfigError
from paddlebox.ranks.exchange import RowExchange
from paddlebox.ranks.plans import ShardedPass
from paddlebox.ranks.step_planner import StepPlanner
from paddlebox.ranks.stepping import Progress, Stepping, with_next
from paddlebox.ranks.traffic import ExchangedByRanks, Traffic, hosts_of
from paddlebox.store.group import key_ranges
from paddlebox.store.options import TableOptions, gpu_number, host_is_device
from paddlebox.store.table_exchange import Exchanged, Feed, TableExchange
from paddlebox.store.table_set import StagedSet
from paddlebox.store.tiered_table import StagedPass, TieredTable

if TYPE_CHECKING:
    from paddlebox.ranks.world import World

core = _native.core


def batch_rows(config: TableConfig, options: TableOptions) -> Any:
    """Create a native batch table, registered under the name of the table. Call, for each batch:

        prepare(stamp, keys, read_only) -> fill(at, first, values) ... -> open() -> merged()

    end_pushes(), before merged(): from then on, a push to the open batch is an error.
    values: float32 rows, with the expand part if there is one. at: int32 positions of these rows in
    keys; None: the positions from `first` on. merged(): gradients; with `late_lines`, the weights
    of late lines follow the counts. Arguments and results are in host memory. If the rows are on a
    GPU, merged() waits for the GPU.
    """
    name, dim = config.name, config.embedx_dim
    on_bad_grad = str(config.on_bad_grad)
    if options.hbm_place is HbmPlace.HOST:
        counts, late, threads = len(config.counts), options.late_lines, options.threads
        return core.BatchTable(name, dim, config.expand_dim, counts, late, threads, on_bad_grad)
    if config.expand_dim:
        raise ConfigError(
            f"table '{name}': expand_dim {config.expand_dim} and hbm.place: gpu work on one rank "
            "only: leave one of them out, or launch with --nproc_per_node 1"
        )
    return core.DeviceBatch(name, dim, on_bad_grad, gpu_number(), host_is_device())


_NO_SLOTS, _NO_COUNTS = np.empty(0, np.uint16), np.empty(0, np.uint32)


def range_starts(size: int) -> np.ndarray:
    """(R) uint64: the start of each rank's range in the hash order."""
    return np.array([first for first, _ in key_ranges(size)], np.uint64)


class ShardedTable:
    """table: of this rank's range. Programs pull and push rows of all ranks. inputs: the argument
    of `StepPlanner`. `stage`, `count_keys` and `end` are collective."""

    def __init__(self, table: TieredTable, tables: SharedTables, inputs: str) -> None:
        self._table, self.exchange = table, RowExchange(table, tables)
        self._starts = range_starts(tables.world.size)
        self._staging, asking, self._channel, early = (
            tables.world.channels[name] for name in ("stage", "ask", "step", "early")
        )
        self.planner = StepPlanner(asking, self.exchange, inputs)
        table.native.unregister()  # operators find the batch under the table's name instead
        batch = batch_rows(table.config, table.options)
        self.stepping = Stepping(self._channel, early, self.exchange, batch, inputs)

    def stage(
        self, keys: np.ndarray, slots: np.ndarray | None, *, train: bool, day: int
    ) -> ShardedPass:
        """`TieredTable.stage`. keys: (K) the keys of this rank's instances, of all ranges."""
        keys = np.ascontiguousarray(keys, np.uint64)
        bounds = self._bounds(keys)
        slots = np.zeros(len(keys), np.uint16) if slots is None else slots
        asked = self._to_owners(bounds, keys)
        of_slots = self._to_owners(bounds, np.ascontiguousarray(slots, np.uint16))
        merged, lowest, _, places = core.merge_keys(
            [(k, s, _NO_COUNTS) for k, s in zip(asked, of_slots, strict=True)]
        )
        shard = self._table.stage(merged, lowest, train=train, day=day)
        rows_asked = [shard.row_of_key[of_rank] for of_rank in places]
        row_at_owner = np.concatenate(self.exchange.all_to_all(self._staging, "keys", rows_asked))
        here = np.arange(len(keys), dtype=np.int32)
        return ShardedPass(
            shard.stamp,
            len(keys),
            np.where(row_at_owner >= 0, here, np.int32(-1)),
            shard.hits,
            train,
            int(np.count_nonzero(row_at_owner < 0)) if train else 0,
            shard=shard,
            keys=keys,
            asked=rows_asked,
            row_at_owner=row_at_owner,
            bounds=bounds,
        )

    def count_keys(self, keys: np.ndarray, counts: np.ndarray) -> int:
        """`TieredTable.count_keys`. Owners add up the counts of all ranks."""
        keys = np.ascontiguousarray(keys, np.uint64)
        bounds = self._bounds(keys)
        asked = self._to_owners(bounds, keys)
        of_counts = self._to_owners(bounds, np.ascontiguousarray(counts, np.uint32))
        merged, _, sums, _ = core.merge_keys(
            [(k, _NO_SLOTS, c) for k, c in zip(asked, of_counts, strict=True)]
        )
        return self._table.count_keys(merged, sums)

    def sum_at_owners(self, staged: ShardedPass, values: np.ndarray) -> np.ndarray:
        """`TableExchange.sum_at_owners`."""
        sums = np.zeros((staged.own.rows, *values.shape[1:]), np.float32)
        of_owner = np.split(values, staged.bounds[1:-1])
        found = self.exchange.all_to_all(self._channel, "clicks", of_owner)
        for rows, flat in zip(staged.asked, found, strict=True):
            here = rows >= 0  # the rows of one rank differ, because its keys do
            sums[rows[here]] += flat.reshape(len(rows), *values.shape[1:])[here]
        return sums

    def from_owners(self, staged: ShardedPass, values: np.ndarray) -> np.ndarray:
        """`TableExchange.from_owners`."""
        out = []
        for rows in staged.asked:
            here, of_rank = rows >= 0, np.zeros((len(rows), *values.shape[1:]), np.float32)
            of_rank[here] = values[rows[here]]
            out.append(of_rank)
        found = self.exchange.all_to_all(self._channel, "clicks", out)
        return np.concatenate(found).reshape(staged.rows, *values.shape[1:])

    def _bounds(self, keys: np.ndarray) -> np.ndarray:
        """(R + 1) the start of each owner's range in keys, and the end of the last one."""
        return np.append(np.searchsorted(keys, self._starts), len(keys))

    def _to_owners(self, bounds: np.ndarray, by_key: np.ndarray) -> list[np.ndarray]:
        """Send values by key to the owners. Returns (R) what each rank sends to this owner."""
        of_owner = [by_key[a:b] for a, b in itertools.pairwise(bounds.tolist())]
        return self.exchange.all_to_all(self._staging, "keys", of_owner)

    def end(self) -> None:
        """Returns when all gradients of the pass, and their rounding errors, have been applied."""
        self.stepping.settle()
        self.exchange.end(self._channel)

    def drop(self) -> None:
        self.stepping.drop()
        self.exchange.forget()

    def close(self) -> None:
        self.stepping.close()


class SharedTables(TableExchange):
    def __init__(self, world: World, tables: Sequence[TieredTable], options: RanksConfig) -> None:
        self.world, self.options = world, options
        hosts = hosts_of(world.size)
        #: Whether some messages travel between nodes.
        self.between_nodes = not world.on_one_host or len(set(hosts)) > 1
        self.traffic = Traffic(world.rank, hosts)
        self.shards: dict[str, ShardedTable] = {}  # by name of the table
        try:
            for number, table in enumerate(tables):
                inputs = f"_{table.name}" if number else ""
                self.shards[table.name] = ShardedTable(table, self, inputs)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for shard in self.shards.values():
            shard.close()
        self.shards.clear()

    @property
    def progress(self) -> Progress:
        """The steps of the open pass."""
        return next(iter(self.shards.values())).stepping.progress

    def stage(
        self,
        table: TieredTable,
        keys: np.ndarray,
        slots: np.ndarray | None,
        *,
        train: bool,
        day: int,
    ) -> ShardedPass:
        return self.shards[table.name].stage(keys, slots, train=train, day=day)

    def count_keys(self, table: TieredTable, keys: np.ndarray, counts: np.ndarray) -> int:
        return self.shards[table.name].count_keys(keys, counts)

    def finish_staging(self, wait: Callable[[], None]) -> None:
        wait()

    def sum_at_owners(self, staged: StagedPass, values: np.ndarray) -> np.ndarray:
        shard, part = next(zip(self.shards.values(), _parts(staged), strict=True))
        return shard.sum_at_owners(part, values)

    def from_owners(self, staged: StagedPass, values: np.ndarray) -> np.ndarray:
        shard, part = next(zip(self.shards.values(), _parts(staged), strict=True))
        return shard.from_owners(part, values)

    def begin(self, staged: StagedPass) -> None:
        for shard, part in zip(self.shards.values(), _parts(staged), strict=True):
            shard.exchange.begin(part)

    def feeds(
        self,
        staged: StagedPass,
        count: int,
        batches: Iterable[Feed],
        idle_batch: Callable[[], Feed],
    ) -> Iterator[Feed]:
        """Each batch with what its step exchanges. All ranks make the same number of steps. A rank
        with fewer batches feeds `idle_batch`, whose weight in the gradients is 0."""
        parts = _parts(staged)
        planners = [shard.planner for shard in self.shards.values()]
        changes = [planner.changes_of(part) for planner, part in zip(planners, parts, strict=True)]

        def plan(own: list[Feed], fill: list[Feed]) -> list[Feed]:
            for planner, part, changed in zip(planners, parts, changes, strict=True):
                feeds = planner.plan(part, changed, own, fill)
            return feeds

        steps = max(self.world.gather("steps", count))
        passed = self.progress.leave_out(steps) if staged.train else 0
        batches = itertools.islice(batches, passed, None)
        feeds = planners[0].planned(steps - passed, batches, idle_batch, plan)
        yield from with_next([s.stepping for s in self.shards.values()], feeds, staged.train)

    @contextmanager
    def step(self, feed: Feed) -> Iterator[int | None]:
        """Fetches the rows of the batch, and sends its merged gradients to the owners.

        The tables end their steps in reverse order, each on all ranks. If gradients are sent during
        the sum, the channel sends those of all tables before the first table fetches rows: it takes
        them in the order of tables, and the last table, which ends first, waits for its own.
        """
        with ExitStack() as steps:
            shards = self.shards.values()
            counts = [steps.enter_context(shard.stepping.step(feed)) for shard in shards]
            yield counts[0]

    def begin_to_give(self) -> None:
        for shard in self.shards.values():
            shard.stepping.begin_to_give()

    def wait_for_give(self) -> None:
        for shard in self.shards.values():
            shard.stepping.wait_for_give()

    def end(self) -> None:
        for shard in self.shards.values():
            shard.end()

    def drop(self) -> None:
        for shard in self.shards.values():
            shard.drop()

    def exchanged(self) -> Exchanged:
        return ExchangedByRanks(self.traffic, self.world)


def _parts(staged: StagedPass) -> list[ShardedPass]:
    """(T) the pass of each table."""
    assert isinstance(staged, StagedSet)
    return [part for part in staged.parts if isinstance(part, ShardedPass)]
