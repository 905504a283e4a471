"""What steps the models of a run: `Runner`, one program, and `Runners`, all programs.

With phases (docs/phases.md), two programs train on one table in turn. In each pass, join trains on
page views; then update trains on the same instances, shuffled. One commit holds both dense states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from paddlebox import _native, ops
from paddlebox.config import Config, ModelConfig, Phase, Program, Slots
from paddlebox.config.trainer import state_of, stored_names
from paddlebox.data.batches import WEIGHT, Feed
from paddlebox.data.dataset import Dataset
from paddlebox.data.options import JOIN, UPDATE
from paddlebox.models.click_prior import CLICK_PRIOR
from paddlebox.store.files import AVERAGE_SUFFIX, AVERAGED_STEPS
from paddlebox.store.group import Group
from paddlebox.store.options import check_place
from paddlebox.store.table_set import TableSet
from paddlebox.training.dygraph_program import DygraphProgram
from paddlebox.training.program import RANK_OFFSET, SHARE, DenseSync, ModelProgram
from paddlebox.training.static_program import StaticProgram

paddle = ops.paddle

START = 9.0  # early averages span about the last ninth of the steps


class Averages:
    """The averages of the parameters of one program.

    After step n: average = k * average + (1 - k) * parameter, with k = min(decay, n / (n + START)):
    Polyak and Juditsky 1992, here with exponential weights whose window grows at the start.
    Training steps use the parameters; evaluation, exports and serving use the averages.
    """

    def __init__(self, program: ModelProgram, decay: float) -> None:
        self._program = program
        self._decay = decay
        self._steps = 0
        self._averages = program.parameters()
        # The trained parameters, while the program holds the averages instead; else None.
        self._own: dict[str, np.ndarray] | None = None

    def use_parameters(self) -> None:
        if self._own is not None:
            self._program.set(self._own)
            self._own = None

    def use_averages(self) -> None:
        """Put the averages in place of the parameters, until `use_parameters`."""
        if self._own is None:
            self._own = self._program.parameters()
            self._program.set(self._averages)

    def add(self) -> None:
        self._steps += 1
        kept = np.float32(min(self._decay, self._steps / (self._steps + START)))
        for name, value in self._program.view().items():
            average = self._averages[name]
            average -= value
            average *= kept
            average += value

    def reset(self, name: str) -> None:
        """Start the average of a parameter again, at its value now."""
        self._averages[name] = self._program.view()[name].copy()

    def state(self) -> dict[str, np.ndarray]:
        """Arrays of the dense state besides those of the program, by name."""
        averages = {name + AVERAGE_SUFFIX: value.copy() for name, value in self._averages.items()}
        return {**averages, AVERAGED_STEPS: np.array([self._steps], np.int64)}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Load from a dense state, of which the program has loaded its part. Averages that it lacks
        start at the parameters."""
        self._averages = {
            name: np.array(state.get(name + AVERAGE_SUFFIX, value))
            for name, value in self._program.parameters().items()
        }
        self._steps = int(state[AVERAGED_STEPS][0]) if AVERAGED_STEPS in state else 0

    @staticmethod
    def owns(name: str) -> bool:
        """Whether an array of a dense state is one of `state`."""
        return name == AVERAGED_STEPS or name.endswith(AVERAGE_SUFFIX)


class Runner:
    """A model that is built and can be stepped. B = instances, T = tasks."""

    def __init__(
        self, program: ModelProgram, sync: DenseSync, averages: Averages | None = None
    ) -> None:
        self.program = program
        self._sync, self._averages = sync, averages

    def train_step(self, feed: Feed) -> tuple[float, np.ndarray]:
        """Run forward, backward and update. Returns the mean loss, and the logits (B, T) float32,
        both from before the update."""
        self._use_parameters()
        loss, logits, trained = self._sync.step(self.program, feed)
        if trained and self._averages is not None:
            self._averages.add()
        return loss, logits

    def evaluate_step(self, feed: Feed) -> tuple[float, np.ndarray]:
        """Returns the mean loss and the logits (B, T) float32."""
        if self._averages is not None:
            self._averages.use_averages()
        return self.program.step(feed, train=False)

    def vectors(self, feed: Feed) -> dict[str, np.ndarray]:
        """As `ModelProgram.vectors`, with the parameters that `evaluate_step` uses."""
        if self._averages is not None:
            self._averages.use_averages()
        return self.program.vectors(feed)

    def finish_pass(self) -> None:
        """Exchange what ranks have not sent yet, after the last step and before the commit.
        Collective."""
        self._use_parameters()
        self._sync.finish_pass(self.program)

    @property
    def dense_sent_bytes(self) -> int:
        """Bytes of dense parameters and gradients that this rank has sent to other ranks."""
        return self._sync.sent_bytes

    def set_click_prior(self, prior: np.ndarray) -> None:
        """Set the parameter of a model with click priors. prior: (2, K) float32. NaN: as before."""
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
        """Raises CorruptionError if names or shapes do not match the model."""
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
                return *program.step(feed, train=False), False
            feed[SHARE] = np.full(1, share, np.float32)
        return *program.step(feed), True


