"""Arrays of files of other systems, read by lines. Letters: n = lines, w = width."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from paddlebox.errors import ConfigError, DataError
from paddlebox.tools.rows.safetensors import open_tensors


class Arrays(Protocol):
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of each array."""

    def read(self, name: str, begin: int = 0, end: int | None = None) -> np.ndarray:
        """Lines begin to end of an array."""


def open_arrays(path: Path) -> Arrays:
    """Opens .safetensors, .pt, .pth, .bin (PyTorch), .npz, .npy and .parquet files. Raises:
    ConfigError for another suffix, or if PyTorch is not installed; DataError for a file that cannot
    be read, or that would run code."""
    opened = _OPENERS.get(path.suffix)
    if opened is None:
        raise ConfigError(f"{path}: expected a file that ends in {', '.join(_OPENERS)}")
    try:
        arrays: Arrays = opened(path)
        return arrays
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, pa.ArrowException) as error:
        if isinstance(error, ConfigError | DataError):
            raise
        raise DataError(f"{path}: cannot be read: {error}") from error


class _InMemory:
    """Arrays of NumPy, mapped if they are a .npy file."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._arrays = dict(arrays)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(array.shape) for name, array in self._arrays.items()}

    def read(self, name: str, begin: int = 0, end: int | None = None) -> np.ndarray:
        return np.asarray(self._arrays[name][begin:end])


def _npz(path: Path) -> Arrays:
    with np.load(path, allow_pickle=False) as stored:
        return _InMemory(stored)


def _npy(path: Path) -> Arrays:
    return _InMemory({path.stem: np.load(path, mmap_mode="r", allow_pickle=False)})


class _Torch:
    """The tensors of a state dict; names of nested ones are joined by dots. The file is mapped, and
    unpickled without code (`weights_only`)."""

    def __init__(self, path: Path) -> None:
        try:
            import torch
        except ImportError:
            raise ConfigError(
                f"{path}: PyTorch, which reads it, is not installed: pip install torch, or save "
                "the state dict with safetensors.torch.save_file"
            ) from None
        try:
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # torch raises UnpicklingError, RuntimeError and others
            first = str(error).partition("\n")[0]
            raise DataError(
                f"{path}: expected a state dict, which has only tensors, found another file: "
                f"{first}: save model.state_dict() with torch.save"
            ) from None
        self._tensors = dict(_tensors_of(state, ""))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def read(self, name: str, begin: int = 0, end: int | None = None) -> np.ndarray:
        part = self._tensors[name].detach()
        part = part[begin:end] if part.dim() else part
        return np.asarray((part.float() if part.is_floating_point() else part).numpy())


def _tensors_of(state: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(state, dict):
        for name, value in state.items():
            yield from _tensors_of(value, f"{prefix}.{name}" if prefix else str(name))
    elif hasattr(state, "detach"):
        yield prefix, state


class _Parquet:
    """A column is an array; lists of one length make (n, w). One row group is in memory."""

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, pq.ParquetFile(path)
        self._ends = np.cumsum(
            [self._file.metadata.row_group(at).num_rows for at in range(self._file.num_row_groups)]
        )
        self._held: dict[str, tuple[int, np.ndarray]] = {}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        rows = int(self._file.metadata.num_rows)
        return dict.fromkeys(self._file.schema_arrow.names, (rows,))

    def read(self, name: str, begin: int = 0, end: int | None = None) -> np.ndarray:
        rows = int(self._file.metadata.num_rows)
        stop = rows if end is None else min(end, rows)
        parts = []
        for group, last in enumerate(self._ends.tolist()):
            first = int(self._ends[group - 1]) if group else 0
            if first < stop and begin < last:
                parts.append(self._group(name, group)[max(begin - first, 0) : stop - first])
        return np.concatenate(parts) if parts else np.empty(0, np.float32)

    def _group(self, name: str, group: int) -> np.ndarray:
        held = self._held.get(name)
        if held is None or held[0] != group:
            table = self._file.read_row_group(group, columns=[name])
            self._held[name] = held = group, _of_column(self._path, name, table[name])
        return held[1]


def _of_column(path: Path, name: str, column: pa.ChunkedArray) -> np.ndarray:
    if column.null_count:
        raise DataError(f"{path}: column {name}: expected a value in each row, found null")
    array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if not hasattr(column.type, "value_field"):
        return np.asarray(array.to_numpy(zero_copy_only=False))
    lengths = set(np.asarray(array.value_lengths()).tolist())
    if len(lengths) > 1:
        raise DataError(f"{path}: column {name}: expected lists of one length, found {lengths}")
    flat = np.asarray(array.flatten().to_numpy(zero_copy_only=False))
    return flat.reshape(len(array), -1)


class SplitArrays:
    """The arrays of one table of FBGEMM's SplitTableBatchedEmbeddingBags, by the names of its
    families: weights (n, D), and states such as momentum1 (n, w).

    A family is stored as flat arrays, `<family>_dev`, `_uvm` and `_host`, of which
    `<family>_placements` chooses one for each table (0: dev; 1, 2: uvm; 3: host), and
    `<family>_offsets` has the first element of each table.

    Source: fbgemm_gpu/split_table_batched_embeddings_ops_training.py, `apply_split_helper`.
    """

    def __init__(self, arrays: Arrays, prefix: str, table: int, where: str) -> None:
        self._arrays, self._prefix, self._table, self._where = arrays, prefix, table, where
        self._known = arrays.shapes()
        tables = len(self._small("rows_per_table"))
        if not table < tables:
            raise ConfigError(f"{where}: fbgemm.table: expected 0 to {tables - 1}, found {table}")
        dims = self._small("D_offsets")
        self._rows = int(self._small("rows_per_table")[table])
        self._dim = int(dims[table + 1] - dims[table])

    def shapes(self) -> dict[str, tuple[int, ...]]:
        ending = "_offsets"
        names = [
            name.removeprefix(self._prefix).removesuffix(ending)
            for name in self._known
            if name.startswith(self._prefix) and name.endswith(ending)
        ]
        return {name: (self._rows, self._width(name)) for name in names if name != "D"}

    def read(self, name: str, begin: int = 0, end: int | None = None) -> np.ndarray:
        end, width = min(self._rows if end is None else end, self._rows), self._width(name)
        offset = int(self._small(f"{name}_offsets")[self._table])
        flat = self._arrays.read(
            self._flat(name, self._table), offset + begin * width, offset + end * width
        )
        return flat.reshape(-1, width)

    def _width(self, family: str) -> int:
        """Elements of a row: those between this table and the next in the same flat array."""
        if family == "weights":
            return self._dim
        flat, offsets = self._flat(family, self._table), self._small(f"{family}_offsets")
        same = [o for t, o in enumerate(offsets) if self._flat(family, t) == flat]
        begin = int(offsets[self._table])
        end = min((int(o) for o in same if o > begin), default=self._known[flat][0])
        return (end - begin) // max(1, self._rows)

    def _flat(self, family: str, table: int) -> str:
        place = int(self._small(f"{family}_placements")[table])
        return f"{self._prefix}{family}_{('dev', 'uvm', 'uvm', 'host')[place]}"

    def _small(self, name: str) -> np.ndarray:
        whole = self._prefix + name
        if whole not in self._known:
            raise ConfigError(
                f"{self._where}: expected an array {whole!r} of a FBGEMM module, found none: "
                "correct fbgemm.prefix"
            )
        return self._arrays.read(whole)


_OPENERS: dict[str, Any] = {
    ".safetensors": open_tensors,
    ".pt": _Torch,
    ".pth": _Torch,
    ".bin": _Torch,
    ".npz": _npz,
    ".npy": _npy,
    ".parquet": _Parquet,
}
