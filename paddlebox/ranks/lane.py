"""Lane: arrays between every two ranks, an uneven all-to-all.

Ranks of one host exchange through memory that they share (ops/base/host_group.h), those of
different hosts by point-to-point messages of Paddle's, for Gloo has no all-to-all: each pair has a
group of its own for each lane, since Paddle counts messages by group and a lane belongs to one
thread; pairs meet in the order of a round-robin tournament, the lower rank sends first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from paddlebox import _native

if TYPE_CHECKING:
    from paddlebox.ranks.world import World

paddle = _native.paddle

_T = TypeVar("_T")
_COUNTERS = ("sent_bytes", "seconds", "waiting_seconds", "waits")


def rounds(rank: int, size: int) -> Iterator[int]:
    """The peers of a rank, in the order in which it meets them: in each round every rank has one
    peer, or none."""
    even = size + size % 2
    for turn in range(even - 1):
        if rank == even - 1:  # the one that stands still
            peer = next(r for r in range(even - 1) if 2 * r % (even - 1) == turn)
        elif 2 * rank % (even - 1) == turn:
            peer = even - 1
        else:
            peer = (turn - rank) % (even - 1)
        if peer < size:
            yield peer


class Lane:
    """Made by `World.join`. What is begun on it is done in that order, by one thread at a time;
    where there are other hosts by a thread of its own: one that has never seen a static program, in
    which Paddle makes no tensors.

    Args:
        number: of the lane in the memory that the ranks of this host share.
    """

    def __init__(self, world: World, name: str, number: int) -> None:
        self._world, self.name, self._number = world, name, number
        self._groups: dict[int, tuple[Any, Any]] = {}  # of a peer: process group, its store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"paddlebox-lane-{name}")
        self._far_bytes, self._far_seconds = 0, 0.0
        self._make_groups()

    def _make_groups(self) -> None:
        collective = paddle.distributed.collective
        for peer in rounds(self._world.rank, self._world.size):
            if peer in self._world.near:
                continue
            pair = sorted((self._world.rank, peer))
            store = self._world.rendezvous(f"{self.name}/{pair[0]}-{pair[1]}", pair[0])
            usual, collective._default_store = collective._default_store, store
            try:
                group = paddle.distributed.new_group(pair, backend="gloo")
            finally:
                collective._default_store = usual
            self._groups[peer] = (group.process_group, store)

    def meet(self, what: str) -> None:
        """Before an exchange that some rank may come to late: by the network a peer gives up after
        30 s, through memory it waits as long as it takes."""
        if self._groups:
            self._world.wait(what)

    def do(self, call: Callable[..., _T], *arguments: Any) -> _T:
        """As `submit(...).result()`; at once where no thread is needed for it."""
        if self._groups:
            return self._thread.submit(call, *arguments).result()
        return call(*arguments)

    def submit(self, call: Any, *arguments: Any) -> Future[Any]:
        """Does this on the lane's thread. There, and in `do`, `swap` and `exchange` are called."""
        return self._thread.submit(call, *arguments)

    def swap(self, out: Sequence[np.ndarray], into: Sequence[np.ndarray]) -> None:
        """Sends out[r] to rank r and fills into[r] from there; what a rank has for itself is
        copied.

        Args:
            out, into: (size) contiguous arrays; into[r] has the size and dtype that rank r sends.
                Empty ones are not sent to other hosts.

        Raises: RankError for a rank of this host that has ended or given up.
        """
        me, near, memory = self._world.rank, self._world.near, self._world.memory
        if memory is None:
            np.copyto(into[me], out[me])
        else:
            memory.swap(self._number, [out[rank] for rank in near], [into[rank] for rank in near])
        begin = time.perf_counter()
        for peer, (group, _) in self._groups.items():
            other = 0 if peer < me else 1  # its rank in the group
            steps = [(group.send, out[peer]), (group.recv, into[peer])]
            for move, array in steps if me < peer else reversed(steps):
                if array.size:
                    move(_tensor(array), other, True)
            self._far_bytes += out[peer].nbytes
        self._far_seconds += time.perf_counter() - begin

    def exchange(self, out: Sequence[np.ndarray]) -> list[np.ndarray]:
        """(size) what each rank has for this one; sizes are sent before. out: (size) 1-d arrays of
        one dtype."""
        size = self._world.size
        sizes = np.array([array.size for array in out], np.int64)
        theirs = np.zeros(size, np.int64)
        self.swap([sizes[r : r + 1] for r in range(size)], [theirs[r : r + 1] for r in range(size)])
        into = [np.empty(int(count), out[0].dtype) for count in theirs]
        self.swap([np.ascontiguousarray(array) for array in out], into)
        return into

    def counters(self) -> dict[str, float]:
        """Sums: bytes sent to other ranks; seconds, those of them that passed in waiting for ranks
        of this host, and how many waits that were."""
        found: dict[str, float] = dict.fromkeys(_COUNTERS, 0.0)
        if self._world.memory is not None:
            found = self._world.memory.counters(self._number)
        found["sent_bytes"] += self._far_bytes
        found["seconds"] += self._far_seconds
        return found

    def close(self) -> None:
        self._thread.shutdown()
        self._groups.clear()


def _tensor(array: np.ndarray) -> Any:
    """A Paddle tensor over the array's own bytes."""
    flat = array.reshape(-1).view(np.uint8)
    core = paddle.base.core
    return core.eager.Tensor(
        core.from_dlpack(flat.__dlpack__()), paddle.CPUPlace(), "paddlebox_lane"
    )
