"""FinalMLP (Mao et al., AAAI 2023): two MLPs over gated features, and a bilinear fusion of them.

    x = [pooled, dense]     g_t = 2 sigmoid(gate_t(c_t))     o_t = tower_t(g_t * x)     t = 1, 2
    logit = sum_s w_s + linear(dense) + b + a_1^T o_1 + a_2^T o_2 + sum_h o_1h^T W_h o_2h

o_th is the h-th part of o_t. The gates make the two streams differ: c_1 is the dense features and
c_2 the pooled slots. Without dense features both are the pooled slots. The paper has no first-order
part; `dcn` says why there is one here.
"""

from __future__ import annotations

from typing import Any

from paddlebox import ops
from paddlebox.config.models import FinalMlpConfig
from paddlebox.models.inputs import Inputs
from paddlebox.nn import Linear, LinearPart, Tower, flat, sum_over, weights_of

paddle = ops.paddle


class FinalMLP(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    def __init__(self, config: FinalMlpConfig, inputs: Inputs) -> None:
        super().__init__()
        self.sparse = inputs.pooled_slots(config.use_cvm)

        self.linear = LinearPart(inputs.dense_width)
        width, slots = inputs.width(self.sparse.width), inputs.slots * self.sparse.width
        self.dense_width = inputs.dense_width
        self.gates = paddle.nn.LayerList()
        if config.gate_hidden:
            for reads in (inputs.dense_width or slots, slots):
                tower = Tower(reads, [config.gate_hidden])
                last = Linear(config.gate_hidden, width)
                self.gates.append(paddle.nn.Sequential(tower, last))
        self.towers = paddle.nn.LayerList(
            [Tower(width, config.hidden, config.dropout) for _ in range(2)]
        )
        self.outputs = paddle.nn.LayerList(
            [Linear(config.hidden[-1], 1, bias_attr=bias) for bias in (None, False)]
        )
        part = config.hidden[-1] // config.heads
        self.fusion = self.create_parameter([config.heads, part, part], dtype="float32")
        self.parts = [-1, config.heads, part]

    def forward(self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any) -> Any:
        """Sparse inputs as for `PooledSlots`; dense: (B, W). Returns logits (B, 1)."""
        pooled = self.sparse(ids, offsets, show_click, plan)
        x, slots = flat(pooled, dense), flat(pooled, None)
        streams = [x, x]
        if len(self.gates):
            contexts = (dense if self.dense_width else slots, slots)
            streams = [
                x * (paddle.nn.functional.sigmoid(gate(c)) * 2.0)
                for gate, c in zip(self.gates, contexts, strict=True)
            ]
        one, two = (tower(y) for tower, y in zip(self.towers, streams, strict=True))
        turned = paddle.einsum("bhi,hij->bhj", paddle.reshape(one, self.parts), self.fusion)
        fused = flat(turned * paddle.reshape(two, self.parts), None)
        logit = self.outputs[0](one) + self.outputs[1](two) + sum_over(fused, 1, keepdim=True)
        return self.linear(weights_of(pooled, self.sparse), dense) + logit
