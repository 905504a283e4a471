"""Admission: a feasign gets a row once it has occurred often enough, whatever way it is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paddlebox import ops
from paddlebox._native import core, paddle
from paddlebox.config import TableConfig
from paddlebox.errors import PassError
from paddlebox.store.table import Table, sorted_unique_keys
from paddlebox.store.table_set import StagedSet

MIN_COUNT = 3
FIELDS = {
    "embedx_dim": 4,
    "embedx_threshold": 0.0,
    "admission": {"min_count": MIN_COUNT, "filter_bytes": 1 << 16},
}


@pytest.fixture(autouse=True)
def dygraph() -> None:
    paddle.disable_static()


def open_at(folder: Path, **arguments: Any) -> Table:
    arguments = {"mem_budget_bytes": 1 << 20, "hbm_budget_bytes": 64 << 20, **arguments}
    return Table(TableConfig.model_validate(FIELDS), folder=folder, **arguments)


def count(table: Table, feasigns: list[int]) -> tuple[np.ndarray, int]:
    unique, counts = np.unique(np.array(feasigns, np.uint64), return_counts=True)
    keys = sorted_unique_keys(unique)
    # Keys come in another order than feasigns.
    order = np.argsort([int(sorted_unique_keys(np.array([f]))[0]) for f in unique])
    return keys, table.count_keys(keys, counts[order].astype(np.uint32))


def pull(feasigns: list[int]) -> Any:
    ids = paddle.to_tensor(np.array(feasigns, np.uint64).view(np.int64)[:, None])
    return ops.pull_box_sparse(ids, 7, anchor=ops.create_anchor())


def train(feasigns: list[int]) -> None:
    pull(feasigns).sum().backward()


def run_pass(table: Table, feasigns: list[int]) -> StagedSet:
    keys, counted = count(table, feasigns)
    staged = table.stage(keys)
    table.begin(staged)
    train(feasigns)
    table.end()
    table.commit(counted=counted)
    return staged


def rows_of(table: Table) -> list[int]:
    return sorted(int(f) for f in table.read_all()[0])


def test_a_feasign_gets_a_row_in_the_pass_that_makes_its_count_full(tmp_path: Path) -> None:
    with open_at(tmp_path) as table:
        staged = run_pass(table, [1, 1, 2, 3, 3, 3])
        assert (staged.rows, staged.refused) == (1, 2)
        assert rows_of(table) == [3]
        assert run_pass(table, [1, 2]).refused == 1  # 1 has its third
        assert rows_of(table) == [1, 3]
        assert run_pass(table, [2]).refused == 0
        assert rows_of(table) == [1, 2, 3]
        assert table.counters()["keys_refused"] == 3


def test_without_a_row_a_feasign_reads_as_zeros_and_its_gradient_is_dropped(tmp_path: Path) -> None:
    with open_at(tmp_path) as table:
        keys, counted = count(table, [5, 6, 6, 6])
        table.begin(table.stage(keys))
        train([5, 6])
        out = pull([5, 6]).numpy()
        assert not out[0].any()
        assert out[1].any()
        with pytest.raises(ValueError, match="feasign 7 is not among the keys"):
            pull([7])
        table.end()
        table.commit(counted=counted)


def test_counts_are_committed_with_the_pass_they_belong_to(tmp_path: Path) -> None:
    with open_at(tmp_path) as table:
        keys, first = count(table, [1, 2])
        table.begin(table.stage(keys))
        keys, second = count(table, [1, 1, 2])  # the next pass, before the first has ended
        assert second == first + 1
        train([1, 2])
        table.end()
        table.commit(counted=first)
    # The second pass was lost with the process: its counts are too.
    with open_at(tmp_path) as table:
        assert run_pass(table, [2]).refused == 1
        assert run_pass(table, [1]).refused == 1
        assert run_pass(table, [1, 2]).refused == 0


def test_a_pass_that_is_given_up_is_not_counted(tmp_path: Path) -> None:
    with open_at(tmp_path) as table:
        for _ in range(MIN_COUNT):
            _, counted = count(table, [1])
            table.uncount_keys(counted)
        assert run_pass(table, [1]).refused == 1
        _, counted = count(table, [1])
        with pytest.raises(PassError, match="reverse order"):
            table.uncount_keys(counted - 1)


def test_a_filter_of_another_size_is_named(tmp_path: Path) -> None:
    with open_at(tmp_path) as table:
        run_pass(table, [1])
    other = {**FIELDS, "admission": {"min_count": 3, "filter_bytes": 1 << 17}}
    with pytest.raises(ValueError, match=r"admission\.filter_bytes is 131072.* 65536 bytes"):
        Table(TableConfig.model_validate(other), folder=tmp_path)


def test_the_programs_dense_state_does_not_hold_the_filter(tmp_path: Path) -> None:
    with open_at(tmp_path) as table:
        keys, counted = count(table, [1])
        table.begin(table.stage(keys))
        table.end()
        table.commit(counted=counted, dense={"w": np.ones(3, np.float32)})
        assert list(table.load_dense()) == ["w"]


def overlapped(folder: Path, passes: list[list[int]], restarts: set[Any] | set[int]) -> str:
    """Trains the passes with each staged while the one before trains; reopens between some."""
    table = open_at(folder)
    staged = None
    for number, feasigns in enumerate(passes):
        if staged is None:
            keys, counted = count(table, feasigns)
            staged = table.stage(keys)
        table.begin(staged)
        following = None
        if number + 1 < len(passes) and number not in restarts:
            keys, next_counted = count(table, passes[number + 1])
            following = table.stage(keys)
        train(feasigns)
        table.end()
        table.commit(counted=counted)
        staged = following
        if following is not None:
            counted = next_counted
        elif number + 1 < len(passes):
            table.close()
            table = open_at(folder)
    with table:
        return table.digest()


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    passes=st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=15), min_size=1, max_size=6),
    restarts=st.sets(st.integers(0, 5)),
)
def test_overlap_and_restarts_change_no_bit(
    tmp_path_factory: pytest.TempPathFactory, passes: list[list[int]], restarts: set[Any] | set[int]
) -> None:
    one_by_one = open_at(tmp_path_factory.mktemp("plain"))
    with one_by_one as table:
        for feasigns in passes:
            run_pass(table, feasigns)
        digest = table.digest()
    assert overlapped(tmp_path_factory.mktemp("overlapped"), passes, restarts) == digest


# ---- by chance


def by_chance(folder: Path, probability: float, min_count: int = 1, **arguments: Any) -> Table:
    admission = {"min_count": min_count, "filter_bytes": 1 << 16, "probability": probability}
    config = TableConfig.model_validate({**FIELDS, "admission": admission})
    return Table(config, folder=folder, mem_budget_bytes=1 << 20, **arguments)


def numbered_pass(table: Table, feasigns: list[int], number: int) -> None:
    keys, counted = count(table, feasigns)
    table.begin(table.stage(keys))
    train(feasigns)
    table.end(number)
    table.commit(counted=counted, pass_number=number)


def test_a_pass_admits_about_the_given_share_and_draws_again_in_the_next(tmp_path: Path) -> None:
    feasigns = list(range(1, 1001))
    with by_chance(tmp_path, 0.3) as table:
        numbered_pass(table, feasigns, 1)
        assert 240 <= len(rows_of(table)) <= 360
        numbered_pass(table, feasigns, 2)
        assert 450 <= len(rows_of(table)) <= 570  # 1 - 0.7²


def test_chance_is_the_same_after_a_restart_and_in_parts(tmp_path: Path) -> None:
    feasigns = list(range(1, 201))
    with by_chance(tmp_path / "a", 0.5) as table:
        numbered_pass(table, feasigns, 1)
        numbered_pass(table, feasigns, 2)
        expected = rows_of(table)
    with by_chance(tmp_path / "b", 0.5) as table:
        numbered_pass(table, feasigns, 1)
    with by_chance(tmp_path / "b", 0.5, threads=3) as table:
        keys, counted = count(table, feasigns)
        for part in (keys[:90], keys[90:]):
            table.begin(table.stage(part))
            train([int(f) for f in core.feasigns_of(part)])
            table.end(2)
            if part[0] == keys[0]:
                table.spill()
        table.commit(counted=counted, pass_number=2)
        assert rows_of(table) == expected


def test_chance_comes_after_the_count(tmp_path: Path) -> None:
    with by_chance(tmp_path, 0.5, min_count=2) as table:
        numbered_pass(table, list(range(1, 301)), 1)
        assert rows_of(table) == []
        numbered_pass(table, list(range(1, 301)), 2)
        assert 110 <= len(rows_of(table)) <= 190
