"""A commit beside the next pass: whatever that does, the version is of the moment at which its own
pass ended; and what goes wrong in one of the two leaves the other whole, and is heard."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import pytest

from paddlebox.compat.upstream import UpstreamDataset
from paddlebox.config import TableConfig
from paddlebox.errors import OutOfSpaceError, PassError, StoreError
from paddlebox.store.committer import When
from paddlebox.store.table import Table
from paddlebox.store.table_set import StagedSet
from paddlebox.store.tiered_table import StagedPass, TieredTable, sorted_unique_keys
from paddlebox.training.assembly import ended_passes_committed
from paddlebox.training.interrupt import Stopped
from tests.store.commit_held import POINTS, Held
from tests.store.test_table_set import opened
from tests.support.instances import SLOTS, multislot_lines

MIB = 1 << 20
CONFIG = TableConfig(embedx_dim=4, embedx_threshold=0.0)
FIRST, SECOND, THIRD = range(1, 3000), range(2000, 5000), range(1000, 6000)


def open_table(folder: Path, config: TableConfig = CONFIG, **changes: Any) -> Table:
    sizes = {"mem_budget_bytes": MIB, "hbm_budget_bytes": 64 * MIB, "compaction": None}
    return Table(config, folder=folder, **{**sizes, **changes})


def stage(table: Table, feasigns: range) -> StagedSet:
    return table.stage(sorted_unique_keys(np.array(feasigns, np.uint64)))


def push(table: TieredTable, staged: StagedPass, value: float) -> None:
    ids = staged.row_of_key[staged.row_of_key >= 0]
    table.native.push_pooled(
        ids,
        np.arange(len(ids) + 1, dtype=np.int32),
        1,
        True,
        np.ones((len(ids), 2), np.float32),
        np.empty(0, np.int32),
        np.full((len(ids), 3 + table.config.embedx_dim), value, np.float32),
    )


def train(table: Table, feasigns: range, number: int) -> None:
    """Up to its end."""
    staged = stage(table, feasigns)
    table.begin(staged)
    push(table.first, staged, 0.01 * number)
    table.end(number)


def digests(folder: Path) -> list[str]:
    """Of an undisturbed run, after each pass."""
    found = []
    with open_table(folder) as table:
        for number, feasigns in enumerate((FIRST, SECOND, THIRD), 1):
            train(table, feasigns, number)
            table.commit(pass_number=number)
            found.append(table.digest())
    return found


def digest_of(folder: Path) -> tuple[int, str]:
    """The pass at which the store opens again, and its rows."""
    with open_table(folder) as table:
        return table.pass_number, table.digest()


def second_held(table: Table, point: str) -> tuple[Held, Future[int]]:
    """The first pass committed, the second one's commit held at the point, in the background."""
    train(table, FIRST, 1)
    table.commit(pass_number=1)
    train(table, SECOND, 2)
    held = Held(table.first, point)
    return held, table.commit(when=When.BACKGROUND, pass_number=2)


def third_begun(table: Table) -> None:
    third = stage(table, THIRD)
    table.begin(third)
    push(table.first, third, 0.03)


# ---- both are whole


@pytest.mark.parametrize("point", POINTS)
def test_the_next_pass_is_whole_beside_a_commit(tmp_path: Path, point: str) -> None:
    expected = digests(tmp_path / "alone")
    with open_table(tmp_path / "s") as table:
        held, committing = second_held(table, point)
        assert held.reached.wait(60)
        given_up = stage(table, range(1, 4000))  # rows of MEM, of SSD and of the frozen pass
        table.drop_staged(given_up)
        assert not table.life.begin_day(0)
        third_begun(table)
        assert not committing.done()
        held.let_go()
        table.end(3)
        assert committing.result() == 2
        table.commit(pass_number=3)
        assert table.digest() == expected[2]
    assert digest_of(tmp_path / "s") == (3, expected[2])


@pytest.mark.parametrize("point", POINTS)
def test_a_pass_that_is_given_up_beside_a_commit_leaves_that_whole(
    tmp_path: Path, point: str
) -> None:
    expected = digests(tmp_path / "alone")
    with open_table(tmp_path / "s") as table:
        held, committing = second_held(table, point)
        assert held.reached.wait(60)
        third_begun(table)
        table.abandon()
        assert not committing.done()
        held.let_go()
        assert table.commit_ended() == 0  # none but the one that is under way
    assert digest_of(tmp_path / "s") == (2, expected[1])


@pytest.mark.parametrize("point", POINTS)
def test_a_commit_that_fails_ends_the_next_pass_and_the_store_opens_at_the_last_one(
    tmp_path: Path, point: str
) -> None:
    expected = digests(tmp_path / "alone")
    with open_table(tmp_path / "s") as table:
        held, _ = second_held(table, point)
        third_begun(table)
        held.let_go(OutOfSpaceError("no room"))
        with pytest.raises(OutOfSpaceError, match="no room"):
            table.end(3)
        table.abandon()
    committed = 2 if point == "publish" else 1  # by then it is durable
    assert digest_of(tmp_path / "s") == (committed, expected[committed - 1])


# ---- of the moment at which the pass ended


