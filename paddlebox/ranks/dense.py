"""How several ranks agree on dense parameters (`ranks.sync_weight_step`).

AllReduce   the program sums the gradients in each step (`sum_gradients`)
Average     each rank steps by itself; the parameters are averaged every few steps
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox._call import call
from paddlebox.config import Config
from paddlebox.data.batches import Feed
from paddlebox.errors import ConfigError
from paddlebox.ranks.world import World
from paddlebox.store.group import Group
from paddlebox.store.options import is_plugged_in
from paddlebox.training.program import RATE, SHARE, DenseSync, ModelProgram
from paddlebox.training.runner import OneRank, own_share

paddle = _native.paddle


def sum_gradients(
    gradients: Sequence[Any], share: Any, *, on_gpu: bool = False, pushed: bool = False
) -> list[Any]:
    """The gradients of the mean loss over the instances of all ranks.

    All gradients go into one message. From a GPU, it goes through Paddle's NCCL.

    Args:
        gradients: float32 gradients of this rank's mean loss.
        share: (1) `SHARE`.
        pushed: whether `gradients` contain those of the anchors of all pulls (ops.py), so that the
            step has done all its pushes. Ranks of several hosts then exchange the gradients of rows
            at the same time.
    """
    if not on_gpu:
        of_all = {"Gradients": list(gradients), "Share": share}
        flat = call("box_sum_over_ranks", of_all, {"pushed": pushed})[0]
    else:
        flat = paddle.concat([paddle.reshape(gradient, [-1]) for gradient in gradients]) * share
        paddle.distributed.all_reduce(flat)
    return _split(flat, gradients)


def _split(flat: Any, like: Sequence[Any]) -> list[Any]:
    shapes = [list(one.shape) for one in like]
    sizes = [math.prod(shape) for shape in shapes]
    parts = paddle.split(flat, sizes) if len(sizes) > 1 else [flat]
    return [paddle.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]


class AllReduce(DenseSync):
    """A step of all ranks makes one gradient. The feed has SHARE."""

    def __init__(self, world: World, *, weighted: bool = False) -> None:
        super().__init__(weighted=weighted)
        self._ranks = world.size
        self.changes_gradients = True

    def changed(self, gradients: list[Any], share: Any, *, on_gpu: bool) -> list[Any]:
        return sum_gradients(gradients, share, on_gpu=on_gpu, pushed=True)

    def step(self, program: ModelProgram, feed: Feed) -> tuple[float, np.ndarray, bool]:
        if self.weighted and feed[SHARE][0] == 0:  # no instance of the step has a weight
            del feed[SHARE]
            return *program.step(feed, train=False), False
        # A ring sum of n float32 values.
        self.sent_bytes += 2 * (self._ranks - 1) * 4 * program.gradient_size // self._ranks
        return *program.step(feed), True


class Average(DenseSync):
    def __init__(self, world: World, every: int, *, weighted: bool = False) -> None:
        """every: the number of steps after which the parameters are averaged."""
        super().__init__(weighted=weighted)
        self._world, self._every, self._steps = world, every, 0

    def step(self, program: ModelProgram, feed: Feed) -> tuple[float, np.ndarray, bool]:
        if self.weighted:
            feed[SHARE] = np.full(1, own_share(feed), np.float32)
        # A batch without instances is only evaluated: in a training step, momentum would move the
        # parameters.
        trains = feed[SHARE][0] > 0
        if not (self.weighted and trains):
            del feed[SHARE]
        found = program.step(feed, train=trains)
        self._steps += 1
        if self._steps % self._every == 0:
            program.set(self._mean(program.parameters()))
        return *found, True

    def finish_pass(self, program: ModelProgram) -> None:
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


def dense_sync(world: Group, config: Config, *, weighted: bool) -> DenseSync:
    """The strategy of a config. weighted: whether instances have weights.

    Raises: ConfigError for `optimizer.averaging` with `ranks.sync_weight_step`, or
    libpaddlebox_gpu.so, on several ranks.
    """
    if not isinstance(world, World):
        return OneRank(weighted=weighted)
    every = config.ranks.sync_weight_step
    if is_plugged_in():
        raise ConfigError(
            f"hbm.place is gpu with {world.size} ranks: libpaddlebox_gpu.so serves one rank only: "
            "launch with --nproc_per_node 1, or set hbm.place: host"
        )
    if config.optimizer.averaging and every:
        raise ConfigError(
            "optimizer.averaging with ranks.sync_weight_step: between two averages over the ranks "
            "each rank has its own parameters; use only one of these options"
        )
    return (
        Average(world, every, weighted=weighted) if every else AllReduce(world, weighted=weighted)
    )


def _all_sum(world: World, flat: np.ndarray) -> tuple[np.ndarray, int]:
    """The sum over all ranks, in the order of ranks, and the bytes that this rank sent. Each rank
    sums one part for all."""
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
