"""FiBiNET (Huang et al., RecSys 2019): a SENet weighs the slots; pairs get bilinear products.

    a = ReLU(W_2 ReLU(W_1 [mean v_1, ..., mean v_S]))     u_s = a_s v_s
    p_ij = (v_i W) * v_j     q_ij = (u_i W') * u_j     (i < j; *: elementwise)
    logit = sum_s w_s + linear(dense) + MLP([p, q, dense])

With `bilinear: each`, slot i has matrices of its own, W_i and W'_i. With use_cvm the MLP also reads
the logarithms of the counts.
"""

from __future__ import annotations

from typing import Any

from paddlebox import ops
from paddlebox.config.models import FibinetConfig
from paddlebox.errors import ConfigError
from paddlebox.models.inputs import Inputs
from paddlebox.nn import (
    MLP,
    Linear,
    LinearPart,
    beside_vectors,
    flat,
    pairs_of,
    take,
    vectors_of,
    weights_of,
)

paddle = ops.paddle

_REDUCTION = 3  # slots for each unit of the hidden layer that weighs them, as in the paper


class _Products(paddle.nn.Layer):  # type: ignore[misc, name-defined]
    """(v_i W) * v_j for all i < j: (B, S, D) -> (B, pairs, D)."""

    def __init__(self, inputs: Inputs, kind: str) -> None:
        super().__init__()
        square = [inputs.embedx_dim, inputs.embedx_dim]
        shape = square if kind == "all" else [inputs.slots, *square]
        self.w = self.create_parameter(shape, dtype="float32")
        self.sum = "bsd,de->bse" if kind == "all" else "bsd,sde->bse"
        self.left, self.right = pairs_of(inputs.slots)

    def forward(self, x: Any) -> Any:
        return take(paddle.einsum(self.sum, x, self.w), self.left) * take(x, self.right)


class FiBiNET(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    def __init__(self, config: FibinetConfig, inputs: Inputs) -> None:
        super().__init__()
        if inputs.slots < 2:
            raise ConfigError(
                "model.type fibinet multiplies pairs of sparse slots: expected at least 2, found "
                f"{inputs.slots}; choose another model.type, such as deepfm"
            )
        self.sparse = inputs.pooled_slots(config.use_cvm)

        self.linear = LinearPart(inputs.dense_width)
        squeezed = max(1, inputs.slots // _REDUCTION)
        self.squeeze = Linear(inputs.slots, squeezed, bias_attr=False)
        self.excite = Linear(squeezed, inputs.slots, bias_attr=False)
        self.products = paddle.nn.LayerList(
            [_Products(inputs, config.bilinear) for _ in ("plain", "weighed")]
        )
        pairs = inputs.slots * (inputs.slots - 1) // 2
        self.counts = self.sparse.width - inputs.embedx_dim - 1
        width = 2 * pairs * inputs.embedx_dim + inputs.width(self.counts)
        self.mlp = MLP(width, config.hidden, config.dropout)

    def forward(self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any) -> Any:
        """Sparse inputs as for `PooledSlots`; dense: (B, W). Returns logits (B, 1)."""
        pooled = self.sparse(ids, offsets, show_click, plan)
        vectors = vectors_of(pooled, self.sparse)
        relu = paddle.nn.functional.relu
        weigh = relu(self.excite(relu(self.squeeze(paddle.mean(vectors, axis=2)))))
        weighed = vectors * paddle.unsqueeze(weigh, 2)
        plain, other = (f(x) for f, x in zip(self.products, (vectors, weighed), strict=True))
        both = flat(paddle.concat([plain, other], axis=1), dense)
        if self.counts:
            beside = beside_vectors(pooled, self.sparse)
            both = flat(paddle.slice(beside, [2], [0], [self.counts]), both)
        return self.linear(weights_of(pooled, self.sparse), dense) + self.mlp(both)
