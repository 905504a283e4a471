"""Rows that a source gives: checked, brought into the order of keys, and completed.

Letters: n = rows of a batch, W = words of a row of the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from paddlebox._native import core
from paddlebox.config.table import RULE_CONSTANTS
from paddlebox.errors import DataError
from paddlebox.store import files
from paddlebox.store.group import key_ranges
from paddlebox.tools.rows.columns import FEASIGN, rows_of

_PARTS: dict[str, int] = dict(core.given_parts)
_PART_OF = {"show": "counts", "click": "counts", "counts": "further_counts"}
_WEIGHTS = ("embed_w", "embedx_w", "expand_w")
_COUNTS = ("show", "click", "counts")
_SORT_BYTES = 256 << 20  # of rows to sort in memory at a time
_MERGED_ROWS = 1 << 16  # of sorted runs, at a time


@dataclass(frozen=True)
class Given:
    keys: np.ndarray  # (n) uint64
    rows: np.ndarray  # (n, W) float32, in which only `parts` have a meaning, and the slot
    parts: np.ndarray  # (n) uint32, bits of GivenPart (ops/table/import.h)

    def cut(self, begin: int, end: int) -> Given:
        return Given(self.keys[begin:end], self.rows[begin:end], self.parts[begin:end])


@dataclass
class Counted:
    """The report of an import."""

    read: int = 0
    refused: dict[str, int] = field(default_factory=dict)  # why -> rows that were left out
    clipped: int = 0  # rows with a weight beyond the bounds of all weights
    new: int = 0
    replaced: int = 0
    deleted: int = 0

    def refuse(self, why: str, rows: int) -> None:
        if rows:
            self.refused[why] = self.refused.get(why, 0) + rows


def given_of(
    columns: Mapping[str, np.ndarray], layout: Mapping[str, int], counted: Counted, where: str
) -> Given:
    """Rows of columns (docs/formats/rows.md), of which any but feasign and slot may be missing.
    where: the file, for errors. Raises: DataError for values that no row can have."""
    columns = dict(columns)
    for name, column in columns.items():
        _check(where, name, column, columns[FEASIGN])
    counted.read += len(columns[FEASIGN])
    present = columns[FEASIGN] != 0
    if not present.all():
        counted.refuse("feasign 0, which is padding", int((~present).sum()))
        columns = {name: column[present] for name, column in columns.items()}
    if "show" in columns or "click" in columns:  # one part
        for name in ("show", "click"):
            columns.setdefault(name, np.zeros(len(columns[FEASIGN]), np.float32))
    _clip(columns, counted)
    parts = 0
    for name in columns:
        parts |= _PARTS.get(_PART_OF.get(name, name), 0)
    keys = core.keys_of(columns[FEASIGN])
    return Given(keys, rows_of(columns, layout), np.full(len(keys), parts, np.uint32))


def _check(where: str, name: str, column: np.ndarray, feasigns: np.ndarray) -> None:
    if column.dtype.kind != "f" or not len(column):
        return
    # NaN is in the minimum and the maximum, too.
    least, most = column.min(), column.max()
    if np.isfinite(least) and np.isfinite(most) and not (name in _COUNTS and least < 0):
        return
    flat = column.reshape(len(column), int(np.prod(column.shape[1:])))
    wrong = ~np.isfinite(flat).all(axis=1)
    what = "finite numbers"
    if name in _COUNTS and not wrong.any():
        wrong, what = (flat < 0).any(axis=1), "counts of at least 0"
    if wrong.any():
        at = int(np.argmax(wrong))
        raise DataError(
            f"{where}: {name} of feasign {feasigns[at]}: expected {what}, found {flat[at].tolist()}"
            f"; {int(wrong.sum())} rows of a batch have such values"
        )


def _clip(columns: dict[str, np.ndarray], counted: Counted) -> None:
    """The next push to such a row would do the same."""
    low, high = RULE_CONSTANTS["min_bound"], RULE_CONSTANTS["max_bound"]
    beyond = np.zeros(len(columns[FEASIGN]), bool)
    for name in _WEIGHTS:
        column = columns.get(name, beyond)
        if column.size and (column.min() < low or column.max() > high):
            inside = np.clip(column, low, high)
            beyond |= (inside != column).reshape(len(beyond), -1).any(axis=1)
            columns[name] = inside
    counted.clipped += int(beyond.sum())


# ---- the order of keys


def in_order(batches: Iterable[Given], folder: Path, words: int) -> tuple[int, Iterator[Given]]:
    """Reads all batches, and brings them into the order of keys in bounded memory. folder: for
    sorted runs, which stay there. Returns: the number of rows; the batches."""
    most = max(1, _SORT_BYTES // (12 + 4 * words))
    runs: list[Given] = []
    waiting: list[Given] = []
    rows = spilled = 0
    for batch in batches:
        waiting.append(batch)
        rows += len(batch.keys)
        if rows - spilled >= most:
            runs.append(_spilled(_sorted(waiting), folder / str(len(runs))))
            waiting, spilled = [], rows
    if waiting:
        runs.append(_sorted(waiting))
    return rows, _merged(runs, rows)


def _spilled(run: Given, folder: Path) -> Given:
    files.make_folder(str(folder))
    mapped = {}
    for name, array in vars(run).items():
        path = folder / f"{name}.npy"
        with files.writing(str(path)):
            np.save(path, array)
        mapped[name] = np.load(path, mmap_mode="r", allow_pickle=False)
    return Given(**mapped)


def _merged(runs: Sequence[Given], rows: int) -> Iterator[Given]:
    ends = [0] * len(runs)
    for _, last in key_ranges(max(1, rows // _MERGED_ROWS)):
        begins = ends
        ends = [int(np.searchsorted(run.keys, np.uint64(last), "right")) for run in runs]
        if runs:
            yield _sorted([run.cut(*at) for run, *at in zip(runs, begins, ends, strict=True)])


def _sorted(batches: Sequence[Given]) -> Given:
    keys = np.concatenate([batch.keys for batch in batches])
    order = np.argsort(keys)
    rows = np.concatenate([batch.rows for batch in batches])
    parts = np.concatenate([batch.parts for batch in batches])
    return Given(keys[order], rows[order], parts[order])
