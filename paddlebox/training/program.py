"""`ModelProgram`, a zoo model that can be stepped, and what its static and its dygraph form share:
inputs, place, layer, optimizer."""

from __future__ import annotations

import functools
import inspect
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from paddlebox import ops
from paddlebox.config import Config, HbmPlace, ModelConfig, OptimizerType, Slots
from paddlebox.config.code import calling, check_callable, load_named
from paddlebox.config.fields import click_slots, fields_of
from paddlebox.config.models import CustomConfig
from paddlebox.data.batches import GROUP, LATE, MASK, SEQUENCES, WEIGHT, Feed
from paddlebox.errors import ConfigError, CorruptionError
from paddlebox.models import create_model
from paddlebox.models.custom import custom_logits, described
from paddlebox.nn import TableSlots, log_loss, use_products
from paddlebox.nn.group_losses import jrc_loss, listwise_loss, pairwise_loss
from paddlebox.store.options import DEVICE, gpu_number, host_is_device, is_plugged_in
from paddlebox.training.dense_products import dense_products

paddle = ops.paddle

OBJECTIVES: dict[str, Callable[..., Any]] = {
    "pairwise": pairwise_loss,
    "listwise": listwise_loss,
    "jrc": jrc_loss,
}
RANK_OFFSET = "box_rank_offset"  # (B, 7) int32, an input of models that read page views
#: Input of programs on several ranks: (1) float32, this rank's share of the step's instances. With
#: instance weights, on any number of ranks: B over the sum of the weights of all ranks.
SHARE = "box_share"
RATE = "learning_rate"  # prefix of Paddle's variables that hold a learning rate


class ModelProgram(ABC):
    """A zoo model as a static program or as a dygraph layer. All compute the same
    steps and the same dense state. B = instances, T = tasks, n = values in the gradients of all
    dense parameters."""

    gradient_size: int  # n

    @abstractmethod
    def step(self, feed: Feed, *, train: bool = True) -> tuple[float, np.ndarray]:
        """Run forward, and to train, backward and update. Returns the mean loss and the logits
        (B, T) float32, both from before the update."""

    @abstractmethod
    def vectors(self, feed: Feed) -> dict[str, np.ndarray]:
        """Run forward, as for an evaluation. Returns the vectors of each tower, "user" and "item",
        (B, output_dim) float32. Raises: ConfigError if the model has no towers."""

    @abstractmethod
    def state(self) -> dict[str, np.ndarray]:
        """Copies of the parameters and the optimizer state, by variable name."""

    @abstractmethod
    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Load what `state` returned. Raises: CorruptionError as `check_same`."""

    @abstractmethod
    def parameters(self) -> dict[str, np.ndarray]:
        """Copies of the parameters, by name."""

    @abstractmethod
    def view(self) -> dict[str, np.ndarray]:
        """The parameters, by name, valid until the next step. Those in host memory are views,
        because copying 770,000 floats takes 1.0 ms."""

    @abstractmethod
    def set(self, state: Mapping[str, np.ndarray]) -> None:
        """Set some arrays of the state, by name."""

    @abstractmethod
    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the dense parameters, from the next step on."""


class DenseSync:
    """How ranks agree on dense parameters: what a training step does, and what is exchanged at the
    end of a pass. weighted: whether instances have weights."""

    def __init__(self, *, weighted: bool = False) -> None:
        self.weighted = weighted
        self.sent_bytes = 0  # by this rank
        #: Whether the program passes its gradients through `changed`. It then has the input SHARE.
        self.changes_gradients = weighted

    def changed(self, gradients: list[Any], share: Any, *, on_gpu: bool) -> list[Any]:
        """The gradients that the program applies. share: (1) SHARE."""
        del on_gpu
        return [gradient * share for gradient in gradients]

    def step(self, program: ModelProgram, feed: Feed) -> tuple[float, np.ndarray, bool]:
        """Train on a batch, which is only evaluated if all of its weights are 0. Returns the loss
        and the logits before the update, and whether the step trained."""
        raise NotImplementedError

    def finish_pass(self, program: ModelProgram) -> None:
        """Exchange what has not been sent yet. Collective."""


