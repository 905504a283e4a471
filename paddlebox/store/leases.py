"""Leases: keep the files of a version while it is read.

A reader writes the number of its version into its own file in STORE/leases/ and holds an flock on
that file. The writer keeps every version with a held lease. A lock ends with its process, so the
writer can remove the lease of a reader that was killed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import secrets
from dataclasses import dataclass

from paddlebox.store import files
from paddlebox.store.lock import Flock

log = logging.getLogger("paddlebox")

_FOLDER = "leases"


@dataclass(frozen=True)
class Held:
    """A lease that a process holds. version None: the process is still choosing its version."""

    pid: int
    version: int | None


class Lease:
    """A reader's lease. Not inherited by child processes.

    On a read-only file system there is none: reading goes on without it.

    Raises:
        StoreError: the folder cannot be written.
        OutOfSpaceError: the disk is full.
    """

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
        """Names the version. The caller must then check that the version is still kept: the writer
        may have dropped it just before.

        Raises: OutOfSpaceError, StoreError.
        """
        if self._flock.descriptor < 0:
            return
        try:
            os.pwrite(self._flock.descriptor, f"{version:020d}\n".encode(), 0)
        except OSError as error:
            raise files.refused(self._path, "name the version to keep", error) from error

    def release(self) -> None:
        """Releases the version. May be called twice. Has no effect in a forked child."""
        if self._flock.descriptor < 0:
            return
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        self._flock.close()


def take_lease(store: str, version: int) -> Lease:
    """Takes a lease on a version that cannot be dropped meanwhile.

    Raises: OutOfSpaceError, StoreError.
    """
    lease = Lease(store)
    try:
        lease.pin(version)
    except BaseException:
        lease.release()
        raise
    return lease


def held_leases(store: str, remove_stale: bool = False) -> list[Held]:
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
            held.append(Held(int(pid) if pid.isdigit() else 0, version))
        finally:
            os.close(fd)
    return held
