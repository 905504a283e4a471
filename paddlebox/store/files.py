"""The files of a store: names, checksums, how to write them so that they survive a power failure.

A dense state is raw tensors and a JSON index, nothing pickled. `dense.bin` holds the tensors,
little endian, each at a multiple of 64 bytes; `dense.json` lists name, dtype, shape, offset and
CRC32C of each (docs/formats/manifest.md).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from paddlebox.closing import Closing
from paddlebox.errors import CorruptionError, OutOfSpaceError, StoreError
from paddlebox.store import checked

TABLES = "tables"  # in a store: the folder of the stores of its other tables
CHECKPOINTS = "checkpoints"  # in a store: the folder of the versions that have a name
UNDER_WAY = ".tmp"  # suffix of a checkpoint that is being added or removed
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MANIFEST = re.compile(r"MANIFEST-(\d{12,})")
_ALIGN = 64
_TENSORS, _INDEX = "dense.bin", "dense.json"
_NEXT_STEP = "; the file is damaged: restore it from a copy"


def manifest_path(folder: str, version: int) -> str:
    return os.path.join(folder, f"MANIFEST-{version:012d}")


def dense_folder(folder: str, version: int) -> str:
    return os.path.join(folder, "dense", f"{version:012d}")


def table_folder(folder: str, table: str) -> str:
    """STORE/tables/<name>, the store of another table of the set."""
    return os.path.join(folder, TABLES, table)


def is_of_set(folder: str) -> bool:
    """Whether this is the store of one of the other tables of a set."""
    above = os.path.dirname(os.path.realpath(folder))
    beside = os.path.join(os.path.dirname(above), "manifest")
    return os.path.basename(above) == TABLES and os.path.isdir(beside)


def manifest_versions(folder: str) -> list[int]:
    """The versions that have a MANIFEST file, oldest first."""
    try:
        matches = [_MANIFEST.fullmatch(name) for name in os.listdir(folder)]
    except FileNotFoundError:
        return []
    return sorted(int(match[1]) for match in matches if match is not None)


def checkpoints(store: str) -> dict[str, int]:
    """Name -> version, of the named versions of a store, by name."""
    folder = os.path.join(store, CHECKPOINTS)
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return {}
    return {
        name: version
        for name in sorted(names)
        if not name.endswith(UNDER_WAY)
        for version in manifest_versions(os.path.join(folder, name))[:1]
    }


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def sync_folder(folder: str) -> None:
    """Makes creations, renames and removals in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(folder: str, mode: int = 0o777) -> None:
    """Creates a folder with this mode, and its missing parents, durably."""
    if os.path.isdir(folder):
        return
    parent = os.path.dirname(os.path.abspath(folder))
    make_folder(parent)
    try:
        os.mkdir(folder, mode)
        sync_folder(parent)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise StoreError(f"{folder}: expected a folder, found a file") from None
    except OSError as error:
        raise refused(folder, "create the folder", error) from error


def write_durably(path: str, data: bytes) -> None:
    folder, name = os.path.split(path)
    write_all_durably(folder, {name: data})


