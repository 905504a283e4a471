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

    If this process has a `KeptLock` on the file, the lock is lent from it.

    Raises:
        StoreLockedError: another process holds it; the message names its pid and host.
    """

    def __init__(self, path: str) -> None:
        self._from = _kept.get(os.path.realpath(path))
        if self._from is not None and self._from.lend(path):
            return
        self._from = None
        self._flock = _lock(path)

    def release(self) -> None:
        """Releases the lock. May be called twice."""
        if self._from is not None:
            self._from.lent = False
            self._from = None
        elif hasattr(self, "_flock"):
            self._flock.close()


class KeptLock:
    """The lock of a store over several openings by this process, so that what one of them found
    holds for the next. Use it in a `with` block.

    Args:
        store: the folder. It need not exist yet.
    """

    def __init__(self, store: str | os.PathLike[str]) -> None:
        self._path = os.path.realpath(os.path.join(store, "LOCK"))
        self._flock: Flock | None = None
        self.lent = False

    def take(self) -> None:
        """Takes the lock if the folder exists and the lock is not held yet; also after the folder
        was replaced by another one.

        Raises: StoreLockedError, StoreError.
        """
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
        """Releases the lock. May be called twice."""
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
                "read the store, such as tools/evaluate.py and tools/export.py, can run meanwhile"
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
