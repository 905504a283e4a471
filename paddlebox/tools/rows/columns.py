"""The columns of a part of an export, made of the words of rows, and back (docs/formats/rows.md).

Letters: n = rows, W = words of a row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np

from paddlebox.store.table import fields_of_rows

FEASIGN, SLOT, HAS_EMBEDX = "feasign", "slot", "has_embedx"
#: In Parquet alone: the text of the feasign, null if none is kept. Not read.
VALUE = "value"
EMBEDX_Q, EMBEDX_SCALE = "embedx_q", "embedx_scale"  # in place of embedx_w, as int8
#: Columns in the order in which they are written, and behind them those that training needs and
#: serving does not.
VALUES = (FEASIGN, SLOT, "show", "click", "counts", "embed_w", HAS_EMBEDX, "embedx_w", "expand_w")
_OF_STATE = ("embed_state", "embedx_state", "expand_state")
STATE = ("delta_score", "last_seen_day", *_OF_STATE)
_SHAPED = ("counts", "embedx_w", EMBEDX_Q, "expand_w", *_OF_STATE)

# Parts of a layout that are words of a row.
_LAYOUT = ("embed_state", "embedx_dim", "embedx_state", "expand_dim", "expand_state", "counts")

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


def words_of(layout: Mapping[str, int]) -> int:
    """W (docs/formats/row.md)."""
    return 7 + sum(layout[part] for part in _LAYOUT)


def widths_of(layout: Mapping[str, int], state: bool) -> dict[str, int]:
    """Column -> its width, in the order in which they are written."""
    none = np.empty(0, np.uint64), np.empty((0, words_of(layout)), np.float32)
    fields = {FEASIGN: none[0], **fields_of_rows(layout, none[1])}
    widths = {name: 1 if of.ndim == 1 else of.shape[1] for name, of in fields.items()}
    return {name: widths[name] for name in (*VALUES, *STATE * state) if widths.get(name)}


def is_shaped(name: str) -> bool:
    """Whether a column is (n, width), also with a width of 1; otherwise it is (n)."""
    return name in _SHAPED


def dtype_of(name: str) -> np.dtype:
    integers = {FEASIGN: np.uint64, SLOT: np.uint16, HAS_EMBEDX: np.uint8, EMBEDX_Q: np.int8}
    return np.dtype(integers.get(name, np.uint32 if name == "last_seen_day" else np.float32))


def columns_of(
    feasigns: np.ndarray, rows: np.ndarray, layout: Mapping[str, int], names: Iterable[str]
) -> Columns:
    """The columns of these names. feasigns: (n) uint64; rows: (n, W) float32."""
    fields = {FEASIGN: feasigns, **fields_of_rows(layout, rows)}
    return {name: np.ascontiguousarray(fields[name], dtype_of(name)) for name in names}


def rows_of(columns: Mapping[str, np.ndarray], layout: Mapping[str, int]) -> np.ndarray:
    """(n, W) float32 rows with the columns that are words; the other words are 0, except that rows
    have an embedx unless has_embedx is 0."""
    rows = np.zeros((len(columns[FEASIGN]), words_of(layout)), np.float32)
    first = rows.view(np.uint32)[:, 0]
    first[:] = columns[SLOT]
    if "embedx_w" in columns:
        first |= np.asarray(columns.get(HAS_EMBEDX, 1), np.uint32) << np.uint32(16)
    for name, field in fields_of_rows(layout, rows).items():
        if name in columns and name not in (SLOT, HAS_EMBEDX):
            field[...] = columns[name]  # a view of the rows
    return rows
