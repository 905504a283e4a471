"""Text tables of Paddle 2.x's parameter server: one row a line, `feasign value value ...`.

e, x = words of the states of embed and embedx; D = embedx_dim. The values are those of
ParseToString in paddle/fluid/distributed/ps/table:

    paddle_ctr    ctr_accessor.cc       slot, unseen_days, delta_score, show, click, embed_w,
                                        embed state (e) [, embedx_w (D), embedx state (x)]
    paddle_gpups  ctr_dymf_accessor.cc  unseen_days, delta_score, show, click, embed_w,
                                        embed state (e), slot, D [, embedx state (x), embedx_w (D)]

What is in brackets is missing if a row has no embedx. unseen_days is not read: rows count as seen
on the day of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

import numpy as np

from paddlebox.errors import DataError
from paddlebox.tools.rows.columns import FEASIGN, HAS_EMBEDX, SLOT
from paddlebox.tools.rows.mapping import TextFormat

_BATCH_ROWS = 1 << 15


def text_batches(
    path: Path, text_format: TextFormat, widths: Mapping[str, int]
) -> Iterator[dict[str, np.ndarray]]:
    """Columns of rows; slot has the numbers of the file (int64). widths: of the table's columns.
    Raises: DataError with the line for what is not such a row."""
    fields = _fields(text_format, widths)
    try:
        with open(path, encoding="ascii") as file:
            number = 0
            while lines := list(islice(file, _BATCH_ROWS)):
                yield _columns(lines, path, number, fields)
                number += len(lines)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def _fields(text_format: TextFormat, widths: Mapping[str, int]) -> dict[str, slice]:
    """Column -> its values in a line that has an embedx."""
    e, x, dim = (widths.get(name, 0) for name in ("embed_state", "embedx_state", "embedx_w"))
    if text_format is TextFormat.PADDLE_CTR:
        order = {"slot": 1, "unseen": 1, "delta_score": 1, "show": 1, "click": 1, "embed_w": 1}
        order |= {"embed_state": e, "embedx_w": dim, "embedx_state": x}
    else:
        order = {"unseen": 1, "delta_score": 1, "show": 1, "click": 1, "embed_w": 1}
        order |= {"embed_state": e, "slot": 1, "dim": 1, "embedx_state": x, "embedx_w": dim}
    places, begin = {}, 0
    for name, width in order.items():
        places[name] = slice(begin, begin + width)
        begin += width
    return places


def _columns(
    lines: list[str], path: Path, number: int, fields: Mapping[str, slice]
) -> dict[str, np.ndarray]:
    long = max(place.stop for place in fields.values())
    short = min(fields[name].start for name in ("embedx_w", "embedx_state"))
    values = np.zeros((len(lines), long), np.float32)
    feasigns = np.zeros(len(lines), np.uint64)
    has = np.zeros(len(lines), np.uint8)
    for at, line in enumerate(lines):
        feasign, *texts = line.split()
        if len(texts) not in (long, short):
            raise DataError(
                f"{path}:{number + at + 1}: expected a feasign and {short} values, or {long} with "
                f"an embedx, found {len(texts)}: the table has another embedx_dim or rule"
            )
        try:
            feasigns[at], values[at, : len(texts)] = int(feasign), texts
        except (ValueError, OverflowError) as error:
            raise DataError(f"{path}:{number + at + 1}: not a row: {error}") from None
        has[at] = len(texts) == long
    if "dim" in fields:
        _check_dim(values[:, fields["dim"]][has == 1], fields, path)
    columns: dict[str, np.ndarray] = {FEASIGN: feasigns, HAS_EMBEDX: has}
    columns[SLOT] = values[:, fields["slot"]][:, 0].astype(np.int64)
    for name in ("delta_score", "show", "click", "embed_w"):
        columns[name] = np.ascontiguousarray(values[:, fields[name]][:, 0])
    for name in ("embed_state", "embedx_w", "embedx_state"):
        if fields[name].stop > fields[name].start:
            columns[name] = np.ascontiguousarray(values[:, fields[name]])
    return columns


def _check_dim(dims: np.ndarray, fields: Mapping[str, slice], path: Path) -> None:
    expected = fields["embedx_w"].stop - fields["embedx_w"].start
    if (dims != expected).any():
        found = int(dims[dims != expected][0])
        raise DataError(f"{path}: expected rows with mf_dim {expected}, found {found}")
