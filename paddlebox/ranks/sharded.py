"""ShardedTable: a table of which this rank owns a key range, with access to the rows of all ranks.

Each range has its own store. The keys of a pass are sorted by hash, so the keys that a rank needs
from an owner are one slice:

    once per pass  keys go to their owners, and row ids come back (here)
    each batch     the ids of its rows go to the owners, ahead of its step (step_planner.py)
    before a step  its rows come from the owners; between hosts, most of them come during the
                   previous step (plans.py)
    after a step   merged gradients go to the owners, between hosts already during the sum of the
                   dense gradients; the rows of the next step follow at once, so that a rank's work
                   between steps delays no other rank (stepping.py, exchange.py)

Operators see only the rows of one batch (ops/table/batch_table.h).

Letters: R = ranks, K = keys of a pass on this rank.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from paddlebox import _native
from paddlebox.config import HbmPlace, TableConfig
from paddlebox.errors import ConfigError
from paddlebox.ranks.exchange import Exchange
from paddlebox.ranks.plans import ShardedPass
from paddlebox.ranks.step_planner import StepPlanner
from paddlebox.ranks.stepping import Stepping
from paddlebox.store.coordinator import key_ranges
from paddlebox.store.options import TableOptions, gpu_number, host_is_device
from paddlebox.store.tiered_table import TieredTable

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
    """`stage`, `count_keys` and `end` are collective (store/coordinator.py).

    Args:
        table: the table of this rank's range. Programs pull and push rows of all ranks.
        inputs: the argument of `StepPlanner`.
    """

    def __init__(self, table: TieredTable, world: World, exchange: Exchange, inputs: str) -> None:
        self._table, self.exchange = table, exchange
        self._starts = range_starts(world.size)
        self._staging, asking, self._channel, early = (
            world.channels[name] for name in ("stage", "ask", "step", "early")
        )
        self.planner = StepPlanner(asking, exchange, inputs)
        table.native.unregister()  # operators find the batch under the table's name instead
        batch = batch_rows(table.config, table.options)
        self.stepping = Stepping(self._channel, early, exchange, batch, inputs)

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
        rows = self.exchange.all_to_all(
            self._staging, "keys", [shard.row_of_key[of_rank] for of_rank in places]
        )
        row_at_owner = np.concatenate(rows)
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

    def _bounds(self, keys: np.ndarray) -> np.ndarray:
        """(R + 1) the start of each owner's range in keys, and the end of the last one."""
        return np.append(np.searchsorted(keys, self._starts), len(keys))

    def _to_owners(self, bounds: np.ndarray, by_key: np.ndarray) -> list[np.ndarray]:
        """Send values by key to the owners. Returns (R) what each rank sends to this owner."""
        of_owner = [by_key[a:b] for a, b in itertools.pairwise(bounds.tolist())]
        return self.exchange.all_to_all(self._staging, "keys", of_owner)

    def end(self) -> None:
        """Wait until all gradients of the pass, and their rounding errors, have been applied."""
        self.stepping.settle()
        self.exchange.end(self._channel)

    def drop(self) -> None:
        """Forget rows and gradients of the open pass that are on their way."""
        self.stepping.drop()
        self.exchange.forget()

    def close(self) -> None:
        self.stepping.close()
