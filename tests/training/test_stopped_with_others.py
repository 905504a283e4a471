"""A rank that a signal ends between two passes takes the others with it, as stopped, not failed."""

from __future__ import annotations

import signal
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from paddlebox.errors import RankError, StoreError
from paddlebox.ranks import World
from paddlebox.ranks.link import Hosts
from paddlebox.store.group import ONE_RANK, Group
from paddlebox.training import interrupt
from paddlebox.training.interrupt import stopped_with_others

STOPPED = "rank 1 has left the job: Stopped: SIGTERM"
FAILED = "rank 1 has left the job: ValueError: the step of this rank fails"
DIED = "rank 1 (process 7) has ended in the middle of the job: see its log"


def _world(gone: str = "") -> World:
    """Rank 0 of two on a host, of which rank 1 is gone for that reason; without one it lives."""

    def check(member: int) -> None:
        if member == 1 and gone:
            raise RankError(gone)

    world = World(0, 2)
    world.hosts, world.memory = Hosts.of(0, [0, 0]), SimpleNamespace(check=check)
    return world


@pytest.mark.parametrize("error", [RankError(STOPPED), RuntimeError("the job's store is gone")])
def test_an_error_that_came_of_a_stop_elsewhere_is_a_stop(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(interrupt.Stopped) as stopped, stopped_with_others(_world(STOPPED)):
        raise error
    assert stopped.value.signal == signal.SIGTERM
    assert stopped.value.__cause__ is error
    assert str(error) in caplog.text


@pytest.mark.parametrize("gone", [FAILED, DIED])
@pytest.mark.parametrize("error", [RankError("the other is gone"), RuntimeError("no store")])
def test_a_failed_or_dead_rank_is_not_a_stop_even_if_a_signal_came_too(
    gone: str, error: Exception
) -> None:
    with (
        pytest.raises(type(error)) as raised,
        interrupt.remembered(),
        stopped_with_others(_world(gone)),
    ):
        with suppress(interrupt.Stopped):
            signal.raise_signal(signal.SIGTERM)
        raise error
    assert raised.value is error


@pytest.mark.parametrize("asked", [False, True])
def test_a_lost_connection_is_a_stop_where_a_signal_came_to_this_rank_too(asked: bool) -> None:
    lost = RuntimeError("connection closed by peer")
    with (
        pytest.raises(interrupt.Stopped if asked else RuntimeError),
        interrupt.remembered(),
        stopped_with_others(_world()),
    ):
        with suppress(interrupt.Stopped):
            if asked:
                signal.raise_signal(signal.SIGTERM)
        raise lost


@pytest.mark.parametrize("world", [ONE_RANK, _world(STOPPED)])
def test_this_ranks_own_error_stays_what_it_is(world: Group) -> None:
    with pytest.raises(StoreError, match="no room"), stopped_with_others(world):
        raise StoreError("no room")


@pytest.mark.parametrize(
    "error", [StoreError("no room"), RuntimeError("(PreconditionNotMet) name")]
)
def test_an_error_that_paddle_makes_of_a_stop_is_a_stop(error: Exception) -> None:
    expected = StoreError if isinstance(error, StoreError) else interrupt.Stopped
    with pytest.raises(expected), interrupt.remembered(), stopped_with_others(ONE_RANK):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise error from None
    with pytest.raises(RuntimeError), interrupt.remembered(), stopped_with_others(ONE_RANK):
        raise RuntimeError("its own")


@pytest.mark.parametrize("fails", [False, True])
def test_a_stop_waits_for_the_commits_of_all_ranks(fails: bool) -> None:
    """Otherwise mpiexec kills a rank that still commits, when the first one has ended."""
    events: list[str] = []

    def gather(what: str, mine: Any) -> list[Any]:
        events.append(what)
        return [mine, [True, ""]]

    def any_(what: str, mine: bool) -> bool:
        events.append(what)
        if fails:
            raise RankError("rank 1 has left the job: StoreError: no room")
        return mine

    table: Any = SimpleNamespace(
        world=SimpleNamespace(gather=gather, any=any_, commits_alone=False),
        wait_commit=lambda: None,
        commit_ended=lambda: events.append("commit"),
    )
    with pytest.raises(interrupt.Stopped):
        interrupt.stop_together(table)
    assert events == ["stop", "commit", "stopped"]
