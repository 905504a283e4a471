"""StoreLock: makes a process the only writer of a store."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import weakref

from paddlebox.errors import StoreError, StoreLockedError

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
    """An exclusive flock on a file that names its holder; released when the process ends.

    Raises:
        StoreLockedError: another process holds it; the message names its pid and host.
    """

    def __init__(self, path: str) -> None:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StoreError(f"{path}: cannot open the store's lock: {error.strerror}") from error
        self._flock = Flock(fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(fd, 400, 0).decode(errors="replace").strip()
            pid, _, host = holder.partition(" ")
            self.release()
            if not isinstance(error, BlockingIOError):
                raise StoreError(f"{path}: cannot lock: {error.strerror}") from error
            raise StoreLockedError(
                f"{path}: process {pid or '?'} on {host or '?'} is the store's writer, expected "
                "none: wait for it or end it, or open the store as a reader"
            ) from None
        # On a full disk only the name is lost, not the lock.
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)

    def release(self) -> None:
        """Releases the lock. May be called twice."""
        self._flock.close()


def _drop_after_fork() -> None:
    # A flock lasts as long as any copy of its descriptor: a forked worker that outlives its killed
    # parent would keep the lock.
    for flock in list(_held):
        flock.close()


os.register_at_fork(after_in_child=_drop_after_fork)
