"""The loss of click models."""

from __future__ import annotations

from typing import Any

from paddlebox._native import paddle

_BESIDE_ZERO = 1e-30  # changes no bit of the loss


def log_loss(logits: Any, label: Any, reduction: str = "mean") -> Any:
    """Mean binary cross entropy of logits (B, T) and labels (B, T), float32; with reduction "none"
    (B, T), that of each.

    As Paddle's binary_cross_entropy_with_logits but for logits that are exactly 0, as those of a
    model that begins with zeros are: there Paddle 3.3 gives p - y - 1 as the gradient of an
    instance, and its first step is a wrong one. Here it is p - y.
    """
    zero = paddle.cast(paddle.equal(logits, paddle.zeros_like(logits)), logits.dtype)
    beside = logits + zero * _BESIDE_ZERO
    return paddle.nn.functional.binary_cross_entropy_with_logits(beside, label, reduction=reduction)
