"""The columns of a part of an export, made of the words of rows, and back (docs/formats/rows.md).

Letters: n = rows, W = words of a row.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

FEASIGN, SLOT, HAS_EMBEDX = "feasign", "slot", "has_embedx"
#: Columns that training needs and serving does not.
STATE = ("delta_score", "last_seen_day", "embed_state", "embedx_state", "expand_state")
_SHAPED = ("counts", "embedx_w", "expand_w", "embed_state", "embedx_state", "expand_state")

# Column -> the weights without which it has no meaning.
_NEEDED = {
    "has_embedx": "embedx_w",
    "expand_w": "embedx_w",
    "embed_state": "embed_w",
    "embedx_state": "embedx_w",
    "expand_state": "expand_w",
}

Columns = dict[str, np.ndarray]


def check_weights(names: Collection[str]) -> None:
    """Raises: ValueError if a column has no meaning because its weights are missing."""
    for name, weights in _NEEDED.items():
        if name in names and weights not in names:
            raise ValueError(f"column {name} has no meaning without {weights}: add {weights}")


def places(layout: Mapping[str, int]) -> dict[str, slice[int, int, None]]:
    """Column -> its words in a row (docs/formats/row.md), for the columns that are whole words."""
    found = {name: slice(at, at + 1) for at, name in _HEAD.items()}
    begin = 7
    for name, width in (
        ("embed_state", layout["embed_state"]),
        ("embedx_w", layout["embedx_dim"]),
        ("embedx_state", layout["embedx_state"]),
        ("expand_w", layout["expand_dim"]),
        ("expand_state", layout["expand_state"]),
        ("counts", layout["counts"]),
    ):
        if width:
            found[name] = slice(begin, begin + width)
        begin += width
    return found


_HEAD = {1: "show", 2: "click", 3: "delta_score", 4: "last_seen_day", 6: "embed_w"}


def words_of(layout: Mapping[str, int]) -> int:
    """W."""
    return max(place.stop for place in places(layout).values())


def widths_of(layout: Mapping[str, int], state: bool) -> dict[str, int]:
    """Column -> its width, in the order in which they are written."""
    of_words = {name: place.stop - place.start for name, place in places(layout).items()}
    order = ("show", "click", "counts", "embed_w", HAS_EMBEDX, "embedx_w", "expand_w")
    names = (FEASIGN, SLOT, *order, *(STATE if state else ()))
    widths = {FEASIGN: 1, SLOT: 1, HAS_EMBEDX: 1} | of_words
    return {name: widths[name] for name in names if name in widths}


def is_shaped(name: str) -> bool:
    """Whether a column is (n, width), also with a width of 1; otherwise it is (n)."""
    return name in _SHAPED


def dtype_of(name: str) -> np.dtype:
    integers = {FEASIGN: np.uint64, SLOT: np.uint16, HAS_EMBEDX: np.uint8}
    return np.dtype(integers.get(name, np.uint32 if name == "last_seen_day" else np.float32))


def columns_of(
    feasigns: np.ndarray, rows: np.ndarray, layout: Mapping[str, int], names: Mapping[str, int]
) -> Columns:
    """The columns of these names. feasigns: (n) uint64; rows: (n, W) float32."""
    words = rows.view(np.uint32)
    made: Columns = {
        FEASIGN: feasigns,
        SLOT: (words[:, 0] & 0xFFFF).astype(np.uint16),
        HAS_EMBEDX: (words[:, 0] >> 16 & 1).astype(np.uint8),
    }
    for name, place in places(layout).items():
        if name in names:
            source = rows if dtype_of(name) == np.float32 else words
            taken = source[:, place] if is_shaped(name) else source[:, place.start]
            made[name] = np.ascontiguousarray(taken)
    return {name: made[name] for name in names}


def rows_of(columns: Mapping[str, np.ndarray], layout: Mapping[str, int]) -> np.ndarray:
    """(n, W) float32 rows with the columns that are words; the other words are 0, except that rows
    have an embedx unless has_embedx is 0."""
    n = len(columns[FEASIGN])
    rows = np.zeros((n, words_of(layout)), np.float32)
    words = rows.view(np.uint32)
    words[:, 0] = columns[SLOT]
    if "embedx_w" in columns:
        words[:, 0] |= np.asarray(columns.get(HAS_EMBEDX, 1), np.uint32) << np.uint32(16)
    for name, place in places(layout).items():
        if name in columns:
            target = rows if dtype_of(name) == np.float32 else words
            target[:, place] = columns[name].reshape(n, place.stop - place.start)
    return rows
