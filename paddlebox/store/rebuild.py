"""Rebuilds a store's LMDB environment from its MANIFEST files (docs/formats/manifest.md)."""

from __future__ import annotations

import os
import shutil

import lmdb

from paddlebox.errors import CorruptionError, StoreError
from paddlebox.store import files
from paddlebox.store.files import crc32c, seal, unseal
from paddlebox.store.lock import StoreLock
from paddlebox.store.manifest_db import (
    HEAD,
    DbChecksum,
    head_payload,
    journal_entry,
    journal_key,
    version_key,
)
from paddlebox.store.record import VersionRecord, frame, unframe


def rebuild_from_files(folder: str | os.PathLike[str]) -> VersionRecord:
    """Replaces a damaged environment by one that is made from the intact MANIFEST files. Returns
    the newest version.

    A version is used if its MANIFEST file is intact and every file that it names has the right
    size. The old environment stays as ``manifest.damaged-<n>``.

    Raises:
        StoreLockedError: a writer has the store open.
        CorruptionError: no version can be used. The message says why, for each version.
    """
    folder = os.fspath(folder)
    lock = StoreLock(os.path.join(folder, "LOCK"))
    try:
        whole: dict[int, bytes] = {}
        wrong: list[str] = []
        versions = files.manifest_versions(folder)
        for version in versions:
            try:
                whole[version] = _payload(folder, version, newest=version == versions[-1])
            except StoreError as error:
                wrong.append(str(error))
        if not whole:
            raise CorruptionError(f"{folder}: no whole version: {'; '.join(wrong) or 'none'}")
        newest = max(whole)
        _replace(folder, newest, whole)
        where = files.manifest_path(folder, newest)
        return VersionRecord.from_payload(whole[newest], where)
    finally:
        lock.release()


def _payload(folder: str, version: int, newest: bool) -> bytes:
    path = files.manifest_path(folder, version)
    try:
        payload = unframe(files.read(path), path)
    except CorruptionError:
        copy = _copy_in_lmdb(folder, version) if newest else None
        if copy is None:
            raise
        payload = copy
    record = VersionRecord.from_payload(payload, path)
    if record.version != version:
        raise CorruptionError(f"{path}: holds version {record.version}")
    missing = record.first_missing(folder)
    if missing is not None:
        raise CorruptionError(f"{path}: names {missing}")
    return payload


def _copy_in_lmdb(folder: str, version: int) -> bytes | None:
    # Only if the newest version's file is damaged, because LMDB does not check its pages.
    path = os.path.join(folder, "manifest")
    try:
        with (
            lmdb.open(path, readonly=True, lock=False, create=False) as env,
            env.begin() as txn,
        ):
            value = txn.get(version_key(version))
            return unseal(value, path) if value is not None else None
    except (lmdb.Error, OSError):
        return None


def _replace(folder: str, head: int, payloads: dict[int, bytes]) -> None:
    fresh = os.path.join(folder, "manifest.tmp")
    shutil.rmtree(fresh, ignore_errors=True)
    files.make_folder(fresh)
    size = sum(len(payload) for payload in payloads.values())
    records: dict[int, VersionRecord] = {}
    with lmdb.open(fresh, map_size=(16 << 20) + 4 * size) as env, env.begin(write=True) as txn:
        for version, payload in payloads.items():
            records[version] = record = VersionRecord.from_payload(payload, folder)
            txn.put(version_key(version), seal(payload))
            # A chain of saves can continue only if the journal has the commit of the last save.
            entry = journal_entry(record, records.get(record.parent))
            txn.put(journal_key(version), seal(entry))
        crcs = {version: crc32c(payload) for version, payload in payloads.items()}
        txn.put(HEAD, seal(head_payload(head, crcs)))
    DbChecksum(fresh).write()
    files.sync_folder(fresh)
    for version, payload in payloads.items():
        path = files.manifest_path(folder, version)
        if files.read(path) != frame(payload):
            files.write_durably(path, frame(payload))
    current = os.path.join(folder, "manifest")
    if os.path.isdir(current):
        n = 1
        while os.path.exists(f"{current}.damaged-{n}"):
            n += 1
        os.rename(current, f"{current}.damaged-{n}")
    os.rename(fresh, current)
    files.sync_folder(folder)
