"""Leases and locks: one for which there is no room, and one in a forked child."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from paddlebox.errors import OutOfSpaceError, StoreLockedError
from paddlebox.store.locks import KeptLock, Lease, StoreLock, held_leases, take_lease
from paddlebox.store.record import VersionRecord
from paddlebox.store.version_store import VersionStore


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


def commit(store: Path, passes: int) -> None:
    with VersionStore.open_writer(store) as manifest:
        record = manifest.newest() or VersionRecord(0, 0, [], {}, 0)
        for number in range(record.version + 1, record.version + passes + 1):
            record = record.following("pass", pass_number=number)
            manifest.append(record)


def test_nothing_is_dropped_while_a_reader_chooses_its_version(tmp_path: Path) -> None:
    commit(tmp_path, 3)
    lease = Lease(str(tmp_path))
    with VersionStore.open_writer(tmp_path) as manifest:
        assert manifest.retention.prune(keep=1) == []
        lease.pin(1)
        assert manifest.retention.prune(keep=1) == [2]
        lease.release()
        assert manifest.retention.prune(keep=1) == [1]


@pytest.fixture
def disturbed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[], object]]]:
    """Calls that another process makes just before this one gets the next locks."""
    calls: list[Callable[[], object]] = []
    flock = fcntl.flock

    def late(descriptor: int, operation: int) -> None:
        if calls:
            calls.pop(0)()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    yield calls
    assert not calls


def test_a_lease_that_was_removed_as_stale_before_it_was_locked_is_taken_again(
    tmp_path: Path, disturbed: list[Callable[[], object]]
) -> None:
    disturbed.append(lambda: os.unlink(next((tmp_path / "leases").iterdir())))
    lease = take_lease(str(tmp_path), 3)
    assert [held.version for held in held_leases(str(tmp_path))] == [3]
    lease.release()


def test_a_version_that_was_dropped_before_it_was_pinned_is_chosen_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(tmp_path, 2)
    kept, pinned = VersionStore.numbers, []
    answers = [lambda _: [], kept]
    monkeypatch.setattr(VersionStore, "numbers", lambda self: answers.pop(0)(self))
    monkeypatch.setattr(Lease, "pin", lambda _, version: pinned.append(version))
    with VersionStore.open_reader(tmp_path) as manifest:
        manifest.pin()
    assert pinned == [2, 2]


def test_a_store_that_was_replaced_before_its_lock_was_taken_is_locked_itself(
    tmp_path: Path, disturbed: list[Callable[[], object]]
) -> None:
    store = tmp_path / "store"
    store.mkdir()

    def replace() -> None:
        store.rename(tmp_path / "before")
        store.mkdir()

    disturbed.append(replace)
    lock = StoreLock(str(store / "LOCK"))
    with pytest.raises(StoreLockedError):
        StoreLock(str(store / "LOCK"))
    lock.release()
    with KeptLock(store):
        lock = StoreLock(str(store / "LOCK"))
        with pytest.raises(StoreLockedError):  # it is lent once
            StoreLock(str(store / "LOCK"))
        lock.release()
        StoreLock(str(store / "LOCK")).release()
