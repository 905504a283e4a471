"""Versions of several tables: passes that a later commit holds, going back, names and copies. What
is done to the first table's store is done to all."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.errors import OutOfSpaceError, StoreError
from paddlebox.store import checkpoints, copies
from paddlebox.store.committer import When
from paddlebox.store.files import used_bytes
from paddlebox.store.manifest_db import rebuild_from_files
from paddlebox.store.table_set import TableSet
from paddlebox.store.tiered_table import TieredTable
from paddlebox.store.version_store import VersionStore
from tests.store.test_table_set import THIRD, first_two, opened, train
from tests.support.inside import head_of


def push(group: TableSet, number: int, feasigns: dict[str, range] = THIRD) -> dict[str, Any]:
    """`train` up to its commit, and what the commit is given."""
    given: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group, "commit", lambda **fields: given.update(fields))
        train(group, feasigns, number, day=20000 + number, cursor={"pass": number})
    return given


def digest_of(folder: Path, version: int | None = None) -> str:
    with opened(folder, read_only=True, version=version) as group:
        return group.digest()


def versions(folder: Path) -> list[list[int]]:
    """Of each table."""
    found = []
    for store in (folder, folder / "tables" / "wide"):
        with VersionStore.open_reader(store) as manifest:
            found.append(manifest.numbers())
    return found


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Versions 1 to 4 of both tables; 3 of the second is a merge, so that numbers differ."""
    with opened(tmp_path / "store", keep_versions=9) as group:
        first_two(group)
        group.members[1].compactor.compact(full=True)
        for number in (3, 4):
            train(group, THIRD, number)
        assert head_of(group).tables == {"wide": 5}
    return tmp_path / "store"


def test_kept_passes_are_committed_together_by_the_next_commit(tmp_path: Path) -> None:
    with opened(tmp_path / "each") as each:
        for number in (1, 2, 3):
            train(each, THIRD, number, day=20000 + number)
        digest = each.digest()
    with opened(tmp_path / "kept") as group:
        for number in (1, 2, 3):
            fields = push(group, number)
            if number < 3:
                group.keep(when=When.BACKGROUND, **fields).result()
                assert (group.head, group.pass_number, group.day) == (None, number, 20000 + number)
        group.commit(when=When.BACKGROUND, **fields)
        assert group.digest() == digest
        assert (head_of(group).version, head_of(group).tables) == (1, {"wide": 1})
        assert (head_of(group).cursor, group.load_dense()["w"].tolist()) == ({"pass": 3}, [3, 3])
        assert head_of(group.members[1]).dense == {}  # dense state and cursor are the first one's
    assert digest_of(tmp_path / "kept") == digest


