"""A second copy of the newest version's dense files, beside the parity of its segments.

Each is a parity file of one member (docs/formats/parity.md). A place in a group of segments would
cost an eighth of it on disk, but dense files change with every commit: each would read seven
segments again, and be one more file whose loss is lost with a neighbour's.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from paddlebox import _native
from paddlebox.errors import CorruptionError, StoreError
from paddlebox.store import files
from paddlebox.store.crc import crc32c
from paddlebox.store.record import VersionRecord

core = _native.core
_NAME = re.compile(r"dense-(\d{12,})-(.+)\.par")


def copies_of(parity_folder: Path) -> list[Path]:
    """The copies that there are, sound or not."""
    names = sorted(os.listdir(parity_folder)) if parity_folder.is_dir() else []
    return [parity_folder / name for name in names if _NAME.fullmatch(name)]


def update(store: Path, parity_folder: Path, record: VersionRecord) -> set[Path]:
    """Copies the dense files of a version that have no sound copy yet; returns the copies.

    Raises: CorruptionError where a dense file is not as it was committed; StoreError where it went
        while it was read, with its version.
    """
    kept = set()
    for name in record.dense:
        path = _path(parity_folder, record, name)
        if not _is_copy(path, record, name):
            folder = files.dense_folder(str(store), record.dense_version)
            core.write_parity(folder, [name], str(path))
            files.sync_folder(str(parity_folder))
            if not _is_copy(path, record, name):
                path.unlink()
                raise CorruptionError(
                    f"{os.path.join(folder, name)}: is not as version {record.dense_version} was "
                    "committed with; it gets no second copy"
                )
        kept.add(path)
    return kept


def rebuild(parity_folder: Path, record: VersionRecord, name: str, target: Path | None) -> bool:
    """Makes a dense file again, durably, at target. False: it has no copy.

    Args:
        target: None: only finds out whether it could be done.

    Raises: CorruptionError: the copy is damaged too; OutOfSpaceError.
    """
    path = _path(parity_folder, record, name)
    if not _is_copy(path, record, name):
        return False
    core.rebuild_member(str(path), str(parity_folder), name, str(target or ""))
    if target is not None:
        files.sync_folder(str(target.parent))
    return True


def is_sound(store: Path, record: VersionRecord, name: str) -> bool:
    """Whether a dense file is there, as it was committed."""
    path = os.path.join(files.dense_folder(str(store), record.dense_version), name)
    try:
        content = files.read(path)
    except OSError:
        return False
    expected = record.dense[name]
    return len(content) == expected["bytes"] and crc32c(content) == expected.get("crc32c")


def _path(parity_folder: Path, record: VersionRecord, name: str) -> Path:
    return parity_folder / f"dense-{record.dense_version:012d}-{name}.par"


def _is_copy(path: Path, record: VersionRecord, name: str) -> bool:
    """By its index; who makes the file again reads all of it."""
    try:
        members = core.read_parity(str(path))["members"]
    except (StoreError, ValueError):
        return False
    of = record.dense[name]
    expected = {"file": name, "bytes": of["bytes"], "crc32c": of.get("crc32c")}
    return bool(members == [expected])
