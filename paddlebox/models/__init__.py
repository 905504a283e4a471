"""The model zoo.

A model is a Paddle layer that maps the tensors of a batch to logits (B, T), for B instances and T
tasks. Each file defines one model. `paddlebox.config.models` has the class with its keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paddlebox import ops
from paddlebox.config import ModelConfig, ModelType
from paddlebox.config.fields import Fields
from paddlebox.errors import ConfigError
from paddlebox.models.aitm import AITM
from paddlebox.models.autoint import AutoInt
from paddlebox.models.bst import BST
from paddlebox.models.click_prior import ClickPrior
from paddlebox.models.custom import custom_layer
from paddlebox.models.dcn import DCN
from paddlebox.models.dcn_v2 import DCNv2
from paddlebox.models.deepfm import DeepFM
from paddlebox.models.dien import DIEN
from paddlebox.models.din import DIN
from paddlebox.models.dlrm import DLRM
from paddlebox.models.dnn import DNN
from paddlebox.models.dssm import DSSM
from paddlebox.models.encoded_dense import EncodedDense, columns_of
from paddlebox.models.esmm import ESMM
from paddlebox.models.fibinet import FiBiNET
from paddlebox.models.finalmlp import FinalMLP
from paddlebox.models.fm import FM
from paddlebox.models.gatenet import GateNet
from paddlebox.models.hstu import hstu
from paddlebox.models.inputs import Inputs
from paddlebox.models.lr import LogisticRegression
from paddlebox.models.masknet import MaskNet
from paddlebox.models.mmoe import MMoE
from paddlebox.models.ple import PLE
from paddlebox.models.rank_attention import RankAttention
from paddlebox.models.shared_bottom import SharedBottom
from paddlebox.models.wide_deep import WideDeep
from paddlebox.models.xdeepfm import XDeepFM
from paddlebox.nn import TableSlots

paddle = ops.paddle

_MODELS: dict[ModelType, Any] = {
    ModelType.LR: LogisticRegression,
    ModelType.FM: FM,
    ModelType.DNN: DNN,
    ModelType.WIDE_DEEP: WideDeep,
    ModelType.DEEPFM: DeepFM,
    ModelType.DCN: DCN,
    ModelType.DCN_V2: DCNv2,
    ModelType.XDEEPFM: XDeepFM,
    ModelType.AUTOINT: AutoInt,
    ModelType.FIBINET: FiBiNET,
    ModelType.DLRM: DLRM,
    ModelType.GATENET: GateNet,
    ModelType.MASKNET: MaskNet,
    ModelType.FINALMLP: FinalMLP,
    ModelType.SHARED_BOTTOM: SharedBottom,
    ModelType.MMOE: MMoE,
    ModelType.PLE: PLE,
    ModelType.ESMM: ESMM,
    ModelType.AITM: AITM,
    ModelType.DIN: DIN,
    ModelType.DIEN: DIEN,
    ModelType.BST: BST,
    ModelType.HSTU: hstu,
    ModelType.DSSM: DSSM,
    ModelType.RANK_ATTENTION: RankAttention,
    ModelType.CUSTOM: custom_layer,
}
_OF_SEVERAL_TASKS = (
    *(ModelType.SHARED_BOTTOM, ModelType.MMOE, ModelType.PLE, ModelType.ESMM, ModelType.AITM),
    ModelType.CUSTOM,
)
# They take the vectors of each table in their own width.
_OF_SEVERAL_WIDTHS = (ModelType.DNN, ModelType.CUSTOM)
_OF_ONE_TABLE = (
    *(ModelType.DIN, ModelType.DIEN, ModelType.BST, ModelType.HSTU, ModelType.DSSM),
    ModelType.RANK_ATTENTION,
)


class _OfJoinedTables(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """Gives a model that uses `JoinedTables` the inputs of the further tables."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        if hasattr(model, "loss"):
            self.loss = model.loss

    def forward(
        self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any, *more: Any
    ) -> Any:
        """more: ids, offsets and plan of each further table. Result as of the model."""
        of_all = ((ids, *more[0::3]), (offsets, *more[1::3]), show_click, (plan, *more[2::3]))
        return self.model(*of_all, dense)


def create_model(
    config: ModelConfig,
    *,
    slots: int,
    embedx_dim: int,
    dense_width: int,
    table: str = "",
    more: Sequence[TableSlots] = (),
    tasks: Sequence[str] = ("click",),
    fields: Fields | None = None,
    click_slots: int = 0,
    counts: int = 0,
) -> Any:
    """Create the layer for `config.type`.

    Args:
        slots: S, the number of sparse slots.
        embedx_dim: D.
        dense_width: W, the number of floats of all dense slots.
        table: the name of the table that the sparse part reads.
        more: the other tables, if any, with their slots.
        tasks: (T) the names of the labels.
        fields: the position of each slot; None if there are several tables.
        click_slots: K, the number of slots with click priors (click_prior.py).
        counts: the number of counts of a row besides show and click.

    Raises: ConfigError if there are several tables and the model reads only one, if there are
        several labels and the model has only one output, or if `dense_scale` or `dense_ranges`
        does not have W entries.
    """
    if len(tasks) > 1 and config.type not in _OF_SEVERAL_TASKS:
        able = ", ".join(model.value for model in _OF_SEVERAL_TASKS)
        raise ConfigError(
            f"slots.yaml has {len(tasks)} labels, {', '.join(tasks)}, but model.type "
            f"{config.type.value} has one output: keep only one label, or use {able}"
        )
    if more and (config.type in _OF_ONE_TABLE or config.sequences):
        raise ConfigError(
            f"model.type {config.type.value} reads the slots of one table: remove extra_tables, or "
            "use a model without sequences, such as deepfm or dnn"
        )
    joins = bool(more) and config.type not in _OF_SEVERAL_WIDTHS
    if joins:
        slots += sum(of.slots for of in more)
    if fields is not None and config.sequences:
        slots = fields.cell_count
    _check_encoding(config, dense_width)
    columns = columns_of(config.edges, dense_width)
    priors = 2 * click_slots  # a log-odds and a confidence for each slot
    if fields is not None:
        fields = fields.encoded(columns, priors)
    width = sum(columns) + priors
    inputs = Inputs(slots, embedx_dim, width, table, tuple(more), tuple(tasks), fields, counts)
    model = _MODELS[config.type](config, inputs)
    if joins:
        model = _OfJoinedTables(model)
    if config.dense_scales or config.edges:
        scales = config.dense_scales or ((0.0, 1.0),) * dense_width
        model = EncodedDense(model, scales, config.edges)
    return ClickPrior(model, dense_width, click_slots) if priors else model


def _check_encoding(config: ModelConfig, dense_width: int) -> None:
    for key, found in (("dense_scale", config.dense_scales), ("dense_ranges", config.edges)):
        if found and len(found) != dense_width:
            raise ConfigError(
                f"model.{key} has {len(found)} entries, but slots.yaml has {dense_width} dense "
                "features: set it to auto in a new run"
            )


__all__ = ["Inputs", "create_model"]
