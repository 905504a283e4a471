"""A zoo model as something that can be stepped: a static program (PIR, old IR) or a dygraph layer.

All three give the same step and the same dense state; which one runs is `trainer.program`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from paddlebox import _native, ops
from paddlebox.config import Config, HbmPlace, OptimizerType, Program, Slots
from paddlebox.config.fields import fields_of
from paddlebox.config.ranks import DenseSync
from paddlebox.data.batches import Feed, packed
from paddlebox.errors import ConfigError, CorruptionError
from paddlebox.models import create_model
from paddlebox.nn import TableSlots, log_loss
from paddlebox.ranks import World
from paddlebox.ranks.dense import SHARE, split_gradient, sum_gradients
from paddlebox.ranks.dense_modes import AllReduce, Average, TopK
from paddlebox.store.hbm_place import check_place, gpu_number, host_is_device
from paddlebox.train.averaging import Averaged
from paddlebox.train.ranked import RATE, RankedRunner

paddle = ops.paddle

_GRADIENT = "box_gradient"  # fed to the program that updates: (n) float32


RANK_OFFSET = "box_rank_offset"  # (B, 7) int32, of models that read page views


def _model_inputs(config: Config) -> list[str]:
    """Arguments of a zoo model's forward, in order."""
    first = ["box_ids", "box_offsets", "box_show_click", "box_plan", "box_dense"]
    if config.model.page_views:
        first.append(RANK_OFFSET)
    of_a_table = ("box_ids", "box_offsets", "box_plan")
    return first + [f"{name}_{table.name}" for table in config.tables[1:] for name in of_a_table]


class Runner(Protocol):
    """A built model."""

    def train_step(self, feed: Feed) -> tuple[float, np.ndarray]:
        """Forward, backward, update. Returns the mean loss and logits (B, T) from before the
        update."""

    def evaluate_step(self, feed: Feed) -> tuple[float, np.ndarray]:
        """Forward alone."""

    def finish_pass(self) -> None:
        """Between the last step of a pass and its commit: ranks agree about what they have not told
        each other. All of them call it."""

    @property
    def dense_sent_bytes(self) -> int:
        """That this rank has sent to others for the dense parameters."""

    def dense_state(self) -> dict[str, np.ndarray]:
        """Copies of parameters and optimizer state, by variable name."""

    def load_dense_state(self, state: Mapping[str, np.ndarray]) -> None:
        """The reverse. Raises CorruptionError when names or shapes do not match the model."""


def build_runner(config: Config, slots: Slots, world: World | None = None) -> Runner:
    """The model of a config in the program mode it names. Seeds Paddle with `config.seed`.

    Args:
        world: of the ranks that train it together.

    Raises: ConfigError for a program of the old IR on several ranks, for averages of parameters
        that are themselves averaged now and then, and for rows on a GPU that cannot be there.
    """
    ranks, decay = world.size if world is not None else 1, config.optimizer.averaging
    check_place(config.hbm.place)
    if ranks > 1 and decay and config.ranks.dense is DenseSync.AVERAGE:
        raise ConfigError(
            "optimizer.averaging with ranks.dense: average: between two averages over the ranks "
            "each has parameters of its own; choose one of them"
        )
    runner = _build_runner(config, slots, world, ranks)
    return Averaged(runner, decay) if decay else runner


def _build_runner(config: Config, slots: Slots, world: World | None, ranks: int) -> RankedRunner:
    paddle.seed(config.seed)
    if config.trainer.program is Program.DYGRAPH:
        return _Dygraph(config, slots, world)
    if ranks > 1 and config.trainer.program is not Program.PIR:
        raise ConfigError(
            f"trainer.program {config.trainer.program.value} with {ranks} ranks: Paddle's "
            "all-reduce does not build in the old IR on a CPU; use pir or dygraph"
        )
    return _Static(config, slots, world)


def seed_pass(seed: int, number: int) -> None:
    """Makes what Paddle draws in a pass (dropout) a function of the run's seed and the pass's
    number, so that a run which is taken up again draws the same."""
    paddle.seed(_native.core.mix(seed + number) % (1 << 63))


def _place(config: Config) -> Any:
    """Where the program runs: where the rows of the pass are."""
    if config.hbm.place is HbmPlace.HOST or host_is_device():
        return paddle.CPUPlace()
    return paddle.CUDAPlace(gpu_number())


def _dense_width(config: Config, slots: Slots) -> int:
    """Of box_dense: the dense features, and behind them the lengths of sequences."""
    return slots.dense_width + len(config.model.sequences)


def _create_model(config: Config, slots: Slots) -> Any:
    table_of_slot = slots.tables([table.name for table in config.tables])
    tables = [
        TableSlots(table_of_slot.count(number), table.embedx_dim, table.name)
        for number, table in enumerate(config.tables)
    ]
    return create_model(
        config.model,
        slots=tables[0].slots,
        embedx_dim=tables[0].embedx_dim,
        dense_width=slots.dense_width,
        table=tables[0].table,
        more=tables[1:],
        tasks=slots.tasks,
        fields=fields_of(slots, config.model.sequences) if len(tables) == 1 else None,
    )


