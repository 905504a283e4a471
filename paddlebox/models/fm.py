"""Factorisation machine (Rendle, ICDM 2010): a weight and a vector for each feature.

    logit = sum_s w_s + linear(dense) + 1/2 sum_d ((sum_s v_sd)^2 - sum_s v_sd^2)

w_s and v_s are embed_w and embedx of slot s, summed over its ids.
"""

from __future__ import annotations

from typing import Any

from paddlebox import ops
from paddlebox.config.models import FmConfig
from paddlebox.models.inputs import Inputs
from paddlebox.nn import LinearPart, interactions, sum_over, vectors_of, weights_of

paddle = ops.paddle


class FM(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    def __init__(self, config: FmConfig, inputs: Inputs) -> None:
        super().__init__()
        self.sparse = inputs.pooled_slots(config.use_cvm)

        self.linear = LinearPart(inputs.dense_width, bias=True)

    def forward(self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any) -> Any:
        """Sparse inputs as for `PooledSlots`; dense: (B, W). Returns logits (B, 1)."""
        pooled = self.sparse(ids, offsets, show_click, plan)
        pairs = interactions(vectors_of(pooled, self.sparse))
        first = self.linear(weights_of(pooled, self.sparse), dense)
        return first + sum_over(pairs, 1, keepdim=True)
