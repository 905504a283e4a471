"""How ranks agree about dense parameters (`ranks.dense`, `ranks.dense_top_k`).

AllReduce   gradients are summed in each step, inside the program (dense.py)
TopK        of each rank's gradient the largest values of a step, and what it kept of steps before
Average     each rank steps by itself; the parameters' mean every few steps

Letters: n = values of all dense gradients, k = of them that a step sends, R = ranks.
"""

from __future__ import annotations

import numpy as np

from paddlebox.config.ranks import DenseSync, RanksConfig
from paddlebox.ranks.lane import Lane
from paddlebox.ranks.world import World


class AllReduce:
    def __init__(self, world: World) -> None:
        self._ranks = world.size
        self.sent_bytes = 0  # by this rank

    def count(self, size: int) -> None:
        """Of a gradient of `size` float32, summed in a ring."""
        self.sent_bytes += 2 * (self._ranks - 1) * 4 * size // self._ranks


class TopK:
    """Sends values and their places. What a step does not send is added to the next gradient; what
    is left when a pass ends makes one step more, of all ranks, so that a commit needs none of it.
    """

    def __init__(self, world: World, share: float) -> None:
        self._world, self._share = world, share
        self._kept: np.ndarray | None = None  # (n)
        self.sent_bytes = 0

    def sum(self, gradient: np.ndarray) -> np.ndarray:
        """(n) the sum over ranks of what they send. gradient: (n) float32, weighted."""
        kept = gradient if self._kept is None else self._kept + gradient
        count = max(1, round(self._share * len(kept)))
        places = np.sort(np.argpartition(np.abs(kept), -count)[-count:]).astype(np.int32)
        message = np.empty(2 * count, np.int32)
        message[:count], message[count:] = places, kept[places].view(np.int32)
        kept = kept.copy()
        kept[places] = 0
        self._kept = kept
        lane = self._world.lane("step")
        found = lane.do(self._to_all, lane, message)
        total = np.zeros(len(kept), np.float32)
        for theirs in found:  # in the order of ranks; the places of one are different
            total[theirs[:count]] += theirs[count:].view(np.float32)
        self.sent_bytes += message.nbytes * (self._world.size - 1)
        return total

    def _to_all(self, lane: Lane, message: np.ndarray) -> list[np.ndarray]:
        found = [np.empty_like(message) for _ in range(self._world.size)]
        lane.swap([message] * self._world.size, found)
        return found

    def left(self) -> np.ndarray | None:
        """(n) the sum of what all ranks have kept, which they forget; None before any step."""
        kept, self._kept = self._kept, None
        if kept is None:
            return None
        total, sent = _all_sum(self._world, kept)
        self.sent_bytes += sent
        return total


class Average:
    def __init__(self, world: World, every: int) -> None:
        self._world, self._every, self._steps = world, every, 0
        self.sent_bytes = 0

    def is_due(self) -> bool:
        """Whether the step that was made is one after which the mean is taken."""
        self._steps += 1
        return self._steps % self._every == 0

    def mean(self, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The mean over ranks of each float32 array; every rank calls it."""
        names = sorted(name for name, array in state.items() if array.dtype == np.float32)
        flat = np.concatenate([state[name].reshape(-1) for name in names])
        total, sent = _all_sum(self._world, flat)
        self.sent_bytes += sent
        total /= np.float32(self._world.size)
        ends = np.cumsum([state[name].size for name in names])[:-1]
        parts = zip(names, np.split(total, ends), strict=True)
        return {name: part.reshape(state[name].shape) for name, part in parts}

    def end_pass(self) -> None:
        """The next pass counts its steps from the first."""
        self._steps = 0


DenseMode = AllReduce | TopK | Average


def dense_mode(options: RanksConfig, world: World | None) -> DenseMode | None:
    """What the config asks for; None on one rank."""
    if world is None or world.alone:
        return None
    if options.dense is DenseSync.AVERAGE:
        return Average(world, options.sync_weight_step)
    return TopK(world, options.dense_top_k) if options.dense_top_k else AllReduce(world)


def _all_sum(world: World, flat: np.ndarray) -> tuple[np.ndarray, int]:
    """The sum over ranks, added up in their order, and the bytes that this rank has sent for it:
    each sums a part of it for all."""
    lane = world.lane("step")

    def swap() -> tuple[np.ndarray, int]:
        parts = np.array_split(np.ascontiguousarray(flat, np.float32), world.size)
        theirs = [np.empty_like(parts[world.rank]) for _ in parts]
        lane.swap(parts, theirs)
        mine = theirs[0].copy()
        for part in theirs[1:]:
            mine += part
        total = np.empty(len(flat), np.float32)
        lane.swap([mine] * world.size, np.array_split(total, world.size))
        others = sum(part.nbytes for r, part in enumerate(parts) if r != world.rank)
        return total, others + mine.nbytes * (world.size - 1)

    return lane.do(swap)
