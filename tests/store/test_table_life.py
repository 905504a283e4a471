"""A table over a store: compaction, life events, readers, room on the disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

from paddlebox import ops
from paddlebox._native import core
from paddlebox.config import TableConfig
from paddlebox.config.table import RowPrecision
from paddlebox.errors import CorruptionError, OutOfSpaceError, PassError, StoreError
from paddlebox.store.compaction import Policy, shape
from paddlebox.store.table import Table, sorted_unique_keys
from tests.support.inside import head_of

ROOT = Path(__file__).resolve().parents[2]
CONFIG = TableConfig(embedx_dim=4, embedx_threshold=0.5)
OFTEN = Policy(min_bytes=0, merge_depth=3, space_target=1.05)


def open_table(folder: Path | None, **settings: Any) -> Table:
    return Table(
        CONFIG,
        **{"folder": folder, "mem_budget_bytes": 1 << 20, "max_segment_bytes": 1 << 16, **settings},
    )


def train(table: Table, feasigns: np.ndarray, number: int, **settings: Any) -> None:
    """A pass that pushes each feasign once, with gradients that follow from it."""
    staged = table.stage(sorted_unique_keys(feasigns), day=20000 + number)
    table.begin(staged)
    grad = np.ones((len(feasigns), 3 + CONFIG.embedx_dim), np.float32)
    grad[:, 1] = feasigns % 2
    grad[:, 2:] = np.sin(feasigns[:, None] + np.arange(1 + CONFIG.embedx_dim) + number) * 0.1
    ops.push_box_sparse(paddle.to_tensor(feasigns.astype(np.int64)), paddle.to_tensor(grad))
    table.end(number)
    table.commit(pass_number=number, dense={"w": np.full(3, number, np.float32)}, **settings)


@pytest.fixture(autouse=True)
def _dygraph() -> None:
    paddle.disable_static()


def feasigns_of(number: int) -> np.ndarray:
    return np.random.default_rng(number).choice(np.arange(1, 20000), 4000, replace=False)


def test_a_version_has_the_settings_with_which_it_was_committed(tmp_path: Path) -> None:
    for number, threshold in ((1, 0.5), (2, 0.75)):
        config = CONFIG.model_copy(update={"embedx_threshold": threshold})
        with Table(config, folder=tmp_path / "s", mem_budget_bytes=1 << 20) as table:
            train(table, np.arange(1, 9, dtype=np.uint64), number)
            assert head_of(table).layout["embedx_threshold"] == threshold


def test_rows_are_reset_to_the_weights_of_new_rows_and_keep_their_counts(tmp_path: Path) -> None:
    first, second = np.arange(1, 40, dtype=np.uint64), np.arange(20, 60, dtype=np.uint64)
    with open_table(tmp_path / "a") as table:
        train(table, first, 1)
        train(table, second, 2)  # rows of both passes, and rows of one of them alone
        trained = dict(zip(*table.read_all(), strict=True))
        table.life.reset_rows()
        assert table.life.resets == 1
    with open_table(tmp_path / "a") as table:
        assert table.life.resets == 1
        found = dict(zip(*table.read_all(), strict=True))
        train(table, first, 3)  # pushes to a row that was reset act as pushes to a new row
        again = dict(zip(*table.read_all(), strict=True))
    with open_table(tmp_path / "b") as table:
        train(table, first, 3)
        fresh = dict(zip(*table.read_all(), strict=True))
    assert found.keys() == trained.keys()
    for feasign, row in found.items():
        np.testing.assert_array_equal(row[1:5], trained[feasign][1:5])  # the counts and the day
        assert not np.array_equal(row[6:], trained[feasign][6:])
    for feasign in first:
        assert again[feasign][1] == trained[feasign][1] + 1
        # embed_w and its state
        np.testing.assert_array_equal(again[feasign][6:8], fresh[feasign][6:8])


def test_compaction_and_day_ends_change_no_row(tmp_path: Path) -> None:
    digests = []
    for name, policy in (("merged", OFTEN), ("left", None), ("memory", None)):
        folder = tmp_path / name if name != "memory" else None
        budget = 1 << 20 if folder else 64 << 20
        with open_table(folder, compaction=policy, mem_budget_bytes=budget) as table:
            for number in range(1, 9):
                train(table, feasigns_of(number), number)
                if number % 3 == 0:
                    table.life.end_of_day(20000 + number, decay=0.5)
                    table.life.shrink(20000 + number, min_score=0.02, max_unseen_days=4)
            digests.append(table.digest())
            if folder is None:
                continue
            rows = len(table.read_all()[0])
            if policy is not None:
                table.compact()
                head = table.head
                assert head is not None
                assert head.bytes_written["compaction"] > 0
                assert shape(head.segments, head.live_rows).depth < 4
                assert table.digest() == digests[0]
                table.compact(full=True)
                assert shape(head_of(table).segments, rows).depth == 1
                digests.append(table.digest())
        if folder is not None:
            with open_table(folder, compaction=None) as again:
                digests.append(again.digest())
                assert again.load_dense()["w"].tolist() == [8, 8, 8]
    assert len(digests) == 6
    assert len(set(digests)) == 1


def test_the_count_of_live_rows_is_exact_without_deletions(tmp_path: Path) -> None:
    with open_table(tmp_path / "s", compaction=OFTEN) as table:
        for number in range(1, 7):
            train(table, feasigns_of(number), number)
        head = table.head
        assert head is not None
        assert head.live_rows == len(table.read_all()[0])


def test_merged_files_leave_the_disk(tmp_path: Path) -> None:
    with open_table(tmp_path / "s", compaction=OFTEN, keep_versions=1) as table:
        for number in range(1, 9):
            train(table, feasigns_of(number), number)
        table.compact(full=True)
        head = table.head
        assert head is not None
        on_disk = sorted(os.listdir(tmp_path / "s" / "ssd"))
        assert on_disk == sorted(s["file"] for s in head.segments)
        assert sum(s["rows"] for s in head.segments) == head.live_rows


def test_begin_waits_where_segments_are_too_many(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policy = Policy(min_bytes=0, merge_depth=3, max_depth=2)
    with open_table(tmp_path / "s", compaction=policy) as table:
        for number in range(1, 6):
            train(table, feasigns_of(1), number)
            assert shape(head_of(table).segments, 4000).depth <= 3
    assert "waiting for compaction" in caplog.text


def test_a_pass_that_could_not_be_committed_is_not_begun(tmp_path: Path) -> None:
    with open_table(tmp_path / "s", disk_budget_bytes=200_000) as table:
        staged = table.stage(sorted_unique_keys(np.arange(1, 4000)))
        with pytest.raises(OutOfSpaceError, match=r"disk_budget_bytes 200000.*not started"):
            table.begin(staged)
        table.drop_staged(staged)
        train(table, np.arange(1, 500), 1)
        assert table.head is not None


def test_a_warning_estimates_when_the_budget_runs_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_table(tmp_path / "s", disk_budget_bytes=390_000, compaction=None) as table:
        for number in range(1, 12):
            try:
                train(table, np.arange(1, 600), number)
            except OutOfSpaceError:
                break
    assert "of disk_budget_bytes 390000 are left" in caplog.text


def test_a_day_cannot_end_while_a_pass_is_open(tmp_path: Path) -> None:
    with open_table(tmp_path / "s") as table:
        staged = table.stage(sorted_unique_keys(np.arange(1, 10)))
        table.begin(staged)
        with pytest.raises(PassError, match="a pass is open"):
            table.life.end_of_day(20000)
        table.abandon()


def test_a_shrunk_row_is_absent_for_readers_too(tmp_path: Path) -> None:
    with open_table(tmp_path / "s") as table:
        train(table, np.arange(1, 1000), 1)
        table.life.shrink(20001, min_score=0.5)  # odd feasigns were clicked: they score 1
        assert sorted(table.read_all()[0].tolist()) == list(range(1, 1000, 2))
    with open_table(tmp_path / "s", read_only=True) as reader:
        staged = reader.stage(sorted_unique_keys(np.arange(1, 1000)), train=False)
        assert staged.rows == 500
        reader.begin(staged)
        reader.end()


_READER = """
import sys
import numpy as np
from tests.store.test_table_life import open_table
from pathlib import Path
with open_table(Path(sys.argv[1]), read_only=True) as table:
    print(table.head.version, table.digest(), flush=True)
    sys.stdin.readline()
    print(table.digest(), flush=True)
