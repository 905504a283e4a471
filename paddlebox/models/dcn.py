"""Deep & Cross Network (Wang et al., ADKDD 2017): explicit crosses of bounded degree beside an MLP.

    x_0 = [pooled, dense]     x_{l+1} = x_0 (w_l^T x_l) + b_l + x_l
    logit = sum_s w_s + linear(dense) + w^T [x_L, tower(x_0)]

The paper has no first-order part. It is here because w_s is the only parameter of a feature until
the embedx of the feature is created.
"""

from __future__ import annotations

from typing import Any

from paddlebox import ops
from paddlebox.config.models import DcnConfig
from paddlebox.models.inputs import Inputs
from paddlebox.nn import Linear, LinearPart, Tower, flat, weights_of

paddle = ops.paddle


class DCN(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    def __init__(self, config: DcnConfig, inputs: Inputs) -> None:
        super().__init__()
        self.sparse = inputs.pooled_slots(config.use_cvm)

        width = inputs.width(self.sparse.width)
        zero = paddle.nn.initializer.Constant(0.0)
        self.linear = LinearPart(inputs.dense_width)
        self.tower = Tower(width, config.hidden, config.dropout)
        self.cross = paddle.nn.LayerList(
            [Linear(width, 1, bias_attr=False) for _ in range(config.layers)]
        )
        self.biases = self.create_parameter(
            [config.layers, width], dtype="float32", default_initializer=zero
        )
        self.output = Linear(width + self.tower.width, 1)

    def forward(self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any) -> Any:
        """Sparse inputs as for `PooledSlots`; dense: (B, W). Returns logits (B, 1)."""
        pooled = self.sparse(ids, offsets, show_click, plan)
        x = x0 = flat(pooled, dense)
        for number, layer in enumerate(self.cross):
            bias = paddle.slice(self.biases, [0], [number], [number + 1])  # (1, n)
            x = x0 * layer(x) + bias + x
        first = self.linear(weights_of(pooled, self.sparse), dense)
        return first + self.output(paddle.concat([x, self.tower(x0)], axis=1))
