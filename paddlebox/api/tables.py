"""Tables of a program: DataFrames, pyarrow Tables and lists of dicts, as the columns that slots
read, and as an Arrow file.

The file is compressed with LZ4. The feeder reads it fastest: rows/s of one thread, and bytes of the
file, with 13 columns of floats, 14 of integers and 13 of strings:

    Arrow, not compressed    0.64 million    141 MB
    Arrow, LZ4               0.65 million     90 MB
    Arrow, zstd              0.41 million     65 MB
    Parquet, snappy          0.30 million     69 MB
    Parquet, not compressed  0.41 million    141 MB
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paddlebox.config.check import did_you_mean
from paddlebox.data.columnar import check_types, is_list, leaf_of, uses_of, with_leaf
from paddlebox.errors import DataError
from paddlebox.store.files import sync_folder, writing

_PIECE_BYTES = 32 << 20  # of a record batch, before compression
_EXACT = {pa.float16(): 2**11, pa.float32(): 2**24, pa.float64(): 2**53}  # for integers below


class _Given(NamedTuple):
    """A column as it was given."""

    values: Any  # a pandas.Series, a list, or a pyarrow.ChunkedArray
    type: str  # for errors


def as_table(
    data: Any,
    name: str,
    schema: Any,
    time: str = "",
    constants: Mapping[str, int] = MappingProxyType({}),
    more: Sequence[str] = (),
) -> Any:
    """The columns that slots and tags read, sorted by name.

    Args:
        data: a DataFrame, a Table, a RecordBatch, or a sequence of dicts. NaN is a missing value,
            except in a Table or RecordBatch, where it is a number as in a file.
        name: of the argument, for errors.
        schema: the native FeedSchema of a columnar format.
        time: the column of the time; "": none.
        constants: columns that have one value, whatever the data has.
        more: further columns to take.

    Returns: a pyarrow.Table without dictionaries. If slots read ids in a column of floats that are
        integers, these are int64.

    Raises: DataError that names the column, its type, and what is expected.
    """
    given, uses = (
        columns_of(data, name, {*schema.column_names, *more}, constants),
        uses_of(schema, time),
    )
    ids = frozenset({"id"})
    columns = {
        column: as_integers(one.array) if uses.get(column) == ids else one.array
        for column, one in given.items()
    }
    table = pa.table(columns)
    try:
        check_types(table.schema, schema, time)
    except (pa.ArrowException, ValueError) as error:
        of = re.search(r"column '([^']*)'", str(error))
        found = f" (it is given as {given[of[1]].type})" if of and of[1] in given else ""
        raise DataError(f"{name}: {error}{found}") from None
    return table


class Column(NamedTuple):
    array: Any  # a pyarrow.ChunkedArray without dictionaries
    type: str  # as it was given, for errors


def columns_of(
    data: Any, name: str, wanted: Iterable[str], constants: Mapping[str, int]
) -> dict[str, Column]:
    """Columns by name, sorted. Raises: DataError if one is missing, or has no Arrow type. The
    arguments are those of `as_table`."""
    rows, given = _columns(data, name)
    wanted = sorted({*wanted})
    if missing := [column for column in wanted if column not in given and column not in constants]:
        hint = did_you_mean(missing, given) or f"; there are: {', '.join(given) or 'none'}"
        raise DataError(
            f"{name}: expected the columns of the slots, found no {', '.join(missing)}{hint}"
        )
    columns = {}
    for column in wanted:
        if column in constants:
            array = pa.chunked_array([np.full(rows, constants[column], np.int64)])
            columns[column] = Column(array, "int64")
        else:
            array = _array(given[column], f"{name}: column {column!r}")
            columns[column] = Column(_decoded(array), given[column].type)
    return columns


def _columns(data: Any, name: str) -> tuple[int, dict[str, _Given]]:
    """The number of rows, and the columns by name."""
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(data, pandas.DataFrame):
        columns = [data.iloc[:, place] for place in range(data.shape[1])]
        found = [(str(one.name), _Given(one, f"dtype {one.dtype}")) for one in columns]
    elif isinstance(data, pa.Table | pa.RecordBatch):
        table = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
        pairs = zip(table.column_names, table.columns, strict=True)
        found = [(column, _Given(array, str(array.type))) for column, array in pairs]
    elif isinstance(data, Sequence) and not isinstance(data, str | bytes):
        found = [(str(column), of) for column, of in _of_dicts(data, name)]
    else:
        raise DataError(
            f"{name}: expected a pandas.DataFrame, a pyarrow.Table or a list of dicts, found "
            f"{type(data).__name__}: convert it"
        )
    names = [column for column, _ in found]
    if len({*names}) < len(names):
        twice = ", ".join(sorted({column for column in names if names.count(column) > 1}))
        raise DataError(f"{name}: expected each column once, found {twice} twice: rename one")
    return len(data), dict(found)


def _of_dicts(rows: Sequence[Any], name: str) -> Iterator[tuple[Any, _Given]]:
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise DataError(
                f"{name}: row {number}: expected a dict from column to value, found "
                f"{type(row).__name__}: write [{{column: value, …}}, …]"
            )
    for column in dict.fromkeys(column for row in rows for column in row):
        values = [row.get(column) for row in rows]
        yield column, _Given(values, f"{_types(values)} values")


def _types(values: Iterable[Any]) -> str:
    """The types of values, such as "int, str"."""
    given = (v for v in values if v is not None and not (isinstance(v, float) and math.isnan(v)))
    return ", ".join(dict.fromkeys(type(value).__name__ for value in given)) or "no"


def _array(column: _Given, what: str) -> Any:
    """A pyarrow.ChunkedArray. what: for errors."""
    values = column.values
    if isinstance(values, pa.ChunkedArray):
        return values
    with contextlib.suppress(pa.ArrowException, TypeError, ValueError, OverflowError):
        array = _converted(values)
        of = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
        if not (isinstance(of, pa.BaseExtensionType) or _has_sets(values)):
            return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])
    raise DataError(
        f"{what} ({column.type}): expected numbers, strings, times or lists, of one type in the "
        f"whole column, found {_types(values)}: convert them, for example to strings"
    )


def _converted(values: Any) -> Any:
    try:
        return pa.array(values, from_pandas=True)
    except OverflowError:  # without a type, integers are at most 2^63 - 1
        with contextlib.suppress(pa.ArrowException):
            return pa.array(values, pa.uint64(), from_pandas=True)
        return pa.array(values, pa.list_(pa.uint64()), from_pandas=True)


def _has_sets(values: Any) -> bool:
    """Sets of strings have another order in the next process."""
    of_objects = str(getattr(values, "dtype", "object")) == "object"
    return of_objects and any(isinstance(value, set | frozenset) for value in values)


def _decoded(array: Any) -> Any:
    """The values of a dictionary or of runs, in their place."""
    if pa.types.is_run_end_encoded(array.type):
        chunks = [pc.run_end_decode(chunk) for chunk in array.chunks]
        return _decoded(pa.chunked_array(chunks, array.type.value_type))
    if pa.types.is_dictionary(array.type):
        return _decoded(array.cast(array.type.value_type))
    return array


def as_integers(array: Any) -> Any:
    """Floats, or lists of them, as int64, if they are integers that a float holds exactly. pandas
    has floats where values are missing."""
    leaf = leaf_of(array.type)
    if leaf not in _EXACT:
        return array
    leaves = array
    while is_list(leaves.type):
        leaves = pc.list_flatten(leaves)
    found = np.concatenate([np.zeros(0), *(_present(chunk) for chunk in leaves.chunks)])
    exact = (np.abs(found) <= _EXACT[leaf]).all() and (found == np.trunc(found)).all()
    return array.cast(with_leaf(array.type, pa.int64())) if exact else array


def _present(chunk: Any) -> np.ndarray:
    """The values of an array that are not null."""
    found: np.ndarray = chunk.drop_null().to_numpy(zero_copy_only=False)
    return found


def digest(table: Any) -> str:
    """A digest of the names, types and values of the columns, however they are divided into
    chunks. Strings and lists with 32-bit and with 64-bit offsets are the same."""
    hashed = hashlib.sha256()
    for name, column in zip(table.column_names, table.columns, strict=True):
        hashed.update(f"{name}\0{_kind(column.type)}\0{len(column)}\0".encode())
        for part in _bytes_of(column):
            hashed.update(part)
    return hashed.hexdigest()[:16]


def _kind(type_: Any) -> str:
    if is_list(type_):
        return f"[{_kind(type_.value_type)}]"
    return str(type_).removeprefix("large_")


def _bytes_of(column: Any) -> Iterator[Any]:
    """The bits that say which values are there, then the lengths and the bytes of these values."""
    valid = [chunk.is_valid().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    yield np.packbits(np.concatenate([np.zeros(0, bool), *valid]))
    type_, chunks = column.type, [chunk.drop_null() for chunk in column.chunks]
    if is_list(type_):
        for chunk in chunks:
            yield pc.list_value_length(chunk).cast(pa.int64()).to_numpy()
        yield from _bytes_of(pc.list_flatten(column))
    elif pa.types.is_null(type_):
        return
    elif pa.types.is_boolean(type_):
        yield from (chunk.cast(pa.uint8()).to_numpy() for chunk in chunks)
    elif pa.types.is_primitive(type_) or pa.types.is_decimal(type_):
        width = type_.bit_width // 8
        for chunk in chunks:
            yield _part(chunk.buffers()[1], chunk.offset * width, len(chunk) * width)
    else:
        texts = [chunk.cast(pa.large_binary()) for chunk in chunks]
        yield from (pc.binary_length(chunk).to_numpy() for chunk in texts)
        for chunk in filter(len, texts):
            offsets = np.frombuffer(chunk.buffers()[1], np.int64)[chunk.offset :]
            first, last = int(offsets[0]), int(offsets[len(chunk)])
            yield _part(chunk.buffers()[2], first, last - first)


def _part(buffer: Any, begin: int, length: int) -> Any:
    return memoryview(buffer)[begin : begin + length] if length else b""


def write_arrow(table: Any, path: Path) -> None:
    """Write a file durably. It has its name only once it is complete. Raises: StoreError."""
    temporary = f"{path}.tmp"
    rows = max(1, _PIECE_BYTES * max(1, table.num_rows) // max(1, table.nbytes))
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    try:
        with writing(str(path)):
            with open(temporary, "wb") as file:
                with pa.ipc.new_file(file, table.schema, options=options) as written:
                    written.write_table(table.combine_chunks(), max_chunksize=rows)
                file.flush()
                os.fsync(file.fileno())
            os.rename(temporary, path)
            sync_folder(str(path.parent))
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def chosen(data: Any, name: str, wanted: Sequence[str], empty: Mapping[str, Any]) -> Any:
    """A pyarrow.Table of the wanted columns that the data has, and of those in `empty` that it
    lacks. data, name: as for `as_table`. empty: column -> the pyarrow.Scalar of every row."""
    rows, given = _columns(data, name)
    columns = {
        column: _decoded(_array(given[column], f"{name}: column {column!r}"))
        for column in wanted
        if column in given
    }
    for column, cell in empty.items():
        if column not in columns:
            columns[column] = pa.chunked_array([pa.repeat(cell, rows)])
    return pa.table(columns)