"""


@pytest.mark.slow
def test_a_reader_reads_its_version_while_the_writer_goes_on(tmp_path: Path) -> None:
    with open_table(tmp_path / "s", compaction=OFTEN, keep_versions=1) as table:
        for number in range(1, 4):
            train(table, feasigns_of(number), number)
        table.compact()
        version, digest = head_of(table).version, table.digest()
        reader = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _READER, str(tmp_path / "s")],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert reader.stdin is not None
        assert reader.stdout is not None
        assert reader.stdout.readline().split() == [str(version), digest]
        for number in range(4, 12):
            train(table, feasigns_of(number), number)
        table.compact(full=True)
        assert table.digest() != digest
        print(file=reader.stdin, flush=True)
        assert reader.stdout.readline().strip() == digest
        assert reader.wait() == 0


def test_a_read_only_table_is_not_compacted(tmp_path: Path) -> None:
    with open_table(tmp_path / "s") as table:
        train(table, feasigns_of(1), 1)
    reader = open_table(tmp_path / "s", read_only=True)
    with reader, pytest.raises(StoreError, match="no store of its own"):
        reader.compact()


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_16_bit_rows_end_the_same_through_every_tier(tmp_path: Path, precision: str) -> None:
    digests = []
    config = CONFIG.model_copy(update={"row_precision": RowPrecision(precision)})
    for folder, budget in ((tmp_path / "s", 1 << 20), (None, 64 << 20)):
        with Table(config, folder=folder, mem_budget_bytes=budget, compaction=OFTEN) as table:
            for number in range(1, 5):
                train(table, feasigns_of(number), number)
            digests.append(table.digest())
    assert digests[0] == digests[1]


def test_a_full_disk_during_a_merge_is_reported_and_loses_nothing(tmp_path: Path) -> None:
    with open_table(tmp_path / "s", compaction=None) as table:
        for number in range(1, 4):
            train(table, feasigns_of(number), number)
        digest, version = table.digest(), head_of(table).version
        core.inject_write_fault(50_000, 28)
        try:
            with pytest.raises(OutOfSpaceError, match=r"seg-.*no space to write"):
                table.compact(full=True)
        finally:
            core.inject_write_fault(-1, 0)
        assert table.digest() == digest
        assert head_of(table).version == version
        table.compact(full=True)
        assert table.digest() == digest


def test_an_error_in_the_background_reaches_the_next_pass(tmp_path: Path) -> None:
    with open_table(tmp_path / "s", compaction=OFTEN) as table:
        for number in range(1, 3):
            train(table, feasigns_of(number), number)
        table.compact()
        victim = tmp_path / "s" / "ssd" / head_of(table).segments[0]["file"]
        with open(victim, "r+b") as file:
            file.seek(100)
            file.write(b"damaged!")
        with pytest.raises(CorruptionError, match="block 0"):
            for number in range(3, 12):
                train(table, np.arange(50_000 + number * 5000, 54_000 + number * 5000), number)
