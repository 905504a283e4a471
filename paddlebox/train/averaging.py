"""Exponential moving averages of the dense parameters (`optimizer.averaging`)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paddlebox.store.averages import STEPS, SUFFIX
from paddlebox.train.program import ModelProgram

START = 9.0  # early averages span about the last ninth of the steps


class Averages:
    """The averages of the parameters of one program.

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

    def use_parameters(self) -> None:
        """Put the trained parameters back into the program."""
        if self._own is not None:
            self._program.set(self._own)
            self._own = None

    def use_averages(self) -> None:
        """Put the averages in place of the parameters, until `use_parameters`."""
        if self._own is None:
            self._own = self._program.parameters()
            self._program.set(self._averages)

    def add(self) -> None:
        """Add the parameters after a training step."""
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
        averages = {name + SUFFIX: value.copy() for name, value in self._averages.items()}
        return {**averages, STEPS: np.array([self._steps], np.int64)}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Load from a dense state, of which the program has loaded its part. Averages that it lacks
        start at the parameters."""
        self._averages = {
            name: np.array(state.get(name + SUFFIX, value))
            for name, value in self._program.parameters().items()
        }
        self._steps = int(state[STEPS][0]) if STEPS in state else 0

    @staticmethod
    def owns(name: str) -> bool:
        """Whether an array of a dense state is one of `state`."""
        return name == STEPS or name.endswith(SUFFIX)
