"""Binary cross entropy, the loss of click models."""

from __future__ import annotations

from typing import Any

from paddlebox._native import paddle

_BESIDE_ZERO = 1e-30  # changes no bit of the loss


def log_loss(logits: Any, label: Any, reduction: str = "mean", mask: Any = None) -> Any:
    """Binary cross entropy of logits and labels.

    It is Paddle's binary_cross_entropy_with_logits, but with the correct gradient p - y for a logit
    of exactly 0, where Paddle 3.3 returns p - y - 1. (p is the probability and y the label.) Every
    model that starts from zeros has such logits at its first step.

    Args:
        logits, label: (B, T) float32.
        reduction: "mean", or "none" for the loss of each element.
        mask: (B, 1) a factor for the loss of each instance; None: all are 1. The mean is over all
            elements, whatever their factors.

    Returns: float32, a scalar; with "none" (B, T).
    """
    zero = paddle.cast(paddle.equal(logits, paddle.zeros_like(logits)), logits.dtype)
    beside = logits + zero * _BESIDE_ZERO
    cross_entropy = paddle.nn.functional.binary_cross_entropy_with_logits
    if mask is None:
        return cross_entropy(beside, label, reduction=reduction)
    every = cross_entropy(beside, label, reduction="none") * mask
    return paddle.mean(every) if reduction == "mean" else every
