"""Link: messages between ranks of different hosts. A transport implements it (tcp.py, mpi_link.py).

Letters: H = hosts.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

COUNTERS = ("sent_bytes", "seconds", "waiting_seconds", "waits")


@dataclass(frozen=True)
class Routes:
    """Where the messages of an all-to-all go. L = ranks of this host."""

    me: int  # this rank's position among the ranks of its host
    #: (L) the ranks of other hosts with which each rank exchanges for this host.
    far: list[list[int]]
    peers: list[int]  # the ranks to which this rank sends messages
    counts: list[int]  # the ranks of the host of each peer


@dataclass(frozen=True)
class Hosts:
    """ranks: (H) those of each host, ascending. Hosts are in the order of their first ranks."""

    rank: int
    ranks: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(rank: int, firsts: Sequence[int]) -> Hosts:
        """firsts: (R) the first rank of each rank's host."""
        ranks = [
            tuple(one for one, of_one in enumerate(firsts) if of_one == first)
            for first in sorted(set(firsts))
        ]
        return Hosts(rank, tuple(ranks))

    @functools.cached_property
    def here(self) -> int:
        return next(number for number, of_host in enumerate(self.ranks) if self.rank in of_host)

    @property
    def near(self) -> tuple[int, ...]:
        return self.ranks[self.here]

    @property
    def fewest(self) -> int:
        """The number of ranks of the host with the fewest ranks."""
        return min(map(len, self.ranks))

    @functools.cached_property
    def alike(self) -> list[int]:
        """(H) the rank of each host with this one's position on its host, which adds up the same
        values in a sum. Empty if a host has no such rank."""
        at = self.near.index(self.rank)
        return [of_host[at] for of_host in self.ranks] if at < self.fewest else []

    @functools.cached_property
    def routes(self) -> Routes:
        relayed = [self.relayed(rank) for rank in self.near]
        me = self.near.index(self.rank)
        return Routes(
            me,
            [[rank for host in of_rank for rank in self.ranks[host]] for of_rank in relayed],
            [self.relay(host) for host in relayed[me]],
            [len(self.ranks[host]) for host in relayed[me]],
        )

    def relayed(self, rank: int) -> list[int]:
        """The numbers of the hosts with which a rank of this host exchanges messages: a part of
        the other hosts."""
        at, count = self.near.index(rank), len(self.near)
        others = (host for host in range(len(self.ranks)) if host != self.here)
        return [host for host in others if (self.here + host) % count == at]

    def relay(self, host: int) -> int:
        """The rank of another host that exchanges messages with this one."""
        ranks = self.ranks[host]
        return ranks[(self.here + host) % len(ranks)]


class Link(Protocol):
    """Messages between this rank and ranks of other hosts, its *peers* on a channel.

    One thread at a time may use a channel. Any thread may call `leave`.
    """

    def exchange(
        self, channel: int, out: Mapping[int, Sequence[np.ndarray]]
    ) -> dict[int, np.ndarray]:
        """Send a message to each peer, and get one from each, as uint8. Collective.
        out: for each peer, contiguous arrays to send one after the other.

        Raises: RankError if a peer is gone, or has left the job.
        """
        ...

    def counters(self, channel: int) -> dict[str, float]:
        """COUNTERS since the link was made. `waits` are waits with nothing to move."""
        ...

    def leave(self, why: str) -> None:
        """End the waits of the peers, and own ones, with an error that contains `why`."""
        ...

    def why_gone(self) -> list[str]:
        """Why peers are gone, as far as this rank knows, one line each."""
        ...

    def close(self) -> None: ...
