"""Layers over the operators."""

from paddlebox.nn.data_norm import DataNorm
from paddlebox.nn.log_loss import log_loss
from paddlebox.nn.mlp import MLP
from paddlebox.nn.pooled_slots import PooledSlots, PooledTables, TableSlots

__all__ = ["MLP", "DataNorm", "PooledSlots", "PooledTables", "TableSlots", "log_loss"]
