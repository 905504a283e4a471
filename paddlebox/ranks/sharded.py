"""ShardedTable: the part of a table that a rank owns, and the way to the parts of the others.

A rank owns a range of the hash order, in a store of its own. The keys of a pass are sorted by hash,
so what a rank needs of an owner is one slice of them:

    once a pass   keys to their owners; row ids back
    each batch    the row ids that it needs, to their owners, ahead of its step
    each step     rows before it, between hosts most of them in the step before (early.py);
                  what the push has merged after it, and at once the rows of the next step:
                  what a rank does between steps makes no other wait

Operators see the rows of one batch (ops/table/batch_table.h), and know of no other rank. An owner
adds up what the ranks have merged in the order of ranks, and applies its rule once.

Letters: R = ranks, K = keys of a pass on this rank, u = unique rows of a batch, P = 3 + D + E
columns of a row, E those of its expand part.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.config import HbmPlace, Rule, TableConfig
from paddlebox.config.ranks import RanksConfig
from paddlebox.ranks import bare as bare_rows
from paddlebox.ranks.bare import THIN, Bare
from paddlebox.ranks.batch_rows import batch_rows
from paddlebox.ranks.dense import SHARE
from paddlebox.ranks.early import Changes, Late, pack, unpack
from paddlebox.ranks.ids import pack_ids, unpack_ids
from paddlebox.ranks.lane import Lane
from paddlebox.ranks.narrow import Residual, RowFormat, sum_of_left
from paddlebox.ranks.nodes import ranks_per_node
from paddlebox.ranks.traffic import Traffic
from paddlebox.ranks.world import LANES, World
from paddlebox.store.one_rank import BESIDE, key_ranges
from paddlebox.store.rank_stores import sum_of_digests
from paddlebox.store.record import VersionRecord
from paddlebox.store.table import StagedPass, Table

core = _native.core

Feed = dict[str, Any]
#: Of a feed: how the step is exchanged. Taken out before a program sees the feed.
STEP = f"{BESIDE}step"
_ROWS = f"{BESIDE}rows"  # of a feed: the future of what `_fetch` gives

_NO_SLOTS, _NO_COUNTS = np.empty(0, np.uint16), np.empty(0, np.uint32)
_BATCHES_A_MESSAGE = 8  # whose row ids travel together
_BATCHES_FIRST = 2  # of a pass, which waits for them: those of a step and of the one after it
_BY_SHOWS = (Rule.ADAGRAD, Rule.STD_ADAGRAD, Rule.ADAGRAD_V2, Rule.FTRL)  # table.show_scale
_WITH_MOMENTUM = (Rule.ADAM, Rule.SHARED_ADAM)


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
class Asked:
    """What a step asks this rank for."""

    rows: list[np.ndarray]  # int32, by who asks
    way: Any = None  # what `_fetch` and `_give` of a subclass need to know beside it


@dataclass(frozen=True)
class Step:
    """What a batch exchanges."""

    stamp: int
    instances: int  # of this rank; 0: it only serves the others
    all_instances: int  # of all ranks
    keys: np.ndarray  # (u) uint64
    places: np.ndarray  # (u) int32 of the pass's keys
    counts: list[int]  # (R) of the u rows, which are in the order of owners
    asked: list[np.ndarray]  # (R) int32 rows of this rank that each rank needs
    push: np.ndarray | None  # plan of all asked rows; None in an evaluation
    way: Any = None  # of `Asked`
    late: Late | None = None  # where the other rows travel early: between hosts
    bare: Bare | None = None  # where rows without an embedx travel without one
    following: Step | None = None  # whose rows this one fetches; not in asynchronous training


class ShardedTable(Table):
    """As `Table`, for the rank's own range; programs pull and push the rows of every rank.

    Args:
        world: which every rank has joined. options: how ranks exchange. inputs: what ends the names
            of its inputs in a feed (data/batches.py). The rest as `Table`.

    Every call that goes through all ranks (stage, count_keys, feeds, step) is made by all of them
    in the same order.
    """

    def __init__(
        self,
        config: TableConfig,
        *,
        world: World,
        options: RanksConfig | None = None,
        inputs: str = "",
        **arguments: Any,
    ) -> None:
        super().__init__(config, **arguments)
        self.world = world
        self._starts = range_starts(world.size)
        lanes = (world.lane(name) for name in LANES)
        self._staging, self._asking, self._stepping, self._ahead = lanes
        self._ids, self._plan = f"box_ids{inputs}", f"box_plan{inputs}"
        self._step, self._rows = STEP + inputs, _ROWS + inputs
        self._coming: tuple[Step, Future[None]] | None = None  # whose early rows are on their way
        self._brought: np.ndarray | None = None  # keys of the step whose rows are here already
        self._native.unregister()  # operators find the batch by the table's name
        place = arguments.get("hbm_place", HbmPlace.HOST)
        self._batch = batch_rows(config, place, int(arguments.get("threads", 1)))
        self._columns = 3 + config.embedx_dim + config.expand_dim  # P
        self.options = options = options or RanksConfig()
        self.traffic = Traffic(world.rank, ranks_per_node(world.size, options.per_node))
        self._row_format = RowFormat(options.rows, self._columns)
        self._gradient_format = RowFormat(options.gradients, self._columns)
        # Within a host whole rows of float32 take less time than looking for those that are bare.
        # Rounded or late gradients would differ in what is left of a bare row's: there always.
        self._between_nodes = (
            not world.on_one_host or ranks_per_node(world.size, options.per_node) < world.size
        )
        self._leaves_out = (
            self._between_nodes
            or self._row_format.narrow
            or self._gradient_format.narrow
            or options.ahead > 0
        )
        self._stamp = 0  # of the open pass
        self._residual: Residual | None = None  # of the open training pass
        self._given: deque[Future[None]] = deque()  # pushes on their way to owners
        #: Steps, and instances of all ranks in them, since whoever counts them set these to 0; and
        #: of the steps that training comes to next so many are left out.
        self.steps, self.samples, self.skip_steps = 0, 0, 0

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
        self._staging.meet("stage")
        return self._staging.do(self._stage, keys, slots, train, day)

    def _stage(
        self, keys: np.ndarray, slots: np.ndarray | None, train: bool, day: int
    ) -> ShardedPass:
        keys = np.ascontiguousarray(keys, np.uint64)
        slots = np.zeros(len(keys), np.uint16) if slots is None else slots
        bounds, lane = self._bounds(keys), self._staging
        asked = self._exchange(lane, "keys", self._cut(bounds, keys))
        of_slots = self._exchange(
            lane, "keys", self._cut(bounds, np.ascontiguousarray(slots, np.uint16))
        )
        merged, lowest, _, places = core.merge_keys(
            [(k, s, _NO_COUNTS) for k, s in zip(asked, of_slots, strict=True)]
        )
        shard = super().stage(merged, lowest, train=train, day=day)
        rows = self._exchange(lane, "keys", [shard.row_of_key[of_rank] for of_rank in places])
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
        self._staging.meet("count")
        return self._staging.do(self._count_keys, keys, counts)

    def _count_keys(self, keys: np.ndarray, counts: np.ndarray) -> int:
        keys = np.ascontiguousarray(keys, np.uint64)
        bounds, lane = self._bounds(keys), self._staging
        asked = self._exchange(lane, "keys", self._cut(bounds, keys))
        of_counts = self._exchange(
            lane, "keys", self._cut(bounds, np.ascontiguousarray(counts, np.uint32))
        )
        merged, _, sums, _ = core.merge_keys(
            [(k, _NO_SLOTS, c) for k, c in zip(asked, of_counts, strict=True)]
        )
        return super().count_keys(merged, sums)

    def drop_staged(self, staged: StagedPass) -> None:
        super().drop_staged(_shard(staged))

    def make_room(self, staged: StagedPass) -> None:
        super().make_room(_shard(staged))

    def begin(self, staged: StagedPass) -> None:
        self.make_room(staged)
        assert isinstance(staged, ShardedPass)
        self._native.begin(_shard(staged).stamp)
        self._stamp, self._residual = staged.stamp, None
        if staged.train and self._gradient_format.narrow and self.options.error_feedback:
            self._residual = self._new_residual(staged)

    def _new_residual(self, staged: ShardedPass) -> Residual:
        return Residual(self._gradient_format, staged.row_at_owner, staged.bounds)

    def end(self, pass_number: int = 0) -> None:
        """As `Table.end`, once every gradient has been applied, and what rounding took of them."""
        self._settle(0)
        residual, self._residual = self._residual, None
        # A step of Adam moves a row by its momentum, far more than what a rounding has left.
        if residual is not None and not {rule for rule, _ in self._rules} & {*_WITH_MOMENTUM}:
            self._stepping.meet("flush")
            self._stepping.do(self._flush, residual)
        super().end(pass_number)

    @property
    def _rules(self) -> list[tuple[Rule, int]]:
        """Of embed_w, embedx and expand, with how many columns each has."""
        config = self.config
        found = [
            (config.embed.rule, 1),
            (config.embedx.rule, config.embedx_dim),
            (config.expand.rule, config.expand_dim),
        ]
        return [(rule, columns) for rule, columns in found if columns]

    def _flush(self, residual: Residual) -> None:
        rows, left = residual.left()
        form = self._gradient_format
        ids = self._exchange(self._stepping, "left", rows)
        packed = [form.pack(np.insert(part, 1, 0.0, axis=1)).reshape(-1) for part in left]
        values = [
            np.delete(form.unpack(flat.reshape(-1, form.record_bytes)), 1, axis=1)  # no click
            for flat in self._exchange(self._stepping, "left", packed)
        ]
        scaled = [
            self.config.show_scale and rule in _BY_SHOWS
            for rule, columns in self._rules
            for _ in range(columns)
        ]
        found, gradients = sum_of_left(ids, values, scaled)
        if len(found):
            offsets = np.arange(len(found) + 1, dtype=np.int32)
            plan = core.Table.build_plan(found, offsets, self._stamp)
            core.push_planned(self._native, plan, gradients)

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
        self._residual = None
        self._ahead.submit(lambda: None).result()  # rows and gradients of the open pass
        self._given.clear()

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
        changes = self.changes_of(staged)
        ask = partial(self.ask, staged, changes)
        feeds = self.planned(count, batches, nobody, ask, staged.train)
        yield from with_next([self], feeds, staged.train)

    def changes_of(self, staged: ShardedPass) -> Changes | None:
        """What says which rows a step changes, where rows travel early."""
        self._coming = self._brought = None
        # Within a host rows take 1 to 2 % of a step: less than another thread would cost.
        if self.world.on_one_host or self.options.ahead or self.options.two_level:
            return None
        return Changes(_shard(staged).rows, staged.train)

    def planned(
        self,
        count: int,
        batches: Iterable[Feed],
        nobody: Callable[[], Feed],
        ask: Callable[[list[Feed], list[Feed]], list[Feed]],
        train: bool,
    ) -> Iterator[Feed]:
        """The batches with what their steps exchange, which `ask` finds for some at a time."""
        steps = max(int(found) for found in self.world.gather("steps", str(count).encode()))
        passed = min(self.skip_steps, steps) if train else 0
        self.skip_steps, self.steps, steps = (
            self.skip_steps - passed,
            self.steps + passed,
            steps - passed,
        )
        source = itertools.islice(batches, passed, None)

        def begin(first: int) -> Future[list[Feed]] | None:
            most = min(_BATCHES_A_MESSAGE if first else _BATCHES_FIRST, steps - first)
            if most <= 0:
                return None
            own = list(itertools.islice(source, most))
            fill = [nobody() for _ in range(most - len(own))]
            self._asking.meet("ask")
            return self._asking.submit(ask, own, fill)

        made, coming = 0, begin(0)
        while coming is not None:
            feeds = coming.result()
            made += len(feeds)
            coming = begin(made)
            yield from feeds

    def with_following(self, feeds: Iterable[Feed]) -> Iterator[Feed]:
        """Each step knows the one after it."""
        held: Feed | None = None
        for feed in feeds:
            if held is not None:
                held[self._step] = replace(held[self._step], following=feed[self._step])
                yield held
            held = feed
        if held is not None:
            yield held

    def ask(
        self,
        staged: ShardedPass,
        changes: Changes | None,
        own: list[Feed],
        fill: list[Feed],
    ) -> list[Feed]:
        """The steps of some batches: which rows this rank needs of each owner, and which each rank
        needs of it. On the lane's thread."""
        lane, feeds, rows = self._asking, [*own, *fill], []
        for feed in feeds:
            names = [_name_in(feed, name) for name in (self._ids, self._plan)]
            ids, plan = (np.array(feed[name], np.int32) for name in names)
            plan[0] = staged.stamp
            rows.append(core.compact_batch(ids, plan, len(staged.keys)))
            feed |= zip(names, (ids, plan), strict=True)
        cuts = [np.searchsorted(of_batch, staged.bounds) for of_batch in rows]
        wanted = [
            [staged.row_at_owner[of_batch[a:b]] for a, b in itertools.pairwise(cut.tolist())]
            for of_batch, cut in zip(rows, cuts, strict=True)
        ]
        sizes = [_instances(feed) for feed in own] + [0] * len(fill)
        asked = self._request(staged, wanted)
        all_sizes = lane.exchange([np.array(sizes, np.int64)] * self.world.size)
        late: list[Late | None] = [None] * len(feeds)
        if changes is not None:
            asked_late = [changes.late(of_step.rows) for of_step in asked]
            told = self._exchange(
                lane, "ids", [pack(asked_late, rank) for rank in range(self.world.size)]
            )
            counts = np.array([np.diff(cut) for cut in cuts], np.int64)
            late = [Late(*each) for each in zip(asked_late, unpack(told, counts), strict=True)]
        for number, feed in enumerate(feeds):
            push = None
            if staged.train:
                ids = np.concatenate(asked[number].rows)
                offsets = np.arange(len(ids) + 1, dtype=np.int32)
                push = core.Table.build_plan(ids, offsets, staged.stamp)
            feed[self._step] = Step(
                staged.stamp,
                sizes[number],
                int(sum(of_rank[number] for of_rank in all_sizes)),
                staged.keys[rows[number]],
                rows[number],
                np.diff(cuts[number]).tolist(),
                asked[number].rows,
                push,
                asked[number].way,
                late[number],
                Bare.of(sum(map(len, asked[number].rows)), len(rows[number]))
                if self._leaves_out
                else None,
            )
        return feeds

    def _request(self, staged: ShardedPass, wanted: list[list[np.ndarray]]) -> list[Asked]:
        """Tells owners which rows are wanted of them; every rank calls it. On the asking lane.

        Args:
            wanted: (steps, R) int32 rows at each owner.
        """
        del staged
        ranks, lane = self.world.size, self._asking
        counts = np.array([[len(rows) for rows in of_step] for of_step in wanted], np.int64)
        heads = self._exchange(lane, "ids", [counts[:, rank] for rank in range(ranks)])
        asked = self._exchange_ids(
            lane, [np.concatenate([of_step[rank] for of_step in wanted]) for rank in range(ranks)]
        )
        of_rank = [
            np.split(found, np.cumsum(head)[:-1]) for found, head in zip(asked, heads, strict=True)
        ]
        return [Asked([parts[step] for parts in of_rank]) for step in range(len(wanted))]

    # ---- each step

    @contextmanager
    def step(self, feed: Feed) -> Iterator[int | None]:
        """As `Table.step`: brings the rows of a batch, and takes what its push has merged to their
        owners when the program has run."""
        step: Step = feed.pop(self._step)
        for name in [name for name in feed if name.startswith(BESIDE + "box_")]:
            del feed[name]
        if step.push is not None:
            feed[SHARE] = np.full(1, step.instances / max(1, step.all_instances), np.float32)
        try:
            rows: Future[np.ndarray] | None = feed.pop(self._rows, None)
            if rows is not None:
                self._batch.prepare(step.stamp, step.keys, step.push is None)
                self._batch.fill(None, 0, rows.result())
            elif step.late is not None:
                self._bring_late(step, step.late)
            elif self._brought is not step.keys:  # the first of a pass
                self._stepping.do(self._bring, step)
            self._batch.open()
            if step.following is not None and step.late is not None:
                ahead = self._ahead.submit(self._bring_early, step.following)
                self._coming = (step.following, ahead)
            yield step.instances
            if step.push is not None:
                self.steps, self.samples = self.steps + 1, self.samples + step.all_instances
            if step.push is not None and rows is None:
                self._stepping.do(self._give, step, self._stepping, self._batch.merged())
            elif step.push is not None:
                # The table's own memory lasts until the next batch.
                merged = self._batch.merged().copy()
                self._given.append(self._ahead.submit(self._give, step, self._ahead, merged))
                self._settle(self.options.ahead)
            if step.following is not None and step.late is None:
                self._stepping.do(self._bring, step.following)
                self._brought = step.following.keys
        except BaseException as error:
            self.world.leave(error)  # the others are in this step, too
            raise

    def fetch_ahead(self, feed: Feed) -> None:
        """Begins to fetch the rows of a step before it is made."""
        feed[self._rows] = self._ahead.submit(self._fetch, feed[self._step], self._ahead)

    def settle(self) -> None:
        """Waits until every gradient has been applied."""
        self._settle(0)

    def _settle(self, most: int) -> None:
        """Waits until at most so many steps are on their way to owners."""
        while len(self._given) > most:
            self._given.popleft().result()

    def _bring(self, step: Step) -> None:
        self._batch.prepare(step.stamp, step.keys, step.push is None)
        self._batch.fill(None, 0, self._fetch(step, self._stepping))

    def _bring_early(self, step: Step) -> None:
        assert step.late is not None
        self._batch.prepare(step.stamp, step.keys, step.push is None)
        self._bring_some(self._ahead, step, [~late for late in step.late.asked], ~step.late.own)

    def _bring_late(self, step: Step, late: Late) -> None:
        """What the step before has changed, once the rest is here."""
        coming, self._coming = self._coming, None
        # The first step of a pass has none before it, in which its rows could have come.
        if coming is not None and coming[0].late is late:
            coming[1].result()
        else:
            self._ahead.do(self._bring_early, step)
        self._stepping.do(self._bring_some, self._stepping, step, late.asked, late.own)

    def _bring_some(self, lane: Lane, step: Step, asked: list[np.ndarray], own: np.ndarray) -> None:
        """asked: (R) bool of step.asked, which of them. own: (u) bool, those that come here."""
        ids = [of_rank[chosen] for of_rank, chosen in zip(step.asked, asked, strict=True)]
        of_owner = np.split(own, np.cumsum(step.counts)[:-1])
        counts = [int(np.count_nonzero(chosen)) for chosen in of_owner]
        bare = None if step.bare is None else Bare()
        mine = self._from_owners(lane, ids, counts, bare)
        if step.bare is not None and bare is not None:
            step.bare.asked[np.concatenate(asked)], step.bare.own[own] = bare.asked, bare.own
        self._batch.fill(np.flatnonzero(own).astype(np.int32), 0, mine)

    def _fetch(self, step: Step, lane: Lane) -> np.ndarray:
        """(u, P) float32 rows of a batch, from their owners."""
        return self._from_owners(lane, step.asked, step.counts, step.bare)

    def _from_owners(
        self, lane: Lane, asked: list[np.ndarray], counts: list[int], bare: Bare | None
    ) -> np.ndarray:
        """(sum of counts, P) float32 rows from their owners.

        Args:
            asked: (R) int32 rows of this rank. counts: (R) of rows from each. bare: filled.
        """
        ids, form = np.concatenate(asked), self._row_format
        sizes = [len(of_rank) for of_rank in asked]
        rows = np.empty((len(ids), self._columns), np.float32)
        core.pull_into(self._native, ids, rows)
        if bare is None:
            mine = form.empty(sum(counts))
            out = np.split(form.pack(rows), np.cumsum(sizes)[:-1])
            self._pass_on(lane, "rows", out, np.split(mine, np.cumsum(counts)[:-1]))
            return form.unpack(mine)
        bare.asked = core.have_embedx(self._native, ids) == 0
        bits = bare_rows.bits_room(counts)
        self._pass_on(lane, "rows", bare_rows.packed(bare.asked, sizes), bits)
        bare.own = bare_rows.unpacked(bits, counts)
        whole, thin = form.pack(rows[~bare.asked]), rows[bare.asked, :THIN]
        into = bare_rows.room(bare.own, counts, form.record_bytes)
        self._pass_on(lane, "rows", bare_rows.joined(whole, thin, bare.asked, sizes), into)
        whole, thin = bare_rows.parted(into, bare.own, counts, form.record_bytes)
        return bare_rows.spread(form.unpack(whole), thin, bare.own)

    def _give(self, step: Step, lane: Lane, merged: np.ndarray) -> None:
        """Takes (u, P) gradients to the owners of their rows, who apply them."""
        self._to_owners(step, lane, merged, step.places, step.counts)

    def _to_owners(
        self, step: Step, lane: Lane, merged: np.ndarray, places: np.ndarray, counts: list[int]
    ) -> None:
        """Args: places: (n) int32 of the residual. counts: (R) of gradients to each."""
        sizes, form, bare = [len(ids) for ids in step.asked], self._gradient_format, step.bare
        if bare is None:
            out = np.split(self._pack_gradients(merged, places), np.cumsum(counts)[:-1])
            records = form.empty(sum(sizes))
            self._pass_on(lane, "gradients", out, np.split(records, np.cumsum(sizes)[:-1]))
            gradients = form.unpack(records)
        else:
            whole = self._pack_gradients(merged, places, ~bare.own)
            out = bare_rows.joined(whole, merged[bare.own, :THIN], bare.own, counts)
            into = bare_rows.room(bare.asked, sizes, form.record_bytes)
            self._pass_on(lane, "gradients", out, into)
            whole, thin = bare_rows.parted(into, bare.asked, sizes, form.record_bytes)
            gradients = bare_rows.spread(form.unpack(whole), thin, bare.asked)
        core.push_planned(self._native, step.push, gradients)

    def _pass_on(
        self, lane: Lane, what: str, out: list[np.ndarray], into: list[np.ndarray]
    ) -> None:
        """Swaps with those that rows are asked of and given to. out, into: (R)."""
        self.traffic.add(what, out)
        lane.swap(out, into)

    def _pack_gradients(
        self, gradients: np.ndarray, places: np.ndarray, which: Any = slice(None)
    ) -> np.ndarray:
        if self._residual is not None:
            return self._residual.pack(gradients[which], places[which])
        return self._gradient_format.pack(gradients[which])

    def _exchange_ids(self, lane: Lane, out: list[np.ndarray]) -> list[np.ndarray]:
        """As `_exchange`, of row ids."""
        if not self._between_nodes:
            return self._exchange(lane, "ids", out)
        packed = self._exchange(lane, "ids", [pack_ids(ids) for ids in out])
        return [unpack_ids(ids) for ids in packed]

    def _exchange(self, lane: Lane, what: str, out: list[np.ndarray]) -> list[np.ndarray]:
        self.traffic.add(what, out)
        return lane.exchange(out)

    # ---- as one

    def digest(self) -> str:
        """Of the rows of all ranks: what one rank with all of them would give."""
        found = [text.decode() for text in self.world.gather("digest", super().digest().encode())]
        return sum_of_digests(found)

    def meet(self, what: str, mine: bytes = b"") -> list[bytes]:
        return self.world.gather(what, mine)

    def gather(self, mine: bytes) -> list[bytes]:
        self._stepping.meet("gather")
        array = np.frombuffer(bytearray(mine), np.uint8)  # a tensor's bytes may be written
        found = self._stepping.do(self._stepping.exchange, [array] * self.world.size)
        return [theirs.tobytes() for theirs in found]

    def counters(self) -> dict[str, Any]:
        exchanged = {  # bytes are counted by what they are, not by lane (traffic.py)
            f"exchange_{name}": value
            for name, value in self.world.counters().items()
            if not name.startswith("sent_bytes")
        }
        return {**super().counters(), **exchanged}

    def close(self) -> None:
        if getattr(self, "_batch", None) is not None:
            self._batch.unregister()
        super().close()


def with_next(tables: Sequence[ShardedTable], feeds: Iterable[Feed], train: bool) -> Iterator[Feed]:
    """Feeds that every one of these tables has asked for; each step knows the one after it. In
    asynchronous training the rows of the next steps are on their way instead.

    What is done on a lane is done in its order: with `ahead` steps fetched before a step's
    gradients are given, rows lack those of just so many steps.
    """
    ahead = tables[0].options.ahead if train else 0
    if not ahead:
        for table in tables:
            feeds = table.with_following(feeds)
        yield from feeds
        return
    fetched: deque[Feed] = deque()
    for feed in feeds:
        for table in tables:
            table.fetch_ahead(feed)
        fetched.append(feed)
        if len(fetched) > ahead:
            yield fetched.popleft()
    yield from fetched
    for table in tables:
        table.settle()


def _instances(feed: Feed) -> int:
    return len(feed[_name_in(feed, "box_show_click")])


def _name_in(feed: Feed, name: str) -> str:
    """Of a packed input, which the program may not read."""
    return name if name in feed else BESIDE + name


def _shard(staged: StagedPass) -> StagedPass:
    assert isinstance(staged, ShardedPass)
    assert staged.shard is not None
    return staged.shard
