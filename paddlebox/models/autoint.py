"""AutoInt+ (Song et al., CIKM 2019): self-attention over the features' vectors, beside an MLP.

E = [v_1, ..., v_S, x_1 u_1, ..., x_W u_W]                (dense feature x_m has a vector u_m)
a layer: E = ReLU([head_1, ..., head_H] + E R),  head_h = softmax(E Q_h (E K_h)^T) E V_h
logit = sum_s w_s + linear(dense) + w^T flat(E) + MLP([pooled, dense])
"""

from __future__ import annotations

from typing import Any

from paddlebox import ops
from paddlebox.config.models import AutoIntConfig
from paddlebox.models.inputs import Inputs
from paddlebox.nn import MLP, Linear, LinearPart, flat, vectors_of, weights_of

paddle = ops.paddle


class _Attention(paddle.nn.Layer):  # type: ignore[misc, name-defined]
    """One attention layer. Letters: F = features, H = heads, d = width of a head."""

    def __init__(self, inputs: int, heads: int, width: int) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.query, self.key, self.value, self.residual = (
            Linear(inputs, heads * width, bias_attr=False) for _ in range(4)
        )

    def _split(self, x: Any) -> Any:
        return paddle.reshape(x, [0, 0, self.heads, self.width])

    def forward(self, x: Any) -> Any:
        """x: (B, F, inputs). Returns (B, F, H * d)."""
        query, key, value = (self._split(f(x)) for f in (self.query, self.key, self.value))
        scores = paddle.einsum("bfhd,bghd->bhfg", query, key)
        weights = paddle.nn.functional.softmax(scores, axis=-1)
        heads = paddle.einsum("bhfg,bghd->bfhd", weights, value)
        heads = paddle.reshape(heads, [0, 0, self.heads * self.width])
        return paddle.nn.functional.relu(heads + self.residual(x))


class AutoInt(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    def __init__(self, config: AutoIntConfig, inputs: Inputs) -> None:
        super().__init__()
        self.sparse = inputs.pooled_slots(config.use_cvm)

        self.linear = LinearPart(inputs.dense_width)
        self.mlp = MLP(inputs.width(self.sparse.width), config.hidden, config.dropout)
        self.dense_width = inputs.dense_width
        if inputs.dense_width:
            self.dense_vectors = self.create_parameter(
                [inputs.dense_width, inputs.embedx_dim], dtype="float32"
            )
        width = config.heads * config.head_dim
        widths = [inputs.embedx_dim] + [width] * config.layers
        self.attention = paddle.nn.LayerList(
            [_Attention(a, config.heads, config.head_dim) for a in widths[:-1]]
        )
        self.output = Linear((inputs.slots + inputs.dense_width) * width, 1)

    def forward(self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any) -> Any:
        """Sparse inputs as for `PooledSlots`; dense: (B, W). Returns logits (B, 1)."""
        pooled = self.sparse(ids, offsets, show_click, plan)
        x = vectors_of(pooled, self.sparse)
        if self.dense_width:
            x = paddle.concat([x, paddle.unsqueeze(dense, 2) * self.dense_vectors], axis=1)
        for layer in self.attention:
            x = layer(x)
        first = self.linear(weights_of(pooled, self.sparse), dense)
        return first + self.output(flat(x, None)) + self.mlp(flat(pooled, dense))
