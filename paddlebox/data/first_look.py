"""FirstLook: what a new run finds out from the first rows of its files, before it loads a pass."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paddlebox import _native
from paddlebox.config import Config, Format, Slot, Slots, SlotType
from paddlebox.data.columnar import Piece, count_rows, read_pieces
from paddlebox.data.holdout import Rows
from paddlebox.data.options import EXACT_FLOATS, LoadOptions
from paddlebox.data.prior_gain import FirstRows, exact_values_gain
from paddlebox.data.reader import Chunk, read_chunks
from paddlebox.data.sources import FilePart
from paddlebox.errors import DataError

_KEPT_ROWS, _KEPT_BYTES = 20_000, 64 << 20  # of all files, whichever is less

_RANGES, _ROWS_OF_RANGE = 32, 64  # of a dense feature; more ranges, or fewer rows, gained nothing
_FEWEST_BESIDE, _ROWS_BESIDE = 8, 16  # ranges beside the values of many rows, and rows of each


class Numbers(NamedTuple):
    """What the first rows say about W dense features; empty if there are no rows."""

    scales: tuple[tuple[float, float], ...]  # (W) mean and deviation, 1 for a constant feature
    ranges: tuple[tuple[float, ...], ...]  # (W) edges for `model.dense_ranges`


class _Rows(NamedTuple):
    """The rows of a piece of a columnar file."""

    piece: Piece
    batches: list[Any]

    @property
    def lines(self) -> int:
        return sum(batch.num_rows for batch in self.batches)

    @property
    def nbytes(self) -> int:
        return sum(batch.nbytes for batch in self.batches)

    def parse(self, schema: Any) -> Any:
        return self.piece.parse(schema, self.batches)  # reads it again if it has a side


class FirstLook:
    """Reads the first rows of a file once, keeps them, and answers from them. Each method raises a
    DataError that names a file that cannot be read."""

    def __init__(self, config: Config, slots: Slots) -> None:
        exact = tuple(slot.name for slot in slots.dense if slot.dim == 1)
        self._options = LoadOptions(config.data, slots, config.seed, rows=Rows.TRAINED, exact=exact)
        self.forget()

    def forget(self) -> None:
        self._kept: dict[str, list[Any]] = {}  # the first chunks of files
        self._whole: set[str] = set()  # files of which all chunks are kept
        self._rows = self._bytes = 0  # of what is kept
        self._parsed: tuple[tuple[tuple[str, ...], int], Any] | None = None

    def rows(self, files: Sequence[str], at_most: int) -> int:
        """The number of rows in the files, including malformed lines. Counting stops at at_most."""
        rows, form, csv = 0, self._options.data.format, self._options.slots.csv
        for path in files:
            if form.is_columnar:
                rows += count_rows(path, form)
            else:
                lines = -(csv.skip + csv.header) if form is Format.CSV else 0
                for chunk in self._chunks(path):
                    lines += chunk.lines
                    if rows + lines >= at_most:
                        break
                rows += max(lines, 0)
            if rows >= at_most:
                return at_most
        return rows

    def numbers(self, files: Sequence[str], at_least: int) -> Numbers:
        """Scales and ranges of the dense features, from at least this many of the first rows of the
        files. REQUIRES: no command or plugin reads the files."""
        packed = self._packed(self._instances(files, at_least))
        return _numbers(np.asarray(packed["dense"]), self._options.slots)

    def floats(self, files: Sequence[str], at_least: int) -> dict[str, np.ndarray]:
        """(n) float32 values of each dense slot of dim 1, in at least this many of the first rows
        of the files. REQUIRES: no command or plugin reads the files."""
        dense = np.asarray(self._packed(self._instances(files, at_least))["dense"])
        columns, at = dict[str, np.ndarray](), 0
        for slot in self._options.slots.feed_dense:
            if slot.dim == 1:
                columns[slot.name] = dense[:, at]
            at += slot.dim
        return columns

    def first_rows(self, files: Sequence[str], at_most: int) -> FirstRows:
        """The first rows of the files, at most so many. REQUIRES: no command or plugin reads the
        files."""
        instances = self._instances(files, at_most)
        rows = min(instances.size, at_most)
        clicks = self._packed(instances)["show_click"][:rows, 1]
        return FirstRows(np.array(clicks), *instances.pack_feasigns(0, rows))

    def exact_values(
        self, files: Sequence[str], at_most: int, slots: Sequence[str]
    ) -> dict[str, tuple[float, ...]]:
        """For each of these dense slots whose exact values gain, the boundaries in the middle
        between neighbouring values, as `data.exact_values` takes them. REQUIRES: no command or
        plugin reads the files; the slots have dim 1."""
        labels = self.first_rows(files, at_most).labels
        columns = self.floats(files, at_most)
        dense = np.asarray(self._packed(self._instances(files, at_most))["dense"])
        first = self._options.slots.feed_dense_width
        found = {}
        for name in slots:
            of = columns[name][: len(labels)]
            if exact_values_gain(of, _edges(of), labels):
                at = first + EXACT_FLOATS * self._options.exact.index(name)
                distinct = np.unique(dense[: len(labels), at]).astype(np.float64)
                found[name] = tuple((distinct[:-1] + np.diff(distinct) / 2).tolist())
        return found

    def having(self, slots: Sequence[Slot]) -> FirstLook:
        """One with other slots, which reads nothing again."""
        other = copy(self)
        changed = self._options.slots.having({"slots": tuple(slots)})
        other._options, other._parsed = replace(self._options, slots=changed), None
        return other

    def ids(self, files: Sequence[str], at_least: int) -> float:
        """The mean number of feasigns of a row, of at least this many of the first rows of the
        files; 0 without rows. REQUIRES: no command or plugin reads the files."""
        instances = self._instances(files, at_least)
        _, offsets = instances.pack_feasigns(0, instances.size)
        return float(offsets[-1]) / instances.size if instances.size else 0.0

    def shown(self, path: str, at_most: int) -> list[dict[str, list[float | int]]]:
        """The values of each slot in the first rows of a file: floats, or feasigns. Raises:
        DataError also for the first malformed line among them."""
        self._options.check()
        schema, slots = self._options.schema(), self._options.slots
        rows: list[dict[str, list[float | int]]] = []
        lines, named = 0, "row" if self._options.data.format.is_columnar else "line"
        head = self._options.head(schema).lines  # without rows, in the first chunk
        for chunk in self._parsed_chunks([path], schema):
            for line, reason, _ in chunk.first_bad:
                if line - head < at_most - len(rows):
                    raise DataError(f"{path}: {named} {lines + line + 1}: {reason}")
            rows += self._rows_of(chunk, slots, schema, at_most - len(rows))
            lines, head = lines + chunk.lines, 0
            if len(rows) == at_most:
                break
        return rows

    def _rows_of(
        self, chunk: Any, slots: Slots, schema: Any, at_most: int
    ) -> list[dict[str, list[float | int]]]:
        instances = _native.core.Instances(schema.sparse_slots, schema.dense_width)
        instances.append(chunk)
        instances.index(_native.core.ThreadPool(1))
        packed, count = self._packed(instances), min(at_most, instances.size)
        feasigns, offsets = instances.pack_feasigns(0, count)
        rows, place = [], 0
        for at in range(count):
            row: dict[str, list[float | int]] = {}
            column = 0
            for slot in slots.slots:
                if slot in slots.labels[:1]:
                    row[slot.name] = [float(packed["label"][at, 0])]
                elif slot.type is SlotType.SPARSE:
                    row[slot.name] = feasigns[offsets[place] : offsets[place + 1]].tolist()
                    place += 1
                else:
                    row[slot.name] = packed["dense"][at, column : column + slot.dim].tolist()
                    column += slot.dim
            rows.append(row)
        return rows

    def _instances(self, files: Sequence[str], at_least: int) -> Any:
        """Native Instances of at least this many of the first rows of the files, parsed once."""
        if self._parsed is None or self._parsed[0] != (tuple(files), at_least):
            schema = self._options.schema()
            instances = _native.core.Instances(schema.sparse_slots, schema.dense_width)
            for chunk in self._parsed_chunks(files, schema):
                instances.append(chunk)
                if instances.size >= at_least:
                    break
            instances.index(_native.core.ThreadPool(1))
            self._parsed = (tuple(files), at_least), instances
        return self._parsed[1]

    def _packed(self, instances: Any) -> Any:
        nowhere = np.zeros(instances.unique_keys, np.int32)
        width = self._options.schema().dense_width
        return instances.pack_batch(0, instances.size, nowhere, 0, width)

    def _parsed_chunks(self, files: Sequence[str], schema: Any) -> Iterator[Any]:
        """The chunks of the files, parsed."""
        for path in files:
            chunks = self._chunks(path)
            if not self._options.data.format.is_columnar:
                chunks = self._options.head(schema).taken_from(chunks, FilePart(path))
            yield from (chunk.parse(schema) for chunk in chunks)

    def zeros(self, path: str, at_least: int) -> tuple[int, dict[str, int]]:
        """Count ids of 0 in slots that are not hashed, in at least this many of the first rows of a
        file. Of CSV only the first chunk is searched.

        An id of 0 is dropped, because 0 is padding by a convention of the text formats. But columns
        of CSV, Parquet and Arrow files often number their values from 0: the user must be warned.

        Returns: the number of rows, and slot -> number of ids of 0, without slots that have none.
            (0, {}) for formats in which 0 is padding, and files that a command or a plugin reads.
        """
        data, slots = self._options.data, self._options.slots
        looked = [slot for slot in slots.sparse if slot.read and not slot.hash]
        named = data.format is Format.CSV or data.format.is_columnar
        if not looked or not named or data.pipe_command or data.parser:
            return 0, {}
        if data.format is Format.CSV:
            first = next(self._chunks(path), Chunk(path, b""))
            rows, found = _zeros_of_csv(first.data.decode("utf-8", "replace"), slots, looked)
            return rows, dict(found)
        rows, found = 0, Counter[str]()
        for chunk in self._chunks(path):
            for batch in chunk.batches:
                found += _zeros_of_batch(batch, looked)
            rows += chunk.lines
            if rows >= at_least:
                break
        return rows, dict(found)

    def _chunks(self, path: str) -> Iterator[Any]:
        """The chunks of a file: those that are kept, then the others."""
        chunks = self._kept.setdefault(path, [])
        yield from chunks
        if path in self._whole:
            return
        keeps = True
        for chunk in islice(self._open(path), len(chunks), None):
            keeps = keeps and self._rows < _KEPT_ROWS and self._bytes < _KEPT_BYTES
            if keeps:
                chunks.append(chunk)
                self._rows += chunk.lines
                self._bytes += chunk.nbytes
            yield chunk
        if keeps:
            self._whole.add(path)

    def _open(self, path: str) -> Iterator[Any]:
        data, side = self._options.data, self._options.side_of(path)
        if not data.format.is_columnar:
            return (replace(chunk, side=side) for chunk in read_chunks(path))
        pieces = read_pieces(path, data.format, self._options.schema(), side=side)
        return (_Rows(piece, piece.batches()) for piece in pieces)


def _numbers(rows: np.ndarray, slots: Slots) -> Numbers:
    """rows: (n, width of the schema) float32, the floats of a native ParsedChunk."""
    if not len(rows):
        return Numbers((), ())
    # The floats also hold the labels of further tasks.
    features = np.concatenate(
        [np.full(slot.dim, slot.type is SlotType.DENSE) for slot in slots.feed_dense]
    )
    chosen = rows[:, : len(features)][:, features]
    deviations = chosen.std(axis=0, dtype=np.float64)
    scales = tuple(
        (float(f"{mean:.6g}"), float(f"{deviation:.6g}") if deviation > 0 else 1.0)
        for mean, deviation in zip(chosen.mean(axis=0, dtype=np.float64), deviations, strict=True)
    )
    return Numbers(scales, tuple(map(_edges, chosen.T)))


def _edges(values: np.ndarray) -> tuple[float, ...]:
    """The edges of ranges with about equally many rows. A value with more rows, such as one that
    stands for a missing value, gets a range up to the next value, over which nothing else lies. If
    that leaves few ranges for the other values, the ranges hold about equally many rows of those. A
    feature of one or two values gets none.

    values: (n) float32.
    """
    ranges = min(_RANGES, len(values) // _ROWS_OF_RANGE)
    distinct, rows = np.unique(values, return_counts=True)
    if ranges < 2 or len(distinct) < 3:
        return ()
    if len(distinct) > ranges:
        many = rows * ranges > len(values)
        others = np.repeat(distinct[~many], rows[~many])
        fewest = min(_FEWEST_BESIDE, ranges)
        if ranges * len(others) < fewest * len(values):
            values, ranges = others, max(min(fewest, len(others) // _ROWS_BESIDE), 1)
        ends = np.quantile(values, np.linspace(0, 1, ranges + 1), method="nearest")
        (often,) = np.nonzero(many)
        after = np.minimum(often + 1, len(distinct) - 1)
        distinct = np.unique(np.concatenate([ends, distinct[often], distinct[after]]))
    return tuple(float(str(edge)) for edge in distinct)  # the shortest text of each float32


def _zeros_of_csv(text: str, slots: Slots, looked: list[Slot]) -> tuple[int, Counter[str]]:
    own = slots.csv
    rows = _csv_rows(text.split("\n")[own.skip :], own.delimiter)
    names = next(rows, []) if own.header else own.columns or [slot.name for slot in slots.slots]
    places = {s.name: names.index(c) for s in looked if (c := s.column or s.name) in names}
    found, count = Counter[str](), 0
    for cells in rows:
        count += 1
        for name, place in places.items():
            cell = cells[place] if place < len(cells) else ""
            found[name] += "0" in cell and cell.split(own.list_separator).count("0")
    return count, +found


def _csv_rows(lines: list[str], delimiter: str) -> Iterator[list[str]]:
    """The cells of each line. As in the feeder's parser, a stray quote affects only its own line.
    Malformed lines are left out here; the parser reports them."""
    for line in lines:
        if line := line.rstrip("\r"):
            with suppress(csv.Error):
                yield next(csv.reader([line], delimiter=delimiter))


def _zeros_of_batch(batch: pa.RecordBatch, looked: list[Slot]) -> Counter[str]:
    found = Counter[str]()
    for slot in looked:
        values = batch.column(slot.column or slot.name)
        while hasattr(values, "flatten") and hasattr(values.type, "value_field"):
            values = values.flatten()
        if pa.types.is_integer(values.type):
            zero = pa.scalar(0, values.type)  # not int64, to which large uint64 values have no cast
            found[slot.name] = pc.sum(pc.equal(values, zero)).as_py() or 0
    return +found
