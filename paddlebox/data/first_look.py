"""FirstLook: what a new run finds out from the first rows of its files, before it loads a pass."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paddlebox import _native
from paddlebox.config import Config, Format, Slot, Slots, SlotType
from paddlebox.data.columnar import count_rows, read_pieces
from paddlebox.data.options import LoadOptions
from paddlebox.data.reader import Chunk, read_chunks
from paddlebox.data.sources import FilePart

_KEPT_ROWS = 20_000  # of each file

Scales = tuple[tuple[float, float], ...]


class _Rows(NamedTuple):
    """A piece of a columnar file."""

    batches: list[Any]

    @property
    def lines(self) -> int:
        return sum(batch.num_rows for batch in self.batches)

    def parse(self, schema: Any) -> Any:
        return _native.core.parse_columns(schema, self.batches)


@dataclass
class _Beginning:
    """The chunks at the beginning of a file."""

    chunks: list[Any] = field(default_factory=list)
    lines: int = 0
    is_whole: bool = False


class FirstLook:
    """Reads the first rows of a file once, keeps them, and answers from them.

    Files that a command filters or a parser plugin reads cannot be parsed here. Every method raises
    a DataError that names the file if it cannot be read.
    """

    def __init__(self, config: Config, slots: Slots) -> None:
        self._options = LoadOptions(config.data, slots)
        self._read: dict[str, _Beginning] = {}

    def forget(self) -> None:
        """Drop the rows that are kept."""
        self._read.clear()

    def rows(self, files: Sequence[str], at_most: int) -> int:
        """The number of rows in the files, including malformed lines. Counting stops at at_most."""
        rows, form, csv = 0, self._options.data.format, self._options.slots.csv
        for path in files:
            if form.is_columnar:
                rows += count_rows(path, form)
            else:
                lines = -(csv.skip + csv.header) if form is Format.CSV else 0
                for chunk in self._chunks(path):
                    lines += _lines(chunk)
                    if rows + lines >= at_most:
                        break
                rows += max(lines, 0)
            if rows >= at_most:
                return at_most
        return rows

    def scales(self, files: Sequence[str], at_least: int) -> Scales:
        """A pair (mean, standard deviation) for each dense feature, over the first rows of the
        files; empty if there are no rows. The deviation of a constant feature is given as 1.

        Args:
            at_least: number of rows to read. Chunks are read as a whole, so they may be more.
        """
        schema, parts = self._options.schema(), list[np.ndarray]()
        for path in files:
            chunks = self._chunks(path)
            if not self._options.data.format.is_columnar:
                chunks = self._options.head(schema).taken_from(chunks, FilePart(path))
            for chunk in chunks:
                parts.append(_dense_of(chunk.parse(schema), schema))
                if sum(map(len, parts)) >= at_least:
                    return _scales(parts, self._options.slots)
        return _scales(parts, self._options.slots)

    def zeros(self, path: str, at_least: int) -> tuple[int, dict[str, int]]:
        """Count ids of 0 in the first rows of a file, in slots that are not hashed.

        An id of 0 is dropped, because 0 is padding by a convention of the text formats. But columns
        of CSV, Parquet and Arrow files often number their values from 0: the user must be warned.

        Args:
            at_least: as for `scales`. Of CSV only the first chunk is searched.

        Returns: the number of rows, and slot -> number of ids of 0, without slots that have none.
            (0, {}) for formats in which 0 is padding by convention.
        """
        data, slots = self._options.data, self._options.slots
        looked = [slot for slot in slots.sparse if not (slot.hash or slot.made)]
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
        beginning = self._read.setdefault(path, _Beginning())
        yield from beginning.chunks
        if beginning.is_whole:
            return
        kept = True
        for chunk in islice(self._open(path), len(beginning.chunks), None):
            kept = beginning.lines < _KEPT_ROWS
            if kept:
                beginning.chunks.append(chunk)
                beginning.lines += _lines(chunk)
            yield chunk
        beginning.is_whole = kept

    def _open(self, path: str) -> Iterator[Any]:
        data = self._options.data
        if not data.format.is_columnar:
            return read_chunks(path)
        pieces = read_pieces(path, data.format, self._options.schema())
        return (_Rows(piece.batches()) for piece in pieces)


def _lines(chunk: Any) -> int:
    if isinstance(chunk, _Rows):
        return chunk.lines
    return int(chunk.data.count(b"\n") + (not chunk.data.endswith(b"\n")))


def _dense_of(parsed: Any, schema: Any) -> np.ndarray:
    """The floats of a native ParsedChunk, (n, width of the schema) float32."""
    core = _native.core
    instances = core.Instances(schema.sparse_slots, schema.dense_width)
    instances.append(parsed)
    instances.index(core.ThreadPool(1))
    nowhere = np.zeros(instances.unique_keys, np.int32)
    packed = instances.pack_batch(0, instances.size, nowhere, 0, schema.dense_width)
    return np.asarray(packed["dense"])


def _scales(parts: Sequence[np.ndarray], slots: Slots) -> Scales:
    rows = np.concatenate(parts) if parts else np.zeros((0, 0))
    if not len(rows):
        return ()
    # The floats also hold the labels of further tasks.
    features = np.concatenate(
        [np.full(slot.dim, slot.type is SlotType.DENSE) for slot in slots.feed_dense]
    )
    chosen = rows[:, features].astype(np.float64)
    deviations = chosen.std(axis=0)
    return tuple(
        (float(f"{mean:.6g}"), float(f"{deviation:.6g}") if deviation > 0 else 1.0)
        for mean, deviation in zip(chosen.mean(axis=0), deviations, strict=True)
    )


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
