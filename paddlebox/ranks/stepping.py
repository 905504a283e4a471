"""Stepping: runs steps. When all pushes of a step are done, it sends the gradients and then fetches
the rows of the next step: at the end of the step, or between hosts while the dense gradients are
summed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paddlebox.ranks.channel import Channel
from paddlebox.ranks.exchange import RowExchange
from paddlebox.ranks.plans import STEP, Late, Step
from paddlebox.store.table_exchange import BESIDE, Feed
from paddlebox.training.program import SHARE

_ROWS = f"{BESIDE}rows"  # key in a feed: the future of `RowExchange.fetch`


@dataclass
class Progress:
    """The steps of a pass so far. Partial recovery sets it at the start of a pass."""

    steps: int = 0
    samples: int = 0  # instances of all ranks in these steps
    skip_steps: int = 0  # number of coming steps to leave out

    def leave_out(self, steps: int) -> int:
        """Leave out up to `skip_steps` of the next `steps` steps. Returns how many."""
        passed = min(self.skip_steps, steps)
        self.skip_steps, self.steps = self.skip_steps - passed, self.steps + passed
        return passed


class Stepping:
    """The steps of one table.

    Args:
        channel: for exchanges that a step waits for.
        ahead: the channel for exchanges that run beside steps.
        batch: the rows of a batch (`batch_rows`).
        inputs: the argument of `StepPlanner`.
    """

    def __init__(
        self, channel: Channel, ahead: Channel, exchange: RowExchange, batch: Any, inputs: str
    ) -> None:
        self._channel, self._ahead = channel, ahead
        self._exchange, self._batch = exchange, batch
        #: The number of later steps whose rows are fetched before the gradients of a step are sent.
        self.steps_ahead = exchange.options.staleness
        self._step, self._rows = STEP + inputs, _ROWS + inputs
        self._coming: tuple[Step, Future[None]] | None = None  # early rows on their way
        self._brought: np.ndarray | None = None  # keys of the step whose rows are here
        self._given: deque[Future[None]] = deque()  # pushes on their way to owners
        self._open: Step | None = None  # the open step, if it sends its pushes at its end
        #: Its pushes on their way, and then the rows of the next step, begun before its end.
        self._giving: Future[None] | None = None
        self.progress = Progress()

    def with_following(self, feeds: Iterable[Feed]) -> Iterator[Feed]:
        """The feeds of a part of a pass, with each step linked to the next one."""
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
        step: Step = feed.pop(self._step)
        for name in [name for name in feed if name.startswith(BESIDE + "box_")]:
            del feed[name]
        if step.push is not None:
            feed[SHARE] = np.full(1, step.share, np.float32)
        try:
            rows: Future[np.ndarray] | None = feed.pop(self._rows, None)
            if rows is not None:
                self._prepare(step)
                self._batch.fill(None, 0, rows.result())
            elif self._brought is not step.keys:  # the first step of a pass
                self._bring(step)
            self._batch.open()
            if step.following is not None and step.late is not None:
                ahead = self._ahead.submit(self._bring_early, step.following)
                self._coming = (step.following, ahead)
            pushes = step.push is not None and step.all_weight != 0
            self._open = step if pushes and rows is None else None
            yield step.instances
            self._open = None
            if step.push is not None:
                self.progress.steps += 1
                self.progress.samples += step.all_instances
            if self._giving is not None:
                self._giving.result()
                self._giving = None
            elif rows is None:
                self._exchange_after(step, pushes=pushes)
            elif pushes:
                # A copy: the memory of `merged` is valid until the next batch only.
                merged = self._batch.merged().copy()
                give = self._ahead.submit(self._exchange.give, step, self._ahead, merged)
                self._given.append(give)
                self.settle(self.steps_ahead)
        except BaseException as error:
            self._exchange.world.leave(error)  # the other ranks wait in this step
            if self._giving is not None:  # it writes to the rows; `leave` ends its waits
                self._giving.exception()
            raise

    def begin_to_give(self) -> None:
        """Begin to send the gradients of the open step, whose pushes must be done, and to fetch the
        rows of the next step. The step waits for both at its end. With `staleness`, gradients are
        sent at its end only."""
        step, self._open = self._open, None
        if step is not None:
            self._batch.end_pushes()
            self._giving = self._channel.submit(self._exchange_after, step)

    def _exchange_after(self, step: Step, *, pushes: bool = True) -> None:
        """Send the gradients of a step, and fetch the rows of the next one."""
        if pushes:
            self._exchange.give(step, self._channel, self._batch.merged())
        if step.following is not None:
            self._bring(step.following)
            self._brought = step.following.keys

    def wait_for_give(self) -> None:
        if self._giving is not None:
            self._giving.result()

    def fetch_ahead(self, feed: Feed) -> None:
        feed[self._rows] = self._ahead.submit(self._exchange.fetch, feed[self._step], self._ahead)

    def settle(self, most: int = 0) -> None:
        """Wait until the gradients of all but `most` steps have been applied."""
        while len(self._given) > most:
            self._given.popleft().result()

    def drop(self) -> None:
        """After what runs on the channels."""
        for channel in (self._ahead, self._channel):
            channel.submit(lambda: None).result()
        self._given.clear()
        self._open = self._giving = None

    def close(self) -> None:
        self._batch.unregister()

    def _prepare(self, step: Step) -> None:
        self._batch.prepare(step.stamp, step.keys, step.push is None)

    def _bring(self, step: Step) -> None:
        if step.late is not None:
            self._bring_late(step, step.late)
            return
        self._prepare(step)
        self._batch.fill(None, 0, self._exchange.fetch(step, self._channel))

    def _bring_early(self, step: Step) -> None:
        assert step.late is not None
        self._prepare(step)
        self._bring_some(self._ahead, step, [~late for late in step.late.asked], ~step.late.own)

    def _bring_late(self, step: Step, late: Late) -> None:
        """Fetch the rows that the previous step changed, after the other rows have arrived."""
        coming, self._coming = self._coming, None
        # The rows of the first step of a pass could not be fetched during a previous step.
        if coming is not None and coming[0].late is late:
            coming[1].result()
        else:
            # On the thread of the channel, which may be at work for another table.
            self._ahead.submit(self._bring_early, step).result()
        self._bring_some(self._channel, step, late.asked, late.own)

    def _bring_some(
        self, channel: Channel, step: Step, asked: list[np.ndarray], own: np.ndarray
    ) -> None:
        mine = self._exchange.fetch_some(step, channel, asked, own)
        self._batch.fill(np.flatnonzero(own).astype(np.int32), 0, mine)


def with_next(of_tables: Sequence[Stepping], feeds: Iterable[Feed], train: bool) -> Iterator[Feed]:
    """The planned feeds of several tables, each step linked to the next one.

    With `ranks.staleness`, steps are not linked, but the rows of a step are fetched `steps_ahead`
    steps early. A channel keeps the order of its exchanges, so they lack the gradients of exactly
    the last `steps_ahead` steps.
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
