"""DCN V2 (Wang et al., WWW 2021), parallel: cross layers with a matrix each, beside an MLP.

    x_0 = [pooled, dense]     x_{l+1} = x_0 * (M_l(x_l) + b_l) + x_l     (*: elementwise)
    M_l(x) = W x;  with low_rank r: U V^T x;  with experts: sum_k softmax(G x)_k U_k V_k^T x
    logit = sum_s w_s + linear(dense) + w^T [x_L, tower(x_0)]

n is the width of x_0; U and V are (n, r). This is the parallel structure of the paper, not the
stacked one, and there is no activation between V and U. `dcn` says why there is a first-order part.
"""

from __future__ import annotations

from typing import Any

from paddlebox import ops
from paddlebox.config.models import DcnV2Config
from paddlebox.models.inputs import Inputs
from paddlebox.nn import Linear, LinearPart, Tower, flat, weights_of

paddle = ops.paddle


class _Matrix(paddle.nn.Layer):  # type: ignore[misc, name-defined]
    """sum_k gate_k U_k V_k^T x + b. One matrix holds all V_k, and another all U_k."""

    def __init__(self, width: int, rank: int, experts: int) -> None:
        super().__init__()
        self.shape = [-1, experts, rank]
        self.v = Linear(width, experts * rank, bias_attr=False)
        self.u = Linear(experts * rank, width)
        self.gate = Linear(width, experts, bias_attr=False) if experts > 1 else None

    def forward(self, x: Any) -> Any:
        """x: (B, width). Returns (B, width)."""
        low = self.v(x)
        if self.gate is not None:
            share = paddle.nn.functional.softmax(self.gate(x), axis=-1)
            low = paddle.reshape(low, self.shape) * paddle.unsqueeze(share, 2)
            low = paddle.reshape(low, [-1, self.shape[1] * self.shape[2]])
        return self.u(low)


class DCNv2(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    def __init__(self, config: DcnV2Config, inputs: Inputs) -> None:
        super().__init__()
        self.sparse = inputs.pooled_slots(config.use_cvm)

        width = inputs.width(self.sparse.width)
        self.linear = LinearPart(inputs.dense_width)
        self.tower = Tower(width, config.hidden, config.dropout)
        self.cross = paddle.nn.LayerList(
            [
                _Matrix(width, config.low_rank, config.experts)
                if config.low_rank
                else Linear(width, width)
                for _ in range(config.layers)
            ]
        )
        self.output = Linear(width + self.tower.width, 1)

    def forward(self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any) -> Any:
        """Sparse inputs as for `PooledSlots`; dense: (B, W). Returns logits (B, 1)."""
        pooled = self.sparse(ids, offsets, show_click, plan)
        x = x0 = flat(pooled, dense)
        for layer in self.cross:
            x = x0 * layer(x) + x
        first = self.linear(weights_of(pooled, self.sparse), dense)
        return first + self.output(paddle.concat([x, self.tower(x0)], axis=1))
