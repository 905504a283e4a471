"""The fields of rows, under the names of docs/formats/row.md."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def fields_of_rows(layout: Mapping[str, int], rows: np.ndarray) -> dict[str, np.ndarray]:
    """Split (n, words) float32 rows into named arrays.

    Returns: slot uint16, has_embedx bool, show, click, delta_score float32, last_seen_day, life_seq
        uint32 and embed_w float32 (n); embed_state, embedx_w, embedx_state float32 (n, width), and
        if the layout has them expand_w, expand_state and counts.
    """
    words = rows.view(np.uint32)
    fields = {
        "slot": (words[:, 0] & 0xFFFF).astype(np.uint16),
        "has_embedx": (words[:, 0] >> 16 & 1).astype(bool),
        "show": rows[:, 1],
        "click": rows[:, 2],
        "delta_score": rows[:, 3],
        "last_seen_day": words[:, 4],
        "life_seq": words[:, 5],
        "embed_w": rows[:, 6],
    }
    counts = rows.shape[1] - layout["counts"]
    begin = 7
    for name, width in (
        ("embed_state", layout["embed_state"]),
        ("embedx_w", layout["embedx_dim"]),
        ("embedx_state", layout["embedx_state"]),
    ):
        fields[name] = rows[:, begin : begin + width]
        begin += width
    if layout["expand_dim"]:
        fields["expand_w"] = rows[:, begin : begin + layout["expand_dim"]]
        fields["expand_state"] = rows[:, begin + layout["expand_dim"] : counts]
    if layout["counts"]:
        fields["counts"] = rows[:, counts:]
    return fields
