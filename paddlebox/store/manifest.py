"""Manifest: the files of each committed version of a store (docs/formats/manifest.md)."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from paddlebox.closing import Closing
from paddlebox.errors import CorruptionError, StoreError
from paddlebox.store import files
from paddlebox.store.checkpoints import checkpoints
from paddlebox.store.crc import crc32c
from paddlebox.store.leases import Lease, held_leases
from paddlebox.store.lock import StoreLock
from paddlebox.store.manifest_db import REBUILD, ManifestDb, Values, check_not_open
from paddlebox.store.record import (
    HEAD,
    VersionRecord,
    frame,
    head_payload,
    journal_entry,
    journal_key,
    parse_head,
    unframe,
    version_key,
)

__all__ = ["Manifest", "VersionRecord"]

_JOURNAL_LENGTH = 4096  # commits

NOTHING_COMMITTED = "no version has been committed yet, expected one: train until a pass has ended"


class Manifest(Closing):
    """An open manifest, of the one writer or of a reader. Thread safe; it must not be used after a
    fork.

    Every method raises StoreError if the manifest is closed or was opened before a fork, or if LMDB
    or the system reports an error. It raises CorruptionError if bytes differ from those that were
    written.
    """

    def __init__(self, folder: str, lock: StoreLock | None) -> None:
        """Private: use open_writer or open_reader."""
        self.folder = folder
        self._lock = lock
        self._lease: Lease | None = None
        self._db = ManifestDb(folder, writable=lock is not None)

    @classmethod
    def open_writer(cls, folder: str | os.PathLike[str]) -> Manifest:
        """Opens the store in folder as its only writer. Creates the store if there is none.

        Raises:
            StoreLockedError: another process is the writer. The message has its pid.
            CorruptionError: the newest version is damaged. The message names the next step.
        """
        folder = os.fspath(folder)
        check_not_open(folder)
        files.make_folder(folder)
        lock = StoreLock(os.path.join(folder, "LOCK"))
        try:
            for name in ("ssd", "dense", "manifest", "leases"):
                if os.path.islink(path := os.path.join(folder, name)):
                    raise StoreError(f"{path}: expected a folder, found a link: mount a disk there")
                files.make_folder(path)
            try:
                manifest = cls(folder, lock)
            except CorruptionError:
                # The power failed while the store was created: nothing was ever committed.
                if files.manifest_versions(folder) or os.listdir(os.path.join(folder, "ssd")):
                    raise
                os.unlink(os.path.join(folder, "manifest", "data.mdb"))
                manifest = cls(folder, lock)
        except BaseException:
            lock.release()
            raise
        try:
            if manifest.head() is None:
                manifest._db.put([(HEAD, head_payload(0, {}))])
            with files.store_errors(folder, "open"):
                files.sync_folder(manifest._db.path)
        except BaseException:
            manifest.close()
            raise
        return manifest

    @classmethod
    def open_reader(cls, folder: str | os.PathLike[str]) -> Manifest:
        """Opens the store for reading, also while a writer has it open. Changes no byte of it.

        Raises:
            StoreError: there is no store.
            CorruptionError: the newest version is damaged. The message names the next step.
        """
        folder = os.fspath(folder)
        data = os.path.join(folder, "manifest", "data.mdb")
        if not os.path.isfile(data) or os.path.getsize(data) == 0:
            if files.manifest_versions(folder):
                raise CorruptionError(f"{data}: is missing or empty" + REBUILD)
            raise StoreError(f"{folder}: no store here ({data} is missing)")
        manifest = cls(folder, None)
        try:
            manifest.head()
        except BaseException:
            manifest.close()
            raise
        return manifest

    # ---- reading

    def pin(self, version: int | None = None) -> VersionRecord | None:
        """Keeps a version and its files until this reader is closed. Returns the record, or None in
        a new store.

        Args:
            version: None: the newest.

        Raises:
            StoreError: the version is not kept, or no lease can be taken.
        """
        self._lease = self._lease or Lease(self.folder)
        while True:
            record = self.head() if version is None else self.version(version)
            if record is None:
                return None
            self._lease.pin(record.version)
            # If the version is still kept now, it stays: the writer reads leases before it drops
            # a version.
            if record.version in self.versions():
                return record

    def journal(self) -> list[dict[str, Any]]:
        """The latest commits, oldest first: version, kind, pass, day, created_at, rows, segments,
        bytes."""
        return self._db.read(
            lambda values: [json.loads(values.payload(k)) for k in values.keys(b"journal/")]
        )

    def head(self) -> VersionRecord | None:
        """The newest version, checked against its MANIFEST file; None in a new store."""

        def read(values: Values) -> VersionRecord | None:
            version, _ = self._head(values)
            return self._record(values, version) if version > 0 else None

        return self._db.read(read)

    def versions(self) -> list[int]:
        """The versions that are kept, oldest first."""
        return self._db.read(self._kept)

    def version(self, number: int) -> VersionRecord:
        """A kept version, checked against its MANIFEST file; StoreError if it is not kept."""

        def read(values: Values) -> VersionRecord:
            if not values.has(version_key(number)):
                raise StoreError(
                    f"{self.folder}: version {number} is not kept; kept are {self._kept(values)}"
                )
            return self._record(values, number)

        return self._db.read(read)

    def records(self) -> list[VersionRecord]:
        """All kept versions of one moment, oldest first, each checked as `version` does."""
        return self._db.read(lambda values: [self._record(values, n) for n in self._kept(values)])

    # ---- writing

    def commit(self, record: VersionRecord) -> None:
        """Makes record the newest version, durably. Its files must be durable already.

        Raises:
            StoreError: it does not follow the newest version, or one of its files is missing.
            OutOfSpaceError: the disk is full; the last commit stands.
        """
        with self._writing():
            head = self.head()
            # If a store continues other stores, its first version follows their last version.
            parent = head.version if head is not None else record.parent
            if record.parent != parent or record.version != parent + 1:
                raise StoreError(
                    f"{self.folder}: commit of version {record.version} after {record.parent}, "
                    f"expected {parent + 1} after {parent}"
                )
            missing = files.first_missing(self.folder, record)
            if missing is not None:
                raise StoreError(f"{self.folder}: version {record.version} names {missing}")
            payload = record.to_payload()
            files.write_durably(files.manifest_path(self.folder, record.version), frame(payload))
            _, crcs = self._db.read(self._head)
            kept = {**crcs, record.version: crc32c(payload)}
            # If this fails, the MANIFEST file stays: it is unknown whether the transaction reached
            # the disk, and an unreferenced file does no harm.
            self._db.put(
                [
                    (version_key(record.version), payload),
                    (journal_key(record.version), journal_entry(record, head)),
                    (journal_key(record.version - _JOURNAL_LENGTH), None),
                    (HEAD, head_payload(record.version, kept)),
                ]
            )

    def rewind(self, version: int) -> list[int]:
        """Makes `version` the newest version again and drops the later ones; 0 drops all versions.

        Keeps later versions that only a merge made, because they hold the same rows.

        Returns: the numbers of the dropped versions.

        Raises: StoreError: `version` is not kept, or a reader holds a lease on a version that would
            be dropped.
        """
        with self._writing():
            records = self.records()
            chosen = self.version(version) if version > 0 else None
            last = version
            for record in records:
                if chosen is not None and record.version > version:
                    same = record.dense_version == chosen.dense_version  # no pass came between
                    last = record.version if same and record.events == chosen.events else last
            return self._drop_after(last, records)

    def go_back(self, version: int) -> list[int]:
        """Makes a kept version the newest again and drops all later ones; returns the dropped
        versions. New versions use their numbers again.

        Raises:
            StoreError: the version is not kept, or a later one has a name or is being read.
        """
        with self._writing():
            self.version(version)
            for checkpoint in checkpoints(self.folder):
                if checkpoint.version > version:
                    raise StoreError(
                        f"{self.folder}: version {checkpoint.version}, after version {version}, "
                        f"has the name {checkpoint.name!r} and would be lost: `tools/store.py "
                        "unname` it first, or go back in a copy"
                    )
            return self._drop_after(version, self.records())

    def prune(self, keep: int = 2, keep_daily: int = 0, named: Collection[int] = ()) -> list[int]:
        """Drops old versions, with every file that only they name; returns them.

        It keeps: the newest version of each of the newest ``keep`` passes (a compaction makes
        another version of the same pass); the newest version of each of the newest ``keep_daily``
        days; versions that have a name; versions on which a reader holds a lease; and ``named``.
        """
        if keep < 1:
            raise ValueError(f"prune must keep at least 1 version, found keep={keep}")
        with self._writing():
            leases = held_leases(self.folder, remove_stale=True)
            if any(lease.version is None for lease in leases):
                return []  # a reader is choosing its version: try after the next commit
            pinned = {lease.version for lease in leases}
            records = self.records()
            of_pass: list[int] = []  # the newest version of each pass
            number = None
            for record in records:
                # A pass may have lost its own version, and still have versions of its merges.
                if record.kind == "pass" or record.pass_number != number:
                    of_pass.append(record.version)
                of_pass[-1], number = record.version, record.pass_number
            of_day = {record.day: record.version for record in records if record.day > 0}
            daily = [of_day[day] for day in sorted(of_day)[-keep_daily:]] if keep_daily else []
            with_name = {checkpoint.version for checkpoint in checkpoints(self.folder)}
            chosen = {*of_pass[-keep:], *daily, *with_name, *pinned, *named}
            return self._drop([r for r in records if r.version not in chosen], records)

    def remove_unreferenced(self) -> list[str]:
        """Removes the files in ssd/ and dense/, MANIFEST files and temporary files that no kept
        version names; returns their paths inside the store. Call it before files are written:
        segments that wait for their commit are not named either.
        """
        with self._writing(), files.store_errors(self.folder, "remove unreferenced files"):
            names = files.unreferenced(self.folder, self.records())
            self._remove(names)
            return names

    def close(self) -> None:
        """Closes it and lets the next writer in. May be called twice."""
        self._db.close()
        if self._lock is not None:
            self._lock.release()
        if self._lease is not None:
            self._lease.release()

    # ---- implementation

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        with self._db.mutex:
            self._db.check_usable()
            if self._lock is None:
                raise StoreError(f"{self.folder}: opened for reading; open it with open_writer")
            yield

    def _drop_after(self, version: int, records: list[VersionRecord]) -> list[int]:
        """Drops the versions after `version`. No reader may hold a lease on them."""
        dropped = [record for record in records if record.version > version]
        numbers = {record.version for record in dropped}
        for lease in held_leases(self.folder, remove_stale=True) if dropped else ():
            if lease.version is None or lease.version in numbers:
                which = lease.version or f"{min(numbers)} or a later one"
                raise StoreError(
                    f"{self.folder}: version {which} must be dropped, but process {lease.pid} "
                    "reads it: stop it, or try again when it has ended"
                )
        return self._drop(dropped, records)

    def _drop(self, dropped: list[VersionRecord], records: list[VersionRecord]) -> list[int]:
        """Drops versions, with every file that only they name. records: all versions."""
        if not dropped:
            return []
        gone = [record.version for record in dropped]
        kept = [record for record in records if record.version not in gone]
        _, crcs = self._db.read(self._head)
        crcs = {n: crc for n, crc in crcs.items() if n not in gone}
        newest = kept[-1].version if kept else 0
        self._db.put(
            [
                *((version_key(number), None) for number in gone),
                *((journal_key(number), None) for number in range(newest + 1, gone[-1] + 1)),
                (HEAD, head_payload(newest, crcs)),
            ]
        )
        with files.store_errors(self.folder, "drop versions"):
            manifests = [os.path.basename(files.manifest_path("", number)) for number in gone]
            self._remove([*manifests, *files.only_in(self.folder, dropped, kept)])
        return gone

    def _remove(self, names: Iterable[str]) -> None:
        """Removes files, given as paths inside the store."""
        manifests = {name for name in names if os.sep not in name}
        # MANIFEST files first, durably: none may name a segment that is gone.
        for some in (manifests, set(names) - manifests):
            for name in some:
                with contextlib.suppress(FileNotFoundError):
                    files.unlink_inside(self.folder, name)
            if some is manifests:
                files.sync_folder(self.folder)
        files.remove_empty_folders(os.path.join(self.folder, "dense"))

    def _head(self, values: Values) -> tuple[int, dict[int, int]]:
        # A store gets its head before its first MANIFEST file, so a file without a head is damage.
        if not values.has(HEAD) and not files.manifest_versions(self.folder):
            return 0, {}
        return parse_head(values.payload(HEAD), f"{self._db.path}: value of 'head'")

    def _record(self, values: Values, version: int) -> VersionRecord:
        key = version_key(version)
        payload = values.payload(key)
        _, kept = self._head(values)
        if kept.get(version) != crc32c(payload):
            raise CorruptionError(
                f"{self._db.path}: value of {key.decode()!r}: is not the one that 'head' "
                "names" + REBUILD
            )
        path = files.manifest_path(self.folder, version)
        try:
            same = unframe(files.read(path), path) == payload
        except FileNotFoundError:
            raise CorruptionError(f"{path}: is missing" + REBUILD) from None
        except CorruptionError as error:
            raise CorruptionError(str(error) + REBUILD) from None
        if not same:
            raise CorruptionError(f"{path}: differs from the record in {self._db.path}" + REBUILD)
        return VersionRecord.from_payload(payload, path)

    def _kept(self, values: Values) -> list[int]:
        found = [int(key.partition(b"/")[2]) for key in values.keys(b"version/")]
        _, kept = self._head(values)
        if sorted(kept) != found:
            raise CorruptionError(
                f"{self._db.path}: holds the versions {found}, 'head' names {sorted(kept)}"
                + REBUILD
            )
        return found
