"""Locks and leases of a store.

A writer holds an flock on STORE/LOCK, so that there is only one. A reader writes the number of its
version into its own file in STORE/leases/ and holds an flock on it; the writer keeps these
versions. A lock ends with its process, so the writer can remove the lease of a killed reader.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import secrets
import socket
import weakref
from dataclasses import dataclass

from paddlebox.closing import on_error
from paddlebox.errors import StoreError, StoreLockedError
from paddlebox.store import files

log = logging.getLogger("paddlebox")

_FOLDER = "leases"
_held: weakref.WeakSet[Flock] = weakref.WeakSet()


class Flock:
    """A descriptor with an flock. A forked child closes its copy."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor  # -1: closed
        _held.add(self)

    def close(self) -> None:
        """May be called twice."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class StoreLock:
    """An exclusive flock on a file that names its holder, until the process ends. It is lent from
    this process's `KeptLock`, if there is one. Raises: StoreLockedError with pid and host of the
    holder."""

    def __init__(self, path: str) -> None:
        self._from = _kept.get(os.path.realpath(path))
        if self._from is not None and self._from.lend(path):
            return
        self._from = None
        self._flock = _lock(path)

    def release(self) -> None:
        if self._from is not None:
            self._from.lent = False
            self._from = None
        elif hasattr(self, "_flock"):
            self._flock.close()


class KeptLock:
    """The lock of a store over several openings by this process, so that what one of them found
    holds for the next. The folder need not exist yet."""

    def __init__(self, store: str | os.PathLike[str]) -> None:
        self._path = os.path.realpath(os.path.join(store, "LOCK"))
        self._flock: Flock | None = None
        self.lent = False

    def take(self) -> None:
        """Takes the lock if it is not held yet and the folder exists, also if that was replaced by
        another. Raises: StoreLockedError, StoreError."""
        if self._is_held(self._path) or not os.path.isdir(os.path.dirname(self._path)):
            return
        self.release()
        self._flock = _lock(self._path)
        _kept[self._path] = self

    def lend(self, path: str) -> bool:
        """Lends the lock to one `StoreLock`, if it is held and not lent."""
        if self.lent or not self._is_held(path):
            return False
        self.lent = True
        return True

    def release(self) -> None:
        """May be called twice."""
        if self._flock is not None:
            _kept.pop(self._path, None)
            self._flock.close()
            self._flock = None

    def __enter__(self) -> KeptLock:
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _is_held(self, path: str) -> bool:
        return self._flock is not None and _names(path, self._flock.descriptor)


_kept: dict[str, KeptLock] = {}


def _names(path: str, descriptor: int) -> bool:
    """Whether the path still leads to the open file."""
    if descriptor < 0:
        return False
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _lock(path: str) -> Flock:
    while True:
        try:
            flock = Flock(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
        except OSError as error:
            raise StoreError(f"{path}: cannot open the store's lock: {error.strerror}") from error
        try:
            fcntl.flock(flock.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(flock.descriptor, 400, 0).decode(errors="replace").strip()
            pid, _, host = holder.partition(" ")
            flock.close()
            if not isinstance(error, BlockingIOError):
                raise StoreError(f"{path}: cannot lock: {error.strerror}") from error
            raise StoreLockedError(
                f"{path}: process {pid or '?'} on {host or '?'} is training with this store or "
                "changing it, expected none: wait for it to end, or stop it; commands that only "
                "read the store, such as paddlebox evaluate and paddlebox export, can run meanwhile"
            ) from None
        if _names(path, flock.descriptor):
            break
        flock.close()  # the folder was moved or replaced before the file was locked
    # On a full disk only the name is lost, not the lock.
    with contextlib.suppress(OSError):
        os.ftruncate(flock.descriptor, 0)
        os.pwrite(flock.descriptor, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
    return flock


def _drop_after_fork() -> None:
    # A flock lasts as long as any copy of its descriptor: a forked worker that outlives its killed
    # parent would keep the lock.
    for flock in list(_held):
        flock.close()


os.register_at_fork(after_in_child=_drop_after_fork)


# ---- leases


@dataclass(frozen=True)
class HeldLease:
    """version None: the process is still choosing its version."""

    pid: int
    version: int | None


class Lease:
    """A reader's lease, which child processes do not inherit. On a read-only file system reading
    goes on without it. Raises: StoreError if the folder cannot be written; OutOfSpaceError."""

    def __init__(self, store: str) -> None:
        folder = os.path.join(store, _FOLDER)
        try:
            self._take(folder)
        except OSError as error:
            if error.errno == errno.EROFS:
                log.info(
                    "%s: the file system is read-only, so the version is read without a lease: "
                    "reading fails if a writer elsewhere drops the version",
                    folder,
                )
                self._flock = Flock(-1)
                return
            what = "take a lease, which keeps the version to read, and needs write permission"
            raise files.refused(folder, what, error) from error

    def _take(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)
        while True:
            self._path = os.path.join(folder, f"{os.getpid()}-{secrets.token_hex(8)}")
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            self._flock = Flock(fd)
            fcntl.flock(fd, fcntl.LOCK_EX)
            # A writer may have removed the file as stale before it was locked.
            if os.path.exists(self._path):
                return
            self._flock.close()

    def pin(self, version: int) -> None:
        """Names the version. Then check that it is still kept: the writer may have dropped it just
        before. Raises: OutOfSpaceError, StoreError."""
        if self._flock.descriptor < 0:
            return
        with files.writing(self._path, "name the version to keep"):
            os.pwrite(self._flock.descriptor, f"{version:020d}\n".encode(), 0)

    def release(self) -> None:
        """May be called twice. Has no effect in a forked child."""
        if self._flock.descriptor < 0:
            return
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        self._flock.close()


def take_lease(store: str, version: int) -> Lease:
    """A lease on a version that cannot be dropped meanwhile. Raises: as `Lease` and `Lease.pin`."""
    lease = Lease(store)
    with on_error(lease.release):
        lease.pin(version)
    return lease


def held_leases(store: str, remove_stale: bool = False) -> list[HeldLease]:
    """The leases that are held now. remove_stale: remove all others; only for the writer."""
    folder = os.path.join(store, _FOLDER)
    held = []
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    for name in names:
        pid = name.partition("-")[0]
        path = os.path.join(folder, name)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue  # released meanwhile
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if remove_stale:
                with contextlib.suppress(OSError):
                    os.unlink(path)
        except BlockingIOError:
            content = os.pread(fd, 40, 0).strip()
            version = int(content) if content.isdigit() else None
            held.append(HeldLease(int(pid) if pid.isdigit() else 0, version))
        finally:
            os.close(fd)
    return held
