"""What else happens in a step while its gradients are on their way to other hosts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from paddlebox import ops
from paddlebox._native import paddle
from paddlebox.errors import PassError
from paddlebox.ranks.exchange import RowExchange
from paddlebox.ranks.shared_tables import SharedTables
from paddlebox.ranks.world import World
from paddlebox.store.table_exchange import Feed
from tests.ci import scripts

counted_exchange = scripts.load("peers/counted_exchange", "benchmarks")
SLOW_S = 0.5
_OF_PULLS = ("ids", "plan", "show_click")


def train(monkeypatch: pytest.MonkeyPatch, body: Callable[[SharedTables, Feed], None]) -> None:
    """A pass of one step of two hosts of one rank. body: called after the sum, within the step."""
    total, enter = World.sum_over_hosts, SharedTables.step
    feeds: dict[int, Feed] = {}
    opened: list[SharedTables] = []

    def sum_and_body(world: World, values: np.ndarray, pushed: bool) -> None:
        assert world.tables is not None
        opened.append(world.tables)
        total(world, values, pushed)
        body(world.tables, feeds[world.rank])

    @contextmanager
    def step(tables: SharedTables, feed: Feed) -> Iterator[int | None]:
        feeds[tables.world.rank] = dict(feed)
        with enter(tables, feed) as instances:
            yield instances

    monkeypatch.setattr(World, "sum_over_hosts", sum_and_body)
    monkeypatch.setattr(SharedTables, "step", step)
    setting = counted_exchange.Setting(ranks=2, per_host=1, steps=1, dense=10)
    batch = np.arange(1, 9).reshape(2, 4)
    try:
        counted_exchange.counted(setting, lambda _rank, _step: batch)
    finally:
        for tables in opened:
            tables.close()


def slow_give(monkeypatch: pytest.MonkeyPatch, ranks: set[int]) -> list[int]:
    """Let the exchange of gradients begin late on some ranks. Returns the ranks that have ended."""
    give, ended = RowExchange.give, list[int]()

    def slow(exchange: RowExchange, *arguments: Any) -> None:
        time.sleep(SLOW_S if exchange.world.rank in ranks else 0)
        try:
            give(exchange, *arguments)
        finally:
            ended.append(exchange.world.rank)

    monkeypatch.setattr(RowExchange, "give", slow)
    return ended


def test_a_step_that_fails_waits_for_the_gradients_on_their_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended, enter, when_left = slow_give(monkeypatch, {0, 1}), SharedTables.step, dict[int, bool]()

    @contextmanager
    def step(tables: SharedTables, feed: Feed) -> Iterator[int | None]:
        rank = tables.world.rank
        try:
            with enter(tables, feed) as instances:
                yield instances
        finally:
            when_left[rank] = rank in ended

    def body(tables: SharedTables, feed: Feed) -> None:
        del tables, feed
        raise ArithmeticError("of an own loop")

    monkeypatch.setattr(SharedTables, "step", step)
    with pytest.raises(ArithmeticError, match="of an own loop"):
        train(monkeypatch, body)
    assert when_left == {0: True, 1: True}


def test_a_dropped_pass_first_waits_for_both_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    done, when_forgotten = list[str](), list[list[str]]()
    lock = threading.Lock()
    monkeypatch.setattr(RowExchange, "forget", lambda _: when_forgotten.append(sorted(done)))

    def late(name: str) -> None:
        time.sleep(SLOW_S)
        with lock:
            done.append(name)

    def body(tables: SharedTables, feed: Feed) -> None:
        del feed
        world = tables.world
        tables.wait_for_give()
        if world.rank == 0:
            for name in ("step", "early"):
                world.channels[name].submit(late, name)
            tables.drop()
        world.gather("dropped", world.rank)  # no rank leaves before
        raise ArithmeticError("of an own loop")

    with pytest.raises(ArithmeticError):
        train(monkeypatch, body)
    assert when_forgotten == [["early", "step"]]


def test_what_ranks_gather_in_a_step_follows_its_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended, found = slow_give(monkeypatch, {0}), list[list[bytes]]()

    def body(tables: SharedTables, feed: Feed) -> None:
        del feed
        world = tables.world
        found.append(world.gather_bytes(b"of rank %d" % world.rank))
        assert world.rank in ended

    train(monkeypatch, body)
    assert found == [[b"of rank 0", b"of rank 1"]] * 2


def test_a_push_after_a_sum_that_said_there_is_none_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def body(tables: SharedTables, feed: Feed) -> None:
        (name,) = tables.shards
        paddle.disable_static()
        ids, plan, counts = (paddle.to_tensor(feed[f"box_{one}"]) for one in _OF_PULLS)
        offsets = paddle.arange(len(ids) + 1, dtype="int32")
        slots = len(ids) // len(counts)
        out = ops.fused_pull_seqpool_cvm(
            ids, offsets, counts, plan, ops.create_anchor(), slots=slots, embedx_dim=16, table=name
        )
        with ops.raising_own_errors():
            out.backward()

    with pytest.raises(PassError, match=r"push: table 'counted.': its gradients of this step"):
        train(monkeypatch, body)
