"""Wide & Deep (Cheng et al., DLRS 2016): a logistic regression and an MLP, trained together.

    logit = sum_s w_s + linear(dense) + MLP([pooled, dense])

w_s is embed_w of slot s, summed over its ids. For the wide part of the paper, define slots that are
crosses of other slots in slots.yaml.
"""

from __future__ import annotations

from typing import Any

from paddlebox import ops
from paddlebox.config.models import WideDeepConfig
from paddlebox.models.inputs import Inputs
from paddlebox.nn import MLP, LinearPart, flat, weights_of

paddle = ops.paddle


class WideDeep(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    def __init__(self, config: WideDeepConfig, inputs: Inputs) -> None:
        super().__init__()
        self.sparse = inputs.pooled_slots(config.use_cvm)

        self.linear = LinearPart(inputs.dense_width)
        self.mlp = MLP(inputs.width(self.sparse.width), config.hidden, config.dropout)

    def forward(self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any) -> Any:
        """Sparse inputs as for `PooledSlots`; dense: (B, W). Returns logits (B, 1)."""
        pooled = self.sparse(ids, offsets, show_click, plan)
        first = self.linear(weights_of(pooled, self.sparse), dense)
        return first + self.mlp(flat(pooled, dense))
