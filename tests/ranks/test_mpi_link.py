"""Waits of MpiLink that nothing ends, without MPI: its requests are never finished."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paddlebox.errors import RankError
from paddlebox.ranks.mpi_link import MpiLink

_LEFT = "rank 1 has left the job: StoreError: no room"


class _Store:
    """What the link needs of a JobStore."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.reasons: list[str] = []

    def leave(self, why: str) -> None:
        self.reasons.append(why)

    def left(self) -> list[str]:
        return self.said


def _link(store: Any) -> MpiLink:
    pending = SimpleNamespace(Test=lambda: False)
    communicator = SimpleNamespace(size=2, Ialltoall=lambda *_: pending)
    world = SimpleNamespace(Dup=lambda: communicator)
    return MpiLink(SimpleNamespace(COMM_WORLD=world, BYTE=None, Exception=ValueError), 1, store)


def test_a_rank_that_leaves_ends_the_waits_of_the_others() -> None:
    store = _Store()
    link = _link(store)

    def leave() -> None:
        time.sleep(0.3)
        store.said.append(_LEFT)

    leaving = threading.Thread(target=leave)
    leaving.start()
    with pytest.raises(RankError, match=f"^{_LEFT}$"):
        link.exchange(0, {1: [np.zeros(3, np.uint8)]})
    leaving.join()
    assert link.why_gone() == [_LEFT]
    assert len(link._unfinished) == 1  # MPI may still write there


def test_a_rank_that_leaves_ends_its_own_waits_and_says_why_once() -> None:
    store = _Store()
    link = _link(store)
    link.leave("ValueError: the step fails")
    link.leave("another reason")
    assert store.reasons == ["ValueError: the step fails"]
    with pytest.raises(RankError, match="this rank has left the job: ValueError: the step fails"):
        link.exchange(0, {1: [np.zeros(3, np.uint8)]})
