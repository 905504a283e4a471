"""What happens around the training steps of a runner: averages of parameters."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paddlebox.config import OptimizerConfig
from paddlebox.store.averages import STEPS, SUFFIX
from paddlebox.train.program import ModelProgram

START = 9.0  # early averages span about the last ninth of the steps


class StepCallback:
    """Acts around the steps of a `Runner`. A method that is not overridden does nothing."""

    def before_step(self) -> None:
        """Called before each training step."""

    def after_step(self, trained: bool) -> None:
        """Called after each training step. trained: False if all weights of the batch were 0."""

    def before_evaluation(self) -> None:
        """Called before a batch is evaluated."""

    def before_access(self) -> None:
        """Called before parameters are trained, read or set."""

    def was_set(self, name: str) -> None:
        """Called after a parameter was set from outside of the steps."""

    def state(self) -> dict[str, np.ndarray]:
        """Arrays that the dense state has besides those of the program, by name."""
        return {}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Load from a dense state, of which the program has loaded its part."""

    def owns(self, name: str) -> bool:
        """Whether an array of a dense state is one of `state`."""
        del name
        return False


class Averages(StepCallback):
    """Exponential moving averages of the dense parameters (`optimizer.averaging`).

    After step n: average = k * average + (1 - k) * parameter, with k = min(decay, n / (n + START)).
    The source is Polyak and Juditsky 1992, here with exponential weights whose window grows at the
    start. Training steps use the parameters. Evaluation, exports and serving use the averages.
    """

    def __init__(self, program: ModelProgram, decay: float) -> None:
        self._program = program
        self._decay = decay
        self._steps = 0
        self._averages = program.parameters()
        # The trained parameters, while the program holds the averages instead; else None.
        self._own: dict[str, np.ndarray] | None = None

    def before_access(self) -> None:
        if self._own is not None:
            self._program.set(self._own)
            self._own = None

    def before_evaluation(self) -> None:
        if self._own is None:
            self._own = self._program.parameters()
            self._program.set(self._averages)

    def after_step(self, trained: bool) -> None:
        if not trained:
            return
        self._steps += 1
        kept = np.float32(min(self._decay, self._steps / (self._steps + START)))
        for name, value in self._program.view().items():
            average = self._averages[name]
            average -= value
            average *= kept
            average += value

    def was_set(self, name: str) -> None:
        self._averages[name] = self._program.view()[name].copy()

    def state(self) -> dict[str, np.ndarray]:
        averages = {name + SUFFIX: value.copy() for name, value in self._averages.items()}
        return {**averages, STEPS: np.array([self._steps], np.int64)}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Averages that the state lacks start at the loaded parameters."""
        self._averages = {
            name: np.array(state.get(name + SUFFIX, value))
            for name, value in self._program.parameters().items()
        }
        self._steps = int(state[STEPS][0]) if STEPS in state else 0

    def owns(self, name: str) -> bool:
        return name == STEPS or name.endswith(SUFFIX)


def callbacks_of(program: ModelProgram, config: OptimizerConfig) -> list[StepCallback]:
    """The callbacks that a config asks for."""
    found: list[StepCallback] = []
    if config.averaging:
        found.append(Averages(program, config.averaging))
    return found