def _create_optimizer(config: Config, parameters: Any = None) -> Any:
    optimizers = {
        OptimizerType.ADAM: paddle.optimizer.Adam,
        OptimizerType.SGD: paddle.optimizer.SGD,
        OptimizerType.ADAGRAD: paddle.optimizer.Adagrad,
    }
    return optimizers[config.optimizer.type](
        learning_rate=config.optimizer.learning_rate,
        weight_decay=config.optimizer.weight_decay or None,
        parameters=parameters,
    )


def _mean_loss(model: Any, logits: Any, label: Any) -> Any:
    """A mean over instances: pushes multiply by their number. A model may have its own loss."""
    if hasattr(model, "loss"):
        return model.loss(logits, label)
    return log_loss(logits, label)


def _check_same(expected: Mapping[str, Any], state: Mapping[str, np.ndarray]) -> None:
    shapes = {name: tuple(value.shape) for name, value in expected.items()}
    found = {name: tuple(array.shape) for name, array in state.items()}
    if shapes != found:
        differing = sorted(
            f"{name}: expected {shapes.get(name)}, found {found.get(name)}"
            for name in {*shapes, *found}
            if shapes.get(name) != found.get(name)
        )
        raise CorruptionError(
            f"the dense state is of another model or optimizer: {'; '.join(differing[:5])}"
        )


class _Dygraph(RankedRunner):
    def __init__(self, config: Config, slots: Slots, world: World | None) -> None:
        super().__init__(config, world)
        self._place = _place(config)
        self._on_gpu = isinstance(self._place, paddle.CUDAPlace)
        paddle.disable_static(self._place)
        with paddle.utils.unique_name.guard():
            self._model = _create_model(config, slots)
            self._optimizer = _create_optimizer(config, self._model.parameters())
            # Paddle would make the optimizer's state in the first step, too late to load some of it
            # before, and under names that depend on what else the process has made.
            block = paddle.static.default_main_program().global_block()
            self._optimizer._create_accumulators(block, self._model.parameters())
        self._gradient_size = sum(p.size for p in self._trained())
        self._inputs = _model_inputs(config)

    def _forward(self, feed: Feed) -> tuple[Any, Any]:
        tensors = {name: paddle.to_tensor(array, place=self._place) for name, array in feed.items()}
        logits = self._model(*(tensors[name] for name in self._inputs))
        return _mean_loss(self._model, logits, tensors["box_label"]), logits

    def _step(self, feed: Feed) -> tuple[float, np.ndarray]:
        self._model.train()
        loss, logits = self._forward(feed)
        loss.backward()
        if isinstance(self._mode, AllReduce):
            share = paddle.to_tensor(feed[SHARE])
            self._set_gradients(sum_gradients(self._gradients(), share, on_gpu=self._on_gpu))
        self._optimizer.step()
        self._optimizer.clear_grad()
        return float(loss), logits.numpy()

    def _trained(self) -> list[Any]:
        return [p for p in self._model.parameters() if not p.stop_gradient]

    def _gradients(self) -> list[Any]:
        """One for each parameter, zeros for one that this batch did not use: another rank's may."""
        return [paddle.zeros_like(p) if p.grad is None else p.grad for p in self._trained()]

    def _set_gradients(self, gradients: list[Any]) -> None:
        for parameter, gradient in zip(self._trained(), gradients, strict=True):
            parameter.grad = gradient

    def _backward(self, feed: Feed) -> tuple[float, np.ndarray, np.ndarray]:
        """Loss, logits and (n) the gradients of all parameters."""
        self._model.train()
        loss, logits = self._forward(feed)
        loss.backward()
        flat = [gradient.numpy().reshape(-1) for gradient in self._gradients()]
        return float(loss), logits.numpy(), np.concatenate(flat)

    def _apply(self, gradient: np.ndarray) -> None:
        """Updates the parameters by (n) as of `_backward`."""
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
        _check_same(parameters, {name: state[name] for name in parameters if name in state})
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


