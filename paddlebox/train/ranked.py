"""The part of a step that exchanges gradients with other ranks, shared by all runners."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np

from paddlebox.config import Config
from paddlebox.data.batches import WEIGHT, Feed
from paddlebox.models.click_prior import CLICK_PRIOR
from paddlebox.ranks.dense import SHARE
from paddlebox.ranks.dense_modes import Average, TopK, dense_mode
from paddlebox.store.coordinator import Coordinator

RATE = "learning_rate"  # prefix of Paddle's variables that hold a learning rate


class RankedRunner(ABC):
    """A `Runner` (runner.py) whose steps several ranks may share.

    n = number of values in the gradients of all dense parameters.
    """

    _gradient_size: int  # n

    def __init__(self, config: Config, world: Coordinator, *, weighted: bool = False) -> None:
        self._mode = dense_mode(config.ranks, world)
        self._weighted = weighted  # whether instances have weights
        self.trained = True  # whether the last step trained; False if all of its weights were 0
        # Whether a step scales its gradients by SHARE without summing them over ranks.
        self._scales = self._weighted and (self._mode is None or isinstance(self._mode, Average))

    @abstractmethod
    def _step(self, feed: Feed) -> tuple[float, np.ndarray]:
        """`Runner.train_step`, in which only the program itself may exchange with other ranks."""

    @abstractmethod
    def evaluate_step(self, feed: Feed) -> tuple[float, np.ndarray]: ...

    @abstractmethod
    def _backward(self, feed: Feed) -> tuple[float, np.ndarray, np.ndarray]:
        """Loss, logits, and the gradients of all parameters, (n) float32. Used by top-k only."""

    @abstractmethod
    def _apply(self, gradient: np.ndarray) -> None:
        """Update the parameters. gradient: (n) float32, in the order of `_backward`."""

    @abstractmethod
    def dense_state(self) -> dict[str, np.ndarray]: ...

    @abstractmethod
    def load_dense_state(self, state: Mapping[str, np.ndarray]) -> None: ...

    @abstractmethod
    def parameters(self) -> dict[str, np.ndarray]:
        """Copies of the parameters, by name: the dense state without the optimizer's state."""

    @abstractmethod
    def look(self) -> dict[str, np.ndarray]:
        """The parameters, by name, valid until the next step.

        Parameters in host memory are views, because copying 770,000 floats takes 1.0 ms.
        """

    @abstractmethod
    def set_parameters(self, values: Mapping[str, np.ndarray]) -> None:
        """Set all parameters, by name."""

    @abstractmethod
    def _set(self, state: Mapping[str, np.ndarray]) -> None:
        """Set part of the dense state, by name."""

    @abstractmethod
    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the dense parameters, from the next step on."""

    def set_click_prior(self, prior: np.ndarray) -> None:
        known = self.look()[CLICK_PRIOR]
        self._set({CLICK_PRIOR: np.where(np.isnan(prior), known, prior)})

    @property
    def dense_sent_bytes(self) -> int:
        return self._mode.sent_bytes if self._mode is not None else 0

    def train_step(self, feed: Feed) -> tuple[float, np.ndarray]:
        mode = self._mode
        if self._scales:
            feed[SHARE] = np.full(1, _share(feed[WEIGHT]), np.float32)
        self.trained = not self._weighted or isinstance(mode, Average) or feed[SHARE][0] > 0
        if not self.trained:
            del feed[SHARE]
            return self.evaluate_step(feed)
        if isinstance(mode, TopK):
            share = feed.pop(SHARE)
            loss, logits, gradient = self._backward(feed)
            self._apply(mode.sum(gradient * share))
            return loss, logits
        if isinstance(mode, Average):
            # A batch without instances is only evaluated: in a training step, momentum would move
            # the parameters.
            trains = feed[SHARE][0] > 0
            if not (self._weighted and trains):
                del feed[SHARE]
            found = self._step(feed) if trains else self.evaluate_step(feed)
            if mode.is_due():
                self._set(mode.mean(self.parameters()))
            return found
        if mode is not None:
            mode.count(self._gradient_size)
        return self._step(feed)

    def finish_pass(self) -> None:
        if isinstance(self._mode, TopK):
            left = self._mode.left()
            if left is not None:
                self._apply(left)
        elif isinstance(self._mode, Average):
            self._mode.end_pass()
            state = {n: a for n, a in self.dense_state().items() if not n.startswith(RATE)}
            self._set(self._mode.mean(state))


def _share(weights: np.ndarray) -> float:
    """`SHARE` of a batch on one rank; 0 if all of its weights are 0."""
    total = float(weights.sum(dtype=np.float64))
    return len(weights) / total if total > 0 else 0.0
