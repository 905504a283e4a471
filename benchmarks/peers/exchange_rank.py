"""One rank of many_ranks.py: exchanges arrays without computing, in ways that take turns.

    python -m paddle.distributed.launch ... exchange_rank.py OUT.json --rows N --exchanges N

`hosts` is the exchange of paddlebox. `pairs` is how ranks of different hosts exchanged before: each
two ranks send and receive through a group of Gloo of their own, in the rounds of a tournament.
Ranks of one host use shared memory in both ways. The receivers know all sizes, as in a step; in
`hosts, sizes unknown` and `pairs, sizes unknown` they do not, and a pair sends the sizes first.

A step exchanges gradients of rows and a sum of --dense values. `one after the other` does so as
before, and `at the same time` as now. OUT.json gets the seconds of each, in turn, of the first
rank.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.ranks import World
from paddlebox.ranks.channel import DENSE
from paddlebox.ranks.job_store import JOIN_S, _serve
from paddlebox.ranks.joining import address_of_host

paddle = _native.paddle

_FIRST_GROUP = 1000  # Paddle numbers its own groups from 10 on


def rounds(rank: int, size: int) -> Iterator[int]:
    """The peers of a rank in a round-robin tournament."""
    even = size + size % 2
    for turn in range(even - 1):
        if rank == even - 1:  # the fixed player
            peer = next(r for r in range(even - 1) if 2 * r % (even - 1) == turn)
        elif 2 * rank % (even - 1) == turn:
            peer = even - 1
        else:
            peer = (turn - rank) % (even - 1)
        if peer < size:
            yield peer


class Pairs:
    """Exchanges over a group of Gloo for each two ranks of different hosts."""

    def __init__(self, world: Any) -> None:
        paddle.distributed.init_parallel_env()
        self._world = world
        self._held: list[Any] = []  # the stores of the groups, and their servers
        self._groups: dict[int, Any] = {}  # by peer
        collective = paddle.distributed.collective
        for peer in rounds(world.rank, world.size):
            if peer in world.hosts.near:
                continue
            first, second = sorted((world.rank, peer))
            store = self._rendezvous(first, second)
            default, collective._default_store = collective._default_store, store
            # Otherwise each rank numbers its groups by itself, and the numbers of a pair differ.
            collective._custom_gid = _FIRST_GROUP + first * world.size + second
            try:
                group = paddle.distributed.new_group([first, second], backend="gloo")
            finally:
                collective._default_store, collective._custom_gid = default, None
            self._groups[peer] = group.process_group

    def _rendezvous(self, first: int, second: int) -> Any:
        """A TCPStore for two ranks: groups that share one mix up each other's keys."""
        client, key = self._world.store._client, f"pairs/{first}-{second}"
        if self._world.rank == first:
            server, port = _serve(address_of_host(), 0)
            self._held.append(server)
            client.set(key, f"{address_of_host()}:{port}".encode())
        client.wait(key)
        host, port = client.get(key).decode().rsplit(":", 1)
        store = paddle.base.core.TCPStore(host, int(port), False, 2, int(JOIN_S))
        store.set(f"joined/{self._world.rank == first:d}", b"1")
        store.wait(f"joined/{self._world.rank != first:d}")
        self._held.append(store)
        return store

    def exchange(self, out: list[np.ndarray]) -> list[np.ndarray]:
        size = self._world.size
        sizes = np.array([array.size for array in out], np.int64)
        theirs = np.zeros(size, np.int64)
        self.swap([sizes[r : r + 1] for r in range(size)], [theirs[r : r + 1] for r in range(size)])
        into = [np.empty(int(count), np.uint8) for count in theirs]
        self.swap(out, into)
        return into

    def swap(self, out: list[np.ndarray], into: list[np.ndarray]) -> None:
        rank, near, memory = self._world.rank, self._world.hosts.near, self._world.memory
        if memory is None:
            np.copyto(into[rank], out[rank])
        else:  # on the channel "step"
            memory.swap(2, [out[r] for r in near], [into[r] for r in near])
        for peer, group in self._groups.items():
            other = 0 if peer < rank else 1  # the peer's rank within the group
            steps = [(group.send, out[peer]), (group.recv, into[peer])]
            for move, array in steps if rank < peer else reversed(steps):
                move(_tensor(array), other, True)


