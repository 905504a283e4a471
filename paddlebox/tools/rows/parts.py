"""The bytes of one part of an export, in each of its formats (docs/formats/rows.md)."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from zipfile import BadZipFile

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from paddlebox.errors import DataError
from paddlebox.tools.rows.columns import HAS_EMBEDX, SLOT, VALUE, Columns, dtype_of, is_shaped
from paddlebox.tools.rows.safetensors import Tensors, dumps

_GROUP_ROWS = 1 << 16  # in a row group of Parquet


class PartFormat(StrEnum):
    PARQUET = "parquet"
    SAFETENSORS = "safetensors"
    NPZ = "npz"
    TEXT = "text"

    @property
    def suffix(self) -> str:
        return "tsv" if self is PartFormat.TEXT else self.value


def encode(
    part_format: PartFormat,
    columns: Columns,
    slots: Sequence[str],
    values: pa.Array | None = None,
) -> bytes:
    """slots: the names of the sparse slots. values: the column VALUE of Parquet."""
    if part_format is PartFormat.PARQUET:
        return _to_parquet(columns, slots, values)
    return _CODECS[part_format][0](columns, slots)


def decode(
    part_format: PartFormat,
    content: bytes,
    widths: Mapping[str, int],
    slots: Sequence[str],
    where: str,
) -> Iterator[Columns]:
    """The inverse of `encode`, in pieces of whole rows. widths: of the columns that are expected.
    Raises: DataError with `where` for anything else."""
    pieces = _CODECS[part_format][1](content, widths, slots)
    while True:
        try:
            columns = next(pieces, None)
        except (pa.ArrowException, ValueError, LookupError, OSError, EOFError, BadZipFile) as error:
            raise DataError(f"{where}: is not a part in format {part_format}: {error}") from error
        if columns is None:
            return
        _check(columns, widths, slots, where)
        yield columns


def _check(columns: Columns, widths: Mapping[str, int], slots: Sequence[str], where: str) -> None:
    """Raises: DataError for another type or shape, and for an index that names nothing."""
    sizes = {len(column) for column in columns.values()}
    for name, column in columns.items():
        shape = (*sorted(sizes)[:1], *([widths[name]] if is_shaped(name) else []))
        if column.dtype != dtype_of(name) or column.shape != shape:
            raise DataError(
                f"{where}: column {name}: expected {dtype_of(name)} of shape {shape}, found "
                f"{column.dtype} of shape {column.shape}"
            )
    for name, most in ((SLOT, len(slots) - 1), (HAS_EMBEDX, 1)):
        if name in columns and (columns[name] > most).any():
            found = int(columns[name].max())
            raise DataError(f"{where}: column {name}: expected at most {most}, found {found}")


# ---- Parquet


def _to_parquet(columns: Columns, slots: Sequence[str], values: pa.Array | None = None) -> bytes:
    arrays = [_arrow(name, column, slots) for name, column in columns.items()]
    # Optional values would cost a tenth of the time, statistics as much; neither says anything.
    fields = [
        pa.field(name, array.type, nullable=False)
        for name, array in zip(columns, arrays, strict=True)
    ]
    if values is not None:
        arrays.append(values)
        fields.append(pa.field(VALUE, values.type))
    sink = io.BytesIO()
    pq.write_table(
        pa.table(arrays, schema=pa.schema(fields)),
        sink,
        row_group_size=_GROUP_ROWS,
        compression="snappy",  # zstd: 7 % fewer bytes, in twice the time
        use_dictionary=[SLOT],
        write_statistics=False,
    )
    return sink.getvalue()


def _arrow(name: str, column: np.ndarray, slots: Sequence[str]) -> pa.Array:
    if name == SLOT:
        indices = pa.array(column.astype(np.int32))
        return pa.DictionaryArray.from_arrays(indices, pa.array(slots, pa.string()))
    if name == HAS_EMBEDX:
        return pa.array(column.astype(bool))
    if is_shaped(name):
        values = pa.array(column.reshape(-1))
        element = pa.field("element", values.type, nullable=False)
        return pa.FixedSizeListArray.from_arrays(values, type=pa.list_(element, column.shape[1]))
    return pa.array(column)


def _from_parquet(
    content: bytes, widths: Mapping[str, int], slots: Sequence[str]
) -> Iterator[Columns]:
    """By row groups: what is read next is then in the cache of the processor."""
    file = pq.ParquetFile(
        pa.BufferReader(content), read_dictionary=[SLOT] if SLOT in widths else []
    )
    missing = [name for name in widths if name not in file.schema_arrow.names]
    if missing:
        raise ValueError(f"expected the columns {', '.join(missing)}, found none")
    for group in range(file.num_row_groups):
        table = file.read_row_group(group, columns=list(widths), use_threads=False)
        yield {name: _numpy(name, table[name], slots) for name in widths}


def _numpy(name: str, column: pa.ChunkedArray, slots: Sequence[str]) -> np.ndarray:
    chunks = column.unify_dictionaries().chunks
    column = pa.concat_arrays(chunks) if chunks else pa.array([], column.type)
    if column.null_count:
        raise ValueError(f"column {name}: expected a value in each row, found null")
    if name == SLOT:
        return _indices(column, slots)
    if name == HAS_EMBEDX:
        return np.asarray(column.cast(pa.uint8()).to_numpy(zero_copy_only=False))
    if is_shaped(name):
        values = np.asarray(column.flatten().to_numpy()).reshape(len(column), column.type.list_size)
        return values.astype(np.float32) if values.dtype == np.float16 else values
    return np.asarray(column.to_numpy())


def _indices(column: pa.DictionaryArray | pa.Array, slots: Sequence[str]) -> np.ndarray:
    """The index of each slot name."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    places = {name: place for place, name in enumerate(slots)}
    names = column.dictionary.to_pylist()
    unknown = [name for name in names if name not in places]
    if unknown:
        raise ValueError(f"column slot: {unknown[0]!r} is not one of {', '.join(slots)}")
    of_names = np.array([places[name] for name in names], np.uint16)
    return np.asarray(of_names[column.indices.to_numpy()])