def model_inputs(config: Config) -> list[str]:
    """Names of the arguments of a zoo model's forward, in order."""
    first = ["box_ids", "box_offsets", "box_show_click", "box_plan", "box_dense"]
    if config.model.page_views:
        first.append(RANK_OFFSET)
    if config.model.reads_sequences:
        first += [*SEQUENCES, "box_label"]
    of_a_table = ("box_ids", "box_offsets", "box_plan")
    return first + [f"{name}_{table.name}" for table in config.tables[1:] for name in of_a_table]


def _runs_on_gpu(config: Config) -> bool:
    return config.hbm.place is not HbmPlace.HOST and not host_is_device()


def place_of(config: Config) -> Any:
    """The Paddle place of the program: the device that holds the rows of the pass."""
    if not _runs_on_gpu(config):
        return paddle.CPUPlace()
    if is_plugged_in():
        return paddle.CustomPlace(DEVICE, gpu_number())
    return paddle.CUDAPlace(gpu_number())


def dense_width(config: Config, slots: Slots) -> int:
    """Width of box_dense: the dense features, the lengths of the sequences, and the shows and
    clicks behind click priors."""
    clicks = 2 * len(click_slots(config.model, slots))
    return slots.dense_width + len(config.model.sequences) + clicks


def create_model_of(config: Config, slots: Slots) -> Any:
    """Build the zoo model of a config as a `paddle.nn.Layer`. Raises: ConfigError as `create_model`
    and `dense_products`."""
    table_of_slot = slots.tables([table.name for table in config.tables])
    tables = [
        TableSlots(table_of_slot.count(number), table.embedx_dim, table.name, len(table.counts))
        for number, table in enumerate(config.tables)
    ]
    model = create_model(
        config.model,
        slots=tables[0].slots,
        embedx_dim=tables[0].embedx_dim,
        dense_width=slots.dense_width,
        table=tables[0].table,
        more=tables[1:],
        tasks=slots.tasks,
        fields=fields_of(slots, config.model.sequences) if len(tables) == 1 else None,
        click_slots=len(click_slots(config.model, slots)),
        counts=len(config.table.counts),
    )
    use_products(model, dense_products(config).products)
    return model


def no_towers(config: Config) -> ConfigError:
    return ConfigError(
        f"model.type {config.model.type.value} has no towers: expected a model with a vector for "
        "the user and one for the item: train dssm (docs/models_tasks.md)"
    )


def create_optimizer(config: Config, parameters: Any = None, adam: Any = None) -> Any:
    """Build the dense optimizer of a config. parameters: in dygraph; None in a static program.
    adam: the class for the type adam; None: Paddle's."""
    optimizers = {
        OptimizerType.ADAM: adam or paddle.optimizer.Adam,
        OptimizerType.SGD: paddle.optimizer.SGD,
        OptimizerType.ADAGRAD: paddle.optimizer.Adagrad,
    }
    own = config.optimizer
    return optimizers[own.type](
        learning_rate=own.learning_rate,
        weight_decay=own.weight_decay or None,
        parameters=parameters,
    )


def loss_and_logits(
    config: Config, model: Any, inputs: Mapping[str, Any], *, train: bool
) -> tuple[Any, Any]:
    """The mean loss and the logits (B, T) of a model. The logits are those of all instances; with
    `data.negative_rate`, the loss of training is that of the instances that were kept."""
    late = inputs.get(LATE)
    trains_late = late is not None and train and bool(config.model.delayed)
    if trains_late:
        inputs = {**inputs, "box_show_click": _with_late(inputs)}
    arguments = [inputs[name] for name in model_inputs(config)]
    if isinstance(config.model, CustomConfig):
        learned = custom_logits(config.model, model, arguments, inputs["box_label"])
    else:
        learned = model(*arguments)
    shift = config.data.logit_shift
    logits = learned + shift if shift else learned
    scored = learned if train else logits
    factors = [inputs[name] for name in (MASK, WEIGHT) if name in inputs]
    if late is not None and not trains_late:
        factors.append(1.0 - late)
        late = None
    mask = functools.reduce(operator.mul, factors) if factors else None
    if config.model.objective == "bce":
        labels = inputs["box_label"]
        if config.model.delayed:  # the last column is no task
            logits = paddle.slice(logits, [1], [0], [labels.shape[1]])
            if not trains_late:
                scored = logits
        return mean_loss(model, scored, labels, mask, late), logits
    loss = _objective(config.model, model)(scored, inputs["box_label"], inputs.get(GROUP), mask)
    return loss, logits


