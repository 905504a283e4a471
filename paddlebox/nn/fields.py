"""Parts of the pooled slots of one table: weights, vectors and counts.

Letters: B = instances, S = slots, D = embedx_dim, W = dense width; width as in `PooledSlots`.
"""

from __future__ import annotations

from typing import Any

from paddlebox import ops
from paddlebox.nn.functional import sum_over
from paddlebox.nn.linear import Linear
from paddlebox.nn.pooled_slots import PooledSlots

paddle = ops.paddle


def weights_of(pooled: Any, sparse: PooledSlots) -> Any:
    """The sums of embed_w, (B, S, 1). pooled: (B, S, width) float32, the result of sparse."""
    at = sparse.width - sparse.embedx_dim - 1
    return paddle.slice(pooled, [2], [at], [at + 1])


def vectors_of(pooled: Any, sparse: PooledSlots) -> Any:
    """The sums of embedx, (B, S, D). pooled: (B, S, width) float32, the result of sparse."""
    return paddle.slice(pooled, [2], [sparse.width - sparse.embedx_dim], [sparse.width])


def beside_vectors(pooled: Any, sparse: PooledSlots) -> Any:
    """All columns before embedx, (B, S, width - D): the sums of embed_w, after the logarithms of
    the counts with use_cvm. pooled: (B, S, width) float32, the result of sparse."""
    return paddle.slice(pooled, [2], [0], [sparse.width - sparse.embedx_dim])


def flat(pooled: Any, dense: Any | None) -> Any:
    """Join slots and dense features to (B, S * n + W). pooled: (B, S, n) float32; dense: (B, W)
    float32; without dense features None, or W = 0."""
    _, slots, width = pooled.shape
    inputs = paddle.reshape(pooled, [-1, slots * width])
    if dense is None or dense.shape[1] == 0:
        return inputs
    return paddle.concat([inputs, dense], axis=1)


def interactions(vectors: Any) -> Any:
    """The elementwise sum of v_i * v_j over all pairs of slots i < j, computed as
    1/2 ((sum_s v_s)^2 - sum_s v_s^2). vectors: (B, S, D) float32. Returns (B, D)."""
    of_squares = sum_over(paddle.square(vectors), 1)
    return (paddle.square(sum_over(vectors, 1)) - of_squares) * 0.5


class LinearPart(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """sum_s w_s + linear(dense), the first-order part of most models.

    Args:
        dense_width: W.
        bias: add a bias even without dense features. A model with a network does not need it,
            because the network has one.
    """

    def __init__(self, dense_width: int, bias: bool = False) -> None:
        super().__init__()
        # Start at 0, as embed_w does. Paddle's default for a (13, 1) goes up to 0.65. On logarithms
        # of counts it takes most of a short epoch to unlearn such weights.
        zero = paddle.nn.initializer.Constant(0.0)
        attr = paddle.ParamAttr(initializer=zero)
        self.dense = Linear(dense_width, 1, weight_attr=attr) if dense_width else None
        self.bias = None
        if bias and not dense_width:
            self.bias = self.create_parameter([1], dtype="float32", default_initializer=zero)

    def forward(self, weights: Any, dense: Any) -> Any:
        """weights: (B, S, 1) float32, of `weights_of`; dense: (B, W) float32, not read if W is 0.
        Returns (B, 1)."""
        out = sum_over(weights, 1)
        if self.dense is not None:
            out = out + self.dense(dense)
        return out if self.bias is None else out + self.bias
