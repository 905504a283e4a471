"""A second copy of the newest version's dense files, next to the parity of its segments.

Each copy is a parity file with one member (docs/formats/parity.md). If dense files were members of
groups of segments, their parity would take an eighth of the space. But dense files change with
every commit, so each commit would read seven segments. And a group that has lost a segment could
not rebuild a lost dense file too.
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
    """The existing copies, intact or damaged."""
    names = sorted(os.listdir(parity_folder)) if parity_folder.is_dir() else []
    return [parity_folder / name for name in names if _NAME.fullmatch(name)]


def update(store: Path, parity_folder: Path, record: VersionRecord) -> set[Path]:
    """Copies the dense files of a version that have no intact copy; returns all its copies.

    Raises: CorruptionError if a dense file differs from the committed one; StoreError if the
        file was removed meanwhile, with its version.
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
                    f"{os.path.join(folder, name)}: differs from what version "
                    f"{record.dense_version} committed; it gets no second copy"
                )
        kept.add(path)
    return kept


def rebuild(parity_folder: Path, record: VersionRecord, name: str, target: Path | None) -> bool:
    """Rebuilds a dense file, durably, at target. Returns False if it has no copy.

    Args:
        target: None: only checks whether it can be rebuilt.

    Raises: CorruptionError if the copy is damaged too; OutOfSpaceError.
    """
    path = _path(parity_folder, record, name)
    if not _is_copy(path, record, name):
        return False
    core.rebuild_member(str(path), str(parity_folder), name, str(target or ""))
    if target is not None:
        files.sync_folder(str(target.parent))
    return True


def is_sound(store: Path, record: VersionRecord, name: str) -> bool:
    """Whether a dense file exists as it was committed."""
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
    """Checks the index only; `rebuild` reads the whole file."""
    try:
        members = core.read_parity(str(path))["members"]
    except (StoreError, ValueError):
        return False
    of = record.dense[name]
    expected = {"file": name, "bytes": of["bytes"], "crc32c": of.get("crc32c")}
    return bool(members == [expected])
