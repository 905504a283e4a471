"""Keys of `model` for models with several tasks, with sequences, and with two towers."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from paddlebox.config.models import (
    ModelType,
    NetworkConfig,
    Width,
    experts,
    head_dim,
    heads,
    layers,
    loss,
    output_dim,
)
from paddlebox.config.section import Choice, ListOf, Text

_TYPE = "a model of the zoo: docs/models.md"

_Weight = Annotated[float, Field(ge=0)]


class TaskConfig(NetworkConfig):
    """Keys of models with one output per label of slots.yaml."""

    tower: ListOf[Width] = Field(
        default=(64,), description="widths of the hidden layers of each task's own network"
    )
    task_weights: ListOf[_Weight] = Field(
        default=(),
        description="weight of each task's loss, in the order of the labels; empty: 1 each",
    )

    @property
    def computes_loss(self) -> bool:
        return True


class DelayedConfig(TaskConfig):
    """Keys of models with an output for the share of labels that come late."""

    delayed_task: str = Field(
        default="",
        description="label that may come late, such as conversion: late lines train it, and a "
        "network of its own estimates how many are still to come; empty: late lines only count",
    )

    @property
    def delayed(self) -> str:
        return self.delayed_task


class SharedBottomConfig(DelayedConfig):
    type: Literal[ModelType.SHARED_BOTTOM] = Field(description=_TYPE)


class MmoeConfig(DelayedConfig):
    type: Literal[ModelType.MMOE] = Field(description=_TYPE)
    experts: int = experts(4)


class PleConfig(DelayedConfig):
    type: Literal[ModelType.PLE] = Field(description=_TYPE)
    experts: int = experts(2)
    task_experts: int = Field(
        default=2, ge=1, le=64, description="experts that only one task uses, per task and level"
    )
    layers: int = layers(1)


class EsmmConfig(DelayedConfig):
    type: Literal[ModelType.ESMM] = Field(description=_TYPE)


class AitmConfig(TaskConfig):
    type: Literal[ModelType.AITM] = Field(description=_TYPE)
    output_dim: Width = output_dim(32)

    @model_validator(mode="after")
    def _has_a_tower(self) -> AitmConfig:
        if not self.hidden:
            raise ValueError("hidden is empty, but a task's network needs a hidden layer")
        return self


class Activation(StrEnum):
    DICE = "dice"
    SIGMOID = "sigmoid"
    RELU = "relu"


_HISTORY = (
    "sparse slot of the user's history (with a max_length): slot of the item that is compared with "
    "it; several pairs, such as items and their categories, are joined position by position; "
    "empty, for hstu only: the events are the instances of a user"
)


class SequenceConfig(NetworkConfig):
    """Keys of models that read slots with many ids in order, the latest first."""

    history: dict[Text, Text] = Field(min_length=1, description=_HISTORY)

    @property
    def sequences(self) -> tuple[str, ...]:
        return tuple(self.history)

    @property
    def items(self) -> Mapping[str, str]:
        return self.history


class DinConfig(SequenceConfig):
    type: Literal[ModelType.DIN] = Field(description=_TYPE)
    attention_hidden: ListOf[Width] = Field(
        default=(64, 32), description="hidden layers of the attention unit"
    )
    activation: Choice[Activation] = Field(
        default=Activation.DICE,
        description="activation in the attention unit: dice, sigmoid or relu",
    )
    softmax: bool = Field(
        default=False, description="normalise the attention weights to sum 1; the paper does not"
    )


class DienConfig(SequenceConfig):
    type: Literal[ModelType.DIEN] = Field(description=_TYPE)
    auxiliary: float = Field(
        default=1.0,
        ge=0,
        description="weight of the auxiliary loss, which compares the next item of the history "
        "with another one",
    )

    @property
    def computes_loss(self) -> bool:
        return True


class BstConfig(SequenceConfig):
    type: Literal[ModelType.BST] = Field(description=_TYPE)
    layers: int = layers(1)
    heads: int = heads(2)
    head_dim: Width = head_dim(8)


class HstuConfig(NetworkConfig):
    type: Literal[ModelType.HSTU] = Field(description=_TYPE)
    hidden: ListOf[Width] = Field(default=(64,), description="widths of the hidden layers")
    history: dict[Text, Text] = Field(default={}, description=_HISTORY)
    width: Width = Field(default=64, description="width of the vector of an event")
    layers: int = layers(2)
    heads: int = heads(2)
    head_dim: Width = head_dim(32)
    max_length: int = Field(
        default=512,
        ge=1,
        le=1 << 20,
        description="without history: divisor of the attention, and number of positions with a "
        "bias of their own",
    )
    time_buckets: int = Field(
        default=64,
        ge=0,
        le=256,
        description="without history: buckets of relative time, two for each doubling, with a bias "
        "each; 0: no bias of time",
    )

    @model_validator(mode="after")
    def _sequences_have_a_length(self) -> HstuConfig:
        usual = type(self).model_fields
        for name in ("max_length", "time_buckets") if self.history else ():
            if getattr(self, name) != usual[name].default:
                raise ValueError(
                    f"{name} is for hstu without history, found {getattr(self, name)} with "
                    f"history: take {name} out"
                )
        return self

    @property
    def reads_sequences(self) -> bool:
        return not self.history

    @property
    def sequences(self) -> tuple[str, ...]:
        return tuple(self.history)

    @property
    def items(self) -> Mapping[str, str]:
        return self.history


class Matching(StrEnum):
    CLICK = "click"
    IN_BATCH = "in_batch"


class DssmConfig(NetworkConfig):
    type: Literal[ModelType.DSSM] = Field(description=_TYPE)
    user: ListOf[Text] = Field(min_length=1, description="slots of the user's tower")
    item: ListOf[Text] = Field(min_length=1, description="slots of the item's tower")
    output_dim: Width = output_dim(32)
    loss: Text = loss(Matching.CLICK.value)

    @property
    def objective(self) -> str:
        return "bce"  # the model computes its loss

    @property
    def matching(self) -> Matching:
        return Matching(self.loss)

    @model_validator(mode="after")
    def _loss_is_one_of_two(self) -> DssmConfig:
        if self.loss not in list(Matching):
            raise ValueError(f"loss: expected {', '.join(Matching)}, found {self.loss!r}")
        return self

    @model_validator(mode="after")
    def _towers_are_apart(self) -> DssmConfig:
        both = sorted({*self.user} & {*self.item})
        if both:
            raise ValueError(
                f"user and item both have {', '.join(both)}; use each slot in one tower"
            )
        if self.click_prior:
            raise ValueError(
                "click_prior adds features of all slots, but a tower reads only its own slots: "
                "leave it out"
            )
        return self
