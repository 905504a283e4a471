"""DNN: one MLP over the pooled slots and the dense features, as in PaddleRec's rank/dnn."""

from __future__ import annotations

from typing import Any

from paddlebox import ops
from paddlebox.config.models import DnnConfig
from paddlebox.models.inputs import Inputs
from paddlebox.nn import MLP, PooledTables, TableSlots

paddle = ops.paddle


class DNN(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    def __init__(self, config: DnnConfig, inputs: Inputs) -> None:
        super().__init__()
        tables = [
            TableSlots(inputs.slots, inputs.embedx_dim, inputs.table, inputs.counts),
            *inputs.more,
        ]
        self.sparse = PooledTables(tables, config.use_cvm)
        self.dense_width = inputs.dense_width
        self.mlp = MLP(self.sparse.width + inputs.dense_width, config.hidden, config.dropout)

    def forward(
        self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any, *more: Any
    ) -> Any:
        """Sparse inputs as for `PooledSlots`; dense: (B, W); more: ids, offsets and plan of each
        other table. Returns logits (B, 1)."""
        inputs = (ids, offsets, plan, *more)
        batches = list(zip(inputs[0::3], inputs[1::3], inputs[2::3], strict=True))
        return self.mlp(self.sparse(batches, show_click, dense if self.dense_width else None))
