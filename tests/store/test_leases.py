"""What becomes of a lease for which there is no room."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from paddlebox.errors import OutOfSpaceError
from paddlebox.store.leases import held_leases, take_lease


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
