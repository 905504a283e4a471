"""A zoo model as static Paddle programs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from paddlebox import ops
from paddlebox._native import start_openmp
from paddlebox.config import Config, Slots
from paddlebox.data.batches import GROUP, LATE, SEQUENCES, WEIGHT, Feed, packed
from paddlebox.data.feed_copies import on_device
from paddlebox.models.dssm import towers_of
from paddlebox.store.options import is_plugged_in
from paddlebox.training.device_kernels import check_kernels
from paddlebox.training.program import (
    RANK_OFFSET,
    RATE,
    SHARE,
    DenseSync,
    ModelProgram,
    check_same,
    create_model_of,
    create_optimizer,
    dense_width,
    loss_and_logits,
    no_towers,
    place_of,
)

paddle = ops.paddle


class _OnHost:
    """A tensor of a static program as a DLPack object, so that numpy reads it without a copy."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __dlpack__(self, **_: Any) -> Any:
        return self._tensor._to_dlpack()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # kDLCPU


class MergedAdam(paddle.optimizer.Adam):  # type: ignore[misc, name-defined]
    """Adam of a static program as one operator. Paddle's own, with use_multi_tensor, is one for
    each parameter there. On a CPU, the merged operator has other bits than these."""

    def __init__(self, **options: Any) -> None:
        super().__init__(use_multi_tensor=True, **options)

    def _append_optimize_op(self, block: Any, param_and_grad: Any) -> None:
        pass

    def _finish_update(self, block: Any, parameters_and_grads: Any) -> None:
        self._multi_tensor_init(block, [parameter for parameter, _ in parameters_and_grads], 0)
        self._append_optimize_multi_tensor_op(block, parameters_and_grads, 0)


class StaticProgram(ModelProgram):
    """Runs one program to train and one to evaluate."""

    def __init__(self, config: Config, slots: Slots, sync: DenseSync) -> None:
        self._sync = sync
        paddle.enable_static()
        self._place = place_of(config)
        self._on_gpu = not isinstance(self._place, paddle.CPUPlace)
        self._startup = paddle.static.Program()
        self._train = paddle.static.Program()
        self.gradient_size = 0  # n
        self._config, self._rate = config, config.optimizer.learning_rate
        self._towers: dict[str, Any] | None = None  # variables of the program to evaluate
        #: A program, and what a step fetches from it.
        self._training = (
            self._train,
            self._build(config, slots, self._train, self._startup, train=True),
        )
        # A separate program. It shares the parameters with `_train` because their names are equal.
        evaluate, unused = paddle.static.Program(), paddle.static.Program()
        self._evaluation = evaluate, self._build(config, slots, evaluate, unused, train=False)
        if is_plugged_in() and self._on_gpu:
            check_kernels(
                f"model.type {config.model.type.value}", (self._startup, self._train, evaluate)
            )
        start_openmp()
        self._exe = paddle.static.Executor(self._place)
        self._scope = paddle.static.Scope()
        with paddle.static.scope_guard(self._scope):
            self._exe.run(self._startup)

    def _build(
        self, config: Config, slots: Slots, program: Any, startup: Any, train: bool
    ) -> list[Any]:
        # If `program` were seeded too, dropout would draw the same mask in every step.
        startup.random_seed = config.seed
        with paddle.static.program_guard(program, startup), paddle.utils.unique_name.guard():
            widths = {"box_dense": dense_width(config, slots), "box_label": len(slots.tasks)}
            read = {**packed([t.name for t in config.tables], len(config.table.counts))}
            for given, beside in (
                (config.model.page_views, {RANK_OFFSET: ("int32", [-1, 7])}),
                (config.data.sequences.user, SEQUENCES),
                (slots.weight is not None, {WEIGHT: ("float32", [-1, 1])}),
                (slots.late is not None, {LATE: ("float32", [-1, 1])}),
                (config.model.loss_group, {GROUP: ("int32", [-1, 1])}),
            ):
                read |= beside if given else {}
            inputs = {
                name: paddle.static.data(
                    name, [-1, widths[name]] if name in widths else shape, dtype
                )
                for name, (dtype, shape) in read.items()
            }
            model = create_model_of(config, slots)
            if not train:
                model.eval()
            loss, logits = loss_and_logits(config, model, inputs, train=train)
            if not train:
                self._towers = towers_of(model)
                return [loss, logits]
            adam = MergedAdam if self._on_gpu and is_plugged_in() else None
            optimizer = create_optimizer(config, adam=adam)
            if not self._sync.changes_gradients:
                optimizer.minimize(loss)
                return [loss, logits]
            found = optimizer.backward(loss)
            parameters = [parameter for parameter, _ in found]
            gradients = [gradient for _, gradient in found]
            self.gradient_size = sum(math.prod(p.shape) for p in parameters)
            share = paddle.static.data(SHARE, [1], "float32")
            changed = self._sync.changed(gradients, share, on_gpu=self._on_gpu)
            optimizer.apply_gradients(list(zip(parameters, changed, strict=True)))
            return [loss, logits]

    def set_rate(self, rate: float) -> None:
        if rate != self._rate:
            self._rate = rate
            self.set({k: np.full(shape, rate, np.float32) for k, shape in self._rates.items()})

    @cached_property
    def _rates(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the learning rates, by name."""
        state = self._train.state_dict("all", self._scope)
        return {k: np.shape(np.array(v)) for k, v in state.items() if k.startswith(RATE)}

    def set(self, state: Mapping[str, np.ndarray]) -> None:
        for name, array in state.items():
            self._scope.find_var(name).get_tensor().set(array, self._place)

    def step(self, feed: Feed, *, train: bool = True) -> tuple[float, np.ndarray]:
        program, fetch = self._training if train else self._evaluation
        with paddle.static.scope_guard(self._scope):
            loss, logits = self._exe.run(program, feed=on_device(feed), fetch_list=fetch)
        return float(np.asarray(loss).reshape(())), logits

    def vectors(self, feed: Feed) -> dict[str, np.ndarray]:
        if self._towers is None:
            raise no_towers(self._config)
        fetch = list(self._towers.values())
        with paddle.static.scope_guard(self._scope):
            found = self._exe.run(self._evaluation[0], feed=on_device(feed), fetch_list=fetch)
        return dict(zip(self._towers, found, strict=True))

    def state(self) -> dict[str, np.ndarray]:
        state = self._train.state_dict("all", self._scope)
        return {name: np.array(tensor) for name, tensor in state.items()}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        expected = self.state()
        check_same(expected, state)
        # The rate comes from the config, where it may have changed.
        self.set({name: state[name] for name in expected if not name.startswith(RATE)})

    def parameters(self) -> dict[str, np.ndarray]:
        tensors = self._train.state_dict("param", self._scope)
        return {name: np.array(tensor) for name, tensor in tensors.items()}

    def view(self) -> dict[str, np.ndarray]:
        if not isinstance(self._place, paddle.CPUPlace):
            return self.parameters()
        tensors = self._train.state_dict("param", self._scope)
        return {name: np.from_dlpack(_OnHost(tensor)) for name, tensor in tensors.items()}
