"""Histories of users: what later passes read as context, and which users are dropped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paddlebox._native import core
from paddlebox.compat.upstream import UpstreamDataset
from paddlebox.config.data import HistoryConfig, Split
from paddlebox.data.history import History, Tails
from paddlebox.data.loader import LoadedPass
from paddlebox.data.sequences import SequenceContext, SequenceOptions
from paddlebox.data.spill import SpillingInstances
from paddlebox.errors import ConfigError, CorruptionError, StoreError
from paddlebox.store.table import Table
from tests.data.test_sequences import SLOTS, Event, batches, loaded, write
from tests.support.fixtures import OpenTable

Pass = Sequence[Event]


def write_passes(folder: Path, passes: Sequence[Pass]) -> list[str]:
    """A file for each pass. Items are numbered through all passes, from 1."""
    files, item = [], 1
    for number, events in enumerate(passes):
        lines = []
        for user, time in events:
            lines.append(f"1 {time} 1 {item % 2} 1 {user} 1 {item}")
            item += 1
        files.append(write(folder / str(number), lines))
    return files


def texts_of_passes(
    files: Sequence[str], length: int, *, budget_bytes: int = 0, **options: Any
) -> list[list[str]]:
    """The sequences of each pass, with their positions: 4(5)@2 is item 4, context 5, first at 2."""
    wanted = {"length": length, **options.pop("history", {})}
    arrays: Any = {}
    found = []
    for number, file in enumerate(files, 1):
        context = SequenceContext(number=number, history=arrays)
        of = loaded(
            [file],
            context=context,
            history=HistoryConfig(**wanted),
            budget_bytes=budget_bytes,
            **options,
        )
        arrays = of.history
        found.append(
            [
                " ".join(map(repr, one)) + f" @{one[0].position}"
                for batch in batches(of)
                for one in batch
            ]
        )
    return found


def test_later_passes_see_the_last_instances_and_count_on(tmp_path: Path) -> None:
    passes = [[(7, 1), (7, 2), (7, 3), (5, 1)], [(7, 4), (8, 4)], [(5, 5), (7, 6), (7, 7)]]
    files = write_passes(tmp_path, passes)
    expected = [
        ["1 2 3 @0", "4 @0"],
        ["(2) (3) 5 @1", "6 @0"],
        ["(4) 7 @0", "(3) (5) 8 9 @2"],
    ]
    assert texts_of_passes(files, 2) == expected
    assert texts_of_passes(files, 2, budget_bytes=400) == expected  # on disk


def test_context_of_a_history_is_cut_like_the_list(tmp_path: Path) -> None:
    files = write_passes(tmp_path, [[(7, t) for t in range(4)], [(7, t) for t in range(4, 9)]])
    cut: dict[str, Any] = {"split": Split.MASK, "max_length": 4, "overlap": 2}
    assert texts_of_passes(files, 3, **cut)[1] == [
        "(2) (3) (4) 5 @1",
        "(4) (5) 6 7 @3",
        "(6) (7) 8 9 @5",
    ]
    cut = {"split": Split.DIRECT, "max_length": 4}
    assert texts_of_passes(files, 3, **cut)[1] == ["(2) (3) (4) 5 @1", "6 7 8 9 @5"]


def test_an_instance_that_is_late_stands_among_the_carried_ones(tmp_path: Path) -> None:
    files = write_passes(tmp_path, [[(7, 10), (7, 20)], [(7, 15), (7, 20)], [(7, 30)]])
    assert texts_of_passes(files, 3)[1:] == [["(1) 3 (2) 4 @0"], ["(3) (2) (4) 5 @1"]]


def test_users_without_a_name_have_no_history(tmp_path: Path) -> None:
    files = write_passes(tmp_path, [[(0, 1), (9, 1)], [(0, 2), (9, 2)]])
    assert texts_of_passes(files, 2, invalid_users=("9",))[1] == ["3 @0", "4 @0"]


def test_a_user_who_was_not_seen_for_too_long_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = [[(7, 1), (5, 1)], [(5, 2)], [(5, 3)], [(7, 4), (5, 4)]]
    files = write_passes(tmp_path, passes)
    for limit, text in ((2, "5 @0"), (3, "(1) 5 @0")):
        monkeypatch.setattr("paddlebox.data.history._EXPIRE_PASSES", limit)
        found = texts_of_passes(files, 1)
        assert found[-1] == [text, "(4) 6 @2"]


def held(of: History) -> dict[int, list[int]]:
    """The times of each user."""
    ends = np.cumsum(of.lengths).tolist()
    return {
        int(user): of.times[end - length : end].tolist()
        for user, end, length in zip(of.users, ends, of.lengths.tolist(), strict=True)
    }


def tails_of(times: dict[int, list[int]]) -> Tails:
    """One user per key, with events at these times; an event at t has feasigns 1 .. t % 3."""
    users = sorted(times)
    flat = [time for user in users for time in times[user]]
    chunk = core.chunk_of(
        np.zeros(len(flat), np.float32),
        np.zeros((len(flat), 1), np.float32),
        np.array([[time % 3] for time in flat], np.uint32).reshape(len(flat), 1),
        np.array([v + 1 for time in flat for v in range(time % 3)], np.uint64),
    )
    lengths = np.array([len(times[user]) for user in users], np.int64)
    return Tails(np.array(users, np.uint64), lengths, lengths, np.array(flat, np.int64), chunk)


Steps = list[dict[int, list[int]]]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=st.lists(
        st.dictionaries(
            st.integers(1, 6), st.lists(st.integers(0, 9), min_size=1, max_size=4), max_size=4
        ),
        max_size=6,
    ),
    budget=st.integers(1, 600),
)
def test_the_newest_users_stay_within_the_budget(steps: Steps, budget: int) -> None:
    of = History.empty(1, 1)
    seen: dict[int, int] = {}
    times: dict[int, list[int]] = {}
    for number, step in enumerate(steps, 1):
        limits = HistoryConfig(length=4, budget_bytes=budget)
        before, of = of, of.after(number, tails_of(step), limits)
        users = sorted(step)
        fitting = before.fitting(np.array([len(step[user]) for user in users], np.int64), limits)
        first = {user: step[user] for user in users[:fitting]}
        cut = before.after(number, tails_of(first), limits, whole=fitting == len(users))
        for name, array in of.arrays().items():
            assert np.array_equal(cut.arrays()[name], array), name
        seen |= dict.fromkeys(step, number)
        times |= step
        assert of.nbytes <= budget
        kept = held(of)
        assert all(kept[user] == times[user] for user in kept)
        dropped = {user: seen[user] for user in seen if user not in kept}
        for user in dropped:
            del seen[user], times[user]
        if dropped and kept:  # no dropped user was seen later than a kept one
            assert max(dropped.values()) <= min(seen[user] for user in kept)
        assert sorted(kept) == of.users.tolist()
        back = History.of(of.arrays(), 1, 1)
        assert held(back) == kept


def test_a_history_of_other_slots_is_refused() -> None:
    arrays = History.empty(2, 1).arrays()
    with pytest.raises(ConfigError, match="2 sparse slots and 1 floats, expected 3 and 1"):
        History.of(arrays, 3, 1)


def test_only_events_that_may_fit_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event takes 20 bytes and 16 for its feasigns, a user 32. So 5 users of 52 bytes are below
    the budget, but with feasigns 4."""
    copied: list[int] = []
    gather = SpillingInstances.gather

    def gathered(instances: Any, numbers: np.ndarray) -> Any:
        copied.append(len(numbers))
        return gather(instances, numbers)

    monkeypatch.setattr(SpillingInstances, "gather", gathered)
    file = write_passes(tmp_path, [[(user, user) for user in range(1, 51)]])[0]
    of = loaded([file], history=HistoryConfig(length=2, budget_bytes=300), budget_bytes=400)
    assert copied == [5]
    assert of.history is not None
    assert of.history["users"].tolist() == [1, 2, 3, 4]


