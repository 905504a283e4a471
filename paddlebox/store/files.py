"""The files of a store: their names, and how to write them so that they survive a power failure."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping

from paddlebox.errors import OutOfSpaceError, StoreError
from paddlebox.store.record import VersionRecord, unframe

TABLES = "tables"  # in a store: the folder of the stores of its other tables
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MANIFEST = re.compile(r"MANIFEST-(\d{12,})")


def manifest_path(folder: str, version: int) -> str:
    """STORE/MANIFEST-<version>."""
    return os.path.join(folder, f"MANIFEST-{version:012d}")


def dense_folder(folder: str, version: int) -> str:
    """STORE/dense/<version>, the folder of that version's dense files."""
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


def read(path: str) -> bytes:
    """The whole file."""
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
    """Writes a file; as `write_all_durably`."""
    folder, name = os.path.split(path)
    write_all_durably(folder, {name: data})


def write_all_durably(folder: str, contents: Mapping[str, bytes]) -> None:
    """Writes files, name -> content, under temporary names, syncs and renames each, and syncs their
    folder.

    Raises:
        OutOfSpaceError: the disk is full; an existing file of the same name is unchanged.
    """
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
    try:
        sync_folder(folder)
    except OSError as error:
        raise refused(folder, "write", error) from error


@contextlib.contextmanager
def store_errors(where: str, action: str) -> Iterator[None]:
    """Raises StoreError "<where>: cannot <action>: ..." in place of an OSError."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"{where}: cannot {action}: {error}") from error


def refused(path: str, action: str, error: OSError) -> StoreError:
    """The exception to raise for an OSError; OutOfSpaceError if the disk is full."""
    if error.errno in _FULL:
        return OutOfSpaceError(f"{path}: no space to {action}; the last commit stands ({error})")
    return StoreError(f"{path}: cannot {action}: {error}")


def lmdb_text(error: Exception, path: str) -> str:
    """LMDB's message. If the disk takes only a part of a write, LMDB reports EIO; the text then
    mentions the free space."""
    text = str(error)
    if os.strerror(errno.EIO) in text:
        stat = os.statvfs(os.path.dirname(path))
        free = stat.f_bavail * stat.f_frsize
        text += f", or no space for all of a write ({free} bytes are free there)"
    return text


def data_files(folder: str, record: VersionRecord) -> dict[str, int]:
    """Path inside the store -> bytes, of every data file that a version names."""
    dense = os.path.relpath(dense_folder(folder, record.dense_version), folder)
    sizes = {os.path.join("ssd", s["file"]): int(s["bytes"]) for s in record.segments}
    sizes |= {os.path.join(dense, name): int(of["bytes"]) for name, of in record.dense.items()}
    return sizes


def tables_of(store: str, record: VersionRecord) -> list[tuple[str, VersionRecord]]:
    """(folder inside the store, record) of each table of a kept version; the first table comes
    last. A copy made in this order is complete when the last one is there.

    Raises: OSError, CorruptionError: a MANIFEST file cannot be read, or is damaged.
    """
    parts = []
    for table, version in sorted(record.tables.items()):
        inside = table_folder("", table)
        path = manifest_path(os.path.join(store, inside), version)
        parts.append((inside, VersionRecord.from_payload(unframe(read(path), path), path)))
    return [*parts, ("", record)]


def only_in(
    folder: str, dropped: Iterable[VersionRecord], kept: Iterable[VersionRecord]
) -> set[str]:
    """Data files of dropped versions that no kept version names, as paths inside the store."""
    names: set[str] = set()
    for record in dropped:
        names |= data_files(folder, record).keys()
    for record in kept:
        names -= data_files(folder, record).keys()
    return names


def used_bytes(folder: str) -> int:
    """Bytes of all files of the store, without the stores in tables/. A file with several links
    counts once."""
    sizes: dict[tuple[int, int], int] = {}
    for where, below, names in os.walk(folder):
        if TABLES in below:  # in the folder of a named version, too
            below.remove(TABLES)
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                stat = os.stat(os.path.join(where, name))
                sizes[stat.st_dev, stat.st_ino] = stat.st_size
    return sum(sizes.values())


def first_missing(folder: str, record: VersionRecord) -> str | None:
    """Describes the first data file that is missing or has another size; None if all are there."""
    for name, expected in data_files(folder, record).items():
        try:
            found = os.stat(os.path.join(folder, name)).st_size
        except FileNotFoundError:
            return f"{name}, which is missing"
        if found != expected:
            return f"{name} of {expected} bytes, found {found}"
    return None


def unreferenced(folder: str, kept: Iterable[VersionRecord]) -> list[str]:
    """Files of the store that no kept version names, as sorted paths inside it."""
    named: set[str] = set()
    for record in kept:
        named |= data_files(folder, record).keys()
        named.add(os.path.basename(manifest_path(folder, record.version)))
    found = [name for name in os.listdir(folder) if name.startswith("MANIFEST-")]
    for top in ("ssd", "dense"):
        for where, _, names in os.walk(os.path.join(folder, top)):
            found += [os.path.relpath(os.path.join(where, name), folder) for name in names]
    return sorted(set(found) - named)


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
    """Removes the empty folders below a folder."""
    for where, _, _ in os.walk(folder, topdown=False):
        if where != folder and not os.listdir(where):
            os.rmdir(where)