def write_all_durably(folder: str, contents: Mapping[str, bytes]) -> None:
    """Writes files, name -> content, durably under temporary names, and renames them. Raises:
    OutOfSpaceError; an existing file of the same name is then unchanged."""
    for name, data in contents.items():
        path = os.path.join(folder, name)
        temporary = path + ".tmp"
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.rename(temporary, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise refused(path, "write", error) from error
    with writing(folder):
        sync_folder(folder)


class NewFile(Closing):
    """Writes a local file at once, without a buffer. action: for errors. Raises: as `writing`."""

    def __init__(self, path: str | Path, action: str = "write") -> None:
        self._path, self._action = str(path), action
        with self._errors():
            self._file = open(path, "wb", buffering=0)  # noqa: SIM115

    def write(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        with self._errors():
            while rest:
                rest = rest[self._file.write(rest) :]

    def sync(self) -> None:
        with self._errors():
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def _errors(self) -> contextlib.AbstractContextManager[None]:
        return writing(self._path, self._action)


@contextlib.contextmanager
def store_errors(where: str, action: str) -> Iterator[None]:
    """Raises StoreError "<where>: cannot <action>: ..." in place of an OSError."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"{where}: cannot {action}: {error}") from error


@contextlib.contextmanager
def writing(path: str, action: str = "write") -> Iterator[None]:
    """As `store_errors`, but raises OutOfSpaceError if the disk is full."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise refused(path, action, error) from error


def refused(path: str, action: str, error: OSError) -> StoreError:
    """The exception to raise for an OSError; OutOfSpaceError if the disk is full."""
    if error.errno in _FULL:
        return OutOfSpaceError(f"{path}: no space to {action}; the last commit stands ({error})")
    return StoreError(f"{path}: cannot {action}: {error}")


def lmdb_text(error: Exception, path: str) -> str:
    """LMDB's message, with the free space if it is EIO: so LMDB reports a write that was cut
    short."""
    text = str(error)
    if os.strerror(errno.EIO) in text:
        stat = os.statvfs(os.path.dirname(path))
        free = stat.f_bavail * stat.f_frsize
        text += f", or no space for all of a write ({free} bytes are free there)"
    return text


def used_bytes(folder: str) -> int:
    """Bytes of the store without those in tables/. A file with several links counts once."""
    sizes: dict[tuple[int, int], int] = {}
    for where, below, names in os.walk(folder):
        if TABLES in below:  # in the folder of a named version, too
            below.remove(TABLES)
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                stat = os.stat(os.path.join(where, name))
                sizes[stat.st_dev, stat.st_ino] = stat.st_size
    return sum(sizes.values())


def unlink_inside(store: str, name: str) -> None:
    """Removes a file of a store, given as a path inside it. Follows no link."""
    *folders, last = name.split(os.sep)
    descriptor = os.open(store, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for folder in folders:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            below = os.open(folder, flags, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        os.unlink(last, dir_fd=descriptor)
    finally:
        os.close(descriptor)


def remove(path: str) -> None:
    """Removes a file, a link or a whole folder. Follows no link."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def remove_empty_folders(folder: str) -> None:
    for where, _, _ in os.walk(folder, topdown=False):
        if where != folder and not os.listdir(where):
            os.rmdir(where)


# ---- checksums


def crc32c(data: bytes) -> int:
    """The CRC32C (Castagnoli) of data; ``crc32c(b"123456789") == 0xE3069283``. Native only if that
    is loaded: tools that read a few kilobytes of a store need not import Paddle."""
    native = getattr(sys.modules.get("paddlebox._native"), "core", None)
    if native is not None:
        return int(native.crc32c(data))
    return crc32c_by_table(data)


def crc32c_by_table(data: bytes) -> int:
    """`crc32c` in Python alone, at about 10 MB/s."""
    table = _table()
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ table[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


@cache
def _table() -> list[int]:
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)  # reflected polynomial
        table.append(crc)
    return table


def seal(payload: bytes) -> bytes:
    """The value in LMDB for a payload: its CRC32C, little endian, and the payload."""
    return crc32c(payload).to_bytes(4, "little") + payload


def unseal(value: bytes, where: str) -> bytes:
    """The payload of a sealed value. Raises: CorruptionError if the CRC differs."""
    expected = int.from_bytes(value[:4], "little")
    found = crc32c(value[4:])
    if len(value) < 4 or found != expected:
        raise CorruptionError(f"{where}: has CRC32C {found:#010x}, expected {expected:#010x}")
    return value[4:]


def guard_map(path: str | os.PathLike[str]) -> Any:
    """Guards this process's map of a file: a MapGuard (ops/base/map_guard.h). None if the file is
    not mapped or the extension, which takes seconds, is not loaded, as in tools that open files
    briefly."""
    native = sys.modules.get("paddlebox._native")
    if native is None:
        return None
    wanted = os.path.realpath(path)
    for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
        addresses, _, _, _, _, *name = line.split(maxsplit=5)
        if name and name[0].replace("\\012", "\n") == wanted:
            begin, end = (int(address, 16) for address in addresses.split("-"))
            return native.core.MapGuard(begin, end - begin)
    return None


# ---- the dense state


def write_dense(folder: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, dict[str, int]]:
    """Writes the tensors durably into a new folder. Returns file name -> {"bytes", "crc32c"}, for
    the version's record. Raises: OutOfSpaceError, StoreError."""
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
    with writing(str(folder), "write the dense state"):
        folder.mkdir(parents=True, exist_ok=True)
        write_all_durably(str(folder), contents)
        sync_folder(str(folder.parent))
    return {
        name: {"bytes": len(content), "crc32c": crc32c(content)}
        for name, content in contents.items()
    }


def read_dense(
    folder: Path,
    named: Mapping[str, Mapping[str, int]],
    wanted: Callable[[str], bool] | None = None,
) -> dict[str, np.ndarray]:
    """Reads tensors, and checks `dense.json`, every tensor and that the padding is zeros. named: as
    `write_dense` returned it. wanted: whether to read and check the array of a name; None: all.
    Raises: CorruptionError naming the file, and the tensor; StoreError when a file is missing."""
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


# Averages of parameters in a dense state: `<name>_average` next to `<name>`.
AVERAGE_SUFFIX = "_average"
AVERAGED_STEPS = "averaged_steps"  # int64, one value: the number of steps in the averages


def averaged(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A dense state for serving: averages replace the parameters that have one."""
    return {name: state.get(name + AVERAGE_SUFFIX, value) for name, value in state.items()}
