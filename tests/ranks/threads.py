"""Ranks as threads of one process: the channels of a job without its launcher and processes."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from paddlebox.ranks.channel import _COUNTERS, CHANNELS, Channel
from paddlebox.ranks.world import World
from tests.conftest import PATIENCE_S

_T = TypeVar("_T")


class _Meeting:
    """Where so many threads exchange what they have, in places of their own for each purpose."""

    def __init__(self, size: int) -> None:
        self._lock = threading.Lock()
        self._brought: dict[str, list[Any]] = defaultdict(lambda: [None] * size)
        #: Of each purpose: all have brought, all have used.
        self._barriers: dict[str, tuple[threading.Barrier, threading.Barrier]] = defaultdict(
            lambda: (threading.Barrier(size), threading.Barrier(size))
        )
        self._is_over = False

    def take(self, what: str, rank: int, mine: Any, use: Callable[[list[Any]], _T]) -> _T:
        """What `use` makes of all that the ranks bring, before any of them goes on.

        Raises: BrokenBarrierError where a rank has ended, which would never come.
        """
        with self._lock:
            brought, (all_brought, all_used) = self._brought[what], self._barriers[what]
            if self._is_over:
                all_brought.abort()
        brought[rank] = mine
        all_brought.wait(PATIENCE_S)
        found = use(brought)
        all_used.wait(PATIENCE_S)
        return found

    def end(self, *, failed: bool) -> None:
        """A rank has ended. Others may still leave the exchanges that it took part in."""
        with self._lock:
            self._is_over = True
            for all_brought, all_used in self._barriers.values():
                all_brought.abort()
                if failed:
                    all_used.abort()


class _Memory:
    """What a `World` needs of the memory that the ranks of a host share."""

    def __init__(self, meeting: _Meeting, rank: int) -> None:
        self._meeting, self._rank = meeting, rank

    def swap(self, channel: int, out: Sequence[np.ndarray], into: Sequence[np.ndarray]) -> None:
        def copy(of_all: list[Any]) -> None:
            for theirs, room in zip(of_all, into, strict=True):
                np.copyto(room, theirs[self._rank])

        self._meeting.take(f"channel {channel}", self._rank, out, copy)

    def counters(self, channel: int) -> dict[str, float]:
        del channel
        return dict.fromkeys(_COUNTERS, 0.0)

    def leave(self, why: str) -> None:
        del why
        self._meeting.end(failed=True)


class _Thread(World):
    def __init__(self, rank: int, size: int, meeting: _Meeting) -> None:
        super().__init__(rank, size)
        self.near, self.memory = list(range(size)), _Memory(meeting, rank)
        self._meeting = meeting
        self.channels = {name: Channel(self, name, at) for at, name in enumerate(CHANNELS)}

    def gather(self, what: str, mine: Any) -> list[Any]:
        return self._meeting.take(what, self.rank, mine, list)


def coordination(size: int, call: Callable[[World], _T]) -> list[_T]:
    """(size) what `call` gives on each rank; an error of one of them is raised. The first rank is
    the calling thread: Paddle's static mode is a thread's own."""
    meeting = _Meeting(size)
    worlds = [_Thread(rank, size, meeting) for rank in range(size)]

    def run(world: World) -> _T | BaseException:
        try:
            found: _T | BaseException = call(world)
        except BaseException as error:
            found = error
        meeting.end(failed=isinstance(found, BaseException))
        return found

    with ThreadPoolExecutor(size) as pool:
        others = [pool.submit(run, world) for world in worlds[1:]]
        found = [run(worlds[0]), *(other.result() for other in others)]
    for world in worlds:
        world.close()
    errors = [one for one in found if isinstance(one, BaseException)]
    # The others' waits break where one fails.
    for error in sorted(errors, key=lambda one: isinstance(one, threading.BrokenBarrierError)):
        raise error
    return [one for one in found if not isinstance(one, BaseException)]
