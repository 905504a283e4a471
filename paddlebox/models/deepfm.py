"""DeepFM (Guo et al., IJCAI 2017): a factorisation machine and an MLP over the same embeddings.

    logit = sum_s w_s + linear(dense) + 1/2 sum_d ((sum_s v_sd)^2 - sum_s v_sd^2) + MLP([pooled,
    dense])

w_s and v_s are embed_w and embedx of slot s, summed over its ids. Only the linear part and the MLP
read the dense features.
"""

from __future__ import annotations

from typing import Any

from paddlebox import ops
from paddlebox.config.models import DeepFmConfig
from paddlebox.models.inputs import Inputs
from paddlebox.nn import MLP, LinearPart, flat, interactions, sum_over, vectors_of, weights_of

paddle = ops.paddle


class DeepFM(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    def __init__(self, config: DeepFmConfig, inputs: Inputs) -> None:
        super().__init__()
        self.sparse = inputs.pooled_slots(config.use_cvm)
        self.mlp = MLP(inputs.width(self.sparse.width), config.hidden, config.dropout)
        self.linear = LinearPart(inputs.dense_width)

    def forward(self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any) -> Any:
        """Sparse inputs as for `PooledSlots`; dense: (B, W). Returns logits (B, 1)."""
        pooled = self.sparse(ids, offsets, show_click, plan)
        first = self.linear(weights_of(pooled, self.sparse), dense)
        pairs = interactions(vectors_of(pooled, self.sparse))
        second = sum_over(pairs, 1, keepdim=True)
        return first + second + self.mlp(flat(pooled, dense))
