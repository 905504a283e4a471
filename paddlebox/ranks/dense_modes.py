"""How ranks agree on dense parameters (`ranks.sync_weight_step`).

OneRank     one rank: it exchanges nothing
AllReduce   the program sums the gradients in each step (dense.py)
Average     each rank steps by itself; the parameters are averaged every few steps

Letters: n = number of values of all dense gradients, R = ranks, T = tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from paddlebox.config.ranks import RanksConfig
from paddlebox.data.batches import WEIGHT, Feed
from paddlebox.ranks.dense import SHARE, scaled, sum_gradients
from paddlebox.ranks.world import World
from paddlebox.store.coordinator import Coordinator

RATE = "learning_rate"  # prefix of Paddle's variables that hold a learning rate
Result = tuple[float, np.ndarray]  # the mean loss, and the logits (B, T) float32


class SteppedProgram(Protocol):
    """What a strategy needs of a program (train/program.py)."""

    gradient_size: int  # n

    def step(self, feed: Feed) -> Result: ...

    def evaluate(self, feed: Feed) -> Result: ...

    def state(self) -> dict[str, np.ndarray]: ...

    def parameters(self) -> dict[str, np.ndarray]: ...

    def set(self, state: Mapping[str, np.ndarray]) -> None: ...


class DenseSync:
    """A strategy: what a training step does, and what is exchanged at the end of a pass.

    Args:
        weighted: whether instances have weights.
    """

    def __init__(self, *, weighted: bool = False) -> None:
        self.weighted = weighted
        self.sent_bytes = 0  # by this rank
        #: Whether the program passes its gradients through `changed`. It then has the input SHARE.
        self.changes_gradients = weighted

    def changed(self, gradients: list[Any], share: Any, *, on_gpu: bool) -> list[Any]:
        """The gradients that the program applies. share: (1) SHARE."""
        del on_gpu
        return scaled(gradients, share)

    def step(self, program: SteppedProgram, feed: Feed) -> tuple[float, np.ndarray, bool]:
        """Train on a batch, which is only evaluated if all of its weights are 0.

        Returns: the loss and the logits before the update, and whether the step trained.
        """
        raise NotImplementedError

    def finish_pass(self, program: SteppedProgram) -> None:
        """Exchange what has not been sent yet. Collective."""


class OneRank(DenseSync):
    def step(self, program: SteppedProgram, feed: Feed) -> tuple[float, np.ndarray, bool]:
        if self.weighted:
            share = _own_share(feed)
            if share == 0:
                return *program.evaluate(feed), False
            feed[SHARE] = np.full(1, share, np.float32)
        return *program.step(feed), True


class AllReduce(DenseSync):
    """A step of all ranks makes one gradient. The feed has SHARE."""

    def __init__(self, world: World, *, weighted: bool = False) -> None:
        super().__init__(weighted=weighted)
        self._ranks = world.size
        self.changes_gradients = True

    def changed(self, gradients: list[Any], share: Any, *, on_gpu: bool) -> list[Any]:
        return sum_gradients(gradients, share, on_gpu=on_gpu, pushed=True)

    def step(self, program: SteppedProgram, feed: Feed) -> tuple[float, np.ndarray, bool]:
        if self.weighted and feed[SHARE][0] == 0:  # no instance of the step has a weight
            del feed[SHARE]
            return *program.evaluate(feed), False
        # A ring sum of n float32 values.
        self.sent_bytes += 2 * (self._ranks - 1) * 4 * program.gradient_size // self._ranks
        return *program.step(feed), True


class Average(DenseSync):
    def __init__(self, world: World, every: int, *, weighted: bool = False) -> None:
        """every: the number of steps after which the parameters are averaged."""
        super().__init__(weighted=weighted)
        self._world, self._every, self._steps = world, every, 0

    def step(self, program: SteppedProgram, feed: Feed) -> tuple[float, np.ndarray, bool]:
        if self.weighted:
            feed[SHARE] = np.full(1, _own_share(feed), np.float32)
        # A batch without instances is only evaluated: in a training step, momentum would move the
        # parameters.
        trains = feed[SHARE][0] > 0
        if not (self.weighted and trains):
            del feed[SHARE]
        found = program.step(feed) if trains else program.evaluate(feed)
        self._steps += 1
        if self._steps % self._every == 0:
            program.set(self._mean(program.parameters()))
        return *found, True

    def finish_pass(self, program: SteppedProgram) -> None:
        self._steps = 0
        state = {n: a for n, a in program.state().items() if not n.startswith(RATE)}
        program.set(self._mean(state))

    def _mean(self, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The mean over all ranks of each float32 array. Collective."""
        names = sorted(name for name, array in state.items() if array.dtype == np.float32)
        flat = np.concatenate([state[name].reshape(-1) for name in names])
        total, sent = _all_sum(self._world, flat)
        self.sent_bytes += sent
        total /= np.float32(self._world.size)
        ends = np.cumsum([state[name].size for name in names])[:-1]
        parts = zip(names, np.split(total, ends), strict=True)
        return {name: part.reshape(state[name].shape) for name, part in parts}


def dense_sync(options: RanksConfig, world: Coordinator, *, weighted: bool) -> DenseSync:
    """The strategy of a config. weighted: whether instances have weights."""
    if not isinstance(world, World):
        return OneRank(weighted=weighted)
    if options.sync_weight_step:
        return Average(world, options.sync_weight_step, weighted=weighted)
    return AllReduce(world, weighted=weighted)


def _own_share(feed: Feed) -> float:
    """`SHARE` of this rank's batch alone: B over the sum of its weights; 0 if all weights are 0."""
    weights = feed[WEIGHT]
    total = float(weights.sum(dtype=np.float64))
    return len(weights) / total if total > 0 else 0.0


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
