"""Giving names to versions of a store, and taking them back (checkpoints.py)."""

from __future__ import annotations

import os
import re
import shutil

from paddlebox.errors import StoreError
from paddlebox.store import files
from paddlebox.store.checkpoints import FOLDER, UNDER_WAY, checkpoints
from paddlebox.store.manifest import Manifest
from paddlebox.store.parts import parts_of
from paddlebox.store.record import VersionRecord, frame

# Not only digits: those are versions and days.
_NAME = re.compile(r"(?!\d+$)[A-Za-z0-9_][A-Za-z0-9_.-]*")


def give_name(store: str, record: VersionRecord, name: str) -> None:
    """Names a kept version, beside a writer or not. The caller holds a lease on it.

    Raises: StoreError for a name that is taken or none, or where files cannot be linked.
    """
    if not _NAME.fullmatch(name) or name.endswith(UNDER_WAY):
        raise StoreError(
            f"{name!r} cannot name a checkpoint: expected letters, digits and _ . -, and not only "
            "digits"
        )
    target = os.path.join(store, FOLDER, name)
    taken = next((c for c in checkpoints(store) if c.name == name), None)
    if taken is not None:
        raise StoreError(
            f"{store}: {name!r} is the name of version {taken.version}; choose another, or "
            "`unname` it first"
        )
    under_way = target + UNDER_WAY
    shutil.rmtree(under_way, ignore_errors=True)  # of a process that died
    try:
        files.make_folder(under_way)
        for inside, part in parts_of(store, record):
            source, folder = os.path.join(store, inside), os.path.join(under_way, inside)
            for path in files.data_files(source, part):
                link = os.path.join(folder, path)
                files.make_folder(os.path.dirname(link))
                os.link(os.path.join(source, path), link)
            files.make_folder(folder)
            for made, _, _ in os.walk(folder):
                files.sync_folder(made)
            payload = frame(part.to_payload())
            files.write_durably(files.manifest_path(folder, part.version), payload)
        os.rename(under_way, target)
        files.sync_folder(os.path.dirname(target))
    except OSError as error:
        shutil.rmtree(under_way, ignore_errors=True)
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"{target}: cannot be made: {error}") from error


def name_version(store: str, version: int, name: str) -> None:
    """`give_name` with a lease that keeps the version meanwhile. For a store that this process has
    not opened.

    Raises: StoreError, also where the version is not kept.
    """
    with Manifest.open_reader(store) as manifest:
        record = manifest.pin(version)
        assert record is not None
        give_name(store, record, name)


def unname(store: str, name: str) -> int:
    """Takes a name back; returns its version, which the next commit may forget.

    Raises: StoreError when there is no such name.
    """
    found = next((c for c in checkpoints(store) if c.name == name), None)
    if found is None:
        names = ", ".join(c.name for c in checkpoints(store)) or "none"
        raise StoreError(f"{store}: no checkpoint {name!r}; there are: {names}")
    folder = os.path.join(store, FOLDER, name)
    os.rename(folder, folder + UNDER_WAY)
    files.sync_folder(os.path.dirname(folder))
    shutil.rmtree(folder + UNDER_WAY)
    return found.version