def test_arrays_that_the_next_pass_changes_are_committed_as_they_were(tmp_path: Path) -> None:
    weights = np.zeros(4, np.float32)
    path = tmp_path / "pass.txt"
    path.write_text("".join(f"{line}\n" for line in multislot_lines(100)))
    with open_table(tmp_path / "s") as table:
        dataset = UpstreamDataset(table)
        dataset.init(slots=SLOTS, batch_size=32)
        dataset.dense_state = lambda: {"w": weights}
        dataset.set_filelist([str(path)])
        dataset.load_into_memory()
        dataset.begin_pass()
        assert len([*dataset.batches()]) == 4
        held = Held(table.first, "record")
        weights += 1
        dataset.end_pass()
        weights += 1  # in place, as an optimizer does
        held.let_go()
        table.wait_commit()
        assert table.load_dense()["w"].tolist() == [1, 1, 1, 1]
        dataset.close()


@pytest.mark.parametrize("keeps", [False, True])
def test_a_commit_has_the_counts_at_the_end_of_its_pass(tmp_path: Path, keeps: bool) -> None:
    config = TableConfig.model_validate(
        {"embedx_dim": 4, "admission": {"min_count": 3, "filter_bytes": 1 << 16}}
    )
    keys = sorted_unique_keys(np.arange(1, 50, dtype=np.uint64))
    with open_table(tmp_path / "s", config) as table:
        table.count_keys(keys, np.full(len(keys), 1, np.uint32))
        table.begin(table.stage(keys))
        table.end(1)
        held = Held(table.first, "write_frozen")
        (table.keep if keeps else table.commit)(when=When.BACKGROUND, pass_number=1)
        assert held.reached.wait(60)
        table.count_keys(keys, np.full(len(keys), 1, np.uint32))  # of the next pass
        held.let_go()
        table.commit_ended()
    with open_table(tmp_path / "s", config) as table:
        table.count_keys(keys, np.full(len(keys), 1, np.uint32))
        assert table.stage(keys).refused == len(keys)  # which have occurred twice


# ---- room for both


def budget_of(folder: Path, passes: float) -> int:
    """Room for so many passes of the rows of FIRST beside the files of a new store."""
    files = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    with open_table(folder.with_name("size")) as table:
        row_bytes = table.first.native.stored_row_bytes + 8
    return files + int(passes * len(FIRST) * row_bytes * 1.1)


def test_a_pass_begins_beside_a_commit_where_the_disk_has_room_for_both(tmp_path: Path) -> None:
    open_table(tmp_path / "s").close()
    budget = budget_of(tmp_path / "s", 2.3)
    with open_table(tmp_path / "s", disk_budget_bytes=budget) as table:
        train(table, FIRST, 1)
        held = Held(table.first, "write_frozen")
        committing = table.commit(when=When.BACKGROUND, pass_number=1)
        table.begin(stage(table, SECOND))
        assert not committing.done()
        held.let_go()


def test_a_pass_is_not_begun_where_the_commit_beside_it_takes_the_room(tmp_path: Path) -> None:
    open_table(tmp_path / "s").close()
    budget = budget_of(tmp_path / "s", 1.7)
    with open_table(tmp_path / "s", disk_budget_bytes=budget) as table:
        train(table, FIRST, 1)
        held = Held(table.first, "write_frozen")
        committing = table.commit(when=When.BACKGROUND, pass_number=1)
        Timer(0.1, held.let_go).start()
        with pytest.raises(OutOfSpaceError, match="not started"):
            table.begin(stage(table, range(10_000, 13_000)))
        assert committing.result() == 1
        assert not table.first.native.training


def test_a_group_waits_for_the_commit_of_all_tables_where_there_is_not_room_for_both(
    tmp_path: Path,
) -> None:
    keys = sorted_unique_keys(np.array(FIRST, np.uint64))
    slots = np.ones(len(keys), np.uint16)  # all of the default table
    with opened(tmp_path / "s") as group:
        pass
    budget = 2 * budget_of(tmp_path / "s", 1.7)  # a half for each table
    with opened(tmp_path / "s", disk_budget_bytes=budget) as group:
        staged = group.stage(keys, slots)
        group.begin(staged)
        push(group.members[0], staged.parts[0], 0.01)
        group.end(1)
        held = Held(group.members[0], "write_frozen")
        committing = group.commit(when=When.BACKGROUND, pass_number=1)
        assert held.reached.wait(60)
        Timer(0.1, held.let_go).start()
        with pytest.raises(OutOfSpaceError, match="not started"):
            group.begin(group.stage(keys, slots))
        assert committing.result() == 1


# ---- what goes wrong is heard


def test_staging_after_a_failed_commit_reports_its_error(tmp_path: Path) -> None:
    keys = sorted_unique_keys(np.array(range(1, 50), np.uint64))
    slots = np.ones(len(keys), np.uint16)
    with opened(tmp_path) as group:
        group.begin(group.stage(keys, slots))
        group.end(1)
        held = Held(group.members[1], "record")
        committing = group.commit(when=When.BACKGROUND, pass_number=1)
        held.let_go(OutOfSpaceError("no room on the disk"))
        assert isinstance(committing.exception(), OutOfSpaceError)
        with pytest.raises(PassError, match="no room on the disk"):
            group.stage(keys, slots)
        with pytest.raises(OutOfSpaceError):
            group.wait_commit()


def test_a_commit_that_fails_while_a_signal_ends_the_run_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_table(tmp_path / "s") as table:
        train(table, FIRST, 1)
        held = Held(table.first, "record")
        table.commit(when=When.BACKGROUND, pass_number=1)
        held.let_go(StoreError("the disk is gone"))
        with (
            caplog.at_level(logging.ERROR, logger="paddlebox"),
            pytest.raises(Stopped),
            ended_passes_committed(table),
        ):
            raise Stopped(15)
        assert "not committed: the disk is gone" in caplog.text
