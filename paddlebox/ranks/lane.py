"""Lane: arrays between every two ranks, an uneven all-to-all from point-to-point messages.

Gloo has no all-to-all. Each pair of ranks has a group of its own for each lane, since Paddle counts
messages by group and a lane belongs to one thread; pairs meet in the order of a round-robin
tournament, the lower rank sends first.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from paddlebox import _native

if TYPE_CHECKING:
    from paddlebox.ranks.world import World

paddle = _native.paddle


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
    """Made by `World.join`. What is begun on it is done in that order, by a thread of its own: a
    thread that has never seen a static program, in which Paddle makes no tensors."""

    def __init__(self, world: World, name: str) -> None:
        self._world, self.name = world, name
        self._groups: dict[int, tuple[Any, Any]] = {}  # of a peer: process group, its store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"paddlebox-lane-{name}")
        self.sent_bytes = 0
        self.seconds = 0.0  # inside exchanges, waiting for peers included
        self._make_groups()

    def _make_groups(self) -> None:
        collective = paddle.distributed.collective
        for peer in rounds(self._world.rank, self._world.size):
            pair = sorted((self._world.rank, peer))
            store = self._world.rendezvous(f"{self.name}/{pair[0]}-{pair[1]}", pair[0])
            usual, collective._default_store = collective._default_store, store
            try:
                group = paddle.distributed.new_group(pair, backend="gloo")
            finally:
                collective._default_store = usual
            self._groups[peer] = (group.process_group, store)

    def submit(self, call: Any, *arguments: Any) -> Future[Any]:
        """Does this on the lane's thread, where `swap` and `exchange` may be called."""
        return self._thread.submit(call, *arguments)

    def swap(self, out: Sequence[np.ndarray], into: Sequence[np.ndarray]) -> None:
        """Sends out[r] to rank r and fills into[r] from there; what a rank has for itself is
        copied. On the lane's thread.

        Args:
            out, into: (size) contiguous arrays; into[r] has the size and dtype that rank r sends.
                Empty ones are not sent.
        """
        begin = time.perf_counter()
        me = self._world.rank
        np.copyto(into[me], out[me])
        for peer, (group, _) in self._groups.items():
            other = 0 if peer < me else 1  # its rank in the group
            steps = [(group.send, out[peer]), (group.recv, into[peer])]
            for move, array in steps if me < peer else reversed(steps):
                if array.size:
                    move(_tensor(array), other, True)
            self.sent_bytes += out[peer].nbytes
        self.seconds += time.perf_counter() - begin

    def exchange(self, out: Sequence[np.ndarray]) -> list[np.ndarray]:
        """(size) what each rank has for this one; sizes are sent before. out: (size) 1-d arrays of
        one dtype. On the lane's thread."""
        size = self._world.size
        sizes = np.array([array.size for array in out], np.int64)
        theirs = np.zeros(size, np.int64)
        self.swap([sizes[r : r + 1] for r in range(size)], [theirs[r : r + 1] for r in range(size)])
        into = [np.empty(int(count), out[0].dtype) for count in theirs]
        self.swap([np.ascontiguousarray(array) for array in out], into)
        return into

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
