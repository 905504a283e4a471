"""Phases: two programs, join and update, train on one table in turn (docs/phases.md).

In each pass, join trains on page views; then update trains on the same instances, shuffled. One
commit holds both dense states.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paddlebox.config import Config, ModelConfig, Phase, Slots
from paddlebox.config.phases import state_of, stored_names
from paddlebox.data.dataset import InMemoryDataset
from paddlebox.data.options import JOIN, UPDATE
from paddlebox.train.program import RANK_OFFSET
from paddlebox.train.runner import Runner, SyncOf, build_runner, one_rank

State = Mapping[str, np.ndarray]


class Runners:
    """The programs of a run: one, or one per phase."""

    def __init__(self, config: Config, slots: Slots, sync_of: SyncOf = one_rank) -> None:
        phases = tuple(Phase) if config.phases else (Phase.UPDATE,)
        configs = {phase: config.of_phase(phase) for phase in phases}
        self._of = {phase: build_runner(own, slots, sync_of) for phase, own in configs.items()}
        self._rates = {phase: own.optimizer.learning_rate for phase, own in configs.items()}

    def of(self, phase: Phase) -> Runner:
        return self._of[phase]

    def set_rate(self, factor: float) -> None:
        """Multiply the configured learning rates of the dense parameters, from the next step on."""
        for phase, runner in self._of.items():
            runner.program.set_rate(self._rates[phase] * factor)

    def finish_pass(self) -> None:
        """Finish a pass after its last step, before its commit. Every rank calls it."""
        for runner in self._of.values():
            runner.finish_pass()

    @property
    def dense_sent_bytes(self) -> int:
        """Bytes of dense parameters and gradients that this rank has sent to other ranks."""
        return sum(runner.dense_sent_bytes for runner in self._of.values())

    def dense_state(self) -> dict[str, np.ndarray]:
        """Copies of the parameters and optimizer states of all programs, by name."""
        return {
            name: array
            for phase, runner in self._of.items()
            for name, array in stored_names(phase, runner.dense_state()).items()
        }

    def load_dense_state(self, state: State) -> None:
        """Load what `dense_state` returned.

        Raises:
            CorruptionError: names or shapes do not match the models.
        """
        for phase, runner in self._of.items():
            runner.load_dense_state(state_of(phase, state))


def enter(dataset: InMemoryDataset, config: Config, phase: Phase) -> None:
    """Set up the open pass for a phase: its order, its slots and its counted slots.

    The show and click of an instance are counted once per slot: in update, or in join for slots
    that only join reads. The model of update reads the counts as features. If join counted the
    slots of update too, these features would contain the labels that update is about to predict.
    """
    model = config.phases[phase].model
    dataset.set_read_slots(model.slots, model.sequences)
    dataset.set_group(model.loss_group)
    dataset.set_soft_labels(model.runs_code)
    if phase is Phase.JOIN:
        update = {*_read(config.phases[Phase.UPDATE].model, dataset)}
        dataset.set_counted_slots([name for name in _read(model, dataset) if name not in update])
        dataset.set_enable_pv_merge(True)
        dataset.set_pv_batch_size(config.data.pv_batch_size)
        dataset.set_rank_offset(RANK_OFFSET if model.page_views else "")
        dataset.set_current_phase(JOIN)
        dataset.preprocess_instance()
    else:
        dataset.set_counted_slots(_read(model, dataset))
        dataset.set_current_phase(UPDATE)
        dataset.postprocess_instance()


def _read(model: ModelConfig, dataset: InMemoryDataset) -> tuple[str, ...]:
    return model.slots or tuple(dataset.sparse_names)
