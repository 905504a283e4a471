"""The pooled slots of one table, in the parts that models of interactions read."""

from __future__ import annotations

from typing import Any

from paddlebox import ops
from paddlebox.nn.functional import sum_over
from paddlebox.nn.pooled_slots import PooledSlots

paddle = ops.paddle


def weights_of(pooled: Any, sparse: PooledSlots) -> Any:
    """(B, S, width) as `PooledSlots` gives it -> (B, S, 1), the sums of embed_w."""
    at = sparse.width - sparse.embedx_dim - 1
    return paddle.slice(pooled, [2], [at], [at + 1])


def vectors_of(pooled: Any, sparse: PooledSlots) -> Any:
    """(B, S, width) -> (B, S, D), the sums of embedx."""
    return paddle.slice(pooled, [2], [sparse.width - sparse.embedx_dim], [sparse.width])


def beside_vectors(pooled: Any, sparse: PooledSlots) -> Any:
    """(B, S, width) -> (B, S, width - D): the logarithms of counts, with use_cvm, and the sums of
    embed_w."""
    return paddle.slice(pooled, [2], [0], [sparse.width - sparse.embedx_dim])


def flat(pooled: Any, dense: Any | None) -> Any:
    """(B, S, n) and (B, W) -> (B, S * n + W): what a network over all features takes. dense:
    None or W = 0 where there is none."""
    _, slots, width = pooled.shape
    inputs = paddle.reshape(pooled, [-1, slots * width])
    if dense is None or dense.shape[1] == 0:
        return inputs
    return paddle.concat([inputs, dense], axis=1)


def interactions(vectors: Any) -> Any:
    """(B, S, D) -> (B, D): the sum of v_i * v_j, elementwise, over all pairs of slots i < j, as
    1/2 ((sum_s v_s)^2 - sum_s v_s^2)."""
    of_squares = sum_over(paddle.square(vectors), 1)
    return (paddle.square(sum_over(vectors, 1)) - of_squares) * 0.5


class LinearPart(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """sum_s w_s + linear(dense): the part of first order that most models have.

    Args:
        bias: have one even without dense features. A model with a network has one there.
    """

    def __init__(self, dense_width: int, bias: bool = False) -> None:
        super().__init__()
        self.dense = paddle.nn.Linear(dense_width, 1) if dense_width else None
        self.bias = None
        if bias and not dense_width:
            zero = paddle.nn.initializer.Constant(0.0)
            self.bias = self.create_parameter([1], dtype="float32", default_initializer=zero)

    def forward(self, weights: Any, dense: Any) -> Any:
        """weights: (B, S, 1); dense: (B, W). Returns (B, 1)."""
        out = sum_over(weights, 1)
        if self.dense is not None:
            out = out + self.dense(dense)
        return out if self.bias is None else out + self.bias
