"""Join and update: two programs over one table, one after the other in each pass (docs/phases.md).

Join takes the pass in page views, update takes the same instances shuffled. Their dense states are
committed as one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from paddlebox.config import Config, ModelConfig, Phase, Slots
from paddlebox.config.phases import state_of, stored_names
from paddlebox.data.dataset import InMemoryDataset
from paddlebox.data.options import JOIN, UPDATE
from paddlebox.ranks import World
from paddlebox.train.batch_loop import PassResult, Watcher, run_pass
from paddlebox.train.program import RANK_OFFSET
from paddlebox.train.runner import Runner, build_runner

State = Mapping[str, np.ndarray]


class Runners:
    """The programs of a run: one, or one a phase."""

    def __init__(self, config: Config, slots: Slots, world: World | None = None) -> None:
        phases = tuple(Phase) if config.phases else (Phase.UPDATE,)
        self._of = {phase: build_runner(config.of_phase(phase), slots, world) for phase in phases}

    def of(self, phase: Phase) -> Runner:
        return self._of[phase]

    def finish_pass(self) -> None:
        """Between the last step of a pass and its commit; every rank calls it."""
        for runner in self._of.values():
            runner.finish_pass()

    @property
    def dense_sent_bytes(self) -> int:
        """That this rank has sent to others for the dense parameters."""
        return sum(runner.dense_sent_bytes for runner in self._of.values())

    def dense_state(self) -> dict[str, np.ndarray]:
        """Copies of the parameters and optimizer states of all."""
        return {
            name: array
            for phase, runner in self._of.items()
            for name, array in stored_names(phase, runner.dense_state()).items()
        }

    def load_dense_state(self, state: State) -> None:
        """The reverse. Raises CorruptionError when names or shapes do not match the models."""
        for phase, runner in self._of.items():
            runner.load_dense_state(state_of(phase, state))


def enter(dataset: InMemoryDataset, config: Config, phase: Phase) -> None:
    """Arranges the open pass for a phase, and feeds what its model reads.

    Shows and clicks count once, in update; of slots that only join reads, there. In join they would
    tell update's model, which reads them as features, the labels that it is about to predict.
    """
    model = config.phases[phase].model
    dataset.set_read_slots(model.slots, model.sequences)
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


def train_pass(
    config: Config, dataset: InMemoryDataset, runners: Runners, watch: Watcher | None
) -> tuple[PassResult, dict[str, dict[str, Any]]]:
    """Trains the open pass by each program. Returns the result of update, or of the only one, and
    what a line of metrics.jsonl has of each phase: nothing without phases."""
    if not config.phases:
        step = runners.of(Phase.UPDATE).train_step
        tasks = dataset.tasks
        return run_pass(dataset, step, watch, metrics=config.metrics, tasks=tasks), {}
    lines: dict[str, dict[str, Any]] = {}
    for phase in Phase:
        started = time.perf_counter()
        enter(dataset, config, phase)
        result = run_pass(
            dataset,
            runners.of(phase).train_step,
            watch,
            metrics=config.of_phase(phase).metrics,
            tasks=dataset.tasks,
        )
        lines[phase.value] = {
            "samples": result.samples,
            "batches": result.batches,
            "loss": result.mean_loss,
            "seconds": time.perf_counter() - started,
            "metrics": result.metrics,
        }
    return result, lines
