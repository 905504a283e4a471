"""Several ranks: a user must be in the files of one of them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from paddlebox.config.sequences import HistoryConfig
from paddlebox.data import rank_users
from paddlebox.data.rank_users import check_apart
from paddlebox.data.sequences import SequenceOptions
from paddlebox.errors import ConfigError
from paddlebox.store.coordinator import ONE_RANK, Coordinator
from tests.support.fixtures import OpenDataset


class Job:
    """The messages of ranks that are threads."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size)
        self._messages: list[Any] = [None] * size

    def gather(self, rank: int, mine: Any) -> list[Any]:
        self._messages[rank] = mine
        self._barrier.wait()
        found = list(self._messages)
        self._barrier.wait()
        return found


class Rank(Coordinator):
    def __init__(self, job: Job, rank: int) -> None:
        self._job, self.rank, self.size = job, rank, job.size

    def gather(self, what: str, mine: Any) -> list[Any]:
        return self._job.gather(self.rank, mine)


def errors_of(*users: list[int]) -> list[str]:
    """The error of each rank; "" for none."""
    job = Job(len(users))

    def check(rank: int) -> str:
        try:
            check_apart(Rank(job, rank), np.array(users[rank], np.uint64))
        except ConfigError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(len(users)) as ranks:
        return list(ranks.map(check, range(len(users))))


def test_users_of_one_rank_each_are_fine() -> None:
    check_apart(ONE_RANK, np.array([1, 2], np.uint64))
    assert errors_of([1, 5, 2**64 - 1], [], [2, 6]) == ["", "", ""]


def test_a_user_on_two_ranks_is_named_on_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_users, "_USERS", 2)  # several messages
    expected = "the user with feasign 9 is in the files of ranks 0 and 2; expected all instances"
    found = errors_of([1, 3, 5, 7, 9], [2, 4, 6], [8, 9])
    assert all(expected in text for text in found)


def test_histories_need_one_rank(
    open_dataset: OpenDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = open_dataset()
    monkeypatch.setattr(dataset._table, "world", Rank(Job(2), 0))
    dataset.set_sequences(SequenceOptions("user"))
    with pytest.raises(ConfigError, match=r"data\.sequences\.history: expected one rank, found 2"):
        dataset.set_sequences(SequenceOptions("user", history=HistoryConfig(length=1)))
    monkeypatch.undo()
