"""What happens around the training steps of a runner: averages of parameters, learning rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from paddlebox.config import OptimizerConfig, Schedule
from paddlebox.store.averages import STEPS, SUFFIX
from paddlebox.train.program import ModelProgram

START = 9.0  # early averages span about the last ninth of the steps
#: In the dense state: int64, one value. Not carried by --init-from, like all learning rates.
RATE_STEPS = "learning_rate_steps"
_LAST = 0.01  # the factor at the end of the cosine


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


class RateSchedule(StepCallback):
    """Learning rates that change (`optimizer.schedule`, `optimizer.warmup_steps`).

    Before each step, the learning rates of the dense parameters and of the rows are multiplied by

        factor = warm-up * cosine * 10 ^ -reductions
        warm-up = min(1, n / warmup_steps)
        cosine  = 0.01 + 0.99 * (1 + cos(pi * t)) / 2,
                  t = min(1, (n - warmup_steps) / (schedule_steps - warmup_steps)), from 0 on

    n is the number of the step, from 1, over the whole run. The cosine is that of Loshchilov and
    Hutter, "SGDR", 2017. Reductions come from the plateau hook (hooks/plateau.py).
    """

    def __init__(self, program: ModelProgram, config: OptimizerConfig) -> None:
        self._program, self._config = program, config
        self._steps = 0
        #: How often the learning rates have been divided by 10.
        self.reductions = 0
        #: Multiplies the learning rates of the rows from the next push on.
        self.rate_rows: Callable[[float], None] | None = None

    def before_step(self) -> None:
        now = factor(self._config, self._steps + 1) * 0.1**self.reductions
        self._program.set_rate(self._config.learning_rate * now)
        if self.rate_rows is not None:
            self.rate_rows(now)

    def after_step(self, trained: bool) -> None:
        del trained
        self._steps += 1

    def state(self) -> dict[str, np.ndarray]:
        return {RATE_STEPS: np.array([self._steps], np.int64)}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        self._steps = int(state[RATE_STEPS][0]) if RATE_STEPS in state else 0

    def owns(self, name: str) -> bool:
        return name == RATE_STEPS


def is_scheduled(config: OptimizerConfig) -> bool:
    return config.schedule is not Schedule.CONSTANT or config.warmup_steps > 0


def factor(config: OptimizerConfig, step: int) -> float:
    """The factor of a step, from 1, without reductions."""
    warm, last = config.warmup_steps, config.schedule_steps
    found = min(1.0, step / warm) if warm else 1.0
    if config.schedule is Schedule.COSINE:
        done = min(1.0, max(0.0, (step - warm) / (last - warm)))
        found *= _LAST + (1 - _LAST) * (1 + math.cos(math.pi * done)) / 2
    return found


def callbacks_of(program: ModelProgram, config: OptimizerConfig) -> list[StepCallback]:
    """The callbacks that a config asks for."""
    found: list[StepCallback] = []
    if config.averaging:
        found.append(Averages(program, config.averaging))
    if is_scheduled(config):
        found.append(RateSchedule(program, config))
    return found
