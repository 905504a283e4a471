"""ManifestDb: the LMDB environment of a manifest, a few values under keys, each with a CRC."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import lmdb

from paddlebox.errors import CorruptionError, OutOfSpaceError, StoreError
from paddlebox.store import files
from paddlebox.store.db_checksum import DbChecksum
from paddlebox.store.map_guard import guard_map
from paddlebox.store.record import seal, unseal

T = TypeVar("T")

_MAP_BYTES = 16 << 20  # address space, not disk; grows when needed
_READ_TRIES = 5  # of a reader, because a writer may be committing
_RETRY_SECONDS = 0.05
REBUILD = (
    "; to rebuild it from the MANIFEST files: paddlebox.store.rebuild.rebuild_from_files(folder)"
)

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
        """The keys that start with prefix, ascending."""
        keys = (bytes(key) for key, _ in self._txn.cursor())
        return [key for key in keys if key.startswith(prefix)]

    def payload(self, key: bytes) -> bytes:
        """Raises: CorruptionError if the value is missing or damaged."""
        where = f"{self._path}: value of {key.decode()!r}"
        value = self._txn.get(key)
        if value is None:
            raise CorruptionError(f"{where}: is missing" + REBUILD)
        try:
            return unseal(value, where)
        except CorruptionError as error:
            raise CorruptionError(str(error) + REBUILD) from None


class ManifestDb:
    """An open environment. Thread safe; it must not be used after a fork.

    Args:
        folder: the folder of the store. writable: for the store's only writer.

    Raises: StoreError if it is open in this process already, or LMDB or the system reports an
        error; CorruptionError.
    """

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
        """One durable transaction: stores each payload, sealed. A payload of None removes its key.

        Raises: OutOfSpaceError, StoreError; CorruptionError if the file was damaged before.
        """
        self._check()
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
        """Calls read with the values of one moment. A reader tries again if they are damaged,
        because a writer may be committing.

        Raises: CorruptionError, StoreError.
        """

        def once() -> T:
            with self._env.begin() as txn:
                found = read(Values(txn, self.path))
            if self._guard is not None and self._guard.shrunk:
                raise CorruptionError(
                    f"{self.path}: data.mdb was cut short while it was open, expected it whole"
                    + REBUILD
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
            except CorruptionError:
                if tries <= 0:
                    raise
            time.sleep(_RETRY_SECONDS)

    def _resize(self, size: int) -> None:
        self._guard = None  # before its map goes
        self._env.set_mapsize(size)
        self._guard = guard_map(os.path.join(self.path, "data.mdb"))

    def _check(self) -> None:
        try:
            self._checksum.check()
        except CorruptionError as error:
            raise CorruptionError(str(error) + REBUILD) from None
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
