"""DNN: the pooled slots and the dense features through one MLP, as PaddleRec's rank/dnn."""

from __future__ import annotations

from typing import Any

from paddlebox import ops
from paddlebox.config import ModelConfig
from paddlebox.nn import MLP, PooledSlots

paddle = ops.paddle


class DNN(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    def __init__(
        self, config: ModelConfig, *, slots: int, embedx_dim: int, dense_width: int, table: str = ""
    ) -> None:
        super().__init__()
        self.sparse = PooledSlots(slots, embedx_dim, config.use_cvm, table)
        self.dense_width = dense_width
        self.mlp = MLP(slots * self.sparse.width + dense_width, config.hidden, config.dropout)

    def forward(self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any) -> Any:
        """Sparse inputs as `PooledSlots`; dense: (B, W). Returns logits (B, 1)."""
        if self.dense_width:
            return self.mlp(self.sparse(ids, offsets, show_click, plan, dense))
        pooled = self.sparse(ids, offsets, show_click, plan)
        return self.mlp(paddle.reshape(pooled, [-1, self.sparse.slots * self.sparse.width]))
