"""Ranks as threads of one process: the channels of a job without its launcher and processes.

The ranks can be on several hosts. What the hosts send each other is counted.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from paddlebox.ranks.channel import CHANNELS, DENSE, PARITY, Channel
from paddlebox.ranks.link import COUNTERS, Hosts
from paddlebox.ranks.world import World
from tests.conftest import PATIENCE_S

_T = TypeVar("_T")
_NOTHING = np.empty(0, np.uint8)
_CHANNELS = [*CHANNELS, DENSE, PARITY]


class _Meeting:
    """Where so many threads exchange what they have, in places of their own for each purpose."""

    def __init__(self, size: int, patience_s: float) -> None:
        self._lock, self._patience_s = threading.Lock(), patience_s
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
        all_brought.wait(self._patience_s)
        found = use(brought)
        all_used.wait(self._patience_s)
        return found

    def end(self, *, failed: bool) -> None:
        """A rank has ended. Others may still leave the exchanges that it took part in."""
        with self._lock:
            self._is_over = True
            for all_brought, all_used in self._barriers.values():
                all_brought.abort()
                if failed:
                    all_used.abort()


@dataclass
class Counts:
    """What hosts sent, by channel: messages, bytes with their sizes, and exchanges of a host.

    Each is of all hosts together. `requests` are calls of `gather`, by question, of the first rank.
    """

    requests: Counter[str] = field(default_factory=Counter)
    messages: Counter[str] = field(default_factory=Counter)
    sent_bytes: Counter[str] = field(default_factory=Counter)
    exchanges: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, channel: str, messages: Sequence[Sequence[np.ndarray]], is_first: bool) -> None:
        # Eight bytes for the length of each message (docs/formats/exchange.md).
        sent = sum(8 + sum(part.nbytes for part in message) for message in messages)
        with self._lock:
            self.messages[channel] += len(messages)
            self.sent_bytes[channel] += sent
            self.exchanges[channel] += is_first

    def clear(self) -> None:
        for one in (self.requests, self.messages, self.sent_bytes, self.exchanges):
            one.clear()


class Rounds(threading.local):
    """What the work of a thread has waited for, one after the other: the exchanges between hosts;
    the messages, of which an exchange within a host counts as one.

    Every message carries these numbers. A thread that waits for a message or for another thread
    continues with the larger ones, so exchanges that run at the same time count once.
    """

    at = (0, 0)


def _latest(*of_threads: tuple[int, int]) -> tuple[int, int]:
    exchanges, messages = zip(*of_threads, strict=True)
    return max(exchanges), max(messages)


class _Later:
    """What `Channel.submit` returns."""

    def __init__(self, future: Future[tuple[Any, tuple[int, int]]], rounds: Rounds) -> None:
        self._future, self._rounds = future, rounds

    def result(self) -> Any:
        found, at = self._future.result()
        self._rounds.at = _latest(self._rounds.at, at)
        return found

    def exception(self) -> BaseException | None:
        return self._future.exception()


class _Channel(Channel):
    def __init__(self, world: _Thread, name: str, number: int) -> None:
        super().__init__(world, name, number)
        self._rounds = world.rounds

    def submit(self, call: Any, *arguments: Any) -> Any:
        rounds, began = self._rounds, self._rounds.at

        def counted() -> tuple[Any, tuple[int, int]]:
            rounds.at = _latest(rounds.at, began)
            return call(*arguments), rounds.at

        return _Later(super().submit(counted), rounds)


class _Memory:
    """What a `World` needs of the memory that the ranks of a host share."""

    def __init__(
        self, meetings: Sequence[_Meeting], meeting: _Meeting, member: int, rounds: Rounds
    ) -> None:
        self._meetings, self._meeting, self._member = meetings, meeting, member
        self._rounds = rounds

    def swap(self, channel: int, out: Sequence[np.ndarray], into: Sequence[np.ndarray]) -> None:
        def copy(of_all: list[Any]) -> None:
            for (_, theirs), room in zip(of_all, into, strict=True):
                np.copyto(room, theirs[self._member])

        self._take(channel, out, copy)

    def exchange(self, channel: int, out: Sequence[np.ndarray]) -> list[np.ndarray]:
        def copies(of_all: list[Any]) -> list[np.ndarray]:
            return [
                _NOTHING if member == self._member else theirs[self._member].copy()
                for member, (_, theirs) in enumerate(of_all)
            ]

        return self._take(channel, out, copies)

    def _take(self, channel: int, out: Any, use: Callable[[list[Any]], _T]) -> _T:
        def used(of_all: list[Any]) -> tuple[tuple[int, int], _T]:
            return _latest(*(at for at, _ in of_all)), use(of_all)

        mine = (self._rounds.at, out)
        at, found = self._meeting.take(f"channel {channel}", self._member, mine, used)
        self._rounds.at = (at[0], at[1] + 1)
        return found

    def counters(self, channel: int) -> dict[str, float]:
        del channel
        return dict.fromkeys(COUNTERS, 0.0)

    def leave(self, why: str) -> None:
        del why
        for meeting in self._meetings:
            meeting.end(failed=True)


class _Link:
    """A `Link` between all ranks."""

    def __init__(self, meeting: _Meeting, hosts: Hosts, counts: Counts, rounds: Rounds) -> None:
        self._meeting, self._hosts, self._counts = meeting, hosts, counts
        self._rounds = rounds

    def exchange(
        self, channel: int, out: Mapping[int, Sequence[np.ndarray]]
    ) -> dict[int, np.ndarray]:
        rank = self._hosts.rank
        is_first = rank == self._hosts.near[0]
        self._counts.add(_CHANNELS[channel], list(out.values()), is_first)
        messages = {
            peer: np.concatenate([_NOTHING, *(part.reshape(-1).view(np.uint8) for part in parts)])
            for peer, parts in out.items()
        }

        def use(of_all: list[Any]) -> dict[int, np.ndarray]:
            exchanges, messages = _latest(rounds.at, *(of_all[peer][0] for peer in out))
            waits = any(of_all[peer][0][0] >= rounds.at[0] for peer in out)
            rounds.at = (exchanges + waits, messages + len(out))
            return {peer: of_all[peer][1][rank] for peer in out}

        rounds = self._rounds
        mine = (rounds.at, messages)
        return self._meeting.take(f"link {channel}", rank, mine, use)

    def counters(self, channel: int) -> dict[str, float]:
        del channel
        return dict.fromkeys(COUNTERS, 0.0)

    def leave(self, why: str) -> None:
        del why
        self._meeting.end(failed=True)

    def why_gone(self) -> list[str]:
        return []

    def close(self) -> None: ...


class _Thread(World):
    def __init__(self, hosts: Hosts, meetings: Sequence[_Meeting], counts: Counts) -> None:
        """meetings: of all ranks, and of the ranks of each host."""
        size = sum(map(len, hosts.ranks))
        super().__init__(hosts.rank, size)
        self.hosts, self._meeting, self._counts = hosts, meetings[0], counts
        self.rounds = Rounds()
        if len(hosts.near) > 1:
            member = hosts.near.index(self.rank)
            self.memory = _Memory(meetings, meetings[1 + hosts.here], member, self.rounds)
        if len(hosts.ranks) > 1:
            self.link = _Link(meetings[0], hosts, counts, self.rounds)
        self.channels = {name: _Channel(self, name, at) for at, name in enumerate(_CHANNELS)}

    def gather(self, what: str, mine: Any) -> list[Any]:
        if self.rank == 0:
            self._counts.requests[what] += 1
        return self._meeting.take(what, self.rank, mine, list)


def one_at_a_time(call: Callable[..., _T]) -> Callable[..., _T]:
    """For a call that no two threads of a process may make at a time, as opening tables."""
    lock = threading.Lock()

    def held(*arguments: Any, **keywords: Any) -> _T:
        with lock:
            return call(*arguments, **keywords)

    return held


def coordination(
    size: int,
    call: Callable[[World], _T],
    per_host: int = 0,
    counts: Counts | None = None,
    patience_s: float = PATIENCE_S,
) -> list[_T]:
    """(size) what `call` gives on each rank; an error of one of them is raised. The first rank is
    the calling thread: Paddle's static mode is a thread's own.

    Args:
        size: number of ranks.
        call: the work of a rank.
        per_host: ranks of a host; 0: all.
        counts: counts what hosts send each other.
        patience_s: a rank that is later than this to an exchange is an error.
    """
    firsts = [rank - rank % (per_host or size) for rank in range(size)]
    hosts = [Hosts.of(rank, firsts) for rank in range(size)]
    sizes = (size, *map(len, hosts[0].ranks))
    meetings = [_Meeting(one, patience_s) for one in sizes]
    worlds = [_Thread(of_rank, meetings, counts or Counts()) for of_rank in hosts]

    def run(world: World) -> _T | BaseException:
        try:
            found: _T | BaseException = call(world)
        except BaseException as error:
            found = error
        failed = isinstance(found, BaseException)
        for meeting in meetings if failed else (meetings[0], meetings[1 + world.hosts.here]):
            meeting.end(failed=failed)
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
