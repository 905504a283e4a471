"""The model zoo. A model is a Paddle layer from the batch's tensors to logits (B, 1)."""

from __future__ import annotations

from typing import Any

from paddlebox.config import ModelConfig, ModelType
from paddlebox.models.deepfm import DeepFM
from paddlebox.models.dnn import DNN

_MODELS = {ModelType.DNN: DNN, ModelType.DEEPFM: DeepFM}


def create_model(
    config: ModelConfig, *, slots: int, embedx_dim: int, dense_width: int, table: str = ""
) -> Any:
    """The layer that config names.

    Args:
        slots: S, sparse slots. embedx_dim: D. dense_width: W, floats of all dense slots.
        table: name of the table that the sparse part reads.
    """
    return _MODELS[config.type](
        config, slots=slots, embedx_dim=embedx_dim, dense_width=dense_width, table=table
    )


__all__ = ["DNN", "DeepFM", "create_model"]
