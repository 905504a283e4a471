"""Functions of Paddle's that do not build in old-IR programs, in a form that does; and pairs."""

from __future__ import annotations

from typing import Any

import numpy as np

from paddlebox import ops

paddle = ops.paddle


def sum_over(x: Any, axis: int, *, keepdim: bool = False) -> Any:
    """paddle.sum."""
    return paddle.mean(x, axis=axis, keepdim=keepdim) * float(x.shape[axis])


def sigmoid(x: Any) -> Any:
    """paddle.nn.functional.sigmoid."""
    if paddle.framework.in_dynamic_or_pir_mode():
        return paddle.nn.functional.sigmoid(x)
    return paddle.base.layer_helper.LayerHelper("sigmoid", act="sigmoid").append_activation(x)


def pairs_of(n: int) -> tuple[np.ndarray, np.ndarray]:
    """All (i, j), i < j < n, as two arrays of (n * (n - 1) / 2) int32."""
    i, j = np.triu_indices(n, 1)
    return i.astype(np.int32), j.astype(np.int32)


def take(x: Any, at: np.ndarray) -> Any:
    """x (B, n, ...) at positions (m) of axis 1. Returns (B, m, ...)."""
    return paddle.gather(x, paddle.assign(at), axis=1)