# (config, weighted=) -> the strategy. `ranks.dense` has those of several ranks.
SyncOf = Callable[..., DenseSync]


def one_rank(_: Config, *, weighted: bool) -> DenseSync:
    return OneRank(weighted=weighted)


def own_share(feed: Feed) -> float:
    """`SHARE` of this rank's batch alone: B over the sum of its weights; 0 if all weights are 0."""
    weights = feed[WEIGHT]
    total = float(weights.sum(dtype=np.float64))
    return len(weights) / total if total > 0 else 0.0


def build_runner(config: Config, slots: Slots, sync_of: SyncOf = one_rank) -> Runner:
    """Build the model of a config, or of one phase. Seeds Paddle with `config.seed`. Raises:
    ConfigError as `sync_of`, or if rows are on a GPU that this machine or build does not have."""
    check_place(config.hbm.place)
    sync = sync_of(config, weighted=slots.weight is not None)
    paddle.seed(config.seed)
    of_mode = DygraphProgram if config.trainer.program is Program.DYGRAPH else StaticProgram
    program = of_mode(config, slots, sync)
    decay = config.optimizer.averaging
    return Runner(program, sync, Averages(program, decay) if decay else None)


def seed_pass(seed: int, number: int) -> None:
    """Seed Paddle for a pass from the run's seed and the number of the pass. A resumed run then
    draws the same random numbers (dropout) as one that was never stopped."""
    paddle.seed(_native.core.mix(seed + number) % (1 << 63))


State = Mapping[str, np.ndarray]


class Runners:
    """The programs of a run: one, or one per phase."""

    def __init__(self, config: Config, slots: Slots, sync_of: SyncOf = one_rank) -> None:
        #: In the order in which a pass is trained.
        self.phases = tuple(Phase) if config.phases else (Phase.UPDATE,)
        configs = {phase: config.of_phase(phase) for phase in self.phases}
        self._of = {phase: build_runner(own, slots, sync_of) for phase, own in configs.items()}
        self._rates = {phase: own.optimizer.learning_rate for phase, own in configs.items()}

    def of(self, phase: Phase) -> Runner:
        return self._of[phase]

    def set_rate(self, factor: float) -> None:
        """Multiply the configured learning rates of the dense parameters, from the next step on."""
        for phase, runner in self._of.items():
            runner.program.set_rate(self._rates[phase] * factor)

    def finish_pass(self) -> None:
        for runner in self._of.values():
            runner.finish_pass()

    @property
    def dense_sent_bytes(self) -> int:
        return sum(runner.dense_sent_bytes for runner in self._of.values())

    def dense_state(self) -> dict[str, np.ndarray]:
        return {
            name: array
            for phase, runner in self._of.items()
            for name, array in stored_names(phase, runner.dense_state()).items()
        }

    def load_dense_state(self, state: State) -> None:
        """Raises CorruptionError if names or shapes do not match the models."""
        for phase, runner in self._of.items():
            runner.load_dense_state(state_of(phase, state))


@dataclass(frozen=True)
class Training:
    """The config, table, dataset and programs of a run that is training."""

    config: Config
    slots: Slots
    world: Group
    table: TableSet
    dataset: Dataset
    runners: Runners


def enter(dataset: Dataset, config: Config, phase: Phase) -> None:
    """Set up the open pass for a phase: its order, its slots and its counted slots.

    An instance is counted once per slot: in update, or in join for slots that only join reads. The
    model of update reads the counts as features, which would contain the labels that it predicts if
    join counted its slots too.
    """
    model = config.phases[phase].model
    options = dataset.options
    options.set_read_slots(model.slots, model.sequences)
    options.set_group(model.loss_group)
    options.soft_labels = model.runs_code
    if phase is Phase.JOIN:
        update = {*_read(config.phases[Phase.UPDATE].model, dataset)}
        own = _read(model, dataset)
        options.counted_slots = tuple(name for name in own if name not in update)
        options.enable_pv_merge = True
        options.rank_offset = RANK_OFFSET if model.page_views else ""
        options.phase = JOIN
        dataset.make_page_views()
    else:
        options.counted_slots = _read(model, dataset)
        options.phase = UPDATE
        dataset.undo_page_views()


def _read(model: ModelConfig, dataset: Dataset) -> tuple[str, ...]:
    return model.slots or tuple(dataset.sparse_names)
