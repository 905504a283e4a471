"""GateNet (Huang et al., 2020): gates on the slots' vectors, and on the hidden layers of an MLP.

    r_s = pooled slot s     g_s = sigmoid(r_s W_s)
    h = tower([g_1 r_1, ..., g_S r_S, dense])
    logit = sum_s w_s + linear(dense) + w^T h

g_s is one number with `gate: vector`, else one number for each float of r_s. The output a of each
hidden layer of the tower becomes a * sigmoid(a U).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from paddlebox import ops
from paddlebox.config.models import GateNetConfig
from paddlebox.models.inputs import Inputs
from paddlebox.nn import Linear, LinearPart, Tower, flat, weights_of

paddle = ops.paddle


class GateNet(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    def __init__(self, config: GateNetConfig, inputs: Inputs) -> None:
        super().__init__()
        self.sparse = inputs.pooled_slots(config.use_cvm)

        self.linear = LinearPart(inputs.dense_width)
        width = self.sparse.width
        self.gates = self.create_parameter(
            [inputs.slots, width, 1 if config.gate == "vector" else width], dtype="float32"
        )
        widths = [inputs.width(width), *config.hidden]
        self.layers = paddle.nn.LayerList(
            [Tower(a, [b], config.dropout) for a, b in pairwise(widths)]
        )
        self.hidden_gates = paddle.nn.LayerList(
            [Linear(a, a, bias_attr=False) for a in config.hidden]
        )
        self.output = Linear(widths[-1], 1)

    def forward(self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any) -> Any:
        """Sparse inputs as for `PooledSlots`; dense: (B, W). Returns logits (B, 1)."""
        pooled = self.sparse(ids, offsets, show_click, plan)
        gates = paddle.einsum("bsd,sde->bse", pooled, self.gates)
        x = flat(pooled * paddle.nn.functional.sigmoid(gates), dense)
        for layer, gate in zip(self.layers, self.hidden_gates, strict=True):
            x = layer(x)
            x = x * paddle.nn.functional.sigmoid(gate(x))
        return self.linear(weights_of(pooled, self.sparse), dense) + self.output(x)
