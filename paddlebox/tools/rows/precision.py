"""embedx in fewer bits, for rows that are only read: float16, or int8 with a scale for each row.

Letters: n = rows, D = width of embedx.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paddlebox.tools.rows.columns import EMBEDX_Q, EMBEDX_SCALE, Columns

_MOST_FLOAT16 = 65504.0


def rounded(columns: Mapping[str, np.ndarray], precision: str) -> Columns:
    """The columns with embedx_w (n, D) float32 in a precision: `float32`; `float16`, the nearest
    value, at most 65504 in size; `int8`: embedx_scale (n) float32, the largest size of a weight
    divided by 127, and embedx_q (n, D) int8, so that a weight is about scale * q."""
    if precision == "float32":
        return dict(columns)
    weights = columns["embedx_w"]
    if precision == "float16":
        return {**columns, "embedx_w": weights.clip(-_MOST_FLOAT16, _MOST_FLOAT16).astype("f2")}
    scale = np.abs(weights).max(axis=1, initial=0) / np.float32(127)
    steps = weights / np.where(scale > 0, scale, np.float32(1))[:, None]
    quantized = np.rint(steps).clip(-127, 127).astype(np.int8)
    replaced: Columns = {}
    for name, column in columns.items():
        if name == "embedx_w":
            replaced |= {EMBEDX_SCALE: scale, EMBEDX_Q: quantized}
        else:
            replaced[name] = column
    return replaced


def rounded_widths(widths: Mapping[str, int], precision: str) -> dict[str, int]:
    """The widths of the columns that `rounded` returns."""
    none = {name: np.empty((0, width), np.float32) for name, width in widths.items()}
    return {
        name: 1 if name == EMBEDX_SCALE else widths.get(name, widths["embedx_w"])
        for name in rounded(none, precision)
    }


def restored(columns: Columns) -> Columns:
    """The columns with embedx_w (n, D) as float32."""
    columns = dict(columns)
    if EMBEDX_Q in columns:
        scale, quantized = columns.pop(EMBEDX_SCALE), columns.pop(EMBEDX_Q)
        columns["embedx_w"] = quantized * scale[:, None]
    elif "embedx_w" in columns:
        columns["embedx_w"] = columns["embedx_w"].astype(np.float32, copy=False)
    return columns
