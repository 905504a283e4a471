"""ShardedTable: the part of a table that a rank owns, and the way to the parts of the others.

A rank owns a range of the hash order, in a store of its own. The keys of a pass are sorted by hash,
so what a rank needs of an owner is one slice of them:

    once a pass   keys to their owners; row ids back
    each batch    the row ids that it needs, to their owners, ahead of its step
    each step     rows before it; what the push has merged after it

Operators see the rows of one batch (ops/table/batch_table.h), and know of no other rank. An owner
adds up what the ranks have merged in the order of ranks, and applies its rule once.

Letters: R = ranks, K = keys of a pass on this rank, u = unique rows of a batch, P = 3 + D.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.config import TableConfig
from paddlebox.errors import ConfigError
from paddlebox.ranks.dense import SHARE
from paddlebox.ranks.world import LANES, World
from paddlebox.store.one_rank import key_ranges
from paddlebox.store.rank_stores import sum_of_digests
from paddlebox.store.table import StagedPass, Table

core = _native.core

Feed = dict[str, Any]
#: Of a feed: how the step is exchanged. Taken out before a program sees the feed.
STEP = "ranks:step"

_NO_SLOTS, _NO_COUNTS = np.empty(0, np.uint16), np.empty(0, np.uint32)
_BATCHES_A_MESSAGE = 8  # whose row ids travel together


def range_starts(size: int) -> np.ndarray:
    """(size) uint64: where the range of each rank begins in the hash order."""
    return np.array([first for first, _ in key_ranges(size)], np.uint64)


@dataclass(frozen=True)
class ShardedPass(StagedPass):
    """A pass whose rows are up at their owners; `row_of_key` are places among this rank's keys."""

    shard: StagedPass | None = None  # of this rank's own range, for all ranks
    keys: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint64))  # (K) ascending
    row_at_owner: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))  # (K)
    bounds: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # (R + 1) of owners


@dataclass(frozen=True)
class Step:
    """What a batch exchanges."""

    stamp: int
    instances: int  # of this rank; 0: it only serves the others
    all_instances: int  # of all ranks
    keys: np.ndarray  # (u) uint64
    counts: list[int]  # (R) of the u rows, which are in the order of owners
    asked: list[np.ndarray]  # (R) int32 rows of this rank that each rank needs
    push: np.ndarray | None  # plan of all asked rows; None in an evaluation


