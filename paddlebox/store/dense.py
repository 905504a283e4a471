"""The dense state of a version: raw tensors and a JSON index, nothing pickled.

`dense.bin` holds the tensors one after another, little endian, each at a multiple of 64 bytes;
`dense.json` lists name, dtype, shape, offset and CRC32C of each (docs/formats/manifest.md).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from paddlebox.errors import CorruptionError, StoreError
from paddlebox.store import checked, files
from paddlebox.store.crc import crc32c

_ALIGN = 64
_TENSORS, _INDEX = "dense.bin", "dense.json"
_NEXT_STEP = "; the file is damaged: restore it from a copy"


def write_dense(folder: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, dict[str, int]]:
    """Writes the tensors durably into ``folder``, which is created.

    Returns: file name -> {"bytes", "crc32c"}, for the version's record.

    Raises: OutOfSpaceError, StoreError.
    """
    if not arrays:
        return {}
    index: list[dict[str, Any]] = []
    parts: list[bytes] = []
    offset = 0
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        raw = array.tobytes()
        padded = raw + b"\0" * (-len(raw) % _ALIGN)
        index.append(
            {
                "name": name,
                "dtype": array.dtype.str,
                "shape": list(np.shape(arrays[name])),
                "offset": offset,
                "crc32c": crc32c(raw),
            }
        )
        parts.append(padded)
        offset += len(padded)
    contents = {
        _TENSORS: b"".join(parts),
        _INDEX: json.dumps({"version": 1, "tensors": index}, indent=1).encode(),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files.write_all_durably(str(folder), contents)
        files.sync_folder(str(folder.parent))
    except StoreError:
        raise
    except OSError as error:
        raise files.refused(str(folder), "write the dense state", error) from error
    return {
        name: {"bytes": len(content), "crc32c": crc32c(content)}
        for name, content in contents.items()
    }


def read_dense(
    folder: Path,
    named: Mapping[str, Mapping[str, int]],
    wanted: Callable[[str], bool] | None = None,
) -> dict[str, np.ndarray]:
    """Reads tensors and checks every byte once: `dense.json` against the version's record, each
    tensor against `dense.json`, and that the padding is zeros.

    Args:
        named: as `write_dense` returned it.
        wanted: whether to read the tensor of a name; the others are neither read nor checked. None:
            all are read.

    Raises: CorruptionError naming the file, and the tensor; StoreError when a file is missing.
    """
    if not named:
        return {}
    if not {_INDEX, _TENSORS} <= named.keys():
        raise CorruptionError(f"{folder}: expected {_INDEX} and {_TENSORS}, found {sorted(named)}")
    try:
        index = (folder / _INDEX).read_bytes()
    except OSError as error:
        raise StoreError(f"{folder / _INDEX}: {error.strerror}") from error
    found, expected = crc32c(index), named[_INDEX]["crc32c"]
    if len(index) != named[_INDEX]["bytes"] or found != expected:
        raise CorruptionError(
            f"{folder / _INDEX}: expected {named[_INDEX]['bytes']} bytes with CRC32C "
            f"{expected:#010x}, found {len(index)} with {found:#010x}{_NEXT_STEP}"
        )
    path = folder / _TENSORS
    try:
        with open(path, "rb") as file:
            tensors = json.loads(index)["tensors"]
            return _read_tensors(path, file, tensors, named[_TENSORS]["bytes"], wanted)
    except CorruptionError:  # it is an OSError too
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise CorruptionError(
            f"{folder / _INDEX}: not an index of tensors: {error!r}{_NEXT_STEP}"
        ) from error
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error


def _read_tensors(
    path: Path,
    file: BinaryIO,
    tensors: list[dict[str, Any]],
    size: int,
    wanted: Callable[[str], bool] | None,
) -> dict[str, np.ndarray]:
    arrays, end = {}, 0
    for tensor in tensors:
        name, begin = tensor["name"], tensor["offset"]
        checked.number(begin, f"offset of {name!r}", end + _ALIGN, least=end)
        _check_padding(path, end, file.read(begin - end))
        dtype = np.dtype(str(tensor["dtype"]))
        shape = tuple(checked.number(n, f"shape of {name!r}") for n in tensor["shape"])
        end = begin + dtype.itemsize * math.prod(shape)
        if end > size or dtype.hasobject:
            raise ValueError(f"{name!r} is {dtype} {shape} at offset {begin} of {size} bytes")
        if wanted is not None and not wanted(name):
            file.seek(end)
            continue
        raw = file.read(end - begin)
        found, expected = crc32c(raw), tensor["crc32c"]
        if len(raw) != end - begin or found != expected:
            raise CorruptionError(
                f"{path}: tensor {name!r}: expected {end - begin} bytes at offset {begin} with "
                f"CRC32C {expected:#010x}, found {len(raw)} with {found:#010x}{_NEXT_STEP}"
            )
        arrays[name] = np.frombuffer(raw, dtype).reshape(shape).copy()
    rest = file.read()
    found = os.fstat(file.fileno()).st_size
    if found != size:
        raise CorruptionError(f"{path}: expected {size} bytes, found {found}{_NEXT_STEP}")
    _check_padding(path, end, rest)
    return arrays


def _check_padding(path: Path, begin: int, padding: bytes) -> None:
    if padding.strip(b"\0"):
        raise CorruptionError(
            f"{path}: expected zeros between tensors, in bytes {begin} to {begin + len(padding)}, "
            f"found other bytes{_NEXT_STEP}"
        )


def dense_digest(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes, in order of name."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {np.shape(arrays[name])}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
