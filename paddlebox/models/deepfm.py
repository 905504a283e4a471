"""DeepFM (Guo et al., IJCAI 2017): a factorisation machine and an MLP over the same embeddings.

    logit = sum_s w_s + linear(dense) + 1/2 sum_d ((sum_s v_sd)^2 - sum_s v_sd^2) + MLP([pooled,
    dense])

w_s and v_s are embed_w and embedx of slot s, summed over its ids. A dense feature enters the linear
part and the MLP.
"""

from __future__ import annotations

from typing import Any

from paddlebox import ops
from paddlebox.config import ModelConfig
from paddlebox.nn import MLP, PooledSlots

paddle = ops.paddle


class DeepFM(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    def __init__(
        self, config: ModelConfig, *, slots: int, embedx_dim: int, dense_width: int, table: str = ""
    ) -> None:
        super().__init__()
        self.sparse = PooledSlots(slots, embedx_dim, config.use_cvm, table)
        self.slots, self.embedx_dim, self.dense_width = slots, embedx_dim, dense_width
        self.mlp = MLP(slots * self.sparse.width + dense_width, config.hidden, config.dropout)
        if dense_width:
            self.dense_linear = paddle.nn.Linear(dense_width, 1)

    def forward(self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any) -> Any:
        """Sparse inputs as `PooledSlots`; dense: (B, W). Returns logits (B, 1)."""
        pooled = self.sparse(ids, offsets, show_click, plan)
        at = self.sparse.width - self.embedx_dim - 1  # column of embed_w
        weights = paddle.slice(pooled, [2], [at], [at + 1])  # (B, S, 1)
        vectors = paddle.slice(pooled, [2], [at + 1], [self.sparse.width])  # (B, S, D)
        # mean * count and not sum: paddle.sum does not build in old-IR programs.
        first = paddle.mean(weights, axis=1) * float(self.slots)
        summed = paddle.mean(vectors, axis=1) * float(self.slots)
        of_squares = paddle.mean(paddle.square(vectors), axis=1) * float(self.slots)
        pairs = paddle.square(summed) - of_squares  # (B, D)
        second = paddle.mean(pairs, axis=1, keepdim=True) * (0.5 * self.embedx_dim)
        inputs = paddle.reshape(pooled, [-1, self.slots * self.sparse.width])
        if self.dense_width:
            first = first + self.dense_linear(dense)
            inputs = paddle.concat([inputs, dense], axis=1)
        return first + second + self.mlp(inputs)
