"""xDeepFM (Lian et al., KDD 2018): a compressed interaction network (CIN) beside an MLP.

    X^0 = V (S, D)     X^k_h = sum_ij W^k_hij X^{k-1}_i * X^0_j     (*: elementwise, over D)
    logit = sum_s w_s + linear(dense) + w^T [sum_d X^1, ..., sum_d X^K] + MLP([pooled, dense])

V holds the vectors of the slots, summed over their ids. The CIN has no activation, because the
paper measured the best results without one.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from paddlebox import ops
from paddlebox.config.models import XDeepFmConfig
from paddlebox.models.inputs import Inputs
from paddlebox.nn import MLP, Linear, LinearPart, flat, sum_over, vectors_of, weights_of

paddle = ops.paddle


class XDeepFM(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    def __init__(self, config: XDeepFmConfig, inputs: Inputs) -> None:
        super().__init__()
        self.sparse = inputs.pooled_slots(config.use_cvm)

        self.linear = LinearPart(inputs.dense_width)
        self.mlp = MLP(inputs.width(self.sparse.width), config.hidden, config.dropout)
        maps = [inputs.slots, *config.cin]
        self.cin = paddle.nn.LayerList(
            [
                Linear(before * inputs.slots, after, bias_attr=False)
                for before, after in pairwise(maps)
            ]
        )
        self.output = Linear(sum(config.cin), 1, bias_attr=False)

    def forward(self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any) -> Any:
        """Sparse inputs as for `PooledSlots`; dense: (B, W). Returns logits (B, 1)."""
        pooled = self.sparse(ids, offsets, show_click, plan)
        # (B, D, maps), so that a layer of the CIN is one matrix product over the last axis.
        x = x0 = paddle.transpose(vectors_of(pooled, self.sparse), [0, 2, 1])
        sums = []
        for layer in self.cin:
            outer = paddle.unsqueeze(x, 3) * paddle.unsqueeze(x0, 2)  # (B, D, maps, S)
            x = layer(paddle.reshape(outer, [0, 0, x.shape[2] * x0.shape[2]]))
            sums.append(sum_over(x, 1))
        first = self.linear(weights_of(pooled, self.sparse), dense)
        second = self.output(paddle.concat(sums, axis=1))
        return first + second + self.mlp(flat(pooled, dense))