# ---- safetensors and npz: arrays as they are


def _to_safetensors(columns: Columns, _slots: Sequence[str]) -> bytes:
    return dumps(columns)


def _from_safetensors(
    content: bytes, widths: Mapping[str, int], _slots: Sequence[str]
) -> Iterator[Columns]:
    tensors = Tensors(content, "safetensors")
    yield {name: tensors.read(name) for name in widths}


def _to_npz(columns: Columns, _slots: Sequence[str]) -> bytes:
    sink = io.BytesIO()
    np.savez(sink, allow_pickle=False, **columns)
    return sink.getvalue()


def _from_npz(
    content: bytes, widths: Mapping[str, int], _slots: Sequence[str]
) -> Iterator[Columns]:
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        yield {name: arrays[name] for name in widths}


# ---- text


def _to_text(columns: Columns, slots: Sequence[str]) -> bytes:
    cells: dict[str, pa.Array] = {}
    for name, column in columns.items():
        if name == SLOT:
            cells[name] = _arrow(name, column, slots).cast(pa.string())
        elif is_shaped(name):
            for at in range(column.shape[1]):
                cells[f"{name}.{at}"] = pa.array(np.ascontiguousarray(column[:, at]))
        else:
            cells[name] = pa.array(column)
    sink = io.BytesIO()
    options = pa_csv.WriteOptions(delimiter="\t", quoting_style="none", quoting_header="none")
    pa_csv.write_csv(pa.table(cells), sink, options)
    return sink.getvalue()


def _from_text(
    content: bytes, widths: Mapping[str, int], slots: Sequence[str]
) -> Iterator[Columns]:
    types: dict[str, pa.DataType] = {}
    for name, width in widths.items():
        kind = pa.string() if name == SLOT else pa.from_numpy_dtype(dtype_of(name))
        cells = [f"{name}.{at}" for at in range(width)] if is_shaped(name) else [name]
        types |= dict.fromkeys(cells, kind)
    table = pa_csv.read_csv(
        pa.BufferReader(content),
        pa_csv.ReadOptions(use_threads=False),
        pa_csv.ParseOptions(delimiter="\t", quote_char=False),
        pa_csv.ConvertOptions(
            column_types=types,
            include_columns=list(types),
            null_values=[],
            strings_can_be_null=False,
        ),
    )
    columns: Columns = {}
    for name, width in widths.items():
        if is_shaped(name):
            floats = [np.asarray(table[f"{name}.{at}"]) for at in range(width)]
            columns[name] = np.stack(floats, axis=1)
        elif name == SLOT:
            columns[name] = _indices(table[name].combine_chunks(), slots)
        else:
            columns[name] = np.asarray(table[name])
    yield columns


_Encode = Callable[[Columns, Sequence[str]], bytes]
_Decode = Callable[[bytes, Mapping[str, int], Sequence[str]], Iterator[Columns]]
_CODECS: dict[PartFormat, tuple[_Encode, _Decode]] = {
    PartFormat.PARQUET: (_to_parquet, _from_parquet),
    PartFormat.SAFETENSORS: (_to_safetensors, _from_safetensors),
    PartFormat.NPZ: (_to_npz, _from_npz),
    PartFormat.TEXT: (_to_text, _from_text),
}