def test_arrays_of_another_layout_or_length_are_refused() -> None:
    one = History.empty(1, 1).after(1, tails_of({7: [4, 5]}), HistoryConfig(length=2)).arrays()
    with pytest.raises(
        CorruptionError,
        match=r"expected the arrays .*users, found dense, feasigns, labels, lengths, sizes",
    ):
        History.of({name: one[name] for name in one if name != "seen"}, 1, 1)
    for name, array in one.items():
        with pytest.raises(CorruptionError, match="histories of users: expected"):
            History.of({**one, name: array[:0]}, 1, 1)
    two = History.empty(1, 1).after(1, tails_of({7: [4], 8: [5]}), HistoryConfig(length=2))
    with pytest.raises(CorruptionError, match="ascending order"):
        History.of({**two.arrays(), "users": np.array([8, 7], np.uint64)}, 1, 1)


def positions_of(table: Table, file: str, *, test: bool = False) -> list[int]:
    """The positions of one batch."""
    dataset = UpstreamDataset(table, seed=1)
    dataset.init(slots=SLOTS, batch_size=10)
    dataset.set_sequences(SequenceOptions("user", history=HistoryConfig(length=1)))
    dataset.set_test_mode(test)
    dataset.set_filelist([file])
    dataset.load_into_memory()
    dataset.begin_pass()
    (batch,) = dataset.batches()
    dataset.end_pass()
    dataset.close()
    found: list[int] = batch["box_seq_position"][:, 0].tolist()
    return found


