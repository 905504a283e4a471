"""How ranks agree on dense parameters (`ranks.sync_weight_step`, `ranks.dense_top_k`).

AllReduce   the program sums the gradients in each step (dense.py)
TopK        each rank sends the largest values of its gradient, and keeps the others for later steps
Average     each rank steps by itself; the parameters are averaged every few steps

Letters: n = number of values of all dense gradients, R = ranks.
"""

from __future__ import annotations

import numpy as np

from paddlebox.config.ranks import RanksConfig
from paddlebox.ranks.world import World
from paddlebox.store.coordinator import Coordinator


class AllReduce:
    def __init__(self, world: World) -> None:
        self._ranks = world.size
        self.sent_bytes = 0  # by this rank

    def count(self, size: int) -> None:
        """Count the bytes of a ring sum of `size` float32 values."""
        self.sent_bytes += 2 * (self._ranks - 1) * 4 * size // self._ranks


class TopK:
    """Sends values with their positions.

    What a step does not send is added to the next gradient. At the end of a pass, one more step of
    all ranks applies the rest, so a commit need not store it.
    """

    def __init__(self, world: World, share: float) -> None:
        self._world, self._share = world, share
        self._kept: np.ndarray | None = None  # (n)
        self.sent_bytes = 0

    def sum(self, gradient: np.ndarray) -> np.ndarray:
        """(n) the sum of what all ranks send. gradient: (n) float32, weighted."""
        kept = gradient if self._kept is None else self._kept + gradient
        count = max(1, round(self._share * len(kept)))
        places = np.sort(np.argpartition(np.abs(kept), -count)[-count:]).astype(np.int32)
        message = np.empty(2 * count, np.int32)
        message[:count], message[count:] = places, kept[places].view(np.int32)
        kept = kept.copy()
        kept[places] = 0
        self._kept = kept
        found = [np.empty_like(message) for _ in range(self._world.size)]
        self._world.channels["step"].swap([message] * self._world.size, found)
        total = np.zeros(len(kept), np.float32)
        for theirs in found:  # in the order of ranks; the positions of a rank are distinct
            total[theirs[:count]] += theirs[count:].view(np.float32)
        self.sent_bytes += message.nbytes * (self._world.size - 1)
        return total

    def left(self) -> np.ndarray | None:
        """Return (n), the sum of what all ranks kept, and forget it. None before any step."""
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
        """Count a step. Returns whether the parameters are averaged after it."""
        self._steps += 1
        return self._steps % self._every == 0

    def mean(self, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The mean over all ranks of each float32 array. Collective."""
        names = sorted(name for name, array in state.items() if array.dtype == np.float32)
        flat = np.concatenate([state[name].reshape(-1) for name in names])
        total, sent = _all_sum(self._world, flat)
        self.sent_bytes += sent
        total /= np.float32(self._world.size)
        ends = np.cumsum([state[name].size for name in names])[:-1]
        parts = zip(names, np.split(total, ends), strict=True)
        return {name: part.reshape(state[name].shape) for name, part in parts}

    def end_pass(self) -> None:
        """Start counting steps from the first one again."""
        self._steps = 0


DenseMode = AllReduce | TopK | Average


def dense_mode(options: RanksConfig, world: Coordinator) -> DenseMode | None:
    """The mode of a config; None on one rank."""
    if not isinstance(world, World):
        return None
    if options.sync_weight_step:
        return Average(world, options.sync_weight_step)
    return TopK(world, options.dense_top_k) if options.dense_top_k else AllReduce(world)


def _all_sum(world: World, flat: np.ndarray) -> tuple[np.ndarray, int]:
    """The sum over all ranks, in the order of ranks, and the bytes that this rank sent for it.

    Each rank sums one part for all ranks.
    """
    channel = world.channels["step"]
    parts = np.array_split(np.ascontiguousarray(flat, np.float32), world.size)
    theirs = [np.empty_like(parts[world.rank]) for _ in parts]
    channel.swap(parts, theirs)
    mine = theirs[0].copy()
    for part in theirs[1:]:
        mine += part
    total = np.empty(len(flat), np.float32)
    channel.swap([mine] * world.size, np.array_split(total, world.size))
    others = sum(part.nbytes for r, part in enumerate(parts) if r != world.rank)
    return total, others + mine.nbytes * (world.size - 1)
