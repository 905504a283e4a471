"""ManifestDb: the LMDB environment of a manifest, values under keys, each with a CRC; the checksum
of its file; the rebuilding of both (docs/formats/manifest.md)."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import lmdb

from paddlebox.errors import CorruptionError, OutOfSpaceError, StoreError
from paddlebox.store import files
from paddlebox.store.files import crc32c, guard_map, seal, unseal
from paddlebox.store.locks import StoreLock
from paddlebox.store.record import VersionRecord, frame, unframe

T = TypeVar("T")

_MAP_BYTES = 16 << 20  # address space, not disk; grows when needed
_READ_TRIES = 5  # of a reader, because a writer may be committing
_RETRY_SECONDS = 0.05
REBUILD = (
    "; to rebuild it from the MANIFEST files: "
    "paddlebox.store.manifest_db.rebuild_from_files(folder)"
)

_DATA, _NAME = "data.mdb", "data.sha256"
_MAGIC = "PBXSHA256 1"
_UNKNOWN = (0, "0" * 64)  # while a transaction changes the file

# (pid, real path) of every environment open in this process: LMDB forbids a second one.
_open: set[tuple[int, str]] = set()


def check_not_open(folder: str) -> None:
    """Raises: StoreError if this process has the store's manifest open."""
    if (os.getpid(), os.path.realpath(folder)) in _open:
        raise StoreError(
            f"{folder}: its manifest is open in this process already, expected it closed: use the "
            "one that is open, or close it first"
        )


class Values:
    """The values at one moment."""

    def __init__(self, txn: Any, path: str) -> None:
        self._txn, self._path = txn, path

    def has(self, key: bytes) -> bool:
        return self._txn.get(key) is not None

    def keys(self, prefix: bytes) -> list[bytes]:
        keys = (bytes(key) for key, _ in self._txn.cursor())
        return [key for key in keys if key.startswith(prefix)]

    def payload(self, key: bytes) -> bytes:
        """Raises: CorruptionError if the value is missing or damaged."""
        where = f"{self._path}: value of {key.decode()!r}"
        value = self._txn.get(key)
        if value is None:
            raise CorruptionError(f"{where}: is missing")
        return unseal(value, where)


