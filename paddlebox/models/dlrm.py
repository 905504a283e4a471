"""DLRM (Naumov et al., 2019): dot products of all pairs of vectors. One vector is computed from the
dense features.

    z = bottom(dense) (D), ReLU after each layer      F = [z, v_1, ..., v_S]
    logit = sum_s w_s + linear(dense) + MLP([z, F_i . F_j for i < j])

Without dense features there is no z. The paper has no first-order part; `dcn` says why there is one
here. With use_cvm the MLP also reads the logarithms of the counts.
"""

from __future__ import annotations

from typing import Any

from paddlebox import ops
from paddlebox.config.models import DlrmConfig
from paddlebox.models.inputs import Inputs
from paddlebox.nn import (
    MLP,
    LinearPart,
    Tower,
    beside_vectors,
    flat,
    pairs_of,
    take,
    vectors_of,
    weights_of,
)

paddle = ops.paddle


class DLRM(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    def __init__(self, config: DlrmConfig, inputs: Inputs) -> None:
        super().__init__()
        self.sparse = inputs.pooled_slots(config.use_cvm)

        self.linear = LinearPart(inputs.dense_width)
        self.bottom = None
        if inputs.dense_width:
            self.bottom = Tower(inputs.dense_width, (*config.bottom, inputs.embedx_dim))
        features = inputs.slots + (self.bottom is not None)
        left, right = pairs_of(features)
        self.pairs = left * features + right  # indices into a flattened (features, features)
        self.features = features
        self.counts = self.sparse.width - inputs.embedx_dim - 1
        width = len(self.pairs) + inputs.slots * self.counts
        width += inputs.embedx_dim if self.bottom is not None else 0
        self.mlp = MLP(width, config.hidden, config.dropout)

    def forward(self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any) -> Any:
        """Sparse inputs as for `PooledSlots`; dense: (B, W). Returns logits (B, 1)."""
        pooled = self.sparse(ids, offsets, show_click, plan)
        x, parts = vectors_of(pooled, self.sparse), []
        if self.bottom is not None:
            z = self.bottom(dense)
            parts.append(z)
            x = paddle.concat([paddle.unsqueeze(z, 1), x], axis=1)
        dots = paddle.einsum("bid,bjd->bij", x, x)
        parts.append(take(paddle.reshape(dots, [-1, self.features**2]), self.pairs))
        if self.counts:
            beside = beside_vectors(pooled, self.sparse)
            parts.append(flat(paddle.slice(beside, [2], [0], [self.counts]), None))
        top = paddle.concat(parts, axis=1)
        return self.linear(weights_of(pooled, self.sparse), dense) + self.mlp(top)
