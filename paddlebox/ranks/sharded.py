"""ShardedTable: the part of a table that a rank owns, and the way to the parts of the others.

A rank owns a range of the hash order, in a store of its own. The keys of a pass are sorted by hash,
so what a rank needs of an owner is one slice of them:

    once a pass   keys to their owners; row ids back (here)
    each batch    the row ids that it needs, to their owners, ahead of its step (step_planner.py)
    each step     rows before it, between hosts most of them in the step before (prefetch.py);
                  what the push has merged after it, and at once the rows of the next step:
                  what a rank does between steps makes no other wait (stepping.py, exchange.py)

Operators see the rows of one batch (ops/table/batch_table.h), and know of no other rank.

Letters: R = ranks, K = keys of a pass on this rank.
"""

from __future__ import annotations

import itertools

import numpy as np

from paddlebox import _native
from paddlebox.ranks.batch_rows import batch_rows
from paddlebox.ranks.exchange import Exchange
from paddlebox.ranks.plans import ShardedPass
from paddlebox.ranks.step_planner import StepPlanner
from paddlebox.ranks.stepping import Stepping
from paddlebox.ranks.world import LANES, World
from paddlebox.store.one_rank import key_ranges
from paddlebox.store.tiered_table import TieredTable

core = _native.core

_NO_SLOTS, _NO_COUNTS = np.empty(0, np.uint16), np.empty(0, np.uint32)


def range_starts(size: int) -> np.ndarray:
    """(size) uint64: where the range of each rank begins in the hash order."""
    return np.array([first for first, _ in key_ranges(size)], np.uint64)


class ShardedTable:
    """Args:
    table: of the rank's own range; programs pull and push the rows of every rank.
    exchange: of that table. inputs: as of `StepPlanner`.

    Every call that goes through all ranks (stage, count_keys, end, gather) is made by all of them
    in the same order.
    """

    def __init__(self, table: TieredTable, world: World, exchange: Exchange, inputs: str) -> None:
        self._table, self.exchange = table, exchange
        self._starts, self._size = range_starts(world.size), world.size
        self._staging, asking, self._lane, ahead = (world.lane(name) for name in LANES)
        self.asking = StepPlanner(asking, exchange, inputs)
        table.native.unregister()  # operators find the batch by the table's name
        batch = batch_rows(table.config, table.options.hbm_place, table.options.threads)
        self.stepping = Stepping(self._lane, ahead, exchange, batch, inputs)

    def stage(
        self, keys: np.ndarray, slots: np.ndarray | None, *, train: bool, day: int
    ) -> ShardedPass:
        """As `TieredTable.stage`; keys: (K) those of this rank's instances, of every range."""
        self._staging.meet("stage")
        return self._staging.do(self._stage, keys, slots, train, day)

    def _stage(
        self, keys: np.ndarray, slots: np.ndarray | None, train: bool, day: int
    ) -> ShardedPass:
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
            way=self.exchange.way_of(rows, self._staging) if train else None,
        )

    def count_keys(self, keys: np.ndarray, counts: np.ndarray) -> int:
        """As `TieredTable.count_keys`; the counts of all ranks are added up by the owners."""
        self._staging.meet("count")
        return self._staging.do(self._count_keys, keys, counts)

    def _count_keys(self, keys: np.ndarray, counts: np.ndarray) -> int:
        keys = np.ascontiguousarray(keys, np.uint64)
        bounds = self._bounds(keys)
        asked = self._to_owners(bounds, keys)
        of_counts = self._to_owners(bounds, np.ascontiguousarray(counts, np.uint32))
        merged, _, sums, _ = core.merge_keys(
            [(k, _NO_SLOTS, c) for k, c in zip(asked, of_counts, strict=True)]
        )
        return self._table.count_keys(merged, sums)

    def _bounds(self, keys: np.ndarray) -> np.ndarray:
        """(R + 1) where the range of each owner begins among keys."""
        return np.append(np.searchsorted(keys, self._starts), len(keys))

    def _to_owners(self, bounds: np.ndarray, by_key: np.ndarray) -> list[np.ndarray]:
        """(R) what every rank has for this one's range, of what is by key."""
        of_owner = [by_key[a:b] for a, b in itertools.pairwise(bounds.tolist())]
        return self.exchange.all_to_all(self._staging, "keys", of_owner)

    def end(self) -> None:
        """Every gradient of the pass has been applied when this returns, and what rounding took of
        them."""
        self.stepping.settle()
        self.exchange.end(self._lane)

    def drop(self) -> None:
        """Forgets what of the open pass is on its way."""
        self.exchange.forget()
        self.stepping.drop()

    def gather(self, mine: bytes) -> list[bytes]:
        """(R) what each rank gives."""
        self._lane.meet("gather")
        array = np.frombuffer(bytearray(mine), np.uint8)  # a tensor's bytes may be written
        found = self._lane.do(self._lane.exchange, [array] * self._size)
        return [theirs.tobytes() for theirs in found]

    def close(self) -> None:
        self.stepping.close()
