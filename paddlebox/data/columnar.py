"""Reads Parquet, Arrow IPC, ORC and JSON files, only the columns that slots use.

A piece is a row group of Parquet, a record batch of Arrow, a stripe of ORC or a block of lines of
JSON. Any thread may read and parse one. The pieces keep the order of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import json as pa_json
from pyarrow import orc

from paddlebox import _native
from paddlebox.config import Format
from paddlebox.config.check import did_you_mean
from paddlebox.data.bad_lines import OTHER_NAME
from paddlebox.data.holdout import Side
from paddlebox.data.sources import RETRIES, FilePart, Source, open_source
from paddlebox.errors import DataError
from paddlebox.store.remote import is_uri

# Types that are cast to a simpler type with the same values.
_PLAIN = {
    pa.string_view(): pa.large_string(),
    pa.binary_view(): pa.large_binary(),
    pa.float16(): pa.float32(),
}
Uses = dict[str, frozenset[str]]  # column -> reads of it: "text", "number", "id" or "stamp"
_TIME = "time"  # the use of the column of the time
_FEW_ROW_GROUPS = 4  # a file with fewer is decoded by several threads, one per column


@contextmanager
def _data_errors(path: str, after: str = "") -> Iterator[None]:
    """Turn other errors into a DataError that begins with the path and ends with `after`."""
    try:
        yield
    except DataError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path}: {error}{after}") from error


@dataclass(frozen=True)
class Piece:
    """A part of the rows of one file, not yet read."""

    path: str
    number: int
    _read: Callable[[int], list[Any]] = field(repr=False)  # record batches of the piece
    uses: Uses = field(default_factory=dict, repr=False)
    side: Side | None = None  # the rows that are parsed; None: all

    def batches(self) -> list[Any]:
        """The pyarrow.RecordBatches of the piece, with all rows. Raises: DataError that names the
        file."""
        with self._data_errors():
            return [_plain(batch, self.uses) for batch in self._read(self.number)]

    def parse(self, schema: Any, batches: list[Any] | None = None) -> Any:
        """The native ParsedChunk. batches: those of `batches`, if they were read before and there
        is no side. Raises: DataError that names the file if it cannot be read, or its content
        contradicts its schema."""
        with self._data_errors():
            if self.side is None:
                rows = self.batches() if batches is None else batches
                return _native.core.parse_columns(schema, rows)
            rows, column = self._read(self.number), self.side.column
            texts = [_text(batch.column(column)) for batch in rows] if column else []
            plain = [_plain(batch, self.uses) for batch in rows]
            kept, numbers, count = self.side.batches(self.number, plain, texts)
            parsed = _native.core.parse_columns(schema, kept)
            _native.core.count_all_rows(parsed, numbers, count)
            return parsed

    def _data_errors(self) -> AbstractContextManager[None]:
        return _data_errors(f"{self.path}: part {self.number} cannot be read")


def read_pieces(
    path: str,
    data_format: Format,
    schema: Any,
    retries: int = RETRIES,
    part: FilePart | None = None,
    time: str = "",
    side: Side | None = None,
) -> Iterator[Piece]:
    """The pieces of one file, or of a part of it, in order.

    Args:
        time: the column of the time, which may be a timestamp; "": none.
        side: the rows that are parsed; None: all.

    Raises: DataError that names the file if it cannot be opened or has another format; and the
        column, if it is missing, or its slot cannot read its type.
    """
    extra = [side.column] if side is not None and side.column else []
    type_, pieces, read = _open(path, data_format, [*schema.column_names, *extra], retries)
    uses = uses_of(schema, time)
    missing = [name for name in schema.column_names if name not in type_.names]
    hint = (did_you_mean(missing, type_.names) or OTHER_NAME) if missing else ""
    with _data_errors(path, hint):
        check_types(type_, schema, time)
    if side is not None:
        side.check(type_.names)
        for name in extra:
            if pa.types.is_nested(type_.field(name).type):
                raise side.wrong(f"expected single values, found {type_.field(name).type}")
    first, step = (part.number, part.parts) if part is not None else (0, 1)
    for number in range(first, pieces, step):
        yield Piece(path, number, read, uses, side)


def read_batches(path: str, data_format: Format, names: Sequence[str]) -> Iterator[Any]:
    """The pyarrow.RecordBatches of a file, with those of the columns that it has. Raises: DataError
    that names the file."""
    _, pieces, read = _open(path, data_format, [*names], RETRIES)
    for number in range(pieces):
        yield from Piece(path, number, read).batches()


def count_pieces(path: str, data_format: Format, retries: int = RETRIES) -> int:
    """By the metadata. Raises: DataError that names the file if it cannot be opened or has another
    format."""
    return _open(path, data_format, [], retries)[1]


def count_rows(path: str, data_format: Format) -> int:
    """Only the metadata of a Parquet or ORC file is read, but all of an Arrow or JSON file. Raises:
    as `count_pieces`."""
    with _data_errors(path, _other_format(data_format)), open_source(path) as source:
        if data_format is Format.PARQUET:
            return int(pq.read_metadata(pa.PythonFile(source, mode="r")).num_rows)
        if data_format is Format.ORC:
            return int(orc.ORCFile(_file(source)).nrows)
        if data_format is Format.JSON:
            return int(pa_json.read_json(_file(source)).num_rows)
        with pa.ipc.open_file(_file(source)) as file:
            return int(sum(file.get_batch(n).num_rows for n in range(file.num_record_batches)))


def _other_format(data_format: Format) -> str:
    return (
        f"; expected a file of data.format {data_format.value}: correct data.format, or write the "
        "file again"
    )


Opened = tuple[Any, int, Callable[[int], list[Any]]]  # schema, number of pieces, read(piece)


def _open(path: str, data_format: Format, names: list[str], retries: int) -> Opened:
    with _data_errors(path, _other_format(data_format)):
        return _OPEN[data_format](path, names, retries)


def _parquet(path: str, names: list[str], retries: int) -> Opened:
    with open_source(path, retries) as source:
        metadata = pq.read_metadata(pa.PythonFile(source, mode="r"))
        size = source.size
    type_ = metadata.schema.to_arrow_schema()
    there = [name for name in names if name in type_.names]

    def read(number: int) -> list[Any]:
        # Each call opens a reader, because threads must not share one.
        with _reopened(path, size, retries) as source:
            file = pq.ParquetFile(_file(source), metadata=metadata, pre_buffer=is_uri(path))
            few = metadata.num_row_groups < _FEW_ROW_GROUPS
            table = file.read_row_group(number, columns=there, use_threads=few)
            source.check_unchanged()
        return list(table.to_batches())

    return type_, metadata.num_row_groups, read


def _arrow(path: str, names: list[str], retries: int) -> Opened:
    def reader(source: Source, chosen: list[int] | None) -> Any:
        options = pa.ipc.IpcReadOptions(included_fields=chosen, use_threads=False)
        return pa.ipc.open_file(_file(source), options=options)

    with open_source(path, retries) as source:
        size = source.size
        file = reader(source, None)
        type_, batches = file.schema, file.num_record_batches
    chosen = [at for at, name in enumerate(type_.names) if name in names]

    def read(number: int) -> list[Any]:
        with _reopened(path, size, retries) as source:
            batch = reader(source, chosen).get_batch(number)
            batch.validate()  # the buffers come from the file unchecked, unlike those of Parquet
            source.check_unchanged()
        return [batch]

    return type_, batches, read


def _orc(path: str, names: list[str], retries: int) -> Opened:
    with open_source(path, retries) as source:
        size = source.size
        file = orc.ORCFile(_file(source))
        type_, stripes = file.schema, file.nstripes
    there = [name for name in names if name in type_.names]

    def read(number: int) -> list[Any]:
        with _reopened(path, size, retries) as source:
            batch = orc.ORCFile(_file(source)).read_stripe(number, columns=there)
            source.check_unchanged()
        return [batch]

    return type_, stripes, read


def _json(path: str, names: list[str], retries: int) -> Opened:  # noqa: ARG001
    """JSON objects, one a line. The types of their columns are those of all lines."""
    with open_source(path, retries) as source:
        batches = pa_json.read_json(_file(source)).to_batches()
        source.check_unchanged()
    type_ = batches[0].schema if batches else pa.schema([])
    return type_, len(batches), lambda number: [batches[number]]


_OPEN = {Format.PARQUET: _parquet, Format.ARROW: _arrow, Format.ORC: _orc, Format.JSON: _json}


def _reopened(path: str, size: int, retries: int) -> Source:
    source = open_source(path, retries)
    now, source.size = source.size, size
    if now != size:
        source.close()
        source.check_unchanged()
    return source


def _file(source: Source) -> Any:
    """Not a memory map, because truncating a mapped file raises SIGBUS."""
    return pa.PythonFile(source, mode="r") if is_uri(source.path) else pa.OSFile(source.path)


_UNUSED: frozenset[str] = frozenset()


def check_types(type_: Any, schema: Any, time: str = "") -> None:
    """Raises: ValueError if a column of a pyarrow.Schema is missing, or its slot cannot read its
    type. schema: the native FeedSchema. time: as for `read_pieces`."""
    uses = uses_of(schema, time)
    plain = [pa.field(f.name, _plain_type(f.type, uses.get(f.name, _UNUSED))) for f in type_]
    schema.check_columns(pa.schema(plain))


def uses_of(schema: Any, time: str = "") -> Uses:
    uses: Uses = {time: frozenset({_TIME})} if time else {}
    for column, use in schema.column_uses:
        uses[column] = uses.get(column, _UNUSED) | {use}
    return uses


def _plain_type(type_: Any, uses: frozenset[str]) -> Any:
    """The type that the native code reads in place of a type. A hashed slot reads the text of other
    values than integers, as pyarrow writes it to a CSV file, and a dense slot reads a decimal as a
    double, unless another slot reads the column otherwise."""
    if pa.types.is_dictionary(type_) or pa.types.is_run_end_encoded(type_):
        return _plain_type(type_.value_type, uses)
    if pa.types.is_list(type_):
        return pa.list_(_plain_type(type_.value_type, uses))
    if pa.types.is_large_list(type_):
        return pa.large_list(_plain_type(type_.value_type, uses))
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(_plain_type(type_.value_type, uses), type_.list_size)
    if _TIME in uses and pa.types.is_timestamp(type_):
        return pa.int64()  # in the unit of the column
    if uses == {"text"} and _has_other_text(type_):
        return pa.string()
    if uses == {"number"} and pa.types.is_decimal(type_):
        return pa.float64()
    return _PLAIN.get(type_, type_)


def _has_other_text(type_: Any) -> bool:
    """Whether the type has a text, but the native code does not hash it."""
    return bool(
        pa.types.is_boolean(type_)
        or pa.types.is_floating(type_)
        or pa.types.is_decimal(type_)
        or (pa.types.is_temporal(type_) and not pa.types.is_interval(type_))
    )


def as_read(batch: Any, schema: Any) -> Any:
    """A batch with the types that the native code reads."""
    return _plain(batch, uses_of(schema))


def _plain(batch: Any, uses: Uses) -> Any:
    types = batch.schema.types
    wanted = [_plain_type(field.type, uses.get(field.name, _UNUSED)) for field in batch.schema]
    if wanted == types:
        return batch
    columns = [_cast(column, type_) for column, type_ in zip(batch.columns, wanted, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _cast(column: Any, wanted: Any) -> Any:
    if column.type == wanted:
        return column
    if pa.types.is_run_end_encoded(column.type):
        return _cast(pc.run_end_decode(column), wanted)
    if pa.types.is_dictionary(column.type):
        return _cast(column.dictionary_decode(), wanted)
    if leaf_of(column.type) != leaf_of(wanted) and pa.types.is_decimal(leaf_of(column.type)):
        # By its text: a decimal that is cast to a double is not always the nearest one.
        text = column.cast(with_leaf(column.type, pa.string()))
        return text.cast(wanted)
    return column.cast(wanted)


def _text(column: Any) -> Any:
    """The text of single values as pyarrow writes it to a CSV file, or their bytes."""
    column = _cast(column, _PLAIN.get(column.type, column.type))
    binary = pa.types.is_binary(column.type) or pa.types.is_fixed_size_binary(column.type)
    binary = binary or pa.types.is_large_binary(column.type)
    return _cast(column, pa.large_binary() if binary else pa.large_string())


def is_list(type_: Any) -> bool:
    return hasattr(type_, "value_field")


def leaf_of(type_: Any) -> Any:
    return leaf_of(type_.value_type) if is_list(type_) else type_


def with_leaf(type_: Any, leaf: Any) -> Any:
    if not is_list(type_):
        return leaf
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(leaf, type_.list_size)
    return pa.large_list(leaf) if pa.types.is_large_list(type_) else pa.list_(leaf)