def test_a_commit_has_the_histories_and_an_evaluation_reads_them(
    tmp_path: Path, open_table: OpenTable
) -> None:
    files = write_passes(tmp_path, [[(7, 1), (7, 2)], [(7, 3)], [(7, 9)]])
    store = tmp_path / "store"
    table = open_table(folder=store)
    assert positions_of(table, files[0]) == [0, 1]
    table.wait_commit()
    assert not any(name.startswith("paddlebox.") for name in table.load_dense())
    table.close()
    table = open_table(folder=store)
    assert positions_of(table, files[2], test=True) == [1, 2]
    assert positions_of(table, files[1]) == [1, 2]
    assert positions_of(table, files[2]) == [2, 3]
    assert positions_of(table, files[2], test=True) == [3, 4]
    table.wait_commit()
    assert table.histories["times"].tolist() == [9]
    assert table.histories["seen"].tolist() == [3]  # training passes of the store


def test_a_store_does_not_read_histories_for_its_parameters(
    tmp_path: Path, open_table: OpenTable
) -> None:
    (file,) = write_passes(tmp_path, [[(7, 1), (7, 2)]])
    table = open_table(folder=tmp_path / "store")
    positions_of(table, file)
    table.wait_commit()
    table.close()
    (dense,) = (tmp_path / "store").rglob("dense.bin")
    dense.write_bytes(b"\1\1" + dense.read_bytes()[2:])
    table = open_table(folder=tmp_path / "store")
    assert table.load_dense() == {}
    with pytest.raises(CorruptionError, match=r"tensor 'paddlebox\.history\."):
        _ = table.histories


def test_a_load_that_fails_leaves_no_history(
    tmp_path: Path, open_table: OpenTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = write_passes(tmp_path, [[(7, 1), (7, 2)]])
    dataset = UpstreamDataset(open_table(), seed=1)
    dataset.init(slots=SLOTS, batch_size=10)
    dataset.set_sequences(SequenceOptions("user", history=HistoryConfig(length=1)))
    dataset.set_filelist([file])

    def full(*_: Any) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(LoadedPass, "in_parts", full)
        with pytest.raises(StoreError, match="the disk is full"):
            dataset.load_into_memory()
    dataset.load_into_memory()
    dataset.begin_pass()
    (batch,) = dataset.batches()
    assert batch["box_seq_position"][:, 0].tolist() == [0, 1]
    dataset.end_pass()
    dataset.close()
