"""Files that describe users, items or values apart from the data of a run. They are Parquet, Arrow,
ORC or CSV, whatever `data.format` is."""

from __future__ import annotations

import csv
from collections.abc import Iterator

from paddlebox.config import Format, Slots
from paddlebox.data.reader import Head, read_chunks
from paddlebox.data.sources import open_source
from paddlebox.errors import DataError

_MAGIC = {b"PAR1": Format.PARQUET, b"ARROW1": Format.ARROW, b"ORC": Format.ORC}
_TAIL_BYTES = 16  # all of these formats repeat their magic bytes at the end


def format_of(path: str) -> Format:
    """The format by the first and last bytes; CSV if it is no other. Raises: DataError."""
    with open_source(path) as source:
        begin = source.read(max(map(len, _MAGIC))) or b""
        source.seek(max(0, source.size - _TAIL_BYTES))
        end = source.read(_TAIL_BYTES) or b""
    for magic, data_format in _MAGIC.items():
        if begin.startswith(magic) and magic in end:  # a text may begin like an ORC file
            return data_format
    return Format.CSV


def csv_chunks(path: str, slots: Slots) -> Iterator[tuple[list[str], bytes]]:
    """The names of the columns, and whole lines below the header, of a CSV file as `csv` of
    slots.yaml describes it. Raises: DataError."""
    own, names = slots.csv, list[str]()
    if not own.header:
        read = (slot.column or slot.name for slot in slots.slots if slot.read)
        names = [*(own.columns or read)]
    for chunk in read_chunks(path, head=Head(own.skip)):
        text = chunk.data.lstrip(b"\n")
        if not names:
            header, _, text = text.partition(b"\n")
            try:
                line = header.decode().rstrip("\r")
            except UnicodeDecodeError as error:
                raise DataError(f"{path}: the header is not UTF-8: {error}") from None
            names = next(csv.reader([line], delimiter=own.delimiter))
        if text:
            yield names, text
