"""Manifest: which files make up which committed version of a store (docs/formats/manifest.md)."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar

import lmdb

from paddlebox.closing import Closing
from paddlebox.errors import CorruptionError, OutOfSpaceError, StoreError
from paddlebox.store import files
from paddlebox.store.checkpoints import checkpoints
from paddlebox.store.crc import crc32c
from paddlebox.store.leases import Held, Lease, held_leases
from paddlebox.store.lock import StoreLock
from paddlebox.store.record import VersionRecord, frame, seal, unframe, unseal

T = TypeVar("T")

__all__ = ["Manifest", "VersionRecord"]

_HEAD = b"head"
_MAP_BYTES = 16 << 20  # address space, not disk; grows by itself
_JOURNAL_LENGTH = 4096  # commits that are remembered
_READ_TRIES = 5  # of a reader that meets a committing writer
_RETRY_SECONDS = 0.05
_REBUILD = (
    "; the MANIFEST files can make it anew: paddlebox.store.rebuild.rebuild_from_files(folder)"
)

NOTHING_COMMITTED = "no version has been committed yet, expected one: train until a pass has ended"

# (pid, real path) of every environment open in this process: LMDB forbids a second one.
_open: set[tuple[int, str]] = set()


def _key(version: int) -> bytes:
    return f"version/{version:012d}".encode()


def journal_key(version: int) -> bytes:
    return f"journal/{version:012d}".encode()


def head_payload(version: int, kept: dict[int, int]) -> bytes:
    """The payload of "head". kept: each kept version -> CRC32C of its payload, so that a value that
    was lost, or swapped with an older one, is found."""
    named = {f"{number:012d}": crc for number, crc in sorted(kept.items())}
    return json.dumps({"version": version, "kept": named}, separators=(",", ":")).encode()


def parse_head(payload: bytes, where: str) -> tuple[int, dict[int, int] | None]:
    """The newest version and what `head_payload` was given; None in stores of format 1.

    Raises: CorruptionError.
    """
    try:
        if payload.isdigit():
            return int(payload), None
        fields = json.loads(payload)
        return int(fields["version"]), {int(v): int(crc) for v, crc in fields["kept"].items()}
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise CorruptionError(f"{where}: not a head: {error!r}") from error


def _opened_twice(folder: str) -> StoreError:
    return StoreError(
        f"{folder}: its manifest is open in this process already, expected it closed: use the one "
        "that is open, or close it first"
    )


class Manifest(Closing):
    """An open manifest, of the one writer or of a reader. Thread safe; not to be used after a fork.

    Every method raises StoreError for a closed or forked manifest and for what the system refuses,
    and CorruptionError for bytes that are not those that were written.
    """

    def __init__(self, folder: str, lock: StoreLock | None) -> None:
        """Private: use open_writer or open_reader."""
        self.folder = folder
        self._lock = lock
        self._mutex = threading.RLock()
        self._owner = (os.getpid(), os.path.realpath(folder))
        self._path = os.path.join(folder, "manifest")
        self._env: Any = None
        self._lease: Lease | None = None
        if self._owner in _open:
            raise _opened_twice(folder)
        try:
            self._env = lmdb.open(
                self._path,
                map_size=_MAP_BYTES,
                readonly=lock is None,
                lock=lock is not None,
                create=lock is not None,
                max_dbs=0,
            )
        except (lmdb.Error, OSError) as error:
            raise self._from_lmdb(error, "open") from error
        _open.add(self._owner)

    @classmethod
    def open_writer(cls, folder: str | os.PathLike[str]) -> Manifest:
        """Opens the store in folder, making it if need be, as its only writer.

        Raises:
            StoreLockedError: another process is the writer; names its pid.
            CorruptionError: the newest version is damaged; says what and how to go on.
        """
        folder = os.fspath(folder)
        if (os.getpid(), os.path.realpath(folder)) in _open:
            raise _opened_twice(folder)
        files.make_folder(folder)
        lock = StoreLock(os.path.join(folder, "LOCK"))
        try:
            for name in ("ssd", "dense", "manifest", "leases"):
                files.make_folder(os.path.join(folder, name))
            try:
                manifest = cls(folder, lock)
            except CorruptionError:
                # A power cut while the store was made: nothing was ever committed.
                if files.manifest_versions(folder) or os.listdir(os.path.join(folder, "ssd")):
                    raise
                os.unlink(os.path.join(folder, "manifest", "data.mdb"))
                manifest = cls(folder, lock)
        except BaseException:
            lock.release()
            raise
        try:
            if manifest.head() is None:
                manifest._put([(_HEAD, head_payload(0, {}))])
            with manifest._system("open"):
                files.sync_folder(manifest._path)
        except BaseException:
            manifest.close()
            raise
        return manifest

    @classmethod
    def open_reader(cls, folder: str | os.PathLike[str]) -> Manifest:
        """Opens the store for reading beside a writer, and changes no byte of it.

        Raises:
            StoreError: there is no store.
            CorruptionError: the newest version is damaged; says what and how to go on.
        """
        folder = os.fspath(folder)
        data = os.path.join(folder, "manifest", "data.mdb")
        if not os.path.isfile(data) or os.path.getsize(data) == 0:
            if files.manifest_versions(folder):
                raise CorruptionError(f"{data}: is missing or empty" + _REBUILD)
            raise StoreError(f"{folder}: no store here ({data} is missing)")
        manifest = cls(folder, None)
        try:
            manifest.head()
        except BaseException:
            manifest.close()
            raise
        return manifest

    def pin(self, version: int | None = None) -> VersionRecord | None:
        """For a reader: the newest version, or the one that is named, whose files now stay until
        the manifest is closed. None in a new store.

        Raises:
            StoreError: the version is not kept, or no lease can be taken.
        """
        try:
            self._lease = self._lease or Lease(self.folder)
        except OSError as error:
            raise StoreError(
                f"{self.folder}: cannot take a lease on the version to read: {error}; a reader "
                "needs to write below leases/"
            ) from error
        while True:
            record = self.head() if version is None else self.version(version)
            if record is None:
                return None
            self._lease.pin(record.version)
            # Held and still kept: the writer looks at leases before it drops a version.
            if record.version in self.versions():
                return record

    def leases(self) -> list[Held]:
        """The leases that readers hold."""
        return held_leases(self.folder)

    def journal(self) -> list[dict[str, Any]]:
        """What the latest commits did, oldest first: version, kind, pass, day, created_at, rows,
        segments, bytes."""

        def read(txn: Any) -> list[dict[str, Any]]:
            keys = [bytes(key) for key, _ in txn.cursor()]
            journal = [key for key in keys if key.startswith(b"journal/")]
            return [json.loads(self._value(txn, key)) for key in sorted(journal)]

        return self._read(read)

    def head(self) -> VersionRecord | None:
        """The newest version, checked against its MANIFEST file; None in a new store."""

        def read(txn: Any) -> VersionRecord | None:
            version, _ = self._head(txn)
            return self._record(txn, version) if version > 0 else None

        return self._read(read)

    def versions(self) -> list[int]:
        """The versions that are kept, oldest first."""
        return self._read(self._kept)

    def version(self, number: int) -> VersionRecord:
        """A kept version, checked against its MANIFEST file; StoreError if it is not kept."""

        def read(txn: Any) -> VersionRecord:
            if txn.get(_key(number)) is None:
                raise StoreError(
                    f"{self.folder}: version {number} is not kept; kept are {self._kept(txn)}"
                )
            return self._record(txn, number)

        return self._read(read)

    def records(self) -> list[VersionRecord]:
        """All kept versions of one moment, oldest first, each checked as `version` does."""
        return self._read(lambda txn: [self._record(txn, n) for n in self._kept(txn)])

    def commit(self, record: VersionRecord) -> None:
        """Makes record the newest version, durably. Its files must be durable already.

        Raises:
            StoreError: not the version after the newest one, or one of its files is missing.
            OutOfSpaceError: the disk is full; the last commit stands.
        """
        with self._writing():
            head = self.head()
            # A store that goes on from others begins with the number after theirs.
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
            kept = {**self._kept_crcs(), record.version: crc32c(payload)}
            forgotten = journal_key(record.version - _JOURNAL_LENGTH)
            # Should this fail the MANIFEST file stays: whether the transaction reached the disk is
            # then unknown, and an unreferenced file harms nothing.
            self._put(
                [
                    (_key(record.version), payload),
                    (journal_key(record.version), journal_entry(record, head)),
                    (forgotten, None),
                    (_HEAD, head_payload(record.version, kept)),
                ]
            )

    def rewind(self, version: int) -> list[int]:
        """Makes an older version the newest again; 0: none at all. Returns those it forgets.

        Versions after it that hold the same rows, as a merge makes them, stay.

        Raises: StoreError: it is not kept, or a reader holds a lease on one to forget.
        """
        with self._writing():
            records = self.records()
            chosen = self.version(version) if version > 0 else None
            last = version
            for record in records:
                if chosen is not None and record.version > version:
                    same = record.dense_version == chosen.dense_version  # else a pass came between
                    last = record.version if same and record.events == chosen.events else last
            dropped = [record for record in records if record.version > last]
            numbers = {record.version for record in dropped}
            for lease in held_leases(self.folder, remove_stale=True) if dropped else ():
                if lease.version is None or lease.version in numbers:
                    raise StoreError(
                        f"{self.folder}: version {lease.version} must be forgotten, process "
                        f"{lease.pid} reads it: try again when it has ended"
                    )
            return self._forget(records, dropped)

    def prune(self, keep: int = 2, keep_daily: int = 0, named: Collection[int] = ()) -> list[int]:
        """Forgets old versions, with every file that only they name; returns them.

        Kept are the newest version of each of the newest ``keep`` passes (a compaction makes a
        version of the pass that was there) and of each of the newest ``keep_daily`` days, those
        that have a name, those that a reader holds a lease on, and ``named``.
        """
        if keep < 1:
            raise ValueError(f"prune must keep at least 1 version, found keep={keep}")
        with self._writing():
            leases = held_leases(self.folder, remove_stale=True)
            if any(lease.version is None for lease in leases):
                return []  # a reader is choosing just now: next time
            pinned = {lease.version for lease in leases}
            records = self.records()
            of_pass: list[int] = []  # the newest version of each pass
            number = None
            for record in records:
                # Of an earlier pass there may only be what life or a merge made after it.
                if record.kind == "pass" or record.pass_number != number:
                    of_pass.append(record.version)
                of_pass[-1], number = record.version, record.pass_number
            of_day = {record.day: record.version for record in records if record.day > 0}
            daily = [of_day[day] for day in sorted(of_day)[-keep_daily:]] if keep_daily else []
            with_name = {checkpoint.version for checkpoint in checkpoints(self.folder)}
            chosen = {*of_pass[-keep:], *daily, *with_name, *pinned, *named}
            return self._forget(records, [r for r in records if r.version not in chosen])

    def go_back(self, version: int) -> list[int]:
        """Makes a kept version the newest one again and forgets those after it; returns them. Their
        numbers are given to other versions from here on.

        Raises:
            StoreError: the version is not kept, or one after it has a name or is being read.
        """
        with self._writing():
            records = self.records()
            self.version(version)
            dropped = [record for record in records if record.version > version]
            numbers = {record.version for record in dropped}
            for checkpoint in checkpoints(self.folder):
                if checkpoint.version in numbers:
                    raise StoreError(
                        f"{self.folder}: version {checkpoint.version}, after version {version}, "
                        f"has the name {checkpoint.name!r} and would be lost: `tools/store.py "
                        "unname` it first, or go back in a copy"
                    )
            for lease in held_leases(self.folder, remove_stale=True):
                if lease.version is None or lease.version in numbers:
                    raise StoreError(
                        f"{self.folder}: process {lease.pid} reads a version after {version}: stop "
                        "it first"
                    )
            return self._forget(records, dropped)

    def _forget(self, records: list[VersionRecord], dropped: list[VersionRecord]) -> list[int]:
        """Forgets some of all the versions, with every file that only they name."""
        if not dropped:
            return []
        gone = {record.version for record in dropped}
        kept = [record for record in records if record.version not in gone]
        crcs = {record.version: self._crc_of(record.version) for record in kept}
        newest = kept[-1].version if kept else 0
        newer = range(newest + 1, dropped[-1].version + 1)
        self._put(
            [
                *((_key(record.version), None) for record in dropped),
                *((journal_key(number), None) for number in newer),
                (_HEAD, head_payload(newest, crcs)),
            ]
        )
        with self._system("forget versions"):
            # MANIFEST files first, durably: none may name a segment that is gone.
            for record in dropped:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(files.manifest_path(self.folder, record.version))
            files.sync_folder(self.folder)
            for name in files.only_in(self.folder, dropped, kept):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self.folder, name))
            files.remove_empty_folders(os.path.join(self.folder, "dense"))
        return [record.version for record in dropped]

    def unreferenced_segments(self) -> list[str]:
        """Files in ssd/ and dense/ and MANIFEST files that no kept version names, as paths inside
        the store; temporary files too. Segments that wait for their commit are among them.
        """
        with self._writing(), self._system("list"):
            kept = self.records()
            return files.unreferenced(self.folder, kept)

    def remove_unreferenced(self) -> list[str]:
        """Removes unreferenced_segments() and returns them. Call it before anything is prepared."""
        with self._writing(), self._system("remove unreferenced files"):
            names = self.unreferenced_segments()
            # MANIFEST files come first, durably: none may name a segment that is gone.
            manifests = [name for name in names if os.sep not in name]
            for name in manifests:
                os.unlink(os.path.join(self.folder, name))
            files.sync_folder(self.folder)
            for name in names:
                if name not in manifests:
                    os.unlink(os.path.join(self.folder, name))
            files.remove_empty_folders(os.path.join(self.folder, "dense"))
            return names

    def close(self) -> None:
        """Closes it and lets the next writer in. May be called again."""
        with self._mutex:
            if self._env is None:
                return
            if self._owner[0] == os.getpid():  # a forked child must not touch the environment
                self._env.close()
                _open.discard(self._owner)
            self._env = None
            if self._lock is not None:
                self._lock.release()
            if self._lease is not None:
                self._lease.release()

    def _check_usable(self) -> None:
        if self._env is None:
            raise StoreError(f"{self.folder}: its manifest is closed")
        if self._owner[0] != os.getpid():
            raise StoreError(
                f"{self.folder}: its manifest was opened in process {self._owner[0]} and may not "
                f"be used in its child {os.getpid()}; open it there"
            )

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        with self._mutex:
            self._check_usable()
            if self._lock is None:
                raise StoreError(f"{self.folder}: opened for reading; open it with open_writer")
            yield

    @contextlib.contextmanager
    def _system(self, action: str) -> Iterator[None]:
        try:
            yield
        except StoreError:
            raise
        except OSError as error:
            raise StoreError(f"{self.folder}: cannot {action}: {error}") from error

    def _from_lmdb(self, error: Exception, action: str) -> StoreError:
        text = f"{self._path}: cannot {action}: {files.lmdb_text(error, self._path)}"
        if isinstance(error, lmdb.DiskError) or getattr(error, "errno", None) == errno.ENOSPC:
            return OutOfSpaceError(text + "; the last commit stands")
        damage = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.PanicError)
        if isinstance(error, damage):
            return CorruptionError(text + _REBUILD)
        return StoreError(text)

    def _put(self, pairs: list[tuple[bytes, bytes | None]]) -> None:
        """One durable transaction: puts each payload, sealed, or removes the key if it is None."""
        while True:
            try:
                with self._env.begin(write=True) as txn:
                    for key, payload in pairs:
                        if payload is None:
                            txn.delete(key)
                        else:
                            txn.put(key, seal(payload))
                return
            except lmdb.MapFullError:
                self._env.set_mapsize(2 * self._env.info()["map_size"])
            except (lmdb.Error, OSError) as error:
                raise self._from_lmdb(error, "commit") from error

    def _read(self, read: Callable[[Any], T]) -> T:
        """read(a transaction); a reader tries again, as a writer may be committing just now."""
        with self._mutex:
            self._check_usable()
            tries = 1 if self._lock is not None else _READ_TRIES
            while True:
                tries -= 1
                try:
                    with self._env.begin() as txn:
                        return read(txn)
                except lmdb.MapResizedError:  # the writer's map has grown
                    self._env.set_mapsize(0)
                except lmdb.Error as error:
                    if tries <= 0:
                        raise self._from_lmdb(error, "read") from error
                except CorruptionError:
                    if tries <= 0:
                        raise
                time.sleep(_RETRY_SECONDS)

    def _value(self, txn: Any, key: bytes) -> bytes:
        where = f"{self._path}: value of {key.decode()!r}"
        value = txn.get(key)
        if value is None:
            raise CorruptionError(f"{where}: is missing" + _REBUILD)
        try:
            return unseal(value, where)
        except CorruptionError as error:
            raise CorruptionError(str(error) + _REBUILD) from None

    def _head(self, txn: Any) -> tuple[int, dict[int, int] | None]:
        # A store gets its head before its first MANIFEST file, so one without the other is damage.
        if txn.get(_HEAD) is None and not files.manifest_versions(self.folder):
            return 0, {}
        return parse_head(self._value(txn, _HEAD), f"{self._path}: value of 'head'")

    def _record(self, txn: Any, version: int) -> VersionRecord:
        payload = self._value(txn, _key(version))
        _, kept = self._head(txn)
        if kept is not None and kept.get(version) != crc32c(payload):
            raise CorruptionError(
                f"{self._path}: value of {_key(version).decode()!r}: is not the one that 'head' "
                "names" + _REBUILD
            )
        path = files.manifest_path(self.folder, version)
        try:
            same = unframe(files.read(path), path) == payload
        except FileNotFoundError:
            raise CorruptionError(f"{path}: is missing" + _REBUILD) from None
        except CorruptionError as error:
            raise CorruptionError(str(error) + _REBUILD) from None
        if not same:
            raise CorruptionError(f"{path}: differs from the record in {self._path}" + _REBUILD)
        return VersionRecord.from_payload(payload, path)

    def _kept(self, txn: Any) -> list[int]:
        prefix = b"version/"
        keys = [bytes(key) for key, _ in txn.cursor()]
        found = sorted(int(key[len(prefix) :]) for key in keys if key.startswith(prefix))
        _, kept = self._head(txn)
        if kept is not None and sorted(kept) != found:
            raise CorruptionError(
                f"{self._path}: holds the versions {found}, 'head' names {sorted(kept)}" + _REBUILD
            )
        return found

    def _crc_of(self, version: int) -> int:
        def read(txn: Any) -> int:
            return crc32c(self._value(txn, _key(version)))

        return self._read(read)

    def _kept_crcs(self) -> dict[int, int]:
        def read(txn: Any) -> dict[int, int]:
            _, kept = self._head(txn)
            if kept is not None:
                return kept
            return {v: crc32c(self._value(txn, _key(v))) for v in self._kept(txn)}

        return self._read(read)


def journal_entry(record: VersionRecord, parent: VersionRecord | None) -> bytes:
    """What the journal has of a commit. Without its parent its bytes are those of all before it."""
    before = parent.bytes_written if parent is not None else {}
    written = sum(record.bytes_written.values()) - sum(before.values())
    entry = {
        "version": record.version,
        "kind": record.kind,
        "pass": record.pass_number,
        "day": record.day,
        "created_at": record.created_at,
        "live_rows": record.live_rows,
        "segments": len(record.segments),
        "bytes": written,
    }
    return json.dumps(entry, separators=(",", ":")).encode()
