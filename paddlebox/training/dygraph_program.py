"""A zoo model as a layer in Paddle's dynamic graph mode."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from paddlebox import ops
from paddlebox.config import Config, Slots
from paddlebox.data.batches import Feed
from paddlebox.models.dssm import towers_of
from paddlebox.store.options import is_plugged_in
from paddlebox.training.device_kernels import refused_in_dygraph
from paddlebox.training.program import (
    SHARE,
    DenseSync,
    ModelProgram,
    check_same,
    create_model_of,
    create_optimizer,
    loss_and_logits,
    no_towers,
    place_of,
)

paddle = ops.paddle


class DygraphProgram(ModelProgram):
    """Runs the layer and its optimizer step by step."""

    def __init__(self, config: Config, slots: Slots, sync: DenseSync) -> None:
        self._sync, self._config = sync, config
        self._place = place_of(config)
        self._on_gpu = not isinstance(self._place, paddle.CPUPlace)
        paddle.disable_static()
        paddle.set_device(self._place)
        with paddle.utils.unique_name.guard(), self._checked():
            self._model = create_model_of(config, slots)
            self._optimizer = create_optimizer(config, self._trained())
            # Paddle creates the optimizer's state in the first step. That is too late to load a
            # stored state, and its names would depend on what else the process has created.
            block = paddle.static.default_main_program().global_block()
            self._optimizer._create_accumulators(block, self._trained())
        self.gradient_size = sum(p.size for p in self._trained())

    def _checked(self) -> AbstractContextManager[None]:
        if is_plugged_in() and self._on_gpu:
            return refused_in_dygraph(f"model.type {self._config.model.type.value}")
        return nullcontext()

    def _forward(self, feed: Feed) -> tuple[Any, Any]:
        tensors = {name: paddle.to_tensor(array, place=self._place) for name, array in feed.items()}
        return loss_and_logits(self._config, self._model, tensors, train=self._model.training)

    def step(self, feed: Feed, *, train: bool = True) -> tuple[float, np.ndarray]:
        with self._checked():
            return self._step(feed, train)

    def _step(self, feed: Feed, train: bool) -> tuple[float, np.ndarray]:
        self._model.train(train)
        with paddle.set_grad_enabled(train):
            loss, logits = self._forward(feed)
        if not train:
            return float(loss), logits.numpy()
        loss.backward()
        if self._sync.changes_gradients:
            share = paddle.to_tensor(feed[SHARE])
            changed = self._sync.changed(self._gradients(), share, on_gpu=self._on_gpu)
            for parameter, gradient in zip(self._trained(), changed, strict=True):
                parameter.grad = gradient
        self._optimizer.step()
        self._optimizer.clear_grad()
        return float(loss), logits.numpy()

    def vectors(self, feed: Feed) -> dict[str, np.ndarray]:
        self.step(feed, train=False)
        towers = towers_of(self._model)
        if towers is None:
            raise no_towers(self._config)
        return {tower: of.numpy() for tower, of in towers.items()}

    def set_rate(self, rate: float) -> None:
        self._optimizer.set_lr(rate)

    def _trained(self) -> list[Any]:
        return [p for p in self._model.parameters() if not p.stop_gradient]

    def _gradients(self) -> list[Any]:
        """One gradient per parameter; zeros if this batch does not use the parameter."""
        return [paddle.zeros_like(p) if p.grad is None else p.grad for p in self._trained()]

    def state(self) -> dict[str, np.ndarray]:
        tensors = {p.name: p for p in self._model.parameters()} | self._tensors()
        return {name: np.array(tensor.numpy()) for name, tensor in tensors.items()}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        own = self.state()
        check_same(own, {name: state[name] for name in own if name in state})
        self.set(state)

    def set(self, state: Mapping[str, np.ndarray]) -> None:
        parameters = {p.name: p for p in self._model.parameters()}
        for name in parameters.keys() & state.keys():
            parameters[name].set_value(state[name])
        of_optimizer = {k: paddle.to_tensor(a) for k, a in state.items() if k not in parameters}
        if of_optimizer:
            self._optimizer.set_state_dict({**self._tensors(), **of_optimizer})

    def _tensors(self) -> dict[str, Any]:
        """Those of the optimizer, by name."""
        state = self._optimizer.state_dict()
        return {name: value for name, value in state.items() if isinstance(value, paddle.Tensor)}

    def parameters(self) -> dict[str, np.ndarray]:
        return {p.name: np.array(p.numpy()) for p in self._model.parameters()}

    def view(self) -> dict[str, np.ndarray]:
        if not isinstance(self._place, paddle.CPUPlace):
            return self.parameters()
        return {p.name: np.from_dlpack(p.detach()) for p in self._model.parameters()}
