"""A zoo model as a layer in Paddle's dynamic graph mode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from paddlebox import ops
from paddlebox.config import Config, Slots
from paddlebox.data.batches import Feed
from paddlebox.ranks.dense import SHARE, scaled, split_gradient, sum_gradients
from paddlebox.ranks.dense_modes import AllReduce
from paddlebox.store.coordinator import Coordinator
from paddlebox.train.program import (
    check_same,
    create_model_of,
    create_optimizer,
    loss_and_logits,
    place_of,
)
from paddlebox.train.ranked import RankedRunner

paddle = ops.paddle


class DygraphRunner(RankedRunner):
    """Runs the layer and its optimizer step by step."""

    def __init__(self, config: Config, slots: Slots, world: Coordinator) -> None:
        super().__init__(config, world, weighted=slots.weight is not None)
        self._place = place_of(config)
        self._on_gpu = isinstance(self._place, paddle.CUDAPlace)
        paddle.disable_static(self._place)
        with paddle.utils.unique_name.guard():
            self._model = create_model_of(config, slots)
            self._optimizer = create_optimizer(config, self._trained())
            # Paddle creates the optimizer's state in the first step. That is too late to load a
            # stored state, and its names would depend on what else the process has created.
            block = paddle.static.default_main_program().global_block()
            self._optimizer._create_accumulators(block, self._trained())
        self._gradient_size = sum(p.size for p in self._trained())
        self._config = config

    def _forward(self, feed: Feed) -> tuple[Any, Any]:
        tensors = {name: paddle.to_tensor(array, place=self._place) for name, array in feed.items()}
        return loss_and_logits(self._config, self._model, tensors, train=self._model.training)

    def _step(self, feed: Feed) -> tuple[float, np.ndarray]:
        self._model.train()
        loss, logits = self._forward(feed)
        loss.backward()
        if self._scales:
            self._set_gradients(scaled(self._gradients(), paddle.to_tensor(feed[SHARE])))
        elif isinstance(self._mode, AllReduce):
            share = paddle.to_tensor(feed[SHARE])
            summed = sum_gradients(self._gradients(), share, on_gpu=self._on_gpu, pushed=True)
            self._set_gradients(summed)
        self._optimizer.step()
        self._optimizer.clear_grad()
        return float(loss), logits.numpy()

    def set_rate(self, rate: float) -> None:
        self._optimizer.set_lr(rate)

    def _trained(self) -> list[Any]:
        return [p for p in self._model.parameters() if not p.stop_gradient]

    def _gradients(self) -> list[Any]:
        """One gradient per parameter; zeros if this batch does not use the parameter."""
        return [paddle.zeros_like(p) if p.grad is None else p.grad for p in self._trained()]

    def _set_gradients(self, gradients: list[Any]) -> None:
        for parameter, gradient in zip(self._trained(), gradients, strict=True):
            parameter.grad = gradient

    def _backward(self, feed: Feed) -> tuple[float, np.ndarray, np.ndarray]:
        self._model.train()
        loss, logits = self._forward(feed)
        loss.backward()
        flat = [gradient.numpy().reshape(-1) for gradient in self._gradients()]
        return float(loss), logits.numpy(), np.concatenate(flat)

    def _apply(self, gradient: np.ndarray) -> None:
        self._set_gradients(split_gradient(paddle.to_tensor(gradient), self._trained()))
        self._optimizer.step()
        self._optimizer.clear_grad()

    def _set(self, state: Mapping[str, np.ndarray]) -> None:
        self.load_dense_state({**self.dense_state(), **state})

    def evaluate_step(self, feed: Feed) -> tuple[float, np.ndarray]:
        self._model.eval()
        with paddle.no_grad():
            loss, logits = self._forward(feed)
        return float(loss), logits.numpy()

    def dense_state(self) -> dict[str, np.ndarray]:
        state = {p.name: p.numpy() for p in self._model.parameters()}
        for name, value in self._optimizer.state_dict().items():
            if isinstance(value, paddle.Tensor):
                state[name] = value.numpy()
        return {name: np.array(array) for name, array in state.items()}

    def load_dense_state(self, state: Mapping[str, np.ndarray]) -> None:
        parameters = {p.name: p for p in self._model.parameters()}
        of_optimizer = {name: array for name, array in state.items() if name not in parameters}
        check_same(parameters, {name: state[name] for name in parameters if name in state})
        for name, parameter in parameters.items():
            parameter.set_value(state[name])
        self._optimizer.set_state_dict(
            {name: paddle.to_tensor(array) for name, array in of_optimizer.items()}
        )

    def parameters(self) -> dict[str, np.ndarray]:
        return {p.name: np.array(p.numpy()) for p in self._model.parameters()}

    def look(self) -> dict[str, np.ndarray]:
        if not isinstance(self._place, paddle.CPUPlace):
            return self.parameters()
        return {p.name: np.from_dlpack(p.detach()) for p in self._model.parameters()}

    def set_parameters(self, values: Mapping[str, np.ndarray]) -> None:
        for parameter in self._model.parameters():
            parameter.set_value(values[parameter.name])
