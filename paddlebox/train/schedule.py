"""Learning rates that change while a run trains (`optimizer.schedule`, `optimizer.warmup_steps`).

Before each step, the learning rates of the dense parameters and of the rows are multiplied by

    factor = warm-up * cosine * 10 ^ -reductions
    warm-up = min(1, n / warmup_steps)
    cosine  = 0.01 + 0.99 * (1 + cos(pi * t)) / 2,
              t = min(1, (n - warmup_steps) / (schedule_steps - warmup_steps)), from 0 on

n is the number of the step, from 1, over the whole run; it is part of the dense state. The cosine
is that of Loshchilov and Hutter, "SGDR", 2017. Reductions come from the plateau hook
(hooks/plateau.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from paddlebox.config import OptimizerConfig, Schedule
from paddlebox.data.batches import Feed
from paddlebox.train.averaging import Averaged
from paddlebox.train.ranked import RankedRunner

#: In the dense state: int64, one value. Not carried by --init-from, like all learning rates.
STEPS = "learning_rate_steps"
_LAST = 0.01  # the factor at the end of the cosine


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


class Scheduled:
    """A runner that sets the learning rates before each training step of another runner."""

    def __init__(self, runner: RankedRunner | Averaged, config: OptimizerConfig) -> None:
        self._runner, self._config = runner, config
        self._steps = self._reductions = 0
        #: Multiplies the learning rates of the rows from the next push on.
        self.rate_rows: Callable[[float], None] | None = None

    def reduce_rates(self, times: int) -> None:
        """Set how often the learning rates have been divided by 10."""
        self._reductions = times

    def train_step(self, feed: Feed) -> tuple[float, np.ndarray]:
        now = factor(self._config, self._steps + 1) * 0.1**self._reductions
        self._runner.set_rate(self._config.learning_rate * now)
        if self.rate_rows is not None:
            self.rate_rows(now)
        result = self._runner.train_step(feed)
        self._steps += 1
        return result

    def evaluate_step(self, feed: Feed) -> tuple[float, np.ndarray]:
        return self._runner.evaluate_step(feed)

    def finish_pass(self) -> None:
        self._runner.finish_pass()

    def set_click_prior(self, prior: np.ndarray) -> None:
        self._runner.set_click_prior(prior)

    @property
    def dense_sent_bytes(self) -> int:
        return self._runner.dense_sent_bytes

    def dense_state(self) -> dict[str, np.ndarray]:
        return {**self._runner.dense_state(), STEPS: np.array([self._steps], np.int64)}

    def load_dense_state(self, state: Mapping[str, np.ndarray]) -> None:
        self._steps = int(state[STEPS][0]) if STEPS in state else 0
        self._runner.load_dense_state({k: v for k, v in state.items() if k != STEPS})
