"""Exponential moving averages of the dense parameters (`optimizer.averaging`).

After step n: average = k * average + (1 - k) * parameter, with k = min(decay, n / (n + START)). The
source is Polyak and Juditsky 1992, here with exponential weights whose window grows at the start.
Training steps use the parameters. Evaluation, exports and serving use the averages. The dense state
holds both.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paddlebox.data.batches import Feed
from paddlebox.models.click_prior import CLICK_PRIOR
from paddlebox.store.averages import STEPS, SUFFIX
from paddlebox.train.ranked import RankedRunner

START = 9.0  # early averages span about the last ninth of the steps


class Averaged:
    """A runner that trains the parameters of another runner and evaluates with their averages."""

    def __init__(self, runner: RankedRunner, decay: float) -> None:
        self._runner = runner
        self._decay = decay
        self._steps = 0
        self._averages = runner.parameters()
        # The trained parameters, while the model holds the averages instead; else None.
        self._own: dict[str, np.ndarray] | None = None

    def train_step(self, feed: Feed) -> tuple[float, np.ndarray]:
        self._put_back()
        result = self._runner.train_step(feed)
        if not self._runner.trained:
            return result
        self._steps += 1
        kept = np.float32(min(self._decay, self._steps / (self._steps + START)))
        for name, value in self._runner.look().items():
            average = self._averages[name]
            average -= value
            average *= kept
            average += value
        return result

    def evaluate_step(self, feed: Feed) -> tuple[float, np.ndarray]:
        if self._own is None:
            self._own = self._runner.parameters()
            self._runner.set_parameters(self._averages)
        return self._runner.evaluate_step(feed)

    def finish_pass(self) -> None:
        self._put_back()
        self._runner.finish_pass()

    def set_rate(self, rate: float) -> None:
        self._runner.set_rate(rate)

    def set_click_prior(self, prior: np.ndarray) -> None:
        self._put_back()
        self._runner.set_click_prior(prior)
        # It is not averaged over passes.
        self._averages[CLICK_PRIOR] = self._runner.look()[CLICK_PRIOR].copy()

    @property
    def dense_sent_bytes(self) -> int:
        return self._runner.dense_sent_bytes

    def dense_state(self) -> dict[str, np.ndarray]:
        self._put_back()
        averages = {name + SUFFIX: value.copy() for name, value in self._averages.items()}
        return {
            **self._runner.dense_state(),
            **averages,
            STEPS: np.array([self._steps], np.int64),
        }

    def load_dense_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Load a dense state. Averages that it lacks start at the loaded parameters."""
        self._put_back()
        own = {k: v for k, v in state.items() if k != STEPS and not k.endswith(SUFFIX)}
        self._runner.load_dense_state(own)
        self._averages = {
            name: np.array(state.get(name + SUFFIX, value))
            for name, value in self._runner.parameters().items()
        }
        self._steps = int(state[STEPS][0]) if STEPS in state else 0

    def _put_back(self) -> None:
        if self._own is not None:
            self._runner.set_parameters(self._own)
            self._own = None