def test_kept_passes_are_committed_by_themselves_also_after_an_abandoned_one(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as group:
        first_two(group)
        group.keep(**push(group, 3))
        digest = group.digest()
        group.begin(group.stage(*_some(group)))
        group.abandon()
        assert group.commit_ended() == 3
        assert group.commit_ended() == 0
    assert digest_of(tmp_path) == digest


def _some(group: TableSet) -> tuple[np.ndarray, np.ndarray]:
    from paddlebox.store.table import sorted_unique_keys

    keys = [sorted_unique_keys(np.arange(1, 9, dtype=np.uint64))] * 2
    return np.concatenate(keys), np.repeat([1, 0], 8).astype(np.uint16)


def test_where_keeping_stops_half_way_the_last_commit_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as group:
        first_two(group)
        digest = group.digest()
        group.keep(**push(group, 3))
        fields = push(group, 4)

        write = group.committer._write

        def full(table: TieredTable, *arguments: Any) -> int:
            if table is group.first:
                raise OutOfSpaceError("no space")
            return write(table, *arguments)

        monkeypatch.setattr(group.committer, "_write", full)
        with pytest.raises(OutOfSpaceError):
            group.keep(**fields)
        assert group.commit_ended() == 0  # one table has pass 4, the other has not
    assert digest_of(tmp_path) == digest


def test_parts_of_a_pass_are_committed_where_the_next_one_is_abandoned_meanwhile(
    tmp_path: Path,
) -> None:
    """The commit takes them when it is asked for, not when its thread comes to it."""
    with opened(tmp_path / "each") as each:
        train(each, THIRD, 1)
        train(each, THIRD, 2)
        digest = each.digest()
    with opened(tmp_path / "split") as group:
        push(group, 1)
        group.spill()
        fields = push(group, 2)
        go_on, write = threading.Event(), group.committer._write

        def slow(*arguments: Any) -> int:
            go_on.wait()
            return write(*arguments)

        group.committer._write = slow  # type: ignore[assignment, method-assign]
        commit = group.commit(when=When.BACKGROUND, **fields)
        group.begin(group.stage(*_some(group)))
        group.abandon()
        go_on.set()
        assert commit.result() == 1
    assert digest_of(tmp_path / "split") == digest


def test_a_days_end_has_the_passes_before_it(tmp_path: Path) -> None:
    with opened(tmp_path) as group:
        group.keep(when=When.BACKGROUND, **push(group, 1))
        assert group.life.begin_day(20002)
        assert head_of(group).pass_number == 1
        assert head_of(group).kind == "life"
        digest = group.digest()
    assert digest_of(tmp_path) == digest


def test_going_back_takes_all_tables_back(store: Path) -> None:
    digests = {version: digest_of(store, version) for version in (2, 3)}
    with VersionStore.open_writer(store) as manifest:
        assert manifest.retention.go_back(2) == [3, 4]
    assert digest_of(store) == digests[2]
    with opened(store, keep_versions=9) as group:
        assert group.digest() == digests[2]
        assert head_of(group.members[1]).version == 3  # the merge has the same rows
        train(group, THIRD, 3)
        assert group.digest() == digests[3]
    assert versions(store) == [[1, 2, 3], [1, 2, 3, 4]]


def test_a_named_version_stays_in_all_tables_and_opens_where_it_is_moved_to(
    store: Path, tmp_path: Path
) -> None:
    digest, used = digest_of(store, 2), used_bytes(str(store))
    checkpoints.name_version(str(store), 2, "good")
    links = [path for path in (store / "checkpoints").rglob("*") if path.name != path.stem]
    assert any("tables" in path.parts for path in links)
    assert used_bytes(str(store)) - used < 4096  # but for records, links take no room
    with opened(store, keep_versions=1) as group:
        train(group, THIRD, 5)
    assert versions(store) == [[2, 5], [2, 6]]
    assert digest_of(store, 2) == digest
    moved = tmp_path / "moved"
    shutil.copytree(store / "checkpoints" / "good", moved)
    rebuild_from_files(moved / "tables" / "wide")
    rebuild_from_files(moved)
    with opened(moved) as group:
        assert group.digest() == digest
    checkpoints.unname(str(store), "good")
    with opened(store, keep_versions=1) as group:
        train(group, THIRD, 6)
    assert versions(store) == [[6], [7]]


class TestCopies:
    def copy(self, store: Path, uri: Path, version: int | None = None) -> int:
        with VersionStore.open_reader(store) as manifest:
            record = manifest.pin(version)
            assert record is not None
            return copies.copy_version(str(store), record, str(uri))

    def test_a_restored_store_has_all_tables(self, store: Path, tmp_path: Path) -> None:
        remote = tmp_path / "remote"
        assert self.copy(store, remote, 2) > 0
        assert self.copy(store, remote, 2) == 0
        self.copy(store, remote)
        copies.restore(str(remote), tmp_path / "new")
        copies.restore(str(remote), tmp_path / "old", "pass-000000002-000000002")
        assert digest_of(tmp_path / "new" / "store") == digest_of(store)
        assert digest_of(tmp_path / "old" / "store") == digest_of(store, 2)
        with opened(tmp_path / "old" / "store") as group:
            train(group, THIRD, 3)
            digest = group.digest()
        assert digest == digest_of(store, 3)

    def test_a_copy_that_stopped_half_way_does_not_count(
        self, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of a run that went back: its other tables lie beside those of before, under one label."""
        remote, before = tmp_path / "remote", digest_of(store)
        self.copy(store, remote)
        with VersionStore.open_writer(store) as manifest:
            manifest.retention.go_back(3)
        with opened(store) as group:
            other = {"default": range(1, 60), "wide": range(1, 60)}
            group.commit(**{**push(group, 9, other), "pass_number": 4})
        copy_part = copies._copy_part

        def stopping(folder: str, *arguments: Any) -> int:
            if not folder.endswith("wide"):
                raise StoreError("given up")
            return copy_part(folder, *arguments)

        monkeypatch.setattr(copies, "_copy_part", stopping)
        with pytest.raises(StoreError, match="given up"):
            self.copy(store, remote)
        copies.restore(str(remote), tmp_path / "first")
        assert digest_of(tmp_path / "first" / "store") == before
        monkeypatch.undo()
        self.copy(store, remote)
        copies.restore(str(remote), tmp_path / "second")
        assert digest_of(tmp_path / "second" / "store") == digest_of(store) != before

    def test_commits_are_copied_in_the_background(self, tmp_path: Path) -> None:
        store, remote = tmp_path / "store", tmp_path / "remote"
        with opened(store, keep_versions=1) as group:
            copier = copies.Copier(str(store), str(remote))
            group.committer.after_commit.append(copier.offer)
            for number in (1, 2, 3):
                train(group, THIRD, number)
            copier.finish(group.head)
            copier.close()
            digest = group.digest()
        copies.restore(str(remote), tmp_path / "new")
        assert digest_of(tmp_path / "new" / "store") == digest