class ShardedTable(Table):
    """As `Table`, for the rank's own range; programs pull and push the rows of every rank.

    Args:
        world: which every rank has joined. The rest as `Table`.

    Every call that goes through all ranks (stage, count_keys, feeds, step) is made by all of them
    in the same order.

    Raises: ConfigError for rows with an expand part.
    """

    def __init__(self, config: TableConfig, *, world: World, **arguments: Any) -> None:
        if config.expand_dim:
            raise ConfigError(
                f"table '{config.name}': expand_dim {config.expand_dim} with {world.size} ranks: "
                "rows with an expand part are of one rank today"
            )
        super().__init__(config, **arguments)
        self.world = world
        self._starts = range_starts(world.size)
        self._staging, self._asking, self._stepping = (world.lane(name) for name in LANES)
        self._native.unregister()  # operators find the batch by the table's name
        self._batch = core.BatchTable(
            config.name,
            config.embedx_dim,
            int(arguments.get("threads", 1)),
            str(config.on_bad_grad),
            config.bad_grad_bound,
        )
        self._columns = 3 + config.embedx_dim  # P

    @property
    def ranks(self) -> int:
        return self.world.size

    @property
    def rank(self) -> int:
        return self.world.rank

    @property
    def key_range(self) -> tuple[int, int]:
        return key_ranges(self.world.size)[self.world.rank]

    # ---- once a pass

    def _bounds(self, keys: np.ndarray) -> np.ndarray:
        return np.append(np.searchsorted(keys, self._starts), len(keys))

    def _cut(self, bounds: np.ndarray, array: np.ndarray) -> list[np.ndarray]:
        """(R) what of an array by key is each owner's."""
        return [array[int(a) : int(b)] for a, b in itertools.pairwise(bounds)]

    def stage(
        self,
        keys: np.ndarray,
        slots: np.ndarray | None = None,
        *,
        train: bool = True,
        day: int = 0,
    ) -> ShardedPass:
        """As `Table.stage`; keys: those of this rank's instances, of every range."""
        self.world.wait("stage")
        staged = self._staging.submit(self._stage, keys, slots, train, day)
        result: ShardedPass = staged.result()
        return result

    def _stage(
        self, keys: np.ndarray, slots: np.ndarray | None, train: bool, day: int
    ) -> ShardedPass:
        keys = np.ascontiguousarray(keys, np.uint64)
        slots = np.zeros(len(keys), np.uint16) if slots is None else slots
        bounds, lane = self._bounds(keys), self._staging
        asked = lane.exchange(self._cut(bounds, keys))
        of_slots = lane.exchange(self._cut(bounds, np.ascontiguousarray(slots, np.uint16)))
        merged, lowest, _, places = core.merge_keys(
            [(k, s, _NO_COUNTS) for k, s in zip(asked, of_slots, strict=True)]
        )
        shard = super().stage(merged, lowest, train=train, day=day)
        rows = lane.exchange([shard.row_of_key[of_rank] for of_rank in places])
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

    def count_keys(
        self, keys: np.ndarray, counts: np.ndarray, slots: np.ndarray | None = None
    ) -> int:
        """As `Table.count_keys`; the counts of all ranks are added up by the owners."""
        del slots
        self.world.wait("count")
        counted: int = self._staging.submit(self._count_keys, keys, counts).result()
        return counted

    def _count_keys(self, keys: np.ndarray, counts: np.ndarray) -> int:
        keys = np.ascontiguousarray(keys, np.uint64)
        bounds, lane = self._bounds(keys), self._staging
        asked = lane.exchange(self._cut(bounds, keys))
        of_counts = lane.exchange(self._cut(bounds, np.ascontiguousarray(counts, np.uint32)))
        merged, _, sums, _ = core.merge_keys(
            [(k, _NO_SLOTS, c) for k, c in zip(asked, of_counts, strict=True)]
        )
        return super().count_keys(merged, sums)

    def drop_staged(self, staged: StagedPass) -> None:
        super().drop_staged(_shard(staged))

    def begin(self, staged: StagedPass) -> None:
        super().begin(_shard(staged))

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

    def agree_parts(self, parts: int) -> int:
        """How many parts a pass is split into: as many as any rank needs."""
        return max(int(found) for found in self.world.gather("parts", str(parts).encode()))

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
        assert isinstance(staged, ShardedPass)
        steps = max(int(found) for found in self.world.gather("steps", str(count).encode()))
        source = iter(batches)

        def ask(first: int) -> Future[list[Feed]] | None:
            most = min(_BATCHES_A_MESSAGE, steps - first)
            if most <= 0:
                return None
            own = list(itertools.islice(source, most))
            fill = [nobody() for _ in range(most - len(own))]
            self.world.wait("ask")
            return self._asking.submit(self._ask, staged, own, fill)

        coming = ask(0)
        for first in range(0, steps, _BATCHES_A_MESSAGE):
            assert coming is not None
            feeds = coming.result()
            coming = ask(first + _BATCHES_A_MESSAGE)
            yield from feeds

    def _ask(self, staged: ShardedPass, own: list[Feed], fill: list[Feed]) -> list[Feed]:
        """The steps of some batches: which rows this rank needs of each owner, and which each rank
        needs of it. On the lane's thread."""
        lane, ranks = self._asking, self.world.size
        feeds = [*own, *fill]
        steps = len(feeds)
        rows = []
        for feed in feeds:
            ids, plan = (np.array(feed[name], np.int32) for name in ("box_ids", "box_plan"))
            plan[0] = staged.stamp
            rows.append(core.compact_batch(ids, plan, len(staged.keys)))
            feed["box_ids"], feed["box_plan"] = ids, plan
        cuts = [np.searchsorted(of_batch, staged.bounds) for of_batch in rows]
        counts = np.array([np.diff(cut) for cut in cuts], np.int64)  # (steps, R)
        sizes = np.array([_instances(feed) for feed in own] + [0] * len(fill), np.int64)
        heads = lane.exchange([np.append(counts[:, r], sizes) for r in range(ranks)])
        asked = lane.exchange(
            [
                np.concatenate(
                    [staged.row_at_owner[of_batch[cut[r] : cut[r + 1]]] for of_batch, cut in pairs]
                )
                for r in range(ranks)
                for pairs in [list(zip(rows, cuts, strict=True))]
            ]
        )
        of_step = [
            np.split(found, np.cumsum(head[:steps])[:-1])
            for found, head in zip(asked, heads, strict=True)
        ]
        for number, feed in enumerate(feeds):
            needed = [parts[number] for parts in of_step]
            push = None
            if staged.train:
                ids = np.concatenate(needed)
                offsets = np.arange(len(ids) + 1, dtype=np.int32)
                push = core.Table.build_plan(ids, offsets, staged.stamp)
            feed[STEP] = Step(
                staged.stamp,
                int(sizes[number]),
                int(sum(head[steps + number] for head in heads)),
                staged.keys[rows[number]],
                counts[number].tolist(),
                needed,
                push,
            )
        return feeds

    # ---- each step

    @contextmanager
    def step(self, feed: Feed) -> Iterator[int | None]:
        """As `Table.step`: brings the rows of a batch, and takes what its push has merged to their
        owners when the program has run."""
        step: Step = feed.pop(STEP)
        if step.push is not None:
            feed[SHARE] = np.full(1, step.instances / max(1, step.all_instances), np.float32)
        self._stepping.submit(self._bring, step).result()
        self._batch.open()
        yield step.instances
        if step.push is not None:
            self._stepping.submit(self._take, step).result()

    def _bring(self, step: Step) -> None:
        asked = [self._rows(len(ids)) for ids in step.asked]
        for ids, rows in zip(step.asked, asked, strict=True):
            core.pull_into(self._native, ids, rows)
        self._batch.prepare(step.stamp, step.keys, step.push is None)
        mine = self._rows(len(step.keys))
        self._stepping.swap(asked, np.split(mine, np.cumsum(step.counts)[:-1]))
        self._batch.fill(None, 0, mine)

    def _take(self, step: Step) -> None:
        merged = np.split(self._batch.merged(), np.cumsum(step.counts)[:-1])
        sizes = [len(ids) for ids in step.asked]
        gradients = self._rows(sum(sizes))
        self._stepping.swap(merged, np.split(gradients, np.cumsum(sizes)[:-1]))
        core.push_planned(self._native, step.push, gradients)

    def _rows(self, count: int) -> np.ndarray:
        return np.empty((count, self._columns), np.float32)

    # ---- as one

    def digest(self) -> str:
        """Of the rows of all ranks: what one rank with all of them would give."""
        found = [text.decode() for text in self.world.gather("digest", super().digest().encode())]
        return sum_of_digests(found)

    def meet(self, what: str, mine: bytes = b"") -> list[bytes]:
        return self.world.gather(what, mine)

    def gather(self, mine: bytes) -> list[bytes]:
        self.world.wait("gather")
        array = np.frombuffer(bytearray(mine), np.uint8)  # a tensor's bytes may be written
        found = self._stepping.submit(self._stepping.exchange, [array] * self.world.size).result()
        return [theirs.tobytes() for theirs in found]

    def close(self) -> None:
        if getattr(self, "_batch", None) is not None:
            self._batch.unregister()
        super().close()


def _instances(feed: Feed) -> int:
    return len(feed["box_show_click"])


def _shard(staged: StagedPass) -> StagedPass:
    assert isinstance(staged, ShardedPass)
    assert staged.shard is not None
    return staged.shard
