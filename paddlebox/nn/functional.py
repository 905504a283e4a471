"""Functions in place of those of Paddle that fail in old-IR programs or err; indices of pairs."""

from __future__ import annotations

from typing import Any

import numpy as np

from paddlebox import ops

paddle = ops.paddle

_BESIDE_ZERO = 1e-30  # changes no bit of the loss


def sum_over(x: Any, axis: int, *, keepdim: bool = False) -> Any:
    """`paddle.sum` of a float32 tensor over one axis, whose size must be known."""
    return paddle.mean(x, axis=axis, keepdim=keepdim) * float(x.shape[axis])


def sigmoid(x: Any) -> Any:
    """`paddle.nn.functional.sigmoid`, also in old-IR programs. x: float32 of any shape."""
    if paddle.framework.in_dynamic_or_pir_mode():
        return paddle.nn.functional.sigmoid(x)
    return paddle.base.layer_helper.LayerHelper("sigmoid", act="sigmoid").append_activation(x)


def silu(x: Any) -> Any:
    """`paddle.nn.functional.silu`."""
    return x * sigmoid(x)


def exp(x: Any) -> Any:
    """`paddle.exp`."""
    return _unary("exp", x)


def log(x: Any) -> Any:
    """`paddle.log`."""
    return _unary("log", x)


def sqrt(x: Any) -> Any:
    """`paddle.sqrt`."""
    return _unary("sqrt", x)


def tanh(x: Any) -> Any:
    """`paddle.tanh`."""
    return _unary("tanh", x)


def max_of_rows(x: Any) -> Any:
    """`paddle.max(x, axis=1, keepdim=True)`, without a gradient. x: (B, n)."""
    if paddle.framework.in_dynamic_or_pir_mode():
        found = paddle.max(x, axis=1, keepdim=True)
    else:
        found = _append("reduce_max", {"X": x}, {"dim": [1], "keep_dim": True, "reduce_all": False})
    found.stop_gradient = True
    return found


def matmul(x: Any, y: Any, *, transpose_y: bool = False) -> Any:
    """`paddle.matmul`."""
    if paddle.framework.in_dynamic_or_pir_mode():
        return paddle.matmul(x, y, transpose_y=transpose_y)
    return _append("matmul_v2", {"X": x, "Y": y}, {"trans_x": False, "trans_y": transpose_y})


def _unary(op: str, x: Any) -> Any:
    if paddle.framework.in_dynamic_or_pir_mode():
        return getattr(paddle, op)(x)
    return _append(op, {"X": x}, {})


def _append(op: str, inputs: dict[str, Any], attrs: dict[str, Any]) -> Any:
    """Append the operator directly. The old IR has all of them, with their gradients."""
    helper = paddle.base.layer_helper.LayerHelper(op)
    out = helper.create_variable_for_type_inference(dtype=inputs["X"].dtype)
    helper.append_op(type=op, inputs=inputs, outputs={"Out": out}, attrs=attrs)
    return out


def pairs_of(n: int) -> tuple[np.ndarray, np.ndarray]:
    """All pairs i < j < n, as two int32 arrays of n * (n - 1) / 2 elements, for i and for j."""
    i, j = np.triu_indices(n, 1)
    return i.astype(np.int32), j.astype(np.int32)


def take(x: Any, at: np.ndarray) -> Any:
    """Select positions of axis 1. x: (B, n, ...) of any dtype; at: (m) int32, from 0 to n - 1.
    Returns (B, m, ...)."""
    return paddle.gather(x, paddle.assign(at), axis=1)


def log_loss(logits: Any, label: Any, reduction: str = "mean", mask: Any = None) -> Any:
    """Binary cross entropy of logits and labels.

    It is Paddle's binary_cross_entropy_with_logits, but with the correct gradient p - y for a logit
    of exactly 0, where Paddle 3.3 returns p - y - 1. (p is the probability and y the label.) Every
    model that starts from zeros has such logits at its first step.

    Args:
        logits, label: (B, T) float32.
        reduction: "mean", or "none" for the loss of each element.
        mask: (B, 1) float32, a factor for the loss of each instance; None: all are 1. The mean is
            over all elements, whatever their factors.

    Returns: float32, a scalar; with "none" (B, T).
    """
    zero = paddle.cast(paddle.equal(logits, paddle.zeros_like(logits)), logits.dtype)
    beside = logits + zero * _BESIDE_ZERO
    cross_entropy = paddle.nn.functional.binary_cross_entropy_with_logits
    if mask is None:
        return cross_entropy(beside, label, reduction=reduction)
    every = cross_entropy(beside, label, reduction="none") * mask
    return paddle.mean(every) if reduction == "mean" else every
