"""Gives names to versions, and finds the version that a user means.

A checkpoint is a version with a name, which stays until the name is removed (`Retention.prune`).
STORE/checkpoints/<name>/ holds hard links to its files, laid out as the store, with the other
tables of a set in tables/. It costs the disk space of files that the store would otherwise have
removed.
"""

from __future__ import annotations

import os
import re
import shutil

from paddlebox.config.dates import date_of
from paddlebox.errors import StoreError
from paddlebox.store import files
from paddlebox.store.files import CHECKPOINTS, UNDER_WAY
from paddlebox.store.record import VersionRecord
from paddlebox.store.version_store import VersionStore

# Not only digits, which name versions and days.
_NAME = re.compile(r"(?!\d+$)[A-Za-z0-9_][A-Za-z0-9_.-]*")


def give_name(store: str, record: VersionRecord, name: str) -> None:
    """Names a kept version, on which the caller holds a lease, also while a writer has the store
    open. Raises: StoreError if the name is taken or not valid, or files cannot be linked."""
    if not _NAME.fullmatch(name) or name.endswith(UNDER_WAY):
        raise StoreError(
            f"{name!r} cannot name a checkpoint: expected letters, digits and _ . -, and not only "
            "digits"
        )
    target = os.path.join(store, CHECKPOINTS, name)
    taken = files.checkpoints(store)
    if name in taken:
        raise StoreError(
            f"{store}: {name!r} is the name of version {taken[name]}; choose another, or "
            "`unname` it first"
        )
    under_way = target + UNDER_WAY
    shutil.rmtree(under_way, ignore_errors=True)  # left by a process that died
    try:
        with files.store_errors(target, "make the named version"):
            files.make_folder(under_way)
            for inside, part in record.tables_in(store):
                source, folder = os.path.join(store, inside), os.path.join(under_way, inside)
                for path in part.data_files:
                    link = os.path.join(folder, path)
                    files.make_folder(os.path.dirname(link))
                    os.link(os.path.join(source, path), link)
                files.make_folder(folder)
                for made, _, _ in os.walk(folder):
                    files.sync_folder(made)
                part.write(folder)
            os.rename(under_way, target)
            files.sync_folder(os.path.dirname(target))
    except StoreError:
        shutil.rmtree(under_way, ignore_errors=True)
        raise


def name_version(store: str, version: int, name: str) -> None:
    """As `give_name`, for a store that this process has not opened."""
    with VersionStore.open_reader(store) as manifest:
        record = manifest.pin(version)
        assert record is not None
        give_name(store, record, name)


def unname(store: str, name: str) -> int:
    """Removes a name; returns its version, which the next commit may drop. Raises: StoreError."""
    named = files.checkpoints(store)
    if name not in named:
        names = ", ".join(named) or "none"
        raise StoreError(f"{store}: no checkpoint {name!r}; there are: {names}")
    folder = os.path.join(store, CHECKPOINTS, name)
    os.rename(folder, folder + UNDER_WAY)
    files.sync_folder(os.path.dirname(folder))
    shutil.rmtree(folder + UNDER_WAY)
    return named[name]


def find_version(manifest: VersionStore, what: str) -> int:
    """The number of the version that `what` means: a number, YYYYMMDD (the newest version of that
    day), YYYYMMDD/PASS, or a name. Raises: StoreError that lists the versions and names."""
    records = manifest.records()
    named = files.checkpoints(manifest.folder)
    day, _, number = what.partition("/")
    if what in named:
        return named[what]
    found = [
        record
        for record in records
        if what == str(record.version)
        or (date_of(record.day) == day and number in ("", str(record.cursor.get("pass", 0))))
    ]
    if not found:
        there = [f"{r.version} ({date_of(r.day) or 'no date'}/{r.pass_number})" for r in records]
        raise StoreError(
            f"{manifest.folder}: no version {what!r}; expected one of {', '.join(there)}"
            + (f", and the names {', '.join(named)}" if named else "")
        )
    whole = [record for record in found if not record.is_partial]
    return max(record.version for record in whole or found)
