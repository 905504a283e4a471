"""ShardedTable: the part of a table that a rank owns, and the way to the parts of the others.

A rank owns a range of the hash order, in a store of its own. The keys of a pass are sorted by hash,
so what a rank needs of an owner is one slice of them:

    once a pass   keys to their owners; row ids back (here)
    each batch    the row ids that it needs, to their owners, ahead of its step (asking.py)
    each step     rows before it, between hosts most of them in the step before (early.py);
                  what the push has merged after it, and at once the rows of the next step:
                  what a rank does between steps makes no other wait (stepping.py, exchange.py)

Operators see the rows of one batch (ops/table/batch_table.h), and know of no other rank.

Letters: R = ranks, K = keys of a pass on this rank.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.config import TableConfig
from paddlebox.config.ranks import RanksConfig
from paddlebox.ranks.asking import Asking
from paddlebox.ranks.batch_rows import batch_rows
from paddlebox.ranks.many_ranks import ManyRanks
from paddlebox.ranks.nodes import ranks_per_node
from paddlebox.ranks.plans import Feed, ShardedPass
from paddlebox.ranks.stepping import Stepping, with_next
from paddlebox.ranks.traffic import Traffic
from paddlebox.ranks.two_level import exchange_of
from paddlebox.ranks.world import LANES, World
from paddlebox.store.one_rank import key_ranges
from paddlebox.store.options import TableOptions
from paddlebox.store.rank_stores import sum_of_digests
from paddlebox.store.record import VersionRecord
from paddlebox.store.table import StagedPass, Table

core = _native.core

_NO_SLOTS, _NO_COUNTS = np.empty(0, np.uint16), np.empty(0, np.uint32)


def range_starts(size: int) -> np.ndarray:
    """(size) uint64: where the range of each rank begins in the hash order."""
    return np.array([first for first, _ in key_ranges(size)], np.uint64)


class ShardedTable(ManyRanks, Table):
    """As `Table`, for the rank's own range; programs pull and push the rows of every rank.

    Args:
        world: which every rank has joined. exchange: how ranks exchange. traffic: counts what is
            sent; None: one of its own. inputs: as of `Asking`. The rest as `Table`.

    Every call that goes through all ranks (stage, count_keys, feeds, step) is made by all of them
    in the same order.
    """

    def __init__(
        self,
        config: TableConfig,
        options: TableOptions | None = None,
        *,
        world: World,
        exchange: RanksConfig | None = None,
        traffic: Traffic | None = None,
        inputs: str = "",
        **arguments: Any,
    ) -> None:
        how = exchange or RanksConfig()
        make_exchange = exchange_of(how, world.size)
        super().__init__(config, options, **arguments)
        self.world = world
        self._starts = range_starts(world.size)
        self._staging, asking, self._lane, ahead = (world.lane(name) for name in LANES)
        self.traffic = traffic or Traffic(world.rank, ranks_per_node(world.size, how.per_node))
        self.exchange = make_exchange(self._native, config, world, how, self.traffic)
        self.asking = Asking(asking, self.exchange, inputs)
        self._native.unregister()  # operators find the batch by the table's name
        batch = batch_rows(config, self.options.hbm_place, self.options.threads)
        self.stepping = Stepping(self._lane, ahead, self.exchange, batch, inputs)

    # ---- once a pass

    def stage(
        self,
        keys: np.ndarray,
        slots: np.ndarray | None = None,
        *,
        train: bool = True,
        day: int = 0,
    ) -> ShardedPass:
        """As `Table.stage`; keys: those of this rank's instances, of every range."""
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
        shard = super().stage(merged, lowest, train=train, day=day)
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

    def count_keys(
        self, keys: np.ndarray, counts: np.ndarray, slots: np.ndarray | None = None
    ) -> int:
        """As `Table.count_keys`; the counts of all ranks are added up by the owners."""
        del slots
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
        return super().count_keys(merged, sums)

    def _bounds(self, keys: np.ndarray) -> np.ndarray:
        """(R + 1) where the range of each owner begins among keys."""
        return np.append(np.searchsorted(keys, self._starts), len(keys))

    def _to_owners(self, bounds: np.ndarray, by_key: np.ndarray) -> list[np.ndarray]:
        """(R) what every rank has for this one's range, of what is by key."""
        of_owner = [by_key[a:b] for a, b in itertools.pairwise(bounds.tolist())]
        return self.exchange.all_to_all(self._staging, "keys", of_owner)

    def drop_staged(self, staged: StagedPass) -> None:
        super().drop_staged(_sharded(staged).own)

    def make_room(self, staged: StagedPass) -> None:
        super().make_room(_sharded(staged).own)

    def begin(self, staged: StagedPass) -> None:
        self.make_room(staged)
        self._native.begin(_sharded(staged).own.stamp)
        self.exchange.begin(_sharded(staged))

    def end(self, pass_number: int = 0) -> None:
        """As `Table.end`, once every gradient has been applied, and what rounding took of them."""
        self.stepping.settle()
        self.exchange.end(self._lane)
        super().end(pass_number)

    def abandon(self, *, evaluation: bool = False) -> None:
        self._drop_what_is_on_its_way()
        super().abandon(evaluation=evaluation)

    def commit_partial(
        self,
        dense: Mapping[str, np.ndarray],
        partial: Mapping[str, Any],
        first: Mapping[str, Any] | None = None,
    ) -> VersionRecord | None:
        """As `Table.commit_partial`, of this rank's range alone; no other rank is asked. Gradients
        that have not arrived are lost, and what rounding has left of others."""
        self._drop_what_is_on_its_way()
        return super().commit_partial(dense, partial, first)

    def _drop_what_is_on_its_way(self) -> None:
        self.exchange.forget()
        self.stepping.drop()

    def commit_in_background(self, **arguments: Any) -> Future[int]:
        """As `Table.commit_in_background`, once every rank has committed the pass before: each then
        has a version that all have, whoever is killed."""
        self.wait_commit()
        self.world.wait("committed")
        return super().commit_in_background(**arguments)

    def commit_ended(self) -> int:
        """As `Table.commit_ended`, once every rank has committed the pass before; each calls it."""
        self._background.settle()
        if self._ended.kept_fields is not None:
            self.world.wait("committed")
        return super().commit_ended()

    # ---- each batch

    def feeds(
        self,
        staged: StagedPass,
        count: int,
        batches: Iterable[Feed],
        nobody: Callable[[], Feed],
    ) -> Iterator[Feed]:
        """As `Table.feeds`: each batch with what its step exchanges, made ahead of it. A rank that
        has fewer than others feeds `nobody`, whose share is 0, so that all make the same steps."""
        part, asking, train = _sharded(staged), self.asking, staged.train
        steps = asking.agree_steps(count)
        passed = self.stepping.progress.leave_out(steps) if train else 0
        batches = itertools.islice(batches, passed, None)
        ask = partial(asking.ask, part, asking.changes_of(part))
        feeds = asking.planned(steps - passed, batches, nobody, ask)
        yield from with_next([self.stepping], feeds, train)

    @contextmanager
    def step(self, feed: Feed) -> Iterator[int | None]:
        """As `Table.step`: brings the rows of a batch, and takes what its push has merged to their
        owners when the program has run."""
        with self.stepping.step(feed) as instances:
            yield instances

    # ---- as one

    def digest(self) -> str:
        """Of the rows of all ranks: what one rank with all of them would give."""
        found = [text.decode() for text in self.world.gather("digest", super().digest().encode())]
        return sum_of_digests(found)

    def gather(self, mine: bytes) -> list[bytes]:
        self._lane.meet("gather")
        array = np.frombuffer(bytearray(mine), np.uint8)  # a tensor's bytes may be written
        found = self._lane.do(self._lane.exchange, [array] * self.world.size)
        return [theirs.tobytes() for theirs in found]

    def counters(self) -> dict[str, Any]:
        exchanged = {  # bytes are counted by what they are, not by lane (traffic.py)
            f"exchange_{name}": value
            for name, value in self.world.counters().items()
            if not name.startswith("sent_bytes")
        }
        return {**super().counters(), **exchanged}

    def close(self) -> None:
        if getattr(self, "stepping", None) is not None:
            self.stepping.close()
        super().close()


def _sharded(staged: StagedPass) -> ShardedPass:
    assert isinstance(staged, ShardedPass)
    return staged
