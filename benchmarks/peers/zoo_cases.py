"""The cases of conformance.py: models with settings, their peers, and how they differ by design."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FIRST_ORDER = "adds the first-order part"
NO_BATCH_NORM = "the peer's towers have batch normalisation"


@dataclass(frozen=True)
class Case:
    """A model with settings, and what the table says about its peer."""

    model: str
    settings: Mapping[str, Any]
    peer: str
    differs: str = ""
    full: bool = False  # all histories have all places
    only_float32: bool = False  # its operators have no float64
    dim: int = 4  # embedx_dim

    @property
    def name(self) -> str:
        return f"{self.model} {self.said}".strip()

    @property
    def said(self) -> str:
        """What distinguishes the case from others of the model."""
        said = [f"{key} {self.settings[key]}".lower() for key in SAID if key in self.settings]
        if self.model == "hstu":
            said.append("with a history" if "history" in self.settings else "of users")
        return ", ".join(said)


# Settings that distinguish the cases of a model.
SAID = (
    *("low_rank", "experts", "bilinear", "gate", "gate_hidden", "activation", "softmax", "loss"),
    "auxiliary",
)
_HISTORY = {"history": {"history": "item"}, "use_cvm": False}
_TASKS = {"tower": [5]}
_HSTU = {"width": 6, "heads": 2, "head_dim": 3, "layers": 2, "use_cvm": False}
_TOWERS = {"user": ["user", "old", "dense"], "item": ["item"], "output_dim": 4}
_MIXTURE = "FuxiCTR CrossNetMix, MLP_Block; torch-rechub LR"
_NO_TANH = f"{FIRST_ORDER}; the peer has a matrix and two tanh between V and U"
_DICE = "the peer's Dice takes its means over empty places too: full histories"
_GRU = "torch-rechub DIEN: GRU of PyTorch, AUGRU, auxiliary loss"
_NO_PEER = "in none of the packages"

CASES = (
    Case("lr", {}, "torch-rechub LR"),
    Case("fm", {}, "torch-rechub LR, FM"),
    Case("dnn", {}, "FuxiCTR MLP_Block"),
    Case("wide_deep", {}, "torch-rechub WideDeep", NO_BATCH_NORM),
    Case(
        "deepfm",
        {},
        "torch-rechub DeepFM",
        f"{NO_BATCH_NORM}, its linear part reads vectors; {FIRST_ORDER}",
    ),
    Case("dcn", {"layers": 2}, "torch-rechub DCN", f"{NO_BATCH_NORM}; {FIRST_ORDER}"),
    Case(
        "dcn_v2",
        {"low_rank": 0, "layers": 2},
        "FuxiCTR CrossNetV2, MLP_Block; DeepCTR CrossNet; torch-rechub LR",
        f"{FIRST_ORDER}; no stacked structure",
    ),
    Case("dcn_v2", {"low_rank": 3, "layers": 2}, _MIXTURE, _NO_TANH),
    Case(
        "dcn_v2",
        {"low_rank": 3, "experts": 3, "layers": 1},
        _MIXTURE,
        f"{_NO_TANH}; its layers share a gate: one layer",
    ),
    Case(
        "xdeepfm",
        {"cin": [3, 2]},
        "DeepCTR CIN; FuxiCTR MLP_Block; torch-rechub LR",
        f"{FIRST_ORDER}; no bias and no activation in the CIN",
    ),
    Case(
        "autoint",
        {"heads": 2, "head_dim": 2, "layers": 2},
        "DeepCTR InteractingLayer; FuxiCTR MLP_Block; torch-rechub LR",
        FIRST_ORDER,
    ),
    *(
        Case(
            "fibinet",
            {"bilinear": bilinear},
            "DeepCTR SENETLayer, BilinearInteraction; FuxiCTR MLP_Block",
            f"{FIRST_ORDER}; matrices of their own for the weighed vectors",
        )
        for bilinear in ("all", "each")
    ),
    Case(
        "dlrm",
        {"bottom": [5]},
        "FuxiCTR InnerProductInteraction, MLP_Block",
        f"{FIRST_ORDER}; the network also reads the logarithms of the counts",
    ),
    *(
        Case("gatenet", {"gate": gate}, "the paper's formula in PyTorch", _NO_PEER)
        for gate in ("vector", "bit")
    ),
    Case(
        "masknet",
        {"layers": 2, "output_dim": 3},
        "the paper's formula in PyTorch",
        f"{_NO_PEER}; {FIRST_ORDER}; one LayerNorm for all slots, dense features not normalised "
        "(FuxiCTR's repository has one for each field); no serial structure",
    ),
    *(
        Case(
            "finalmlp",
            {"heads": heads, "gate_hidden": hidden},
            "FuxiCTR InteractionAggregation, MLP_Block",
            f"{FIRST_ORDER}; one bias in place of two",
        )
        for heads, hidden in ((2, 3), (1, 0))
    ),
    Case("shared_bottom", _TASKS, "torch-rechub SharedBottom", NO_BATCH_NORM),
    Case(
        "mmoe", {**_TASKS, "experts": 3}, "torch-rechub MMOE", f"{NO_BATCH_NORM}, its gates a bias"
    ),
    Case(
        "ple",
        {**_TASKS, "experts": 3, "task_experts": 2, "layers": 2},
        "torch-rechub PLE",
        f"{NO_BATCH_NORM}, its gates a bias",
    ),
    Case("esmm", {}, "torch-rechub ESMM", NO_BATCH_NORM),
    Case(
        "aitm",
        {**_TASKS, "output_dim": 4},
        "torch-rechub AITM",
        f"{NO_BATCH_NORM}; the additional loss is the paper's, which the peer lacks",
    ),
    *(
        Case(
            "din",
            {**_HISTORY, "attention_hidden": [5], "activation": activation, "softmax": softmax},
            "FuxiCTR DIN_Attention, MLP_Block",
            _DICE if activation == "dice" else "",
            full=activation == "dice",
        )
        for activation, softmax in (("dice", False), ("sigmoid", True), ("relu", False))
    ),
    Case(
        "dien",
        {**_HISTORY, "auxiliary": 0.0},
        _GRU,
        f"{NO_BATCH_NORM} and Dice",
    ),
    Case(
        "dien",
        {**_HISTORY, "auxiliary": 0.5},
        _GRU,
        f"{NO_BATCH_NORM} and Dice; its loss is the mean over existing places, ours over all: "
        "full histories",
        full=True,
    ),
    Case(
        "bst",
        {**_HISTORY, "heads": 2, "head_dim": 3, "layers": 2},
        "PyTorch TransformerEncoderLayer; FuxiCTR MLP_Block",
        "adds learned positions; the paper joins times to the vectors",
        dim=5,  # the peer's heads have the width of a place, D + 1, together
    ),
    Case(
        "hstu",
        {**_HISTORY, **_HSTU},
        "torch-rechub HSTUBlock; FuxiCTR MLP_Block",
        "no scale by the width of a head; keys start as queries; biases of own buckets",
    ),
    Case(
        "hstu",
        {**_HSTU, "max_length": 6, "time_buckets": 9},
        "torch-rechub HSTUBlock, for each target; FuxiCTR MLP_Block",
        "as above; jagged_attention has float32 only",
        only_float32=True,
    ),
    *(
        Case(
            "dssm",
            {**_TOWERS, "loss": loss, "use_cvm": False},
            f"torch-rechub DSSM{', InBatchNCELoss' if loss == 'in_batch' else ''}",
            f"{NO_BATCH_NORM} and a last ReLU; 10 times the cosine; adds 1e-12 to squared lengths",
        )
        for loss in ("click", "in_batch")
    ),
    Case(
        "rank_attention",
        {"output_dim": 4, "enable_input_bp": True},
        "the operator's formula in PyTorch",
        f"{_NO_PEER}; the operator has float32 only",
        only_float32=True,
    ),
)
