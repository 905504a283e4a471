"""Sums, losses and selections that models share, and indices of pairs."""

from __future__ import annotations

from typing import Any

import numpy as np

from paddlebox import ops

paddle = ops.paddle

_BESIDE_ZERO = 1e-30  # changes no bit of the loss


def sum_over(x: Any, axis: int, *, keepdim: bool = False) -> Any:
    """`paddle.sum` of a float32 tensor over one axis, whose size must be known."""
    return paddle.mean(x, axis=axis, keepdim=keepdim) * float(x.shape[axis])


def silu(x: Any) -> Any:
    """`paddle.nn.functional.silu`, which ONNX and the device of the stock wheel do not have."""
    return x * paddle.nn.functional.sigmoid(x)


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
