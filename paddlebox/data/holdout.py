"""Splits the rows of the training files into those that are trained and those that evaluations
read: `data.holdout`.

A row is left out before it is parsed. The place of a row in its file decides, or the value of a
column, so the split is the same whatever reads the file: one rank or several, from the beginning or
in parts, with any slots.yaml.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np
import pyarrow as pa

from paddlebox._native import core
from paddlebox.config.check import nearest
from paddlebox.config.data import HoldoutConfig
from paddlebox.errors import DataError

_PIECE_ROWS = 1 << 32  # more than a piece has, so that the places of its rows are its own


class Rows(Enum):
    """The rows of files that a pass reads. They are the same without `data.holdout`."""

    ALL = "all"
    TRAINED = "trained"
    HELD_OUT = "held out"


class Side:
    """The rows of one file that a pass reads. Any thread may call its methods.

    Args:
        rows: TRAINED or HELD_OUT.
        path: of the file.
    """

    def __init__(self, config: HoldoutConfig, seed: int, rows: Rows, path: str) -> None:
        self.column = config.named
        self._key = f"data.holdout.{'by' if config.by else 'column'}"
        self._path, self._held_out = path, rows is Rows.HELD_OUT
        self._name = path.partition("?")[0].rpartition("/")[2]
        self._native = core.Holdout(
            config.share, bool(config.by), seed % (1 << 64), config.at_least, config.equals
        )

    def lines(self, data: bytes, end: int, schema: Any, *, drop: bool = False) -> tuple[bytes, int]:
        """The lines of this side, and the number of the others. These become empty lines, or
        disappear with `drop`. data: whole lines, which end at byte `end` of the file. schema: the
        native FeedSchema of the file. Raises: DataError if there is no such column, or a value that
        cannot be compared."""
        column = 0
        if self.column:
            names = schema.csv_columns or schema.column_names
            self.check(names)
            column = names.index(self.column)
        try:
            kept: tuple[bytes, int] = self._native.keep_lines(
                schema, self._name, data, end, column, self._held_out, drop
            )
        except ValueError as error:
            raise self.wrong(error) from None
        return kept

    def batches(
        self, piece: int, batches: Sequence[Any], texts: Sequence[Any]
    ) -> tuple[list[Any], np.ndarray, int]:
        """The rows of this side of a piece of a columnar file, their numbers (n) uint64 in the
        piece, and the number of all rows.

        Args:
            piece: number of the piece in the file.
            batches: the pyarrow.RecordBatches of the piece.
            texts: of each batch, the column as large_string or large_binary; empty: it reads none.

        Raises: DataError for a value that cannot be compared.
        """
        found, numbers, first = [], [np.zeros(0, np.uint64)], 0
        for at, batch in enumerate(batches):
            values = _values(texts[at]) if texts else None
            place = piece * _PIECE_ROWS + first
            try:
                keeps = self._native.keep_rows(
                    self._name, place, batch.num_rows, self._held_out, values
                )
            except ValueError as error:
                raise self.wrong(error) from None
            found.append(batch.filter(pa.array(keeps.view(bool))))
            numbers.append(np.flatnonzero(keeps).astype(np.uint64) + np.uint64(first))
            first += batch.num_rows
        return found, np.concatenate(numbers), first

    def check(self, names: Sequence[str]) -> None:
        """Raises: DataError if a file with these columns does not have the one that it reads."""
        times = list(names).count(self.column)
        if self.column and times != 1:
            found = f"{times} columns have this name" if times else "no such column"
            raise self.wrong(f"{found}{nearest(self.column, names) if not times else ''}")

    def wrong(self, why: object) -> DataError:
        """An error about the column in this file."""
        return DataError(f"{self._path}: {self._key} {self.column!r}: {why}")


def check_split(config: HoldoutConfig, held_out: int, trained: int) -> None:
    """Check that both sides of the training files have instances. Raises: DataError."""
    if bool(held_out) == bool(trained):
        return
    rule = config.model_dump(exclude_defaults=True)
    found = "none" if trained else "all"
    if config.column:
        step = f"correct at_least or equals, which {found} of the values of the column meet"
    elif config.by:
        step = "instances with equal values are on one side: " + (
            "raise share, or set another seed" if trained else "lower share, or set another seed"
        )
    else:
        step = f"{'raise' if trained else 'lower'} share, or train on more instances"
    raise DataError(
        f"data.holdout: expected some of the {held_out + trained} instances of the training files "
        f"to be held out and some to be trained, found that {rule} holds out {found}: {step}"
    )


def _values(text: Any) -> tuple[np.ndarray, Any]:
    """The offsets, (N + 1) int64, and the bytes of a column. A null is empty."""
    if not len(text):
        return np.zeros(1, np.int64), b""
    text = text.fill_null(b"" if pa.types.is_large_binary(text.type) else "")
    _, offsets, data = text.buffers()
    ends = np.frombuffer(offsets, np.int64)[text.offset : text.offset + len(text) + 1]
    return ends, b"" if data is None else data
