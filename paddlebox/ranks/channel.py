"""Channel: exchanges arrays between all ranks (docs/formats/exchange.md).

Ranks of one host exchange through shared memory (ops/base/host_group.h). Each two hosts exchange
one message each way, over the link of one rank on each side, their *relays* (link.py).

Letters: R = ranks, H = hosts, L = ranks of this host, n = values.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from paddlebox.errors import RankError
from paddlebox.ranks.link import COUNTERS, Hosts, Link, Routes
from paddlebox.ranks.messages import bytes_of, from_hosts, opened, packed, to_hosts, unpacked

#: In this order: for exchanges once per pass, for planning steps, within steps, for prefetching,
#: and for instances while a pass is loaded.
CHANNELS = ("stage", "ask", "step", "early", "share")
#: The sums that programs compute (dense.py). Only `Channel.sum` uses it.
DENSE = "dense"
#: The files of commits, with `ranks.parity` (parity.py). It exists only with this key.
PARITY = "parity"
#: The most bytes that a host sends in a sum if each host adds up all values.
_MOST_BYTES_AT_ONCE = 256 << 10
_NOTHING = np.empty(0, np.uint8)


class Peers(Protocol):
    """What a channel needs of a `World`."""

    hosts: Hosts
    memory: Any  # the HostGroup of this host; None: this rank shares memory with no other
    link: Link | None  # None: there is one host


class Channel:
    """Exchanges on a channel run one at a time, in the same order on all ranks. So only one thread
    at a time may use a channel. number: of the channel in shared memory and on the link."""

    def __init__(self, world: Peers, name: str, number: int) -> None:
        self._world, self.name, self._number = world, name, number
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"paddlebox-channel-{name}")

    def submit(self, call: Any, *arguments: Any) -> Future[Any]:
        return self._thread.submit(call, *arguments)

    def swap(self, out: Sequence[np.ndarray], into: Sequence[np.ndarray]) -> None:
        """Send out[r] to rank r, and fill into[r] with what rank r sends. Both: (R) contiguous
        arrays; those of `into` have the sizes and dtypes that the other ranks send.

        Raises: RankError if another rank has ended or left, or sends another size; ValueError for
        an array that is not contiguous.
        """
        hosts, memory = self._world.hosts, self._world.memory
        if len(hosts.ranks) == 1:
            near = hosts.near
            if memory is None:
                np.copyto(into[near[0]], out[near[0]])
            else:
                memory.swap(self._number, [out[r] for r in near], [into[r] for r in near])
            return
        if not all(array.flags.c_contiguous for array in into):  # a copy would be filled
            raise ValueError("an array of `into` is not contiguous")
        for rank, found in enumerate(self._all_to_all([bytes_of(array) for array in out])):
            room = bytes_of(into[rank])
            if found.size != room.size:
                raise RankError(f"rank {rank} sends {found.size} bytes, expected {room.size}")
            np.copyto(room, found)

    def exchange(self, out: Sequence[np.ndarray]) -> list[np.ndarray]:
        """(R) what each rank sends to this one, of any size, as 1-d arrays at addresses that 8
        divides. out: (R) arrays of one dtype, by receiver.

        Raises: RankError if another rank has ended or left.
        """
        dtype = out[0].dtype
        return [
            _aligned(found).view(dtype)
            for found in self._all_to_all([bytes_of(array) for array in out])
        ]

    def _all_to_all(self, out: list[np.ndarray]) -> list[np.ndarray]:
        hosts, link, found = self._world.hosts, self._world.link, [_NOTHING] * len(out)
        if link is None:
            of_near = self._in_host([out[rank] for rank in hosts.near])
        else:
            of_near, of_far = self._over_hosts(link, out)
            for rank, part in of_far.items():
                found[rank] = part
        for rank, part in zip(hosts.near, of_near, strict=True):
            found[rank] = part
        found[hosts.rank] = out[hosts.rank]
        return found

    def _over_hosts(
        self, link: Link, out: list[np.ndarray]
    ) -> tuple[list[np.ndarray], dict[int, np.ndarray]]:
        """The bytes of the ranks of this host, and of the ranks of other hosts."""
        routes = self._world.hosts.routes
        of_near, of_ranks = self._to_relays(routes, out)
        messages = dict(zip(routes.peers, to_hosts(of_ranks, routes.counts), strict=True))
        arrived = link.exchange(self._number, messages)
        parts = from_hosts([arrived[p] for p in routes.peers], routes.counts, len(of_near))
        return of_near, self._from_relays(routes, parts)

    def _to_relays(
        self, routes: Routes, out: list[np.ndarray]
    ) -> tuple[list[np.ndarray], list[tuple[np.ndarray, np.ndarray]]]:
        """Give the ranks of this host what is for them, and what they pass on to other hosts.
        Returns the same that came here: (L), and (L) as for `to_hosts`."""
        me, far = routes.me, routes.far
        sending = [
            packed([out[rank], *(out[one] for one in of_rank)])
            for rank, of_rank in zip(self._world.hosts.near, far, strict=True)
        ]
        arrived = self._in_host(_joined(sending, me))
        arrived[me] = np.concatenate(sending[me])
        parts = [opened(message, 1 + len(far[me])) for message in arrived]
        of_near = [data[: sizes[0]] for sizes, data in parts]
        return of_near, [(sizes[1:], data[sizes[0] :]) for sizes, data in parts]

    def _from_relays(self, routes: Routes, parts: list[list[np.ndarray]]) -> dict[int, np.ndarray]:
        """The bytes of the ranks of other hosts. parts: (L) for each rank, those that came here."""
        me, far = routes.me, routes.far
        found = dict(zip(far[me], parts[me], strict=True))
        messages = self._in_host(_joined([packed(of_rank) for of_rank in parts], me))
        for at, message in enumerate(messages):
            if at != me:
                found |= zip(far[at], unpacked(message, len(far[at])), strict=True)
        return found

    def _in_host(self, out: list[np.ndarray]) -> list[np.ndarray]:
        """What each rank of this host sends; nothing from this one."""
        if self._world.memory is None:
            return [_NOTHING]
        found: list[np.ndarray] = self._world.memory.exchange(self._number, out)
        return found

    def sum(self, values: np.ndarray) -> None:
        """Replace values by their sums over all ranks. The values of a host are added in the order
        of its ranks, and the sums of the hosts in the order of hosts. values: (n) float32.

        Each rank adds up one slice of the values of its host, sums it with the ranks of the other
        hosts that have the same slice, and gives it to the ranks of its host.

        Raises: RankError if another rank has ended or left, or sums another number of values.
        """
        hosts, me = self._world.hosts, self._world.hosts.routes.me
        slices = _cut(values, hosts.fewest) + [values[:0]] * (len(hosts.near) - hosts.fewest)
        arrived = self._in_host([bytes_of(part) for part in slices])
        arrived[me] = bytes_of(slices[me])
        mine = _sum_in_order(hosts.near, arrived, len(slices[me]))
        # Two hosts send as many values in one exchange as in two.
        few = values.nbytes * (len(hosts.ranks) - 1) <= _MOST_BYTES_AT_ONCE
        mine = self._sum_over_hosts(mine, at_once=few or len(hosts.ranks) == 2)
        sending = [_NOTHING if at == me else bytes_of(mine) for at in range(len(slices))]
        arrived = self._in_host(sending)
        arrived[me] = bytes_of(mine)
        for rank, found, part in zip(hosts.near, arrived, slices, strict=True):
            part[:] = _values(rank, found, len(part))

    def _sum_over_hosts(self, values: np.ndarray, *, at_once: bool) -> np.ndarray:
        """(n) the sums over all hosts. values: (n) of this host; none without `Hosts.alike`.
        at_once: each host adds up all values; otherwise each adds up an H-th of them for all."""
        hosts = self._world.hosts
        count, ranks = len(hosts.ranks), hosts.alike
        parts = [values] * count if at_once else _cut(values, count)
        mine = _sum_in_order(ranks, self._with(ranks, parts), len(parts[hosts.here]))
        if at_once:
            return mine
        for rank, found, part in zip(ranks, self._with(ranks, [mine] * count), parts, strict=False):
            part[:] = _values(rank, found, len(part))
        return values

    def _with(self, ranks: Sequence[int], parts: Sequence[np.ndarray]) -> list[np.ndarray]:
        """(H) the bytes that the ranks send to this one. parts: (H) for them."""
        out = [_NOTHING] * sum(map(len, self._world.hosts.ranks))
        for rank, part in zip(ranks, parts, strict=False):
            out[rank] = bytes_of(part)
        found = self._all_to_all(out)
        return [found[rank] for rank in ranks]

    def counters(self) -> dict[str, float]:
        """Bytes sent to other ranks, seconds in exchanges, and waits (`Link.counters`)."""
        found = dict.fromkeys(COUNTERS, 0.0)
        for one in (self._world.memory, self._world.link):
            if one is not None:
                for name, value in one.counters(self._number).items():
                    found[name] += value
        return found

    def close(self) -> None:
        self._thread.shutdown()


def _joined(messages: Sequence[Sequence[np.ndarray]], me: int) -> list[np.ndarray]:
    """(L) each message as one array; an empty one for this rank."""
    return [_NOTHING if at == me else np.concatenate(parts) for at, parts in enumerate(messages)]


def _cut(values: np.ndarray, count: int) -> list[np.ndarray]:
    """(count) slices of (n) values. The i-th slice begins at value n i / count."""
    bounds = [len(values) * number // count for number in range(count + 1)]
    return [values[first:end] for first, end in pairwise(bounds)]


def _sum_in_order(ranks: Sequence[int], found: Sequence[np.ndarray], count: int) -> np.ndarray:
    """(count) the sum of what the ranks sent, in their order."""
    if not ranks:
        return np.empty(0, np.float32)
    total = _values(ranks[0], found[0], count).copy()
    for rank, part in zip(ranks[1:], found[1:], strict=True):
        total += _values(rank, part, count)
    return total


def _values(rank: int, found: np.ndarray, count: int) -> np.ndarray:
    if found.size != 4 * count:
        raise RankError(
            f"rank {rank} sends {found.size // 4} of the values of a sum, expected {count}: do all "
            "ranks train the same model?"
        )
    return _as(found, np.dtype(np.float32))


def _aligned(found: np.ndarray) -> np.ndarray:
    """Bytes at an address that 8 divides. Between hosts, a part begins anywhere in a message."""
    return found.copy() if found.ctypes.data % 8 else found


def _as(found: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Bytes as aligned values of a dtype."""
    values = found.view(dtype)
    return values if values.flags.aligned else values.copy()
