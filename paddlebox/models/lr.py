"""Logistic regression, as in McMahan et al. (KDD 2013) for ads: one weight for each feature.

    logit = sum_s w_s + linear(dense)

w_s is embed_w of slot s, summed over its ids. The model does not read embedx, so embedx_dim 1 is
enough. With the rule ftrl for embed it is the model of that paper.
"""

from __future__ import annotations

from typing import Any

from paddlebox import ops
from paddlebox.config.models import LrConfig
from paddlebox.models.inputs import Inputs
from paddlebox.nn import LinearPart, weights_of

paddle = ops.paddle


class LogisticRegression(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    def __init__(self, config: LrConfig, inputs: Inputs) -> None:
        super().__init__()
        self.sparse = inputs.pooled_slots(config.use_cvm)

        self.linear = LinearPart(inputs.dense_width, bias=True)

    def forward(self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any) -> Any:
        """Sparse inputs as for `PooledSlots`; dense: (B, W). Returns logits (B, 1)."""
        pooled = self.sparse(ids, offsets, show_click, plan)
        return self.linear(weights_of(pooled, self.sparse), dense)
