"""Reads and writes safetensors files (docs/formats/rows.md): tensors of a mapped file, so that a
slice costs the memory of the slice."""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from paddlebox.errors import DataError

_MOST_HEADER_BYTES = 100_000_000
_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",  # BF16: see `Tensors.read`
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
    "BOOL": "?",
}
_NAMES = {np.dtype(text): name for name, text in _DTYPES.items() if name != "BF16"}


def dumps(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of a file with these arrays, in their order."""
    header: dict[str, Any] = {}
    data, end = [], 0
    for name, array in arrays.items():
        raw = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
        begin, end = end, end + raw.nbytes
        dtype = _NAMES[raw.dtype]
        header[name] = {"dtype": dtype, "shape": [*array.shape], "data_offsets": [begin, end]}
        data.append(raw.tobytes())
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *data])


class Tensors:
    """The tensors of a file. content: its bytes, or a map of it. where: for errors. Raises:
    DataError if it is not a whole safetensors file."""

    def __init__(self, content: bytes | mmap.mmap, where: str) -> None:
        self._content = content
        self._begin, header = _header_of(content, where)
        header.pop("__metadata__", None)
        self._tensors: dict[str, tuple[str, tuple[int, ...], int]] = {}
        spans = []
        for name, about in header.items():
            try:
                dtype, shape = str(about["dtype"]), tuple(int(size) for size in about["shape"])
                begin, end = (int(offset) for offset in about["data_offsets"])
                item = np.dtype(_DTYPES[dtype]).itemsize
            except (LookupError, TypeError, ValueError) as error:
                raise DataError(f"{where}: tensor {name!r}: not a description: {error!r}") from None
            size = math.prod(shape) * item
            if min(shape, default=0) < 0 or not 0 <= begin <= end or end - begin != size:
                raise DataError(
                    f"{where}: tensor {name!r}: {dtype} {list(shape)} has {size} bytes, expected "
                    f"them at its offsets, found {begin} to {end}"
                )
            self._tensors[name] = dtype, shape, self._begin + begin
            spans.append((begin, end))
        data = len(content) - self._begin
        for (_, end), (begin, _) in pairwise([(0, 0), *sorted(spans), (data, data)]):
            if begin != end:
                raise DataError(
                    f"{where}: expected tensors one after another in its {data} bytes of data, "
                    f"found byte {end} followed by {begin}: the file is truncated or damaged"
                )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: shape for name, (_, shape, _) in self._tensors.items()}

    def read(self, name: str, begin: int = 0, end: int | None = None) -> np.ndarray:
        """Lines begin to end of a tensor. BF16 is returned as float32, which holds its values."""
        dtype, shape, offset = self._tensors[name]
        flat = np.frombuffer(self._content, _DTYPES[dtype], math.prod(shape), offset)
        part = flat.reshape(shape)[begin:end] if shape else flat
        if dtype == "BF16":
            return (part.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return part


def open_tensors(path: str | os.PathLike[str]) -> Tensors:
    """Raises: OSError; DataError."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise DataError(f"{path}: expected a safetensors file, found no bytes")
        return Tensors(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), str(path))


def _header_of(content: bytes | mmap.mmap, where: str) -> tuple[int, dict[str, Any]]:
    """The offset of the data, and the header."""
    size = int.from_bytes(content[:8], "little")
    if len(content) < 8 or size > min(_MOST_HEADER_BYTES, len(content) - 8):
        raise DataError(
            f"{where}: expected a safetensors file, found {len(content)} bytes with a header of "
            f"{size}: the file is truncated, or of another format"
        )
    try:
        header = json.loads(content[8 : 8 + size])
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: its header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise DataError(f"{where}: expected a mapping as header, found {type(header).__name__}")
    return 8 + size, header
