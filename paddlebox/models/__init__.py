"""The model zoo. A model is a Paddle layer from the batch's tensors to logits (B, 1).

One file a model, which defines its layer and nothing else; what each may be told is a section of
`paddlebox.config.models`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paddlebox.config import ModelConfig, ModelType
from paddlebox.errors import ConfigError
from paddlebox.models.deepfm import DeepFM
from paddlebox.models.dnn import DNN
from paddlebox.models.inputs import Inputs
from paddlebox.nn import TableSlots

_MODELS: dict[ModelType, Any] = {
    ModelType.DNN: DNN,
    ModelType.DEEPFM: DeepFM,
}
_OF_SEVERAL_TABLES = (ModelType.DNN,)


def create_model(
    config: ModelConfig,
    *,
    slots: int,
    embedx_dim: int,
    dense_width: int,
    table: str = "",
    more: Sequence[TableSlots] = (),
) -> Any:
    """The layer that config names.

    Args:
        slots: S, sparse slots. embedx_dim: D. dense_width: W, floats of all dense slots.
        table: name of the table that the sparse part reads. more: further tables with theirs.

    Raises: ConfigError for several tables and a model of one width.
    """
    if more and config.type not in _OF_SEVERAL_TABLES:
        able = ", ".join(model.value for model in _OF_SEVERAL_TABLES)
        raise ConfigError(
            f"model.type {config.type.value} multiplies the vectors of all slots with each other, "
            f"so they need one width: leave extra_tables out, or use {able}"
        )
    inputs = Inputs(slots, embedx_dim, dense_width, table, tuple(more))
    return _MODELS[config.type](config, inputs)


__all__ = ["DNN", "DeepFM", "Inputs", "create_model"]