class _OnHost:
    """A static program's tensor, as numpy asks for one whose memory it may read."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __dlpack__(self, **_: Any) -> Any:
        return self._tensor._to_dlpack()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # kDLCPU


class _Static(RankedRunner):
    def __init__(self, config: Config, slots: Slots, world: World | None) -> None:
        super().__init__(config, world)
        paddle.enable_static()
        self._place = _place(config)
        self._on_gpu = isinstance(self._place, paddle.CUDAPlace)
        self._startup = paddle.static.Program()
        self._train = paddle.static.Program()
        self._gradient_size = 0  # n
        self._train_fetch = self._build(config, slots, self._train, self._startup, train=True)
        self._state = self._train  # the program that has all of the dense state
        if isinstance(self._mode, TopK):
            self._startup, self._state = paddle.static.Program(), paddle.static.Program()
            self._build_update(config, slots)
        # A program of its own, over the same parameters: names are what they share.
        self._evaluate = paddle.static.Program()
        self._evaluate_fetch = self._build(
            config, slots, self._evaluate, paddle.static.Program(), train=False
        )
        self._exe = paddle.static.Executor(self._place)
        self._scope = paddle.static.Scope()
        with paddle.static.scope_guard(self._scope):
            self._exe.run(self._startup)

    def _build(
        self, config: Config, slots: Slots, program: Any, startup: Any, train: bool
    ) -> list[Any]:
        # Not of `program`: every dropout of every step would draw the same mask.
        startup.random_seed = config.seed
        with paddle.static.program_guard(program, startup), paddle.utils.unique_name.guard():
            widths = {"box_dense": _dense_width(config, slots), "box_label": len(slots.tasks)}
            inputs = {
                name: paddle.static.data(
                    name, [-1, widths[name]] if name in widths else shape, dtype
                )
                for name, (dtype, shape) in packed([t.name for t in config.tables]).items()
            }
            if config.model.page_views:
                inputs[RANK_OFFSET] = paddle.static.data(RANK_OFFSET, [-1, 7], "int32")
            model = _create_model(config, slots)
            if not train:
                model.eval()
            logits = model(*(inputs[name] for name in _model_inputs(config)))
            loss = _mean_loss(model, logits, inputs["box_label"])
            if not train:
                return [loss, logits]
            if self._mode is None or isinstance(self._mode, Average):
                _create_optimizer(config).minimize(loss)
                return [loss, logits]
            optimizer = _create_optimizer(config)
            found = optimizer.backward(loss)
            parameters = [parameter for parameter, _ in found]
            gradients = [gradient for _, gradient in found]
            self._gradient_size = sum(math.prod(p.shape) for p in parameters)
            if isinstance(self._mode, TopK):
                self._order = [parameter.name for parameter in parameters]
                return [loss, logits, paddle.concat([paddle.reshape(g, [-1]) for g in gradients])]
            share = paddle.static.data(SHARE, [1], "float32")
            summed = sum_gradients(gradients, share, on_gpu=self._on_gpu)
            optimizer.apply_gradients(list(zip(parameters, summed, strict=True)))
            return [loss, logits]

    def _build_update(self, config: Config, slots: Slots) -> None:
        """The optimizer in a program of its own, fed with the gradient that ranks agreed upon."""
        self._startup.random_seed = config.seed
        with (
            paddle.static.program_guard(self._state, self._startup),
            paddle.utils.unique_name.guard(),
        ):
            of_name = {p.name: p for p in _create_model(config, slots).parameters()}
            parameters = [of_name[name] for name in self._order]
            gradient = paddle.static.data(_GRADIENT, [self._gradient_size], "float32")
            parts = split_gradient(gradient, parameters)
            _create_optimizer(config).apply_gradients(list(zip(parameters, parts, strict=True)))

    def _backward(self, feed: Feed) -> tuple[float, np.ndarray, np.ndarray]:
        """Loss, logits and (n) the gradients of all parameters."""
        with paddle.static.scope_guard(self._scope):
            loss, logits, flat = self._exe.run(self._train, feed=feed, fetch_list=self._train_fetch)
        return float(np.asarray(loss).reshape(())), logits, flat

    def _apply(self, gradient: np.ndarray) -> None:
        """Updates the parameters by (n) as of `_backward`."""
        with paddle.static.scope_guard(self._scope):
            self._exe.run(self._state, feed={_GRADIENT: gradient}, fetch_list=[])

    def _set(self, state: Mapping[str, np.ndarray]) -> None:
        for name, array in state.items():
            self._scope.find_var(name).get_tensor().set(array, self._place)

    def _run(self, program: Any, feed: Feed, fetch: list[Any]) -> tuple[float, np.ndarray]:
        with paddle.static.scope_guard(self._scope):
            loss, logits = self._exe.run(program, feed=feed, fetch_list=fetch)
        return float(np.asarray(loss).reshape(())), logits

    def _step(self, feed: Feed) -> tuple[float, np.ndarray]:
        return self._run(self._train, feed, self._train_fetch)

    def evaluate_step(self, feed: Feed) -> tuple[float, np.ndarray]:
        return self._run(self._evaluate, feed, self._evaluate_fetch)

    def dense_state(self) -> dict[str, np.ndarray]:
        state = self._state.state_dict("all", self._scope)
        return {name: np.array(tensor) for name, tensor in state.items()}

    def load_dense_state(self, state: Mapping[str, np.ndarray]) -> None:
        tensors = self._state.state_dict("all", self._scope)
        expected = {name: np.array(tensor) for name, tensor in tensors.items()}
        _check_same(expected, state)
        for name in expected:
            if name.startswith(RATE):
                continue  # the config has it, and may have changed
            self._scope.find_var(name).get_tensor().set(state[name], self._place)

    def parameters(self) -> dict[str, np.ndarray]:
        tensors = self._state.state_dict("param", self._scope)
        return {name: np.array(tensor) for name, tensor in tensors.items()}

    def look(self) -> dict[str, np.ndarray]:
        if not isinstance(self._place, paddle.CPUPlace):
            return self.parameters()
        tensors = self._state.state_dict("param", self._scope)
        return {name: np.from_dlpack(_OnHost(tensor)) for name, tensor in tensors.items()}

    def set_parameters(self, values: Mapping[str, np.ndarray]) -> None:
        self._set(values)
