"""Layers built from the operators of `paddlebox.ops`."""

from paddlebox.nn.data_norm import DataNorm
from paddlebox.nn.fields import (
    LinearPart,
    beside_vectors,
    flat,
    interactions,
    vectors_of,
    weights_of,
)
from paddlebox.nn.functional import log_loss, pairs_of, sum_over, take
from paddlebox.nn.linear import Linear, use_products
from paddlebox.nn.mlp import MLP, Tower
from paddlebox.nn.pooled_slots import JoinedTables, PooledSlots, PooledTables, TableSlots

__all__ = [
    "MLP",
    "DataNorm",
    "JoinedTables",
    "Linear",
    "LinearPart",
    "PooledSlots",
    "PooledTables",
    "TableSlots",
    "Tower",
    "beside_vectors",
    "flat",
    "interactions",
    "log_loss",
    "pairs_of",
    "sum_over",
    "take",
    "use_products",
    "vectors_of",
    "weights_of",
]
