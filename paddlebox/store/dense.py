"""The dense state of a version: raw tensors and a JSON index, nothing pickled.

`dense.bin` holds the tensors one after another, little endian, each at a multiple of 64 bytes;
`dense.json` lists name, dtype, shape, offset and CRC32C of each. Both are written under temporary
names, synced and renamed: see docs/formats/manifest.md for when.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox.errors import CorruptionError, OutOfSpaceError, StoreError
from paddlebox.store.crc import crc32c

_ALIGN = 64


def write_dense(folder: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, dict[str, int]]:
    """Writes the tensors durably into ``folder`` (made; its parent is synced by the caller).

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
    files = {
        "dense.bin": b"".join(parts),
        "dense.json": json.dumps({"version": 1, "tensors": index}, indent=1).encode(),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            temporary = folder / f"{name}.tmp"
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.rename(temporary, folder / name)
        for path in (folder, folder.parent):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    except OSError as error:
        kind = OutOfSpaceError if error.errno in (28, 122, 27) else StoreError
        size = sum(map(len, files.values()))
        raise kind(
            f"{folder}: cannot write {size} bytes of dense state: {error.strerror}"
        ) from error
    return {
        name: {"bytes": len(content), "crc32c": crc32c(content)} for name, content in files.items()
    }


def read_dense(folder: Path, files: Mapping[str, Mapping[str, int]]) -> dict[str, np.ndarray]:
    """The tensors of `write_dense`, checked against the version's record and the index.

    Raises: CorruptionError naming file and tensor; StoreError when a file is missing.
    """
    content: dict[str, bytes] = {}
    for name, expected in files.items():
        path = folder / name
        try:
            content[name] = path.read_bytes()
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}") from error
        found = crc32c(content[name])
        if len(content[name]) != expected["bytes"] or found != expected["crc32c"]:
            raise CorruptionError(
                f"{path}: {len(content[name])} bytes with CRC32C {found:#010x}, expected "
                f"{expected['bytes']} with {expected['crc32c']:#010x}"
            )
    if not content:
        return {}
    raw = content["dense.bin"]
    arrays = {}
    for tensor in json.loads(content["dense.json"])["tensors"]:
        dtype = np.dtype(tensor["dtype"])
        shape = tuple(tensor["shape"])
        count = int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(raw, dtype, count, tensor["offset"]).reshape(shape).copy()
        arrays[tensor["name"]] = array
    return arrays


def dense_digest(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes, in order of name."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {np.shape(arrays[name])}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
