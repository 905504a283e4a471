"""A zoo model as something that can be stepped: a static program (PIR, old IR) or a dygraph layer.

All three give the same step and the same dense state; which one runs is `trainer.program`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from paddlebox import _native, ops
from paddlebox.config import Config, Program, Slots
from paddlebox.config.ranks import DenseSync
from paddlebox.data.batches import Feed
from paddlebox.errors import ConfigError
from paddlebox.ranks import World
from paddlebox.store.hbm_place import check_place
from paddlebox.train.averaging import Averaged
from paddlebox.train.dygraph_runner import DygraphRunner
from paddlebox.train.ranked import RankedRunner
from paddlebox.train.static_runner import StaticRunner

paddle = ops.paddle


class Runner(Protocol):
    """A built model."""

    def train_step(self, feed: Feed) -> tuple[float, np.ndarray]:
        """Forward, backward, update. Returns the mean loss and logits (B, T) from before the
        update."""

    def evaluate_step(self, feed: Feed) -> tuple[float, np.ndarray]:
        """Forward alone."""

    def finish_pass(self) -> None:
        """Between the last step of a pass and its commit: ranks agree about what they have not told
        each other. All of them call it."""

    @property
    def dense_sent_bytes(self) -> int:
        """That this rank has sent to others for the dense parameters."""

    def dense_state(self) -> dict[str, np.ndarray]:
        """Copies of parameters and optimizer state, by variable name."""

    def load_dense_state(self, state: Mapping[str, np.ndarray]) -> None:
        """The reverse. Raises CorruptionError when names or shapes do not match the model."""


def build_runner(config: Config, slots: Slots, world: World | None = None) -> Runner:
    """The model of a config in the program mode it names. Seeds Paddle with `config.seed`.

    Args:
        world: of the ranks that train it together.

    Raises: ConfigError for a program of the old IR on several ranks, for averages of parameters
        that are themselves averaged now and then, and for rows on a GPU that cannot be there.
    """
    ranks, decay = world.size if world is not None else 1, config.optimizer.averaging
    check_place(config.hbm.place)
    if ranks > 1 and decay and config.ranks.dense is DenseSync.AVERAGE:
        raise ConfigError(
            "optimizer.averaging with ranks.dense: average: between two averages over the ranks "
            "each has parameters of its own; choose one of them"
        )
    runner = _build_runner(config, slots, world, ranks)
    return Averaged(runner, decay) if decay else runner


def _build_runner(config: Config, slots: Slots, world: World | None, ranks: int) -> RankedRunner:
    paddle.seed(config.seed)
    if config.trainer.program is Program.DYGRAPH:
        return DygraphRunner(config, slots, world)
    if ranks > 1 and config.trainer.program is not Program.PIR:
        raise ConfigError(
            f"trainer.program {config.trainer.program.value} with {ranks} ranks: Paddle's "
            "all-reduce does not build in the old IR on a CPU; use pir or dygraph"
        )
    return StaticRunner(config, slots, world)


def seed_pass(seed: int, number: int) -> None:
    """Makes what Paddle draws in a pass (dropout) a function of the run's seed and the pass's
    number, so that a run which is taken up again draws the same."""
    paddle.seed(_native.core.mix(seed + number) % (1 << 63))