def _tensor(array: np.ndarray) -> Any:
    """A Paddle tensor that shares the memory of an array."""
    flat, base = array.reshape(-1).view(np.uint8), paddle.base.core
    tensor = base.from_dlpack(flat.__dlpack__())
    return base.eager.Tensor(tensor, paddle.CPUPlace(), "pairs")


def ways_of(
    world: Any, out: list[np.ndarray], into: list[np.ndarray], dense: np.ndarray
) -> dict[str, Callable[[], list[np.ndarray]]]:
    """The calls that take turns, by name. Each returns what the ranks sent.

    Args:
        world: the ranks.
        out: (R) what this rank sends.
        into: (R) room for what the others send.
        dense: the values of a sum.
    """
    step, sums, pairs = world.channels["step"], world.channels[DENSE], Pairs(world)

    def swapped(swap: Callable[[list[np.ndarray], list[np.ndarray]], None]) -> list[np.ndarray]:
        swap(out, into)
        return into

    def one_after_the_other() -> list[np.ndarray]:
        sums.sum(dense)
        return swapped(step.swap)

    def at_the_same_time() -> list[np.ndarray]:
        exchanged = step.submit(swapped, step.swap)
        sums.sum(dense)
        found: list[np.ndarray] = exchanged.result()
        return found

    return {
        "hosts": lambda: swapped(step.swap),
        "pairs": lambda: swapped(pairs.swap),
        "hosts, sizes unknown": lambda: step.exchange(out),
        "pairs, sizes unknown": lambda: pairs.exchange(out),
        "one after the other": one_after_the_other,
        "at the same time": at_the_same_time,
    }


def sizes_of(options: argparse.Namespace, rank: int, ranks: int) -> list[int]:
    """The bytes that a rank sends to each rank."""
    rows = np.random.default_rng(rank).binomial(options.rows * ranks, 1 / ranks, ranks)
    return [int(options.row_bytes * count) for count in rows]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path)
    parser.add_argument("--row-bytes", type=int, default=76)
    parser.add_argument("--rows", type=int, required=True, help="rows for each rank")
    parser.add_argument("--exchanges", type=int, required=True)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--dense", type=int, default=100_000)
    options = parser.parse_args()
    world: Any = World.join()
    sizes = [sizes_of(options, rank, world.size) for rank in range(world.size)]
    out = [np.full(size, world.rank, np.uint8) for size in sizes[world.rank]]
    into = [np.empty(of_rank[world.rank], np.uint8) for of_rank in sizes]
    dense = np.ones(options.dense, np.float32)
    world.channels[DENSE].sum(dense)
    assert (dense == world.size).all()
    dense.fill(0)  # each sum is the input of the next one
    ways = ways_of(world, out, into, dense)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(options.turns + 1):
        for name, exchange in ways.items():
            for array in into:  # so that a way that fills nothing is noticed
                array.fill(255)
            world.wait(name)
            began = time.perf_counter()
            for _ in range(options.exchanges):
                found = exchange()
            took = (time.perf_counter() - began) / options.exchanges
            assert all((part == rank).all() for rank, part in enumerate(found))
            if turn:  # the first one warms up
                seconds[name].append(took)
    if world.rank == 0:
        sent = sum(array.nbytes for rank, array in enumerate(out) if rank not in world.hosts.near)
        options.out.write_text(json.dumps({"seconds": seconds, "bytes_to_other_hosts": sent}))
    world.wait("end")
    world.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
