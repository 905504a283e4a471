"""The rows of a version as record batches and as a Parquet file, which is complete or absent."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paddlebox import ops
from paddlebox._native import core, paddle
from paddlebox.config import TableConfig
from paddlebox.errors import OutOfSpaceError, StoreError
from paddlebox.store.locks import held_leases
from paddlebox.store.rank_stores import rank_versions
from paddlebox.store.stored_rows import StoredRows, write_rows
from paddlebox.store.table import Table, sorted_unique_keys

CONFIG = TableConfig.model_validate(
    {"embedx_dim": 4, "embedx_threshold": 0, "embed": {"rule": "naive"}}, strict=False
)
GROUP = 1 << 16  # rows of a row group


def opened(store: Path, **options: Any) -> Table:
    return Table(CONFIG, folder=store, mem_budget_bytes=1 << 20, compaction=None, **options)


def train(table: Table, feasigns: np.ndarray, number: int) -> None:
    """Slot s has the feasigns f with f % 3 == s."""
    paddle.disable_static()
    keys = sorted_unique_keys(feasigns)
    table.begin(table.stage(keys, (core.feasigns_of(keys) % 3).astype(np.uint16)))
    gradients = np.full((len(feasigns), 7), 0.1 * number, np.float32)
    ops.push_box_sparse(paddle.to_tensor(feasigns.view(np.int64)), paddle.to_tensor(gradients))
    table.end(number)
    table.commit(pass_number=number, cursor={"pass": number})


def feasigns(last: int) -> np.ndarray:
    return np.arange(1, last + 1, dtype=np.uint64)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """150,000 rows in a segment, and a third of them again in another."""
    folder = tmp_path_factory.mktemp("run") / "store"
    with opened(folder) as table:
        train(table, feasigns(150_000), 1)
        train(table, feasigns(50_000), 2)
    return folder


@pytest.fixture
def rows(store: Path) -> Iterator[StoredRows]:
    with StoredRows(rank_versions(store)) as opened_rows:
        yield opened_rows


def test_batches_are_all_rows_in_the_order_of_keys_and_none_is_large(
    store: Path, rows: StoredRows
) -> None:
    batches = list(rows.batches())
    assert len(batches) == 3
    assert all(batch.num_rows < 52_000 for batch in batches)
    table = pa.Table.from_batches(batches, rows.schema)
    with opened(store, read_only=True) as other:
        everything, words = other.read_all()
    assert np.array_equal(table["feasign"].to_numpy(), everything)
    assert np.array_equal(table["show"].to_numpy(), words[:, 1])
    vectors = table["embedx_w"].combine_chunks()
    assert vectors.type == pa.list_(pa.float32(), 4)
    assert np.array_equal(vectors.flatten().to_numpy().reshape(-1, 4), words[:, 7:11])
    assert "embed_state" not in table.column_names  # the rule has none


def test_rows_of_some_slots_are_those_that_were_made_for_them(rows: StoredRows) -> None:
    for slots in ({0}, {1, 2}, {7}):
        found = np.concatenate([batch["feasign"].to_numpy() for batch in rows.batches(slots)])
        expected = [feasign for feasign in range(1, 150_001) if feasign % 3 in slots]
        assert np.array_equal(np.sort(found), expected)


def test_a_lookup_keeps_the_order_and_marks_what_has_no_row(rows: StoredRows) -> None:
    asked = np.array([70_000, 5, 999_999, 5, 2**64 - 1], np.uint64)
    found, fields = rows.lookup(asked)
    assert found.tolist() == [True, True, False, True, False]
    assert fields["slot"].tolist() == [70_000 % 3, 2, 0, 2, 0]
    (show_of_one,) = {*fields["show"][[0]].tolist()}
    assert fields["show"].tolist() == pytest.approx([0.1, 0.3, 0, 0.3, 0])
    assert show_of_one > 0
    assert not fields["embedx_w"][[2, 4]].any()


@pytest.mark.parametrize("slots", [None, {1}])
def test_a_file_has_full_row_groups(
    rows: StoredRows, slots: set[int] | None, tmp_path: Path
) -> None:
    path = tmp_path / "rows.parquet"
    count = write_rows(path, rows.schema, rows.batches(slots))
    file = pq.ParquetFile(path)
    groups = [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)]
    assert groups == ([GROUP, GROUP, 150_000 - 2 * GROUP] if slots is None else [50_000])
    assert count == sum(groups)
    expected = pa.Table.from_batches([*rows.batches(slots)], rows.schema)
    assert file.read().equals(expected)


def test_the_rows_stay_while_the_store_is_trained_in_the_same_process(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with opened(store) as table:
        train(table, feasigns(1000), 1)
    with StoredRows(rank_versions(store)) as kept:
        before = pa.Table.from_batches([*kept.batches()])
        with opened(store, keep_versions=1) as table:
            for number in (2, 3, 4):
                train(table, feasigns(2000), number)
            table.compact(full=True)
            train(table, feasigns(1000), 5)
            assert [lease.version for lease in held_leases(str(store))] == [1]
            assert pa.Table.from_batches([*kept.batches()]).equals(before)
            assert len(before) == 1000
    assert held_leases(str(store)) == []
    with StoredRows(rank_versions(store)) as newest, StoredRows(rank_versions(store)) as again:
        assert sum(batch.num_rows for batch in newest.batches()) == 2000
        assert newest.lookup(feasigns(1))[0].all()
        assert again.lookup(feasigns(1))[0].all()


def test_a_version_that_is_dropped_meanwhile_is_an_error(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with opened(store, keep_versions=1) as table:
        train(table, feasigns(10), 1)
    versions = rank_versions(store)
    with opened(store, keep_versions=1) as table:
        train(table, feasigns(10), 2)
    with pytest.raises(StoreError, match=r"version 1 is not kept; kept are \[2\]"):
        StoredRows(versions)
    assert held_leases(str(store)) == []


def test_a_file_is_synced_before_it_gets_its_name(
    rows: StoredRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a crash or a kill at any moment leaves is the old file or the whole new one."""
    path, steps = tmp_path / "rows.parquet", list[str]()
    path.write_bytes(b"before")
    real = {name: getattr(os, name) for name in ("fsync", "rename")}

    def fsync(descriptor: int) -> None:
        steps.append(f"fsync {os.path.basename(os.readlink(f'/proc/self/fd/{descriptor}'))}")
        real["fsync"](descriptor)

    def rename(source: Path, target: Path) -> None:
        steps.append("rename")
        assert path.read_bytes() == b"before"
        assert pq.read_metadata(source).num_rows == 50_000  # complete, footer and all
        real["rename"](source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    write_rows(path, rows.schema, rows.batches({0}))
    assert steps == ["fsync rows.parquet.tmp", "rename", f"fsync {tmp_path.name}"]
    assert os.listdir(tmp_path) == ["rows.parquet"]


def test_a_full_disk_leaves_the_old_file(
    rows: StoredRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"before")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(OutOfSpaceError, match=r"rows.parquet: no space to write"):
        write_rows(path, rows.schema, rows.batches())
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["rows.parquet"]
