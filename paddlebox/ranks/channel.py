"""Channel: an all-to-all exchange of arrays of any sizes between the ranks.

Ranks of one host exchange through shared memory (ops/base/host_group.h). Ranks of different hosts
use point-to-point messages of Paddle, because Gloo has no all-to-all. Paddle numbers the messages
of a group, so only one thread may use a group. Each channel has its own thread. So each pair of
ranks has a group for each channel. Pairs exchange in the order of a round-robin tournament; the
lower rank sends first.
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

#: In this order: for exchanges once per pass, for planning steps, within steps, for prefetching,
#: and for instances while a pass is loaded.
CHANNELS = ("stage", "ask", "step", "early", "share")
#: Within a host: the gradients that programs sum (dense.py).
DENSE = "dense"
_T = TypeVar("_T")
_COUNTERS = ("sent_bytes", "seconds", "waiting_seconds", "waits")


def rounds(rank: int, size: int) -> Iterator[int]:
    """The peers of a rank, in the order of its exchanges. A rank may skip a round."""
    even = size + size % 2
    for turn in range(even - 1):
        if rank == even - 1:  # the fixed player of the tournament
            peer = next(r for r in range(even - 1) if 2 * r % (even - 1) == turn)
        elif 2 * rank % (even - 1) == turn:
            peer = even - 1
        else:
            peer = (turn - rank) % (even - 1)
        if peer < size:
            yield peer


class Channel:
    """One of CHANNELS, created by `World.join`.

    Exchanges on a channel run one at a time, in the order in which they were submitted. If there
    are other hosts, they run on a thread of the channel. That thread never enters static mode, in
    which Paddle cannot create tensors.

    Args:
        world: the ranks.
        name: the name of the channel.
        number: its number in the memory that the ranks of this host share.
    """

    def __init__(self, world: World, name: str, number: int) -> None:
        self._world, self.name, self._number = world, name, number
        self._groups: dict[int, tuple[Any, Any]] = {}  # by peer: process group, and its store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"paddlebox-channel-{name}")
        self._far_bytes, self._far_seconds = 0, 0.0
        self._create_groups()

    def _create_groups(self) -> None:
        collective = paddle.distributed.collective
        for peer in rounds(self._world.rank, self._world.size):
            if peer in self._world.near:
                continue
            pair = sorted((self._world.rank, peer))
            held = self._world.store.rendezvous(f"{self.name}/{pair[0]}-{pair[1]}", pair[0])
            default, collective._default_store = collective._default_store, held[0]
            try:
                group = paddle.distributed.new_group(pair, backend="gloo")
            finally:
                collective._default_store = default
            self._groups[peer] = (group.process_group, held)

    def meet(self, what: str) -> None:
        """Wait for all ranks before an exchange to which some rank may be late.

        On the network, a peer gives up after 30 s. Shared memory has no time limit and needs no
        such wait.
        """
        if self._groups:
            self._world.wait(what)

    def do(self, call: Callable[..., _T], *arguments: Any) -> _T:
        """`submit(...).result()`, but without the thread if no other host is involved."""
        if self._groups:
            return self._thread.submit(call, *arguments).result()
        return call(*arguments)

    def submit(self, call: Any, *arguments: Any) -> Future[Any]:
        """Run a function on the thread of the channel.

        `swap` and `exchange` must be called within `submit` or `do`.
        """
        return self._thread.submit(call, *arguments)

    def swap(self, out: Sequence[np.ndarray], into: Sequence[np.ndarray]) -> None:
        """Send out[r] to rank r, and fill into[r] with what rank r sends.

        Args:
            out: (R) contiguous arrays. Empty ones are not sent to other hosts; out[rank] is copied.
            into: (R) contiguous arrays of the sizes and dtypes that the other ranks send.

        Raises:
            RankError: a rank of this host has ended or left.
        """
        me, near, memory = self._world.rank, self._world.near, self._world.memory
        if memory is None:
            np.copyto(into[me], out[me])
        else:
            memory.swap(self._number, [out[rank] for rank in near], [into[rank] for rank in near])
        begin = time.perf_counter()
        for peer, (group, _) in self._groups.items():
            other = 0 if peer < me else 1  # the peer's rank within the group
            steps = [(group.send, out[peer]), (group.recv, into[peer])]
            for move, array in steps if me < peer else reversed(steps):
                if array.size:
                    move(_tensor(array), other, True)
            self._far_bytes += out[peer].nbytes
        self._far_seconds += time.perf_counter() - begin

    def exchange(self, out: Sequence[np.ndarray]) -> list[np.ndarray]:
        """(R) what each rank sends to this one. Sizes are sent first.

        Args:
            out: (R) 1-d arrays of one dtype, by receiver.
        """
        size = self._world.size
        sizes = np.array([array.size for array in out], np.int64)
        theirs = np.zeros(size, np.int64)
        self.swap([sizes[r : r + 1] for r in range(size)], [theirs[r : r + 1] for r in range(size)])
        into = [np.empty(int(count), out[0].dtype) for count in theirs]
        self.swap([np.ascontiguousarray(array) for array in out], into)
        return into

    def counters(self) -> dict[str, float]:
        """Bytes sent to other ranks, seconds in exchanges, and the waits for ranks of this host.

        The seconds in exchanges include these waits.
        """
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
    """A Paddle tensor that shares the memory of an array."""
    flat = array.reshape(-1).view(np.uint8)
    core = paddle.base.core
    return core.eager.Tensor(
        core.from_dlpack(flat.__dlpack__()), paddle.CPUPlace(), "paddlebox_channel"
    )
