"""Layers over the operators."""

from paddlebox.nn.mlp import MLP
from paddlebox.nn.pooled_slots import PooledSlots

__all__ = ["MLP", "PooledSlots"]
