"""Binary cross entropy, the loss of click models."""

from __future__ import annotations

from typing import Any

from paddlebox._native import paddle

_BESIDE_ZERO = 1e-30  # changes no bit of the loss


def log_loss(logits: Any, label: Any, reduction: str = "mean") -> Any:
    """Binary cross entropy of logits and labels.

    It is Paddle's binary_cross_entropy_with_logits, but with the correct gradient p - y for a logit
    of exactly 0, where Paddle 3.3 returns p - y - 1. (p is the probability and y the label.) Every
    model that starts from zeros has such logits at its first step.

    Args:
        logits, label: (B, T) float32.
        reduction: "mean", or "none" for the loss of each element.

    Returns: float32, a scalar; with "none" (B, T).
    """
    zero = paddle.cast(paddle.equal(logits, paddle.zeros_like(logits)), logits.dtype)
    beside = logits + zero * _BESIDE_ZERO
    return paddle.nn.functional.binary_cross_entropy_with_logits(beside, label, reduction=reduction)
