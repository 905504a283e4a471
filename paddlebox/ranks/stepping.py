"""Stepping: the steps of a pass, each with the rows of its batch brought before it, and what its
push has merged given to their owners after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paddlebox.ranks.dense import SHARE
from paddlebox.ranks.exchange import Exchange
from paddlebox.ranks.lane import Lane
from paddlebox.ranks.plans import STEP, Feed, Step
from paddlebox.ranks.prefetch import Late
from paddlebox.store.one_rank import BESIDE

_ROWS = f"{BESIDE}rows"  # of a feed: the future of what `Exchange.fetch` gives


@dataclass
class Progress:
    """Steps, and instances of all ranks in them, since whoever counts them set these to 0; and of
    the steps that training comes to next so many are left out."""

    steps: int = 0
    samples: int = 0
    skip_steps: int = 0

    def leave_out(self, steps: int) -> int:
        """How many of so many steps are left out."""
        passed = min(self.skip_steps, steps)
        self.skip_steps, self.steps = self.skip_steps - passed, self.steps + passed
        return passed


class Stepping:
    """Args:
    lane, ahead: of what a step waits for, and of what it does not. batch: of `batch_rows`.
    inputs: as of `StepPlanner`.
    """

    def __init__(
        self, lane: Lane, ahead: Lane, exchange: Exchange, batch: Any, inputs: str
    ) -> None:
        self._lane, self._ahead = lane, ahead
        self._exchange, self._batch = exchange, batch
        #: So many later steps have their rows fetched before the gradients of a step are given.
        self.steps_ahead = exchange.options.ahead
        self._step, self._rows = STEP + inputs, _ROWS + inputs
        self._coming: tuple[Step, Future[None]] | None = None  # whose early rows are on their way
        self._brought: np.ndarray | None = None  # keys of the step whose rows are here already
        self._given: deque[Future[None]] = deque()  # pushes on their way to owners
        self.progress = Progress()

    def with_following(self, feeds: Iterable[Feed]) -> Iterator[Feed]:
        """The feeds of a part of a pass; each step knows the one after it."""
        self._coming = self._brought = None
        held: Feed | None = None
        for feed in feeds:
            if held is not None:
                held[self._step] = replace(held[self._step], following=feed[self._step])
                yield held
            held = feed
        if held is not None:
            yield held

    @contextmanager
    def step(self, feed: Feed) -> Iterator[int | None]:
        """As `ManyRanks.step`, of one table."""
        step: Step = feed.pop(self._step)
        for name in [name for name in feed if name.startswith(BESIDE + "box_")]:
            del feed[name]
        if step.push is not None:
            feed[SHARE] = np.full(1, step.instances / max(1, step.all_instances), np.float32)
        try:
            rows: Future[np.ndarray] | None = feed.pop(self._rows, None)
            if rows is not None:
                self._prepare(step)
                self._batch.fill(None, 0, rows.result())
            elif step.late is not None:
                self._bring_late(step, step.late)
            elif self._brought is not step.keys:  # the first of a pass
                self._lane.do(self._bring, step)
            self._batch.open()
            if step.following is not None and step.late is not None:
                ahead = self._ahead.submit(self._bring_early, step.following)
                self._coming = (step.following, ahead)
            yield step.instances
            if step.push is not None:
                self.progress.steps += 1
                self.progress.samples += step.all_instances
            if step.push is not None and rows is None:
                self._lane.do(self._exchange.give, step, self._lane, self._batch.merged())
            elif step.push is not None:
                # The table's own memory lasts until the next batch.
                merged = self._batch.merged().copy()
                give = self._ahead.submit(self._exchange.give, step, self._ahead, merged)
                self._given.append(give)
                self.settle(self.steps_ahead)
            if step.following is not None and step.late is None:
                self._lane.do(self._bring, step.following)
                self._brought = step.following.keys
        except BaseException as error:
            self._exchange.world.leave(error)  # the others are in this step, too
            raise

    def fetch_ahead(self, feed: Feed) -> None:
        """Begins to fetch the rows of a step before it is made."""
        feed[self._rows] = self._ahead.submit(self._exchange.fetch, feed[self._step], self._ahead)

    def settle(self, most: int = 0) -> None:
        """Waits until the gradients of at most so many steps have not been applied."""
        while len(self._given) > most:
            self._given.popleft().result()

    def drop(self) -> None:
        """Forgets rows and gradients of the open pass that are on their way."""
        self._ahead.submit(lambda: None).result()
        self._given.clear()

    def close(self) -> None:
        self._batch.unregister()

    def _prepare(self, step: Step) -> None:
        self._batch.prepare(step.stamp, step.keys, step.push is None)

    def _bring(self, step: Step) -> None:
        self._prepare(step)
        self._batch.fill(None, 0, self._exchange.fetch(step, self._lane))

    def _bring_early(self, step: Step) -> None:
        assert step.late is not None
        self._prepare(step)
        self._bring_some(self._ahead, step, [~late for late in step.late.asked], ~step.late.own)

    def _bring_late(self, step: Step, late: Late) -> None:
        """What the step before has changed, once the rest is here."""
        coming, self._coming = self._coming, None
        # The first step of a pass has none before it, in which its rows could have come.
        if coming is not None and coming[0].late is late:
            coming[1].result()
        else:
            self._ahead.do(self._bring_early, step)
        self._lane.do(self._bring_some, self._lane, step, late.asked, late.own)

    def _bring_some(self, lane: Lane, step: Step, asked: list[np.ndarray], own: np.ndarray) -> None:
        """As `Exchange.fetch_some`."""
        mine = self._exchange.fetch_some(step, lane, asked, own)
        self._batch.fill(np.flatnonzero(own).astype(np.int32), 0, mine)


def with_next(of_tables: Sequence[Stepping], feeds: Iterable[Feed], train: bool) -> Iterator[Feed]:
    """Feeds that every one of these tables has asked for; each step knows the one after it. In
    asynchronous training the rows of the next steps are on their way instead.

    What is done on a lane is done in its order: with `ahead` steps fetched before a step's
    gradients are given, rows lack those of just so many steps.
    """
    ahead = of_tables[0].steps_ahead if train else 0
    if not ahead:
        for table in of_tables:
            feeds = table.with_following(feeds)
        yield from feeds
        return
    fetched: deque[Feed] = deque()
    for feed in feeds:
        for table in of_tables:
            table.fetch_ahead(feed)
        fetched.append(feed)
        if len(fetched) > ahead:
            yield fetched.popleft()
    yield from fetched
    for table in of_tables:
        table.settle()
