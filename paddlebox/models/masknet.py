"""MaskNet (Wang et al., DLP-KDD 2021), parallel: each block multiplies the features by a mask that
it computes from them.

    x = [pooled, dense]     e = x with each slot's embedx normalised (LayerNorm)
    block_k = ReLU(LayerNorm(W_k (e * mask_k(x))))     mask_k = B_k ReLU(A_k x + a_k) + b_k
    logit = sum_s w_s + linear(dense) + MLP([block_1, ..., block_K])

The paper has no first-order part; `dcn` says why there is one here.
"""

from __future__ import annotations

from typing import Any

from paddlebox import ops
from paddlebox.config.models import MaskNetConfig
from paddlebox.models.inputs import Inputs
from paddlebox.nn import (
    MLP,
    Linear,
    LinearPart,
    Tower,
    beside_vectors,
    flat,
    vectors_of,
    weights_of,
)

paddle = ops.paddle


class _Block(paddle.nn.Layer):  # type: ignore[misc, name-defined]
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.reads = Tower(inputs, [inputs])
        self.mask = Linear(inputs, inputs)
        self.linear = Linear(inputs, outputs, bias_attr=False)
        self.norm = paddle.nn.LayerNorm(outputs)

    def forward(self, x: Any, e: Any) -> Any:
        """x, e: (B, inputs). Returns (B, outputs)."""
        out = self.norm(self.linear(e * self.mask(self.reads(x))))
        return paddle.nn.functional.relu(out)


class MaskNet(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    def __init__(self, config: MaskNetConfig, inputs: Inputs) -> None:
        super().__init__()
        self.sparse = inputs.pooled_slots(config.use_cvm)

        self.linear = LinearPart(inputs.dense_width)
        self.norm = paddle.nn.LayerNorm(inputs.embedx_dim)
        width = inputs.width(self.sparse.width)
        self.blocks = paddle.nn.LayerList(
            [_Block(width, config.output_dim) for _ in range(config.layers)]
        )
        self.mlp = MLP(config.layers * config.output_dim, config.hidden, config.dropout)

    def forward(self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any) -> Any:
        """Sparse inputs as for `PooledSlots`; dense: (B, W). Returns logits (B, 1)."""
        pooled = self.sparse(ids, offsets, show_click, plan)
        vectors = self.norm(vectors_of(pooled, self.sparse))
        normal = paddle.concat([beside_vectors(pooled, self.sparse), vectors], axis=2)
        x, e = flat(pooled, dense), flat(normal, dense)
        blocks = paddle.concat([block(x, e) for block in self.blocks], axis=1)
        return self.linear(weights_of(pooled, self.sparse), dense) + self.mlp(blocks)
