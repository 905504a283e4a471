"""Leases and locks: one for which there is no room, and one in a forked child."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from paddlebox.errors import OutOfSpaceError, StoreLockedError
from paddlebox.store.leases import held_leases, take_lease
from paddlebox.store.lock import StoreLock


def test_a_lease_without_room_is_an_error_that_names_it_and_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = str(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OutOfSpaceError, match=r"leases/.*no space to name the version"):
            take_lease(store, 3)
    assert held_leases(store) == []
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        with pytest.raises(OutOfSpaceError, match=r"leases: no space to take a lease"):
            take_lease(store, 3)
    lease = take_lease(store, 3)
    assert [held.version for held in held_leases(store)] == [3]
    lease.release()


@contextmanager
def forked() -> Iterator[None]:
    """While a forked child lives."""
    ready, end = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(ready[1], b".")
        os.read(end[0], 1)
        os._exit(0)
    try:
        os.read(ready[0], 1)
        yield
    finally:
        os.write(end[1], b".")
        os.waitpid(child, 0)
        for descriptor in (*ready, *end):
            os.close(descriptor)


def test_a_forked_child_keeps_neither_a_lock_nor_a_lease(tmp_path: Path) -> None:
    """Their holder may be killed while its child lives."""
    path = str(tmp_path / "LOCK")
    lock, lease = StoreLock(path), take_lease(str(tmp_path), 3)
    with forked():
        with pytest.raises(StoreLockedError):
            StoreLock(path)
        assert [held.version for held in held_leases(str(tmp_path))] == [3]
        for holder in (lock, lease):  # what the kernel does where the process is killed
            os.close(holder._flock.descriptor)
            holder._flock.descriptor = -1
        StoreLock(path).release()
        assert held_leases(str(tmp_path)) == []


def test_a_forked_child_does_not_release_its_parents_lease(tmp_path: Path) -> None:
    lease = take_lease(str(tmp_path), 3)
    child = os.fork()
    if child == 0:
        lease.release()
        os._exit(0)
    os.waitpid(child, 0)
    assert [held.version for held in held_leases(str(tmp_path))] == [3]
    lease.release()
    assert not list((tmp_path / "leases").iterdir())
