"""Runners: a zoo model as a static program (PIR or old IR) or as a dygraph layer.

`trainer.program` chooses one of the three. All compute the same steps and the same dense state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from paddlebox import _native, ops
from paddlebox.config import Config, Program, Slots
from paddlebox.data.batches import Feed
from paddlebox.errors import ConfigError
from paddlebox.store.coordinator import ONE_RANK, Coordinator
from paddlebox.store.hbm_place import check_place
from paddlebox.train.averaging import Averaged
from paddlebox.train.dygraph_runner import DygraphRunner
from paddlebox.train.ranked import RankedRunner
from paddlebox.train.schedule import Scheduled, is_scheduled
from paddlebox.train.static_runner import StaticRunner

paddle = ops.paddle


class Runner(Protocol):
    """A model that is built and can be stepped. B = instances, T = tasks."""

    def train_step(self, feed: Feed) -> tuple[float, np.ndarray]:
        """Run forward, backward and update on a batch.

        Returns: the mean loss, and the logits (B, T) float32. Both are from before the update.
        """

    def evaluate_step(self, feed: Feed) -> tuple[float, np.ndarray]:
        """Run forward on a batch. Returns the mean loss and the logits (B, T) float32."""

    def finish_pass(self) -> None:
        """Exchange what ranks have not sent yet, after the last step and before the commit.

        Every rank calls it.
        """

    @property
    def dense_sent_bytes(self) -> int:
        """Bytes of dense parameters and gradients that this rank has sent to other ranks."""

    def set_click_prior(self, prior: np.ndarray) -> None:
        """Set the parameter of a model with click priors.

        Args:
            prior: (2, K) float32, as in paddlebox/models/click_prior.py. NaN: as before.
        """

    def dense_state(self) -> dict[str, np.ndarray]:
        """Copies of the parameters and the optimizer state, by variable name."""

    def load_dense_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Load what `dense_state` returned.

        Raises:
            CorruptionError: names or shapes do not match the model.
        """


def build_runner(config: Config, slots: Slots, world: Coordinator = ONE_RANK) -> Runner:
    """Build the model of a config as `trainer.program` says. Seeds Paddle with `config.seed`.

    Args:
        config: the config of the run, or of one phase.
        slots: its slots.
        world: the ranks that train the model together.

    Raises:
        ConfigError: an old-IR program on several ranks; `optimizer.averaging` together with
            `ranks.sync_weight_step`; `model.click_prior` on several ranks; or rows on a GPU that
            this machine or build does not have.
    """
    decay = config.optimizer.averaging
    if world.size > 1 and config.model.click_prior:
        raise ConfigError(
            f"model.click_prior with {world.size} ranks: a rank sees the clicks of its own "
            "instances only; train with one rank, or set click_prior: false"
        )
    check_place(config.hbm.place)
    if world.size > 1 and decay and config.ranks.sync_weight_step:
        raise ConfigError(
            "optimizer.averaging with ranks.sync_weight_step: between two averages over the ranks "
            "each rank has its own parameters; use only one of these options"
        )
    runner = _build_runner(config, slots, world)
    averaged = Averaged(runner, decay) if decay else runner
    return Scheduled(averaged, config.optimizer) if is_scheduled(config.optimizer) else averaged


def _build_runner(config: Config, slots: Slots, world: Coordinator) -> RankedRunner:
    paddle.seed(config.seed)
    if config.trainer.program is Program.DYGRAPH:
        return DygraphRunner(config, slots, world)
    if world.size > 1 and config.trainer.program is not Program.PIR:
        raise ConfigError(
            f"trainer.program {config.trainer.program.value} with {world.size} ranks: programs of "
            "the old IR do not sum the dense gradients of ranks: use pir or dygraph"
        )
    return StaticRunner(config, slots, world)


def seed_pass(seed: int, number: int) -> None:
    """Seed Paddle for a pass from the run's seed and the number of the pass.

    A resumed run then draws the same random numbers (dropout) as one that was never stopped.
    """
    paddle.seed(_native.core.mix(seed + number) % (1 << 63))
