"""`Runner` steps a zoo model: a program, what ranks exchange, and averages of the parameters."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paddlebox import _native, ops
from paddlebox.config import Config, Program, Slots
from paddlebox.data.batches import Feed
from paddlebox.errors import ConfigError
from paddlebox.models.click_prior import CLICK_PRIOR
from paddlebox.ranks.dense_modes import DenseSync, dense_sync
from paddlebox.store.coordinator import ONE_RANK, Coordinator
from paddlebox.store.hbm_place import check_place
from paddlebox.train.averaging import Averages
from paddlebox.train.dygraph_program import DygraphProgram
from paddlebox.train.program import ModelProgram
from paddlebox.train.static_program import StaticProgram

paddle = ops.paddle


class Runner:
    """A model that is built and can be stepped. B = instances, T = tasks."""

    def __init__(
        self, program: ModelProgram, sync: DenseSync, averages: Averages | None = None
    ) -> None:
        self.program = program
        self._sync, self._averages = sync, averages

    def train_step(self, feed: Feed) -> tuple[float, np.ndarray]:
        """Run forward, backward and update on a batch.

        Returns: the mean loss, and the logits (B, T) float32. Both are from before the update.
        """
        self._use_parameters()
        loss, logits, trained = self._sync.step(self.program, feed)
        if trained and self._averages is not None:
            self._averages.add()
        return loss, logits

    def evaluate_step(self, feed: Feed) -> tuple[float, np.ndarray]:
        """Run forward on a batch. Returns the mean loss and the logits (B, T) float32."""
        if self._averages is not None:
            self._averages.use_averages()
        return self.program.evaluate(feed)

    def finish_pass(self) -> None:
        """Exchange what ranks have not sent yet, after the last step and before the commit.

        Every rank calls it.
        """
        self._use_parameters()
        self._sync.finish_pass(self.program)

    @property
    def dense_sent_bytes(self) -> int:
        """Bytes of dense parameters and gradients that this rank has sent to other ranks."""
        return self._sync.sent_bytes

    def set_click_prior(self, prior: np.ndarray) -> None:
        """Set the parameter of a model with click priors.

        Args:
            prior: (2, K) float32, as in paddlebox/models/click_prior.py. NaN: as before.
        """
        self._use_parameters()
        before = self.program.view()[CLICK_PRIOR]
        self.program.set({CLICK_PRIOR: np.where(np.isnan(prior), before, prior)})
        if self._averages is not None:
            self._averages.reset(CLICK_PRIOR)

    def dense_state(self) -> dict[str, np.ndarray]:
        """Copies of the parameters, the optimizer state and the averages, by name."""
        self._use_parameters()
        averages = self._averages.state() if self._averages is not None else {}
        return self.program.state() | averages

    def load_dense_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Load what `dense_state` returned.

        Raises:
            CorruptionError: names or shapes do not match the model.
        """
        self._use_parameters()
        if self._averages is None:
            self.program.load(state)
        else:
            self.program.load({k: array for k, array in state.items() if not Averages.owns(k)})
            self._averages.load(state)

    def _use_parameters(self) -> None:
        if self._averages is not None:
            self._averages.use_parameters()


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
    if world.size > 1 and config.model.click_prior:
        raise ConfigError(
            f"model.click_prior with {world.size} ranks: a rank sees the clicks of its own "
            "instances only; train with one rank, or set click_prior: false"
        )
    check_place(config.hbm.place)
    if world.size > 1 and config.optimizer.averaging and config.ranks.sync_weight_step:
        raise ConfigError(
            "optimizer.averaging with ranks.sync_weight_step: between two averages over the ranks "
            "each rank has its own parameters; use only one of these options"
        )
    if world.size > 1 and config.trainer.program is Program.OLD_IR:
        raise ConfigError(
            f"trainer.program {config.trainer.program.value} with {world.size} ranks: programs of "
            "the old IR do not sum the dense gradients of ranks: use pir or dygraph"
        )
    paddle.seed(config.seed)
    sync = dense_sync(config.ranks, world, weighted=slots.weight is not None)
    of_mode = DygraphProgram if config.trainer.program is Program.DYGRAPH else StaticProgram
    program = of_mode(config, slots, sync)
    decay = config.optimizer.averaging
    return Runner(program, sync, Averages(program, decay) if decay else None)


def seed_pass(seed: int, number: int) -> None:
    """Seed Paddle for a pass from the run's seed and the number of the pass.

    A resumed run then draws the same random numbers (dropout) as one that was never stopped.
    """
    paddle.seed(_native.core.mix(seed + number) % (1 << 63))
