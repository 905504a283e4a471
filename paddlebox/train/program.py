"""A zoo model as something that can be stepped: a static program (PIR, old IR) or a dygraph layer.

All three give the same step and the same dense state; which one runs is `trainer.program`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from paddlebox import _native, ops
from paddlebox.config import Config, HbmPlace, OptimizerType, Program, Slots
from paddlebox.config.fields import fields_of
from paddlebox.data.batches import Feed, packed
from paddlebox.errors import ConfigError, CorruptionError
from paddlebox.models import create_model
from paddlebox.nn import TableSlots, log_loss
from paddlebox.ranks.dense import SHARE, sum_gradients
from paddlebox.store.hbm_place import check_place, gpu_number, host_is_device

paddle = ops.paddle


def _model_inputs(config: Config) -> list[str]:
    """Arguments of a zoo model's forward, in order."""
    first = ["box_ids", "box_offsets", "box_show_click", "box_plan", "box_dense"]
    of_a_table = ("box_ids", "box_offsets", "box_plan")
    return first + [f"{name}_{table.name}" for table in config.tables[1:] for name in of_a_table]


class Runner(Protocol):
    """A built model."""

    def train_step(self, feed: Feed) -> tuple[float, np.ndarray]:
        """Forward, backward, update. Returns the mean loss and logits (B, T) from before the
        update."""

    def evaluate_step(self, feed: Feed) -> tuple[float, np.ndarray]:
        """Forward alone."""

    def dense_state(self) -> dict[str, np.ndarray]:
        """Copies of parameters and optimizer state, by variable name."""

    def load_dense_state(self, state: Mapping[str, np.ndarray]) -> None:
        """The reverse. Raises CorruptionError when names or shapes do not match the model."""


def build_runner(config: Config, slots: Slots, ranks: int = 1) -> Runner:
    """The model of a config in the program mode it names. Seeds Paddle with `config.seed`.

    Raises: ConfigError for a program of the old IR on several ranks, and for rows on a GPU that
        cannot be there.
    """
    check_place(config.hbm.place, ranks)
    paddle.seed(config.seed)
    if config.trainer.program is Program.DYGRAPH:
        return _Dygraph(config, slots, ranks)
    if ranks > 1 and config.trainer.program is not Program.PIR:
        raise ConfigError(
            f"trainer.program {config.trainer.program.value} with {ranks} ranks: Paddle's "
            "all-reduce does not build in the old IR on a CPU; use pir or dygraph"
        )
    return _Static(config, slots, ranks)


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


class _Dygraph:
    def __init__(self, config: Config, slots: Slots, ranks: int) -> None:
        self._ranks = ranks
        self._place = _place(config)
        paddle.disable_static(self._place)
        with paddle.utils.unique_name.guard():
            self._model = _create_model(config, slots)
            self._optimizer = _create_optimizer(config, self._model.parameters())
            # Paddle would make the optimizer's state in the first step, too late to load some of it
            # before, and under names that depend on what else the process has made.
            block = paddle.static.default_main_program().global_block()
            self._optimizer._create_accumulators(block, self._model.parameters())
        self._inputs = _model_inputs(config)

    def _forward(self, feed: Feed) -> tuple[Any, Any]:
        tensors = {
            name: paddle.to_tensor(array, place=self._place) for name, array in feed.items()
        }
        logits = self._model(*(tensors[name] for name in self._inputs))
        return _mean_loss(self._model, logits, tensors["box_label"]), logits

    def train_step(self, feed: Feed) -> tuple[float, np.ndarray]:
        self._model.train()
        loss, logits = self._forward(feed)
        loss.backward()
        if self._ranks > 1:
            self._sum_gradients(feed)
        self._optimizer.step()
        self._optimizer.clear_grad()
        return float(loss), logits.numpy()

    def _sum_gradients(self, feed: Feed) -> None:
        own = [p for p in self._model.parameters() if p.grad is not None]
        summed = sum_gradients([p.grad for p in own], paddle.to_tensor(feed[SHARE]))
        for parameter, gradient in zip(own, summed, strict=True):
            parameter.grad.set_value(gradient)

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


class _Static:
    def __init__(self, config: Config, slots: Slots, ranks: int) -> None:
        paddle.enable_static()
        self._startup = paddle.static.Program()
        self._train = paddle.static.Program()
        self._train_fetch = self._build(
            config, slots, self._train, self._startup, train=True, ranks=ranks
        )
        # A program of its own, over the same parameters: names are what they share.
        self._evaluate = paddle.static.Program()
        self._evaluate_fetch = self._build(
            config, slots, self._evaluate, paddle.static.Program(), train=False
        )
        self._place = _place(config)
        self._exe = paddle.static.Executor(self._place)
        self._scope = paddle.static.Scope()
        with paddle.static.scope_guard(self._scope):
            self._exe.run(self._startup)

    @staticmethod
    def _build(
        config: Config, slots: Slots, program: Any, startup: Any, train: bool, ranks: int = 1
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
            model = _create_model(config, slots)
            if not train:
                model.eval()
            logits = model(*(inputs[name] for name in _model_inputs(config)))
            loss = _mean_loss(model, logits, inputs["box_label"])
            if train and ranks == 1:
                _create_optimizer(config).minimize(loss)
            elif train:
                optimizer = _create_optimizer(config)
                found = optimizer.backward(loss)
                share = paddle.static.data(SHARE, [1], "float32")
                summed = sum_gradients([gradient for _, gradient in found], share)
                parameters = [parameter for parameter, _ in found]
                optimizer.apply_gradients(list(zip(parameters, summed, strict=True)))
        return [loss, logits]

    def _run(self, program: Any, feed: Feed, fetch: list[Any]) -> tuple[float, np.ndarray]:
        with paddle.static.scope_guard(self._scope):
            loss, logits = self._exe.run(program, feed=feed, fetch_list=fetch)
        return float(np.asarray(loss).reshape(())), logits

    def train_step(self, feed: Feed) -> tuple[float, np.ndarray]:
        return self._run(self._train, feed, self._train_fetch)

    def evaluate_step(self, feed: Feed) -> tuple[float, np.ndarray]:
        return self._run(self._evaluate, feed, self._evaluate_fetch)

    def dense_state(self) -> dict[str, np.ndarray]:
        state = self._train.state_dict("all", self._scope)
        return {name: np.array(tensor) for name, tensor in state.items()}

    def load_dense_state(self, state: Mapping[str, np.ndarray]) -> None:
        tensors = self._train.state_dict("all", self._scope)
        expected = {name: np.array(tensor) for name, tensor in tensors.items()}
        _check_same(expected, state)
        for name in expected:
            if name.startswith("learning_rate"):
                continue  # the config has it, and may have changed
            self._scope.find_var(name).get_tensor().set(state[name], self._place)