class ManifestDb:
    """An open environment. Thread safe; not to be used after a fork. Raises: StoreError, also if it
    is open in this process already; CorruptionError."""

    def __init__(self, folder: str, *, writable: bool) -> None:
        check_not_open(folder)
        self._folder = folder
        self.path = os.path.join(folder, "manifest")
        self.mutex = threading.RLock()
        self._owner = (os.getpid(), os.path.realpath(folder))
        self._tries = 1 if writable else _READ_TRIES
        self._env: Any = None
        self._checksum = DbChecksum(self.path)
        self._retrying(self._check)
        try:
            self._env = lmdb.open(
                self.path,
                map_size=_MAP_BYTES,
                readonly=not writable,
                lock=writable,
                create=writable,
                max_dbs=0,
            )
        except (lmdb.Error, OSError) as error:
            raise self._refused(error, "open") from error
        self._guard = guard_map(os.path.join(self.path, "data.mdb"))
        _open.add(self._owner)

    def put(self, pairs: list[tuple[bytes, bytes | None]]) -> None:
        """One durable transaction: stores each payload, sealed; None removes its key. Raises:
        OutOfSpaceError, StoreError; CorruptionError if the file was damaged before."""
        self._retrying(self._check)
        while True:
            try:
                with self._checksum.transaction(), self._env.begin(write=True) as txn:
                    for key, payload in pairs:
                        if payload is None:
                            txn.delete(key)
                        else:
                            txn.put(key, seal(payload))
                return
            except lmdb.MapFullError:
                self._resize(2 * self._env.info()["map_size"])
            except StoreError:
                raise
            except (lmdb.Error, OSError) as error:
                raise self._refused(error, "commit") from error

    def read(self, read: Callable[[Values], T]) -> T:
        """Calls read with the values of one moment; a reader tries again if they are damaged,
        because a writer may be committing. Raises: CorruptionError, StoreError."""

        def once() -> T:
            with self._env.begin() as txn:
                found = read(Values(txn, self.path))
            if self._guard is not None and self._guard.shrunk:
                raise CorruptionError(
                    f"{self.path}: data.mdb was cut short while it was open, expected it whole"
                )
            return found

        with self.mutex:
            self.check_usable()
            return self._retrying(once)

    def _retrying(self, action: Callable[[], T]) -> T:
        tries = self._tries
        while True:
            tries -= 1
            try:
                return action()
            except lmdb.MapResizedError:  # the writer's map has grown
                self._resize(0)
            except lmdb.Error as error:
                if tries <= 0:
                    raise self._refused(error, "read") from error
            except CorruptionError as error:
                if tries <= 0:
                    raise CorruptionError(str(error) + REBUILD) from error
            time.sleep(_RETRY_SECONDS)

    def _resize(self, size: int) -> None:
        self._guard = None  # before its map goes
        self._env.set_mapsize(size)
        self._guard = guard_map(os.path.join(self.path, "data.mdb"))

    def _check(self) -> None:
        try:
            self._checksum.check()
        except CorruptionError:  # it is an OSError too
            raise
        except OSError as error:
            raise self._refused(error, "read") from error

    def check_usable(self) -> None:
        """Raises: StoreError if it is closed, or was opened before a fork."""
        if self._env is None:
            raise StoreError(f"{self._folder}: its manifest is closed")
        if self._owner[0] != os.getpid():
            raise StoreError(
                f"{self._folder}: its manifest was opened in process {self._owner[0]} and may not "
                f"be used in its child {os.getpid()}; open it there"
            )

    def close(self) -> None:
        """May be called twice."""
        with self.mutex:
            if self._env is not None and self._owner[0] == os.getpid():
                self._guard = None
                self._env.close()  # not in a forked child
                _open.discard(self._owner)
            self._env = None

    def _refused(self, error: Exception, action: str) -> StoreError:
        text = f"{self.path}: cannot {action}: {files.lmdb_text(error, self.path)}"
        if isinstance(error, lmdb.DiskError) or getattr(error, "errno", None) == errno.ENOSPC:
            return OutOfSpaceError(text + "; the last commit stands")
        damage = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.PanicError)
        if isinstance(error, damage):
            return CorruptionError(text + REBUILD)
        return StoreError(text)


