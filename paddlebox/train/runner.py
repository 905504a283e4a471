"""`Runner` steps a zoo model: a program, what ranks exchange, and averages of the parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from paddlebox import _native, ops
from paddlebox.config import Config, Program, Slots
from paddlebox.data.batches import WEIGHT, Feed
from paddlebox.models.click_prior import CLICK_PRIOR
from paddlebox.store.hbm_place import check_place
from paddlebox.train.averaging import Averages
from paddlebox.train.dygraph_program import DygraphProgram
from paddlebox.train.program import SHARE, DenseSync, ModelProgram
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


class OneRank(DenseSync):
    """One rank exchanges nothing."""

    def step(self, program: ModelProgram, feed: Feed) -> tuple[float, np.ndarray, bool]:
        if self.weighted:
            share = own_share(feed)
            if share == 0:
                return *program.evaluate(feed), False
            feed[SHARE] = np.full(1, share, np.float32)
        return *program.step(feed), True


# (config, weighted=) -> the strategy. `ranks.dense_modes` has those of several ranks.
SyncOf = Callable[..., DenseSync]


def one_rank(_: Config, *, weighted: bool) -> DenseSync:
    return OneRank(weighted=weighted)


def own_share(feed: Feed) -> float:
    """`SHARE` of this rank's batch alone: B over the sum of its weights; 0 if all weights are 0."""
    weights = feed[WEIGHT]
    total = float(weights.sum(dtype=np.float64))
    return len(weights) / total if total > 0 else 0.0


def build_runner(config: Config, slots: Slots, sync_of: SyncOf = one_rank) -> Runner:
    """Build the model of a config as `trainer.program` says. Seeds Paddle with `config.seed`.

    Args:
        config: the config of the run, or of one phase.

    Raises:
        ConfigError: as `sync_of`; or rows on a GPU that this machine or build does not have.
    """
    check_place(config.hbm.place)
    sync = sync_of(config, weighted=slots.weight is not None)
    paddle.seed(config.seed)
    of_mode = DygraphProgram if config.trainer.program is Program.DYGRAPH else StaticProgram
    program = of_mode(config, slots, sync)
    decay = config.optimizer.averaging
    return Runner(program, sync, Averages(program, decay) if decay else None)


def seed_pass(seed: int, number: int) -> None:
    """Seed Paddle for a pass from the run's seed and the number of the pass.

    A resumed run then draws the same random numbers (dropout) as one that was never stopped.
    """
    paddle.seed(_native.core.mix(seed + number) % (1 << 63))
