"""Finds ids of 0 in columns of integers.

An id of 0 is dropped, because 0 is padding by a convention of the text formats. But columns of CSV,
Parquet and Arrow files often number their values from 0, and then the user must be warned.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc

from paddlebox.config import Config, Format, Slot, Slots
from paddlebox.config.data import MAX_LINE_BYTES
from paddlebox.data.columnar import read_pieces
from paddlebox.data.options import LoadOptions
from paddlebox.data.reader import read_chunks

Found = tuple[int, Counter[str]]  # rows, and ids of 0 in them by slot


def zero_ids(path: str, config: Config, slots: Slots, at_least: int) -> tuple[int, dict[str, int]]:
    """Count ids of 0 in the first rows of a file, in slots that are not hashed.

    Args:
        at_least: number of rows to read. More rows may be read, because chunks are read as a whole.

    Returns: the number of rows read, and slot -> number of ids of 0, without slots that have none.
        (0, {}) for formats in which 0 is padding by convention.

    Raises: DataError that names the file if it cannot be read.
    """
    looked = [slot for slot in slots.sparse if not (slot.hash or slot.made)]
    rows, found = 0, Counter[str]()
    for of_chunk, zeros in _chunks(path, config, slots, looked) if looked else ():
        rows += of_chunk
        found += zeros
        if rows >= at_least:
            break
    return rows, dict(found)


def _chunks(path: str, config: Config, slots: Slots, looked: list[Slot]) -> Iterator[Found]:
    data = config.data
    if data.pipe_command or data.parser:
        return
    if data.format is Format.CSV:
        for chunk in read_chunks(path, line_bytes=MAX_LINE_BYTES):
            yield _of_csv(chunk.data.decode("utf-8", "replace"), slots, looked)
            return  # only the first one has the header
    elif data.format.is_columnar:
        for piece in read_pieces(path, data.format, LoadOptions(data, slots).schema()):
            for batch in piece.batches():
                yield _of_batch(batch, looked)


def _of_csv(text: str, slots: Slots, looked: list[Slot]) -> Found:
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


def _of_batch(batch: pa.RecordBatch, looked: list[Slot]) -> Found:
    found = Counter[str]()
    for slot in looked:
        values = batch.column(slot.column or slot.name)
        while hasattr(values, "flatten") and hasattr(values.type, "value_field"):
            values = values.flatten()
        if pa.types.is_integer(values.type):
            zero = pa.scalar(0, values.type)  # not int64, to which large uint64 values have no cast
            found[slot.name] = pc.sum(pc.equal(values, zero)).as_py() or 0
    return batch.num_rows, +found
