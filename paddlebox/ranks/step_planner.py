"""StepPlanner: what the steps of batches exchange, found ahead of them on a lane of its own.

Letters: R = ranks, u = unique rows of a batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future

import numpy as np

from paddlebox import _native
from paddlebox.ranks.exchange import Exchange
from paddlebox.ranks.lane import Lane
from paddlebox.ranks.plans import STEP, Feed, ShardedPass, Step
from paddlebox.ranks.prefetch import Changes, Late, pack, unpack
from paddlebox.ranks.rows_without_embedx import Bare
from paddlebox.store.one_rank import BESIDE

core = _native.core

_BATCHES_A_MESSAGE = 8  # whose row ids travel together
_BATCHES_FIRST = 2  # of a pass, which waits for them: those of a step and of the one after it


class StepPlanner:
    """Args:
    inputs: what ends the names of the table's inputs in a feed (data/batches.py).
    """

    def __init__(self, lane: Lane, exchange: Exchange, inputs: str) -> None:
        self._lane, self._exchange, self._world = lane, exchange, exchange.world
        # Within a host rows take 1 to 2 % of a step: less than another thread would cost.
        options = exchange.options
        self._early = not (self._world.on_one_host or options.ahead or options.two_level)
        self._ids, self._plan, self._step = f"box_ids{inputs}", f"box_plan{inputs}", STEP + inputs

    def agree_steps(self, count: int) -> int:
        """How many steps all ranks make, of which this one has batches for so many."""
        return max(int(found) for found in self._world.gather("steps", str(count).encode()))

    def changes_of(self, staged: ShardedPass) -> Changes | None:
        """What says which rows a step changes, where rows travel early."""
        return Changes(staged.own.rows, staged.train) if self._early else None

    def planned(
        self,
        steps: int,
        batches: Iterable[Feed],
        nobody: Callable[[], Feed],
        ask: Callable[[list[Feed], list[Feed]], list[Feed]],
    ) -> Iterator[Feed]:
        """So many batches with what their steps exchange, which `ask` finds for some at a time;
        `nobody` where there are fewer."""
        source = iter(batches)

        def begin(first: int) -> Future[list[Feed]] | None:
            most = min(_BATCHES_A_MESSAGE if first else _BATCHES_FIRST, steps - first)
            if most <= 0:
                return None
            own = list(itertools.islice(source, most))
            fill = [nobody() for _ in range(most - len(own))]
            self._lane.meet("ask")
            return self._lane.submit(ask, own, fill)

        made, coming = 0, begin(0)
        while coming is not None:
            feeds = coming.result()
            made += len(feeds)
            coming = begin(made)
            yield from feeds

    def ask(
        self,
        staged: ShardedPass,
        changes: Changes | None,
        own: list[Feed],
        fill: list[Feed],
    ) -> list[Feed]:
        """The steps of some batches: which rows this rank needs of each owner, and which each rank
        needs of it. On the lane's thread."""
        lane, feeds, rows = self._lane, [*own, *fill], []
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
        asked = self._exchange.request(staged, wanted, lane)
        all_sizes = lane.exchange([np.array(sizes, np.int64)] * self._world.size)
        late: list[Late | None] = [None] * len(feeds)
        if changes is not None:
            asked_late = [changes.late(of_step.rows) for of_step in asked]
            told = self._exchange.all_to_all(
                lane, "ids", [pack(asked_late, rank) for rank in range(self._world.size)]
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
                if self._exchange.leaves_out
                else None,
            )
        return feeds


def _instances(feed: Feed) -> int:
    return len(feed[_name_in(feed, "box_show_click")])


def _name_in(feed: Feed, name: str) -> str:
    """Of a packed input, which the program may not read."""
    return name if name in feed else BESIDE + name
