"""Layers over the operators."""

from paddlebox.nn.data_norm import DataNorm
from paddlebox.nn.fields import (
    LinearPart,
    flat,
    interactions,
    sum_over,
    vectors_of,
    weights_of,
)
from paddlebox.nn.mlp import MLP
from paddlebox.nn.pooled_slots import PooledSlots, PooledTables, TableSlots

__all__ = [
    "MLP",
    "DataNorm",
    "LinearPart",
    "PooledSlots",
    "PooledTables",
    "TableSlots",
    "flat",
    "interactions",
    "sum_over",
    "vectors_of",
    "weights_of",
]
