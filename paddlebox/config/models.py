"""The section `model`: the keys of all models, and one class with the own keys and rules of each.
They are not beside the networks, because a config is read before Paddle is imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from paddlebox.config.section import Choice, ListOf, Section, Text, list_to_tuple
from paddlebox.errors import ConfigError

_TYPE = "a model of the zoo: docs/models.md"
_Width = Annotated[int, Field(ge=1, le=1 << 20)]
_Count = Annotated[int, Field(ge=1, le=64)]
_Heads = Annotated[int, Field(ge=1, le=1 << 10)]
_Deviation = Annotated[float, Field(gt=0)]
_Weight = Annotated[float, Field(ge=0)]
DenseScale = Annotated[tuple[float, _Deviation], BeforeValidator(list_to_tuple)]

SEARCH_ID = "search_id"  # as model.loss_group: page views
IN_GROUPS = ("pairwise", "listwise", "jrc")  # losses that compare the instances of a group


class ModelType(StrEnum):
    LR = "lr"
    FM = "fm"
    DNN = "dnn"
    WIDE_DEEP = "wide_deep"
    DEEPFM = "deepfm"
    DCN = "dcn"
    DCN_V2 = "dcn_v2"
    XDEEPFM = "xdeepfm"
    AUTOINT = "autoint"
    FIBINET = "fibinet"
    DLRM = "dlrm"
    GATENET = "gatenet"
    MASKNET = "masknet"
    FINALMLP = "finalmlp"
    SHARED_BOTTOM = "shared_bottom"
    MMOE = "mmoe"
    PLE = "ple"
    ESMM = "esmm"
    AITM = "aitm"
    DIN = "din"
    DIEN = "dien"
    BST = "bst"
    HSTU = "hstu"
    DSSM = "dssm"
    RANK_ATTENTION = "rank_attention"
    CUSTOM = "custom"


class ModelConfig(Section):
    """Keys of all models."""

    computes_loss: ClassVar[bool] = False  # whether the model of the zoo has a loss of its own
    page_views: ClassVar[bool] = False  # whether it reads the other instances of a page of join

    type: Choice[ModelType] = Field(description=_TYPE)
    slots: ListOf[Text] = Field(
        default=(), description="sparse slots that the model reads; empty: all"
    )
    dense_scale: Literal["auto", "none"] | ListOf[DenseScale] = Field(
        default="auto",
        description="[mean, deviation] of each dense feature, which the model sees as (x - mean) "
        "/ deviation; auto: chosen when a run begins",
    )
    dense_ranges: Literal["auto", "none"] | ListOf[ListOf[float]] = Field(
        default="auto",
        description="ascending edges of the ranges of each dense feature; the model also sees how "
        "far a value is through each range; auto: chosen when a run begins",
    )
    click_prior: Literal["auto"] | bool | ListOf[Text] = Field(
        default="auto",
        description="feed the network each slot's smoothed log-odds of a click, and their "
        "confidence: of all slots that the model reads, of these slots, or of none; auto: chosen "
        "when a run begins",
    )
    loss: Text = Field(
        default="bce",
        description="bce (cross entropy); pairwise, listwise or jrc inside the groups of "
        "loss_group; or a function of your own, path/to/file.py:function or module:function, "
        "which needs security.allow_commands (docs/models.md)",
    )
    loss_group: str = Field(
        default="",
        description="whose instances the loss compares: search_id (page views), or a sparse slot, "
        "such as that of the user",
    )

    @property
    def objective(self) -> str:
        """The loss that replaces that of the model; bce: none does."""
        return self.loss

    @property
    def runs_code(self) -> bool:
        """Whether `loss` is a function of the user."""
        return ":" in self.objective

    @model_validator(mode="after")
    def _loss_is_known_and_has_its_group(self) -> ModelConfig:
        known = ("bce", *IN_GROUPS)
        if self.objective not in known and not self.runs_code:
            raise ValueError(
                f"loss: expected {', '.join(known)}, path/to/file.py:function or module:function, "
                f"found {self.objective!r}"
            )
        if self.computes_loss and self.objective != "bce":
            raise ValueError(
                f"loss {self.objective}: {self.type.value} computes a loss of its own: take loss "
                "out, or choose another model"
            )
        if self.objective in IN_GROUPS and not self.loss_group:
            raise ValueError(
                f"loss {self.objective} compares the instances of a group: set loss_group to "
                "search_id or a sparse slot"
            )
        if self.objective == "bce" and self.loss_group:
            raise ValueError(
                f"loss_group {self.loss_group} has no effect with loss {self.loss}: take it out, "
                f"or set loss to {', '.join(IN_GROUPS)} or a function"
            )
        return self

    @model_validator(mode="after")
    def _edges_ascend(self) -> ModelConfig:
        for feature, edges in enumerate(self.edges):
            if any(high <= low for low, high in pairwise(edges)):
                raise ValueError(
                    f"dense_ranges: feature {feature}: expected ascending numbers, found "
                    f"{list(edges)}: sort them, and give each only once"
                )
        if self.edges and self.reads_sequences:
            raise ValueError(
                f"dense_ranges: {self.type.value} reads sequences of users, whose dense features "
                "are only scaled: take dense_ranges out"
            )
        return self

    @property
    def dense_scales(self) -> tuple[tuple[float, float], ...]:
        """(W) mean and deviation of each dense feature. Empty if they are not scaled, or `auto` has
        not been replaced yet."""
        return () if isinstance(self.dense_scale, str) else self.dense_scale

    @property
    def edges(self) -> tuple[tuple[float, ...], ...]:
        """(W) the edges of the ranges of each dense feature. Empty if there are none, or `auto` has
        not been replaced yet."""
        return () if isinstance(self.dense_ranges, str) else self.dense_ranges

    @property
    def has_click_priors(self) -> bool:
        """Whether slots have click priors. False if `auto` has not been replaced yet."""
        return self.click_prior not in ("auto", False, ())

    @property
    def delayed(self) -> str:
        """The label that may come late; "": none."""
        return ""

    @property
    def served(self) -> ModelConfig:
        """The same network without what only its loss needs, for prediction."""
        return self

    @property
    def reads_sequences(self) -> bool:
        """Whether the model reads the sequences of `data.sequences` (docs/sequences.md)."""
        return False

    @property
    def sequences(self) -> tuple[str, ...]:
        """Sparse slots whose ids the model reads one by one."""
        return ()

    @property
    def items(self) -> Mapping[str, str]:
        """Slot of a sequence -> slot of the item that the model compares it with."""
        return {}


class WithoutNetwork(ModelConfig):
    """Models that read only the weights and vectors of rows."""

    use_cvm: ClassVar[bool] = False  # only a network could read shows and clicks


class NetworkConfig(ModelConfig):
    """Keys of models with a network over the slots."""

    hidden: ListOf[_Width] = Field(
        default=(400, 400, 400),
        description="widths of the hidden layers; a new run of few rows may choose [256, 128]",
    )
    use_cvm: bool = Field(
        default=False, description="feed log(show) and log(ctr) of each slot to the network"
    )
    dropout: float = Field(default=0.0, ge=0, lt=1, description="dropout rate, in training only")


class LrConfig(WithoutNetwork):
    type: Literal[ModelType.LR] = Field(description=_TYPE)


class FmConfig(WithoutNetwork):
    type: Literal[ModelType.FM] = Field(description=_TYPE)


class RankAttentionConfig(NetworkConfig):
    page_views: ClassVar[bool] = True

    type: Literal[ModelType.RANK_ATTENTION] = Field(description=_TYPE)
    output_dim: _Width = Field(
        default=32, description="width of the vector that comes from the page's other instances"
    )
    enable_input_bp: bool = Field(
        default=False, description="also train the rows of the other instances of the page"
    )


class DnnConfig(NetworkConfig):
    type: Literal[ModelType.DNN] = Field(description=_TYPE)


class WideDeepConfig(NetworkConfig):
    type: Literal[ModelType.WIDE_DEEP] = Field(description=_TYPE)


class DeepFmConfig(NetworkConfig):
    type: Literal[ModelType.DEEPFM] = Field(description=_TYPE)


class DcnConfig(NetworkConfig):
    type: Literal[ModelType.DCN] = Field(description=_TYPE)
    layers: _Count = Field(default=3, description="cross layers")


class DcnV2Config(NetworkConfig):
    type: Literal[ModelType.DCN_V2] = Field(description=_TYPE)
    layers: _Count = Field(default=3, description="cross layers")
    low_rank: int = Field(
        default=64, ge=0, le=1 << 16, description="rank of a cross layer's matrix; 0: full rank"
    )
    experts: _Count = Field(
        default=1, description="low-rank matrices of a cross layer, whose outputs a gate mixes"
    )

    @model_validator(mode="after")
    def _experts_are_of_low_rank(self) -> DcnV2Config:
        if self.experts > 1 and not self.low_rank:
            raise ValueError(f"experts is {self.experts}, which needs a low_rank above 0")
        return self


class XDeepFmConfig(NetworkConfig):
    type: Literal[ModelType.XDEEPFM] = Field(description=_TYPE)
    cin: ListOf[_Width] = Field(
        default=(64, 64),
        min_length=1,
        description="feature maps of each layer of the compressed interaction network",
    )


class AutoIntConfig(NetworkConfig):
    type: Literal[ModelType.AUTOINT] = Field(description=_TYPE)
    layers: _Count = Field(default=2, description="attention layers")
    heads: _Heads = Field(default=2, description="heads of an attention layer")
    head_dim: _Width = Field(default=16, description="width of a head")


class FibinetConfig(NetworkConfig):
    type: Literal[ModelType.FIBINET] = Field(description=_TYPE)
    bilinear: Literal["all", "each"] = Field(
        default="all", description="one matrix for all slots, or one for each slot"
    )


class DlrmConfig(NetworkConfig):
    type: Literal[ModelType.DLRM] = Field(description=_TYPE)
    bottom: ListOf[_Width] = Field(
        default=(64,),
        description="widths of the layers over the dense features; one of width embedx_dim follows",
    )


class GateNetConfig(NetworkConfig):
    type: Literal[ModelType.GATENET] = Field(description=_TYPE)
    gate: Literal["vector", "bit"] = Field(
        default="vector", description="one gate for a slot's vector, or one for each element of it"
    )


class MaskNetConfig(NetworkConfig):
    type: Literal[ModelType.MASKNET] = Field(description=_TYPE)
    layers: _Count = Field(default=3, description="parallel blocks")
    output_dim: _Width = Field(default=64, description="width of the output of a block")


class FinalMlpConfig(NetworkConfig):
    type: Literal[ModelType.FINALMLP] = Field(description=_TYPE)
    heads: _Heads = Field(default=4, description="heads of the fusion of the two streams")
    gate_hidden: int = Field(
        default=64,
        ge=0,
        le=1 << 20,
        description="hidden width of the gates that select a stream's features; 0: no gates",
    )

    @model_validator(mode="after")
    def _heads_divide_the_streams(self) -> FinalMlpConfig:
        if not self.hidden:
            raise ValueError("hidden is empty, but a stream needs a hidden layer")
        if self.hidden[-1] % self.heads:
            raise ValueError(
                f"heads {self.heads} does not divide {self.hidden[-1]}, the last width of hidden"
            )
        return self


class TaskConfig(NetworkConfig):
    """Keys of models with one output per label of slots.yaml."""

    computes_loss: ClassVar[bool] = True

    tower: ListOf[_Width] = Field(
        default=(64,), description="widths of the hidden layers of each task's own network"
    )
    task_weights: ListOf[_Weight] = Field(
        default=(),
        description="weight of each task's loss, in the order of the labels; empty: 1 each",
    )


class DelayedConfig(TaskConfig):
    """Keys of models with an output for the share of labels that come late."""

    delayed_task: str = Field(
        default="",
        description="label that may come late, such as conversion: late lines train it "
        "(docs/models_tasks.md); empty: they only count",
    )

    @property
    def delayed(self) -> str:
        return self.delayed_task


class SharedBottomConfig(DelayedConfig):
    type: Literal[ModelType.SHARED_BOTTOM] = Field(description=_TYPE)


class MmoeConfig(DelayedConfig):
    type: Literal[ModelType.MMOE] = Field(description=_TYPE)
    experts: _Count = Field(
        default=4,
        description="networks with `hidden` layers, whose outputs a gate of each task mixes",
    )


class PleConfig(DelayedConfig):
    type: Literal[ModelType.PLE] = Field(description=_TYPE)
    layers: _Count = Field(default=1, description="levels of experts")
    experts: _Count = Field(
        default=2,
        description="networks with `hidden` layers that all tasks share, at each level",
    )
    task_experts: _Count = Field(
        default=2, description="experts that only one task uses, per task and level"
    )


class EsmmConfig(DelayedConfig):
    type: Literal[ModelType.ESMM] = Field(description=_TYPE)


class AitmConfig(TaskConfig):
    type: Literal[ModelType.AITM] = Field(description=_TYPE)
    output_dim: _Width = Field(
        default=32, description="width of the vector that comes from the previous task"
    )

    @model_validator(mode="after")
    def _has_a_tower(self) -> AitmConfig:
        if not self.hidden:
            raise ValueError("hidden is empty, but a task's network needs a hidden layer")
        return self


_HISTORY = (
    "sparse slot of the user's history (with a max_length): slot of the item that is compared with "
    "it; several pairs are joined position by position"
)


class HistoryModelConfig(NetworkConfig):
    """Keys of models that read slots with many ids in order, the latest first."""

    history: dict[Text, Text] = Field(min_length=1, description=_HISTORY)

    @property
    def sequences(self) -> tuple[str, ...]:
        return tuple(self.history)

    @property
    def items(self) -> Mapping[str, str]:
        return self.history


class DinConfig(HistoryModelConfig):
    type: Literal[ModelType.DIN] = Field(description=_TYPE)
    attention_hidden: ListOf[_Width] = Field(
        default=(64, 32), description="hidden layers of the attention unit"
    )
    activation: Literal["dice", "sigmoid", "relu"] = Field(
        default="dice", description="activation in the attention unit"
    )
    softmax: bool = Field(
        default=False, description="normalise the attention weights to sum 1; the paper does not"
    )


class DienConfig(HistoryModelConfig):
    computes_loss: ClassVar[bool] = True

    type: Literal[ModelType.DIEN] = Field(description=_TYPE)
    auxiliary: float = Field(
        default=1.0,
        ge=0,
        description="weight of the auxiliary loss, which compares the next item of the history "
        "with another one",
    )


class BstConfig(HistoryModelConfig):
    type: Literal[ModelType.BST] = Field(description=_TYPE)
    layers: _Count = Field(default=1, description="transformer layers")
    heads: _Heads = Field(default=2, description="heads of a transformer layer")
    head_dim: _Width = Field(default=8, description="width of a head")


class HstuConfig(HistoryModelConfig):
    type: Literal[ModelType.HSTU] = Field(description=_TYPE)
    hidden: ListOf[_Width] = Field(default=(64,), description="widths of the hidden layers")
    history: dict[Text, Text] = Field(
        default={}, description=f"{_HISTORY}; empty: the events are the instances of a user"
    )
    width: _Width = Field(default=64, description="width of the vector of an event")
    layers: _Count = Field(default=2, description="attention layers")
    heads: _Heads = Field(default=2, description="heads of an attention layer")
    head_dim: _Width = Field(default=32, description="width of a head")
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


class DssmConfig(NetworkConfig):
    type: Literal[ModelType.DSSM] = Field(description=_TYPE)
    user: ListOf[Text] = Field(min_length=1, description="slots of the user's tower")
    item: ListOf[Text] = Field(
        min_length=1,
        description="slots of the item's tower; the first sparse one identifies the item",
    )
    output_dim: _Width = Field(default=32, description="width of the vector of a tower")
    loss: Literal["click", "in_batch", "sampled_softmax"] = Field(
        default="click",
        description="click (the label of each pair), in_batch (a clicked item among the items of "
        "the batch) or sampled_softmax (in_batch, corrected for how often an item occurs)",
    )

    sequence: str = Field(
        default="",
        description="slot of `user` (with a max_length) whose ids, the latest first, the user's "
        "tower reads in order; empty: none",
    )
    layers: _Count = Field(default=2, description="with sequence: attention layers")
    heads: _Heads = Field(default=2, description="with sequence: heads of an attention layer")
    head_dim: _Width = Field(default=32, description="with sequence: width of a head")

    @property
    def objective(self) -> str:
        return "bce"  # the model computes its loss

    @property
    def sequences(self) -> tuple[str, ...]:
        return (self.sequence,) if self.sequence else ()

    def identified_by(self, sparse: Sequence[str], tower: str) -> str:
        """The slot that identifies what a tower describes. sparse: the sparse slots of the tower,
        in order. Raises: ConfigError if there is none."""
        if not sparse:
            raise ConfigError(
                f"model.{tower}: expected a sparse slot, whose first id identifies the {tower}, "
                "found only dense slots: add its id"
            )
        return sparse[0]

    @property
    def served(self) -> ModelConfig:
        # The correction needs counts of rows, which an export would have to hold.
        corrected = self.loss == "sampled_softmax"
        return self.model_copy(update={"loss": "in_batch"}) if corrected else self

    @model_validator(mode="after")
    def _towers_are_apart(self) -> DssmConfig:
        both = sorted({*self.user} & {*self.item})
        if both:
            raise ValueError(
                f"user and item both have {', '.join(both)}; use each slot in one tower"
            )
        if self.sequence and self.sequence not in self.user:
            raise ValueError(
                f"sequence: expected a slot of user, {', '.join(self.user)}, found "
                f"{self.sequence!r}: name it in user, too"
            )
        if self.has_click_priors:
            raise ValueError(
                "click_prior adds features of all slots, but a tower reads only its own slots: "
                "leave it out"
            )
        return self


class CustomConfig(NetworkConfig):
    """A layer that the user has written."""

    type: Literal[ModelType.CUSTOM] = Field(description=_TYPE)
    layer: Text = Field(
        description="the layer's class, path/to/file.py:Class or module:Class; needs "
        "security.allow_commands"
    )
    settings: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="settings of your own, which the layer reads from `config.settings`",
    )
    in_order: ListOf[Text] = Field(
        default=(),
        description="sparse slots that the layer reads id by id, each with a max_length",
    )

    @property
    def sequences(self) -> tuple[str, ...]:
        return self.in_order


AnyModelConfig = Annotated[
    LrConfig
    | FmConfig
    | RankAttentionConfig
    | DnnConfig
    | WideDeepConfig
    | DeepFmConfig
    | DcnConfig
    | DcnV2Config
    | XDeepFmConfig
    | AutoIntConfig
    | FibinetConfig
    | DlrmConfig
    | GateNetConfig
    | MaskNetConfig
    | FinalMlpConfig
    | SharedBottomConfig
    | MmoeConfig
    | PleConfig
    | EsmmConfig
    | AitmConfig
    | DinConfig
    | DienConfig
    | BstConfig
    | HstuConfig
    | DssmConfig
    | CustomConfig,
    Field(discriminator="type"),
]