def _with_late(inputs: Mapping[str, Any]) -> Any:
    """box_show_click in which the show of a late line is minus its weight: the push divides by it
    as by shows, but counts no show (ops/table/row_access.h)."""
    counts, weight = inputs["box_show_click"], inputs[LATE]
    if WEIGHT in inputs:
        weight = weight * inputs[WEIGHT]
    show = paddle.slice(counts, [1], [0], [1]) - weight
    return paddle.concat([show, paddle.slice(counts, [1], [1], [counts.shape[1]])], axis=1)


def _objective(config: ModelConfig, model: Any) -> Callable[..., Any]:
    """The loss that `model.loss` names: of logits, labels, groups and factors of instances."""
    named = config.objective
    if hasattr(model, "loss"):
        raise ConfigError(
            f"model.loss {named}: {type(model).__name__} computes a loss of its own: take "
            "model.loss out, or choose another model"
        )
    if named in OBJECTIVES:
        return OBJECTIVES[named]
    found = load_named(named, "model.loss")
    what = f"model.loss {named!r}"
    check_callable(found, what, "logits", "labels", "groups", "mask")
    return lambda *arguments: _own_loss(what, found, *arguments)


def _own_loss(what: str, function: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
    """Call a loss that the user has written. Raises: ConfigError if it returns no mean."""
    with calling(what):
        value = function(*arguments, **more)
    if described(value) not in ("() float32", "(1,) float32"):
        raise ConfigError(
            f"{what}: expected a mean over the instances, a float32 of shape () or (1,), found "
            f"{described(value)}; (-1 is their number)"
        )
    return value


def mean_loss(model: Any, logits: Any, label: Any, mask: Any = None, late: Any = None) -> Any:
    """The loss of a model, as a mean over instances: its method `loss`, or the log loss.

    The push multiplies the gradients by the number of instances. With weights, the loss is the sum
    of weight and loss of each instance, divided by their number. So the push needs no sum of
    weights; the gradients of dense parameters are scaled by it (`SHARE`).

    Args:
        mask: (B, 1) factors of the instances: weights, or 0 for those that add no loss; None: 1.
        late: (B, 1) the marks of late lines, if the model has a delayed task.

    Raises: ConfigError if there is a mask, and the model's `loss` takes none.
    """
    if not hasattr(model, "loss"):
        return log_loss(logits, label, mask=mask)
    factors = {} if mask is None else {"mask": mask}
    if late is not None:
        factors = {"mask": mask, "late": late}
    elif factors and "mask" not in inspect.signature(model.loss).parameters:
        raise ConfigError(
            f"data.sequences, or a slot of type weight or late: {type(model).__name__} "
            "computes a loss without a factor for each instance: choose another model, or give "
            "its `loss` a parameter `mask`"
        )
    what = f"the method loss of {type(model).__name__}"
    if not factors:
        check_callable(model.loss, what, "logits", "labels")
    return _own_loss(what, model.loss, logits, label, **factors)


def check_same(expected: Mapping[str, Any], state: Mapping[str, np.ndarray]) -> None:
    """Compare the names and shapes of a dense state with those of a model. Raises CorruptionError,
    which lists up to five differences."""
    shapes = {name: tuple(value.shape) for name, value in expected.items()}
    found = {name: tuple(array.shape) for name, array in state.items()}
    if shapes != found:
        differing = sorted(
            f"{name}: expected {shapes.get(name)}, found {found.get(name)}"
            for name in {*shapes, *found}
            if shapes.get(name) != found.get(name)
        )
        raise CorruptionError(
            f"the dense state belongs to another model or optimizer: {'; '.join(differing[:5])}"
        )
