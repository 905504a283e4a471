"""SlotValues: the values of a slot as feasigns, given one by one or as the column of files.

Letters: K = values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from paddlebox._native import core
from paddlebox.config import Format, KeySpace, Slots
from paddlebox.config.check import did_you_mean
from paddlebox.config.data import MAX_LINE_BYTES
from paddlebox.data.columnar import read_pieces
from paddlebox.data.given_files import csv_chunks, format_of
from paddlebox.data.listing import expand
from paddlebox.errors import ConfigError, DataError
from paddlebox.serving.feed import CRITEO_COLUMNS, Use
from paddlebox.serving.fields import text_of

_ID = re.compile("[0-9]{1,20}")
_LABEL = {"name": "label", "type": "label", "dim": 1, "column": "label"}
_MERGED_ROWS = 1 << 20  # of values that are not merged yet, at least


def known_slot(names: Sequence[str], name: str, wrong: str) -> str:
    """The name, if it is one of the names. Raises: ConfigError that begins with `wrong`."""
    if name in names:
        return name
    raise ConfigError(wrong + (did_you_mean([name], names) or f"; there are {', '.join(names)}"))


def salt_of(number: int) -> np.uint64:
    """What a slot number adds: FeasignInSlot in ops/row/feasign.h is Mix(id) ^ salt."""
    return np.uint64(core.feasign_in_slot(1, number) ^ core.mix(1))


def in_slot(ids: np.ndarray, salt: np.uint64 | None) -> np.ndarray:
    """(K) uint64 feasigns of ids. salt: of their slot; None: they do not contain it."""
    if salt is None:
        return ids
    mixed = core.keys_of(ids) ^ salt
    return np.where(mixed == 0, np.uint64(1), mixed)


class SlotValues:
    """Maps the values of a sparse slot to the feasigns that the feeder computes from them: they are
    hashed if the slot has `hash`, and contain the slot if the key space is per_slot. The values of
    a weighted slot are ids without their weights.

    Raises: ConfigError if no slot of this name is read from the data.
    """

    def __init__(
        self, slots: Slots, name: str, data_format: Format, key_space: KeySpace, parser: str = ""
    ) -> None:
        names = [slot.name for slot in slots.sparse if slot.read]
        known_slot(names, name, f"no sparse slot {name!r} is read from the data")
        place = [slot.name for slot in slots.sparse].index(name)
        self._slots, self._slot = slots, slots.sparse[place]
        self._criteo = data_format is Format.CRITEO_TSV
        self._columnar = data_format.is_columnar or bool(parser)
        #: Whether a feasign does not contain the value, which is a text; otherwise it is an id.
        self.has_texts = self._slot.hash or self._criteo
        number = slots.key_slots()[place]
        self._salt = salt_of(number) if key_space is KeySpace.PER_SLOT else None

    def feasigns(self, values: Sequence[Any]) -> np.ndarray:
        """(K) uint64. values: as in the data (`text_of`). Raises: ConfigError for one that the slot
        cannot have."""
        return self._checked(self._column(values), values)

    def of_column(self, column: pa.Array) -> np.ndarray:
        """(K) uint64. column: of a file, without nulls and lists. Raises: as `feasigns`."""
        return self._checked(column, column)

    def ids(self, feasigns: np.ndarray) -> np.ndarray:
        """(K) uint64 ids, of which (K) uint64 feasigns of this slot were made."""
        return feasigns if self._salt is None else core.feasigns_of(feasigns ^ self._salt)

    def listed(self, values: Sequence[Any], patterns: Sequence[str]) -> pa.Table:
        """The distinct values of a list, and of a column of files: that of the slot, in Parquet,
        Arrow, ORC and CSV files, the latter as `csv` of slots.yaml describes them.

        Returns: columns key (uint64), ascending: that of the feasign; and value (large_string), if
            `has_texts`.

        Raises: as `feasigns`; DataError if a file cannot be read, or lacks the column.
        """
        return _merged(self._parts(values, patterns))

    def in_file(self, path: str) -> Iterator[pa.Table]:
        """The distinct values of each part of a file, as columns of `listed` in any order. Raises:
        DataError."""
        try:
            for column in self._columns(path):
                yield self._part(column)
        except (pa.ArrowException, ConfigError) as error:
            raise DataError(f"{path}: slot {self._slot.name!r}: {error}") from error

    # ---- implementation

    def _parts(self, values: Sequence[Any], patterns: Sequence[str]) -> Iterator[pa.Table]:
        self.feasigns(values)  # is an error for an empty value, which a file may have
        yield self._part(self._column(values))
        for path in expand(patterns):
            yield from self.in_file(path)

    def _part(self, column: pa.Array) -> pa.Table:
        while hasattr(column.type, "value_field"):
            column = column.flatten()
        column = column.drop_null().unique()
        present, ids = self._parse(column)
        columns = {"key": core.keys_of(in_slot(ids, self._salt))}
        if self.has_texts:
            columns["value"] = column.filter(pa.array(present)).cast(pa.large_string())
        return pa.table(columns)

    def _checked(self, column: pa.Array, values: Sequence[Any]) -> np.ndarray:
        present, ids = self._parse(column)
        if not present.all():
            value = values[int(np.argmin(present))]
            value = value.as_py() if isinstance(value, pa.Scalar) else value
            raise ConfigError(f"slot {self._slot.name!r}: {value!r} is not a feasign")
        return in_slot(ids, self._salt)

    def _column(self, values: Sequence[Any]) -> pa.Array:
        """A column of a file with these values."""
        name, use = self._slot.name, Use.TEXT if self._slot.hash else Use.ID
        try:
            texts = [text_of(value, use, self._columnar) for value in values]
            if self.has_texts:
                return pa.array(texts, pa.large_string())
        except UnicodeError as error:
            raise ConfigError(f"slot {name!r}: a value is not UTF-8: {error}") from None
        except ValueError as error:
            raise ConfigError(f"slot {name!r}: {error}") from None
        for text in texts:
            if not _ID.fullmatch(text) or int(text) >= 1 << 64:
                raise ConfigError(f"slot {name!r}: {text!r} is not a decimal feasign")
        return pa.array([int(text) for text in texts], pa.uint64())

    def _parse(self, column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        """(K) bool, which of K values, neither nulls nor lists, are feasigns and not padding, and
        these feasigns in the shared key space, uint64. Raises: ConfigError for malformed values."""
        if self._criteo:
            chunk = self._parse_criteo(column.cast(pa.large_string()).to_pylist())
        else:
            schema = self._schema(Format.PARQUET)
            batch = pa.RecordBatch.from_arrays([column], names=schema.column_names)
            chunk = core.parse_columns(schema, [batch])
        for _, reason, _ in chunk.first_bad:
            raise ConfigError(reason)
        lengths, ids = chunk.sample(len(column))
        return lengths.astype(bool), ids

    def _parse_criteo(self, texts: Sequence[str]) -> Any:
        at = CRITEO_COLUMNS.index(self._slot.column or self._slot.name)
        before, after = "0" + "\t" * at, "\t" * (len(CRITEO_COLUMNS) - 1 - at)
        for text in texts:
            if "\n" in text:
                raise ConfigError(f"slot {self._slot.name!r}: {text!r} contains a line break")
        lines = "\n".join([before + text + after for text in texts])
        return core.parse_chunk(self._schema(Format.CRITEO_TSV), lines.encode())

    def _schema(self, data_format: Format) -> Any:
        """A native FeedSchema of this slot alone, without what the feeder does to lists."""
        of_lists = {"weighted": False, "shares": None, "default": None, "max_length": None}
        fields = [{**self._slot.fields(), **of_lists}]
        if data_format is Format.CRITEO_TSV:
            fields.append(_LABEL)
        elif self._criteo:  # the tokens of the column are texts
            fields[0]["hash"] = True
        return core.FeedSchema(data_format.value, fields, False, MAX_LINE_BYTES)

    # ---- files

    def _columns(self, path: str) -> Iterator[pa.Array]:
        data_format = format_of(path)
        if data_format is Format.CSV:
            for column in self._csv_columns(path):
                yield column if self.has_texts else column.cast(pa.uint64())
            return
        schema = self._schema(data_format)
        for piece in read_pieces(path, data_format, schema):
            for batch in piece.batches():
                yield batch.column(schema.column_names[0])

    def _csv_columns(self, path: str) -> Iterator[pa.Array]:
        own, name = self._slots.csv, self._slot.column or self._slot.name
        null = {"strings_can_be_null": True, "quoted_strings_can_be_null": True}
        parse = pa_csv.ParseOptions(
            delimiter=own.delimiter, invalid_row_handler=lambda _: "skip", ignore_empty_lines=True
        )
        convert = pa_csv.ConvertOptions(
            include_columns=[name],
            column_types={name: pa.string()},
            null_values=["", *own.null],
            **null,
        )
        for names, text in csv_chunks(path, self._slots):
            if name not in names:
                hint = did_you_mean([name], names) or f"; there are {', '.join(names)}"
                raise DataError(f"{path}: expected a column {name!r}, found none{hint}")
            columns = pa_csv.ReadOptions(column_names=names, block_size=len(text) + 1)
            read_table = pa_csv.read_csv(pa.BufferReader(text), columns, parse, convert)
            cells = read_table.column(0).combine_chunks()
            values = pc.split_pattern(cells, own.list_separator).flatten()
            if self._slot.weighted:  # id:weight
                values = pc.replace_substring_regex(values, ":[^:]*$", "")
            yield values


def _merged(parts: Iterable[pa.Table]) -> pa.Table:
    """The distinct rows of the parts. Equal ones are dropped from time to time."""
    tables, rows = list[pa.Table](), 0  # the first: what is merged; rows: of the others
    for part in parts:
        tables.append(part)
        rows += len(part)
        if rows > max(_MERGED_ROWS, len(tables[0])):
            tables, rows = [_distinct(tables)], 0
    return _distinct(tables)


def _distinct(tables: Sequence[pa.Table]) -> pa.Table:
    table = pa.concat_tables(tables)
    _, first = np.unique(table["key"].to_numpy(), return_index=True)
    return table.take(first).combine_chunks()
