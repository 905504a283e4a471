"""StepPlanner: plans what steps exchange, some batches ahead, on its own channel.

Letters: R = ranks, u = unique rows of a batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future

import numpy as np

from paddlebox import _native
from paddlebox.ranks.channel import Channel
from paddlebox.ranks.exchange import RowExchange
from paddlebox.ranks.plans import STEP, Changes, Late, ShardedPass, Step, pack, unpack
from paddlebox.ranks.row_messages import Bare
from paddlebox.store.table_exchange import BESIDE, Feed

core = _native.core

_BATCHES_A_MESSAGE = 8  # batches whose row ids are sent together
# The pass waits for its first message, so this message has only the first two steps.
_BATCHES_FIRST = 2
_WEIGHT = "box_weight"  # the input with the weights of instances


class StepPlanner:
    """Plans the steps of one table. inputs: suffix of the names of its inputs in a feed
    (data/batches.py)."""

    def __init__(self, channel: Channel, exchange: RowExchange, inputs: str) -> None:
        self._channel, self._exchange, self._world = channel, exchange, exchange.world
        # Within a host, fetching rows takes 1 to 2 % of a step, less than a thread would cost.
        self._early = not (self._world.on_one_host or exchange.options.staleness)
        self._ids, self._plan, self._step = f"box_ids{inputs}", f"box_plan{inputs}", STEP + inputs

    def changes_of(self, staged: ShardedPass) -> Changes | None:
        """Tracks which rows a step changes; None if no rows are fetched early."""
        return Changes(staged.own.rows, staged.train) if self._early else None

    def planned(
        self,
        steps: int,
        batches: Iterable[Feed],
        idle_batch: Callable[[], Feed],
        plan: Callable[[list[Feed], list[Feed]], list[Feed]],
    ) -> Iterator[Feed]:
        """(steps) the batches of a part of a pass, each with its step. plan: calls `self.plan` of
        all tables for some batches."""
        source = iter(batches)

        def begin(first: int) -> Future[list[Feed]] | None:
            most = min(_BATCHES_A_MESSAGE if first else _BATCHES_FIRST, steps - first)
            if most <= 0:
                return None
            own = list(itertools.islice(source, most))
            fill = [idle_batch() for _ in range(most - len(own))]
            return self._channel.submit(plan, own, fill)

        made, coming = 0, begin(0)
        while coming is not None:
            feeds = coming.result()
            made += len(feeds)
            coming = begin(made)
            yield from feeds

    def plan(
        self,
        staged: ShardedPass,
        changes: Changes | None,
        own: list[Feed],
        fill: list[Feed],
    ) -> list[Feed]:
        """The batches, each with its step. Runs on the thread of the channel.

        Args:
            changes: `changes_of` that pass.
            own: batches of this rank.
            fill: batches of `idle_batch`, for more steps.
        """
        channel, feeds, rows = self._channel, [*own, *fill], []
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
        instances = np.array(sizes, np.int32)
        asked, all_sizes = self._exchange.request(wanted, instances, channel)
        all_weights = self._all_weights(feeds)
        late: list[Late | None] = [None] * len(feeds)
        if changes is not None:
            asked_late = [changes.late(of_step) for of_step in asked]
            late_bits = self._exchange.all_to_all(
                channel, "ids", [pack(asked_late, rank) for rank in range(self._world.size)]
            )
            counts = np.array([np.diff(cut) for cut in cuts], np.int64)
            late = [Late(*each) for each in zip(asked_late, unpack(late_bits, counts), strict=True)]
        for number, feed in enumerate(feeds):
            push = None
            if staged.train:
                ids = np.concatenate(asked[number])
                offsets = np.arange(len(ids) + 1, dtype=np.int32)
                push = core.Table.build_plan(ids, offsets, staged.stamp)
            feed[self._step] = Step(
                staged.stamp,
                sizes[number],
                int(sum(of_rank[number] for of_rank in all_sizes)),
                staged.keys[rows[number]],
                rows[number],
                np.diff(cuts[number]).tolist(),
                asked[number],
                push,
                late[number],
                Bare.of(sum(map(len, asked[number])), len(rows[number]))
                if self._exchange.leaves_out
                else None,
                all_weight=None if all_weights is None else float(all_weights[number]),
            )
        return feeds

    def _all_weights(self, feeds: list[Feed]) -> np.ndarray | None:
        """(steps) the sum of the weights of the instances of all ranks; None without weights."""
        name = _name_in(feeds[0], _WEIGHT)
        if name not in feeds[0]:
            return None
        mine = np.array([feed[name].sum(dtype=np.float64) for feed in feeds])
        found = self._exchange.all_to_all(self._channel, "ids", [mine] * self._world.size)
        total: np.ndarray = np.sum(found, axis=0)
        return total


def _instances(feed: Feed) -> int:
    return len(feed[_name_in(feed, "box_show_click")])


def _name_in(feed: Feed, name: str) -> str:
    """The key of a packed input. It has a prefix if the program does not read the input."""
    return name if name in feed else BESIDE + name