class DbChecksum:
    """Size and SHA-256 of ``data.mdb``, in a file beside it: LMDB does not check pages, and a
    damaged one can end the process. Only the writer calls `transaction`; any process may `check` at
    any time, also before LMDB opens the file."""

    def __init__(self, folder: str) -> None:
        self._data, self._path = os.path.join(folder, _DATA), os.path.join(folder, _NAME)

    def check(self) -> None:
        """Checks every byte. There is no checksum in a new store, during a transaction or after one
        that failed, or if the power failed before the last one was on the disk. Raises:
        CorruptionError."""
        while True:
            line = self._line()
            expected = self._parse(line)
            if expected == _UNKNOWN:
                return
            found = self._found()
            if found == expected:
                return
            if self._line() == line:  # otherwise a transaction came between
                raise CorruptionError(
                    f"{self._data}: expected {expected[0]} bytes with SHA-256 {expected[1]}, found "
                    f"{found[0]} with {found[1]}"
                )

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Stores the new checksum after the caller has changed the file. If that fails or the
        process dies, there is none until the next transaction. Raises: OSError, OutOfSpaceError."""
        self._write(_UNKNOWN, durably=True)
        yield
        # Not synced: until this line is on the disk, the disk has the line of `_UNKNOWN`.
        self._write(self._found(), durably=False)

    def write(self) -> None:
        """Stores the checksum of a file that LMDB has closed, durably."""
        self._write(self._found(), durably=True)

    def _write(self, of: tuple[int, str], *, durably: bool) -> None:
        line = _line(*of)
        if not os.path.exists(self._path):
            files.write_durably(self._path, line)
            return
        # In place, within one sector: a power cut leaves the old line or the new one.
        fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(fd, line, 0)
            if durably:
                os.fdatasync(fd)
        finally:
            os.close(fd)

    def _line(self) -> bytes:
        try:
            return files.read(self._path)
        except FileNotFoundError:
            return _line(*_UNKNOWN)

    def _parse(self, line: bytes) -> tuple[int, str]:
        words = line.decode(errors="replace").split()
        with contextlib.suppress(ValueError, IndexError):
            found = int(words[2]), words[3]
            if line == _line(*found):
                return found
        raise CorruptionError(
            f"{self._path}: expected a line '{_MAGIC} bytes sha256 crc32c', found {line[:120]!r}"
        )

    def _found(self) -> tuple[int, str]:
        try:
            content = files.read(self._data)
        except FileNotFoundError:
            content = b""
        return len(content), hashlib.sha256(content).hexdigest()


def _line(size: int, digest: str) -> bytes:
    text = f"{_MAGIC} {size:020d} {digest}"
    return f"{text} {crc32c(text.encode()):08x}\n".encode()


# ---- keys and values

HEAD = b"head"  # the key of `head_payload`


def version_key(version: int) -> bytes:
    return f"version/{version:012d}".encode()


def journal_key(version: int) -> bytes:
    return f"journal/{version:012d}".encode()


def head_payload(version: int, kept: Mapping[int, int]) -> bytes:
    """kept: each version -> CRC32C of its payload, which shows that one was lost or replaced."""
    named = {f"{number:012d}": crc for number, crc in sorted(kept.items())}
    return json.dumps({"version": version, "kept": named}, separators=(",", ":")).encode()


def parse_head(payload: bytes, where: str) -> tuple[int, dict[int, int]]:
    """The arguments that `head_payload` got. Raises: CorruptionError."""
    try:
        fields = json.loads(payload)
        return int(fields["version"]), {int(v): int(crc) for v, crc in fields["kept"].items()}
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise CorruptionError(f"{where}: not a head: {error!r}") from error


def journal_entry(record: VersionRecord, parent: VersionRecord | None) -> bytes:
    """Without a parent, all bytes written so far count as the commit's own."""
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


# ---- rebuilding


def rewrite(folder: str | os.PathLike[str]) -> None:
    """Writes the environment again, without the free pages, in which LMDB keeps what was removed.
    The store must be closed in this process. Raises: StoreLockedError, OutOfSpaceError, StoreError;
    CorruptionError if a value is damaged."""
    folder = os.fspath(folder)
    check_not_open(folder)
    path, fresh = (os.path.join(folder, name) for name in ("manifest", "manifest.tmp"))
    lock = StoreLock(os.path.join(folder, "LOCK"))
    try:
        DbChecksum(path).check()
        with files.store_errors(path, "rewrite"):
            shutil.rmtree(fresh, ignore_errors=True)
            files.make_folder(fresh)
            with lmdb.open(path, readonly=True, lock=False) as env, env.begin() as txn:
                pairs = [(bytes(key), bytes(value)) for key, value in txn.cursor()]
            size = sum(len(key) + len(value) for key, value in pairs)
            map_size = (16 << 20) + 4 * size
            with lmdb.open(fresh, map_size=map_size) as env, env.begin(write=True) as txn:
                for key, value in pairs:
                    unseal(value, f"{path}: value of {key.decode()!r}")
                    txn.put(key, value)
            with DbChecksum(path).transaction():
                os.rename(os.path.join(fresh, _DATA), os.path.join(path, _DATA))
                files.sync_folder(path)
            shutil.rmtree(fresh)
    except lmdb.Error as error:
        raise StoreError(f"{path}: cannot rewrite: {files.lmdb_text(error, path)}") from error
    finally:
        lock.release()


def rebuild_from_files(folder: str | os.PathLike[str]) -> VersionRecord:
    """Makes a new environment from the intact MANIFEST files whose data files all have the right
    size. The old one stays as ``manifest.damaged-<n>``. Returns the newest version. Raises:
    StoreLockedError; CorruptionError if no version can be used, with the reason for each."""
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
