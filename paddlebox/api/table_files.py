"""Files of rows as tables, for what describes users and items outside of the data of a run."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from paddlebox.config import Config, Slots
from paddlebox.data.listing import expand
from paddlebox.errors import DataError

_READ_ROWS = 1 << 16  # of a table


def read_tables(patterns: Sequence[str], config: Config, slots: Slots) -> Iterator[tuple[Any, str]]:
    """The rows of CSV, Parquet and Arrow files as tables of at most 65,536 rows, each with the name
    of its file. CSV has the form that `csv` of slots.yaml describes. Raises: DataError that names
    the file."""
    for path in expand(patterns):
        try:
            for batch in _batches(path, config, slots):
                for begin in range(0, batch.num_rows, _READ_ROWS):
                    yield pa.Table.from_batches([batch.slice(begin, _READ_ROWS)]), path
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: cannot be read as CSV, Parquet or Arrow: {error}") from None


def _batches(path: str, config: Config, slots: Slots) -> Any:
    with open(path, "rb") as file:
        magic = file.read(6)
    if magic.startswith(b"PAR1"):
        return pq.ParquetFile(path).iter_batches(_READ_ROWS)
    if magic == b"ARROW1":
        opened = pa.ipc.open_file(path)
        return map(opened.get_batch, range(opened.num_record_batches))
    return _csv_of(path, config, slots).to_batches()


def _csv_of(path: str, config: Config, slots: Slots) -> Any:
    """A CSV file. Cells are strings, if the run reads text."""
    own = slots.csv
    with open(path, encoding="utf-8", newline="") as file:
        for _ in range(own.skip):
            file.readline()
        header = next(csv.reader(file, delimiter=own.delimiter), [])
    read = [slot.column or slot.name for slot in slots.slots if not slot.made]
    names = header if own.header else list(own.columns or read)
    texts = {slot.column or slot.name for slot in slots.sparse if slot.hash}
    columnar = config.data.format.is_columnar or bool(config.data.parser)
    return pa_csv.read_csv(
        path,
        pa_csv.ReadOptions(column_names=names, skip_rows=own.skip + own.header),
        pa_csv.ParseOptions(delimiter=own.delimiter),
        pa_csv.ConvertOptions(
            column_types={n: pa.string() for n in names if not columnar or n in texts},
            strings_can_be_null=False,
        ),
    )
