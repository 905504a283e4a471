"""Keys of `model` for models with one task. Each model has a section, which `type` chooses.

A key that several models have is defined once, in a base class of their sections.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from paddlebox.config.section import Choice, ListOf, Section, Text, list_to_tuple

_TYPE = "a model of the zoo: docs/models.md"
Width = Annotated[int, Field(ge=1, le=1 << 20)]
_Deviation = Annotated[float, Field(gt=0)]
DenseScale = Annotated[tuple[float, _Deviation], BeforeValidator(list_to_tuple)]


# Keys that several models have, each with a default of its own.


def layers(default: int) -> Any:
    return Field(
        default=default,
        ge=1,
        le=64,
        description="number of layers of the part that combines the features: cross, attention or "
        "transformer layers, levels of experts (ple), parallel blocks (masknet)",
    )


def heads(default: int) -> Any:
    return Field(
        default=default, ge=1, le=1 << 10, description="heads of the attention or of the fusion"
    )


def head_dim(default: int) -> Any:
    return Field(default=default, description="width of a head")


def output_dim(default: int) -> Any:
    return Field(
        default=default,
        description="width of the vector that comes from the page's other instances "
        "(rank_attention), from a block (masknet), from the previous task (aitm), from a tower "
        "(dssm)",
    )


def experts(default: int) -> Any:
    return Field(
        default=default,
        ge=1,
        le=64,
        description="number of experts, whose outputs gates mix: networks with `hidden` layers "
        "that all tasks share, at each level (mmoe, ple); low-rank matrices of a cross layer "
        "(dcn_v2)",
    )


def loss(default: str) -> Any:
    return Field(
        default=default,
        description="bce (cross entropy); pairwise, listwise or jrc inside the groups of "
        "loss_group; or a function of your own, path/to/file.py:function or module:function, "
        "which needs security.allow_commands (docs/models.md). dssm: click (the label of each "
        "pair) or in_batch (a clicked item among the items of the batch)",
    )


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


class Bilinear(StrEnum):
    ALL = "all"
    EACH = "each"


class Gate(StrEnum):
    VECTOR = "vector"
    BIT = "bit"


SEARCH_ID = "search_id"  # as model.loss_group: page views
IN_GROUPS = ("pairwise", "listwise", "jrc")  # losses that compare the instances of a group


class ModelConfig(Section):
    """Keys of all models."""

    type: Choice[ModelType] = Field(description=_TYPE)
    slots: ListOf[Text] = Field(
        default=(),
        description="sparse slots that the model reads; empty: all",
    )
    dense_scale: Literal["auto", "none"] | ListOf[DenseScale] = Field(
        default="auto",
        description="[mean, deviation] of each dense feature, which the model sees as (x - mean) "
        "/ deviation; auto: measured on the first rows when a run begins; none: no scaling",
    )

    click_prior: bool = Field(
        default=False,
        description="feed the network each slot's smoothed log-odds of a click, and their "
        "confidence",
    )

    loss: Text = loss("bce")
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
    def computes_loss(self) -> bool:
        """Whether the model of the zoo has a loss of its own."""
        return False

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

    @property
    def dense_scales(self) -> tuple[tuple[float, float], ...]:
        """(W) mean and deviation of each dense feature.

        Empty if features are not scaled, or `auto` has not been replaced yet.
        """
        return () if isinstance(self.dense_scale, str) else self.dense_scale

    @property
    def delayed(self) -> str:
        """The label that may come late; "": none."""
        return ""

    @property
    def page_views(self) -> bool:
        """Whether the model reads the other instances of a page view. Only join provides them."""
        return False

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
    """Models without a network: they read only the weights and vectors of rows."""

    @property
    def use_cvm(self) -> bool:
        """Always false: only a network could read shows and clicks."""
        return False


class NetworkConfig(ModelConfig):
    """Keys of models with a network over the slots."""

    hidden: ListOf[Width] = Field(
        default=(400, 400, 400), description="widths of the hidden layers"
    )
    use_cvm: bool = Field(
        default=False, description="feed log(show) and log(ctr) of each slot to the network"
    )
    dropout: float = Field(default=0.0, ge=0, lt=1, description="dropout rate, in training only")


class LrConfig(WithoutNetwork):
    type: Literal[ModelType.LR] = Field(description=_TYPE)


class FmConfig(WithoutNetwork):
    type: Literal[ModelType.FM] = Field(description=_TYPE)


class DnnConfig(NetworkConfig):
    type: Literal[ModelType.DNN] = Field(description=_TYPE)


class RankAttentionConfig(NetworkConfig):
    type: Literal[ModelType.RANK_ATTENTION] = Field(description=_TYPE)
    output_dim: Width = output_dim(32)
    enable_input_bp: bool = Field(
        default=False, description="also train the rows of the other instances of the page"
    )

    @property
    def page_views(self) -> bool:
        return True


class WideDeepConfig(NetworkConfig):
    type: Literal[ModelType.WIDE_DEEP] = Field(description=_TYPE)


class DeepFmConfig(NetworkConfig):
    type: Literal[ModelType.DEEPFM] = Field(description=_TYPE)


class CrossConfig(NetworkConfig):
    layers: int = layers(3)


class DcnConfig(CrossConfig):
    type: Literal[ModelType.DCN] = Field(description=_TYPE)


class DcnV2Config(CrossConfig):
    type: Literal[ModelType.DCN_V2] = Field(description=_TYPE)
    low_rank: int = Field(
        default=64, ge=0, le=1 << 16, description="rank of a cross layer's matrix; 0: full rank"
    )
    experts: int = experts(1)

    @model_validator(mode="after")
    def _experts_are_of_low_rank(self) -> DcnV2Config:
        if self.experts > 1 and not self.low_rank:
            raise ValueError(f"experts is {self.experts}, which needs a low_rank above 0")
        return self


class XDeepFmConfig(NetworkConfig):
    type: Literal[ModelType.XDEEPFM] = Field(description=_TYPE)
    cin: ListOf[Width] = Field(
        default=(64, 64),
        min_length=1,
        description="feature maps of each layer of the compressed interaction network",
    )


class AutoIntConfig(NetworkConfig):
    type: Literal[ModelType.AUTOINT] = Field(description=_TYPE)
    layers: int = layers(2)
    heads: int = heads(2)
    head_dim: Width = head_dim(16)


class FibinetConfig(NetworkConfig):
    type: Literal[ModelType.FIBINET] = Field(description=_TYPE)
    bilinear: Choice[Bilinear] = Field(
        default=Bilinear.ALL, description="one matrix for all slots, or one for each slot"
    )


class DlrmConfig(NetworkConfig):
    type: Literal[ModelType.DLRM] = Field(description=_TYPE)
    bottom: ListOf[Width] = Field(
        default=(64,),
        description="widths of the layers over the dense features; one of width embedx_dim follows",
    )


class GateNetConfig(NetworkConfig):
    type: Literal[ModelType.GATENET] = Field(description=_TYPE)
    gate: Choice[Gate] = Field(
        default=Gate.VECTOR,
        description="one gate for a slot's vector, or one for each element of it",
    )


class MaskNetConfig(NetworkConfig):
    type: Literal[ModelType.MASKNET] = Field(description=_TYPE)
    layers: int = layers(3)
    output_dim: Width = output_dim(64)


class FinalMlpConfig(NetworkConfig):
    type: Literal[ModelType.FINALMLP] = Field(description=_TYPE)
    heads: int = heads(4)
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


SingleTaskConfig = (
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
)
