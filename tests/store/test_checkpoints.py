"""Named versions, daily ones, going back, and copies that a store can be made from."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

from paddlebox import ops
from paddlebox.config import TableConfig
from paddlebox.errors import CorruptionError, PassError, StoreError
from paddlebox.store import checkpoints, copies, files
from paddlebox.store.checkpoints import find_version
from paddlebox.store.committer import When
from paddlebox.store.files import dense_digest, used_bytes
from paddlebox.store.table import Table, sorted_unique_keys
from paddlebox.store.version_store import VersionStore
from paddlebox.tools.upkeep.cli import store_main
from tests.conftest import tool
from tests.support.inside import head_of

CONFIG = TableConfig(embedx_dim=4, embedx_threshold=0.5)
DAY = 19723  # 20240101


@pytest.fixture(autouse=True)
def dygraph() -> None:
    paddle.disable_static()


def open_store(folder: Path, **settings: Any) -> Table:
    settings = {"compaction": None, "mem_budget_bytes": 1 << 20, **settings}
    return Table(CONFIG, folder=folder, **settings)


def push(table: Table, number: int, gradient: float = 1.0) -> None:
    feasigns = np.arange(1 + 50 * number, 301 + 50 * number, dtype=np.uint64)
    table.begin(table.stage(sorted_unique_keys(feasigns), day=DAY + number))
    grad = np.full((len(feasigns), 3 + CONFIG.embedx_dim), gradient, np.float32)
    ops.push_box_sparse(paddle.to_tensor(feasigns.view(np.int64)), paddle.to_tensor(grad))
    table.end(number)


def fields(number: int, day: int = 0) -> dict[str, Any]:
    dense = {"w": np.full(3, number, np.float32)}
    return {"pass_number": number, "day": day or DAY + number // 2, "dense": dense} | {
        "cursor": {"pass": number}
    }


def train(table: Table, number: int, day: int = 0) -> None:
    push(table, number)
    table.commit(**fields(number, day))


def versions(folder: Path) -> list[int]:
    with VersionStore.open_reader(folder) as manifest:
        return manifest.numbers()


def digests(folder: Path, version: int | None = None) -> tuple[str, str]:
    with open_store(folder, read_only=True, version=version) as table:
        return table.digest(), dense_digest(table.load_dense())


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Versions 1 to 4, of the days 0, 1, 1 and 2 after 20240101."""
    with open_store(tmp_path / "run" / "store", keep_versions=9) as table:
        for number in (1, 2, 3, 4):
            train(table, number)
    return tmp_path / "run" / "store"


class TestNames:
    def test_a_named_version_outlives_pruning_and_compaction(self, store: Path) -> None:
        expected = digests(store, 2)
        checkpoints.name_version(str(store), 2, "good")
        with open_store(store, keep_versions=1) as table:
            for number in (5, 6):
                train(table, number)
            table.compact(full=True)
        assert versions(store)[0] == 2
        assert len(versions(store)) == 2
        assert digests(store, 2) == expected

    def test_its_bytes_are_those_of_the_store_until_they_differ(self, store: Path) -> None:
        before = used_bytes(str(store))
        checkpoints.name_version(str(store), 4, "good")
        assert used_bytes(str(store)) - before < 4096  # a MANIFEST file

    def test_its_folder_holds_the_files_also_where_the_store_lost_them(
        self, store: Path, tmp_path: Path
    ) -> None:
        from paddlebox.store.manifest_db import rebuild_from_files

        checkpoints.name_version(str(store), 3, "good")
        expected = digests(store, 3)
        moved = tmp_path / "moved"
        shutil.copytree(store / "checkpoints" / "good", moved)
        shutil.rmtree(store)
        rebuild_from_files(moved)
        assert digests(moved) == expected

    def test_unnamed_it_goes_with_the_next_commit(self, store: Path) -> None:
        checkpoints.name_version(str(store), 1, "good")
        with open_store(store, keep_versions=1) as table:
            train(table, 5)
        assert versions(store) == [1, 5]
        assert checkpoints.unname(str(store), "good") == 1
        with open_store(store, keep_versions=1) as table:
            train(table, 6)
        assert versions(store) == [6]
        assert not (store / "checkpoints" / "good").exists()

    def test_a_name_half_written_when_the_process_died_does_not_exist(self, store: Path) -> None:
        checkpoints.name_version(str(store), 1, "good")
        os.rename(store / "checkpoints" / "good", store / "checkpoints" / "good.tmp")
        assert files.checkpoints(str(store)) == {}
        checkpoints.name_version(str(store), 2, "good")
        assert files.checkpoints(str(store)) == {"good": 2}

    @pytest.mark.parametrize("name", ["", "12", "a/b", "..", "a.tmp", "20240101"])
    def test_an_invalid_name_is_refused(self, store: Path, name: str) -> None:
        with pytest.raises(StoreError, match="cannot name a checkpoint"):
            checkpoints.name_version(str(store), 1, name)

    def test_a_name_is_given_once(self, store: Path) -> None:
        checkpoints.name_version(str(store), 1, "good")
        with pytest.raises(StoreError, match="is the name of version 1"):
            checkpoints.name_version(str(store), 2, "good")
        with pytest.raises(StoreError, match="no checkpoint 'bad'; there are: good"):
            checkpoints.unname(str(store), "bad")

    def test_beside_a_training_process(self, store: Path) -> None:
        with open_store(store, keep_versions=1) as table:
            assert tool("store", "name", store, "2", "good").returncode == 0
            train(table, 5)
        assert versions(store) == [2, 5]


def test_the_last_versions_of_days_are_kept(store: Path) -> None:
    with open_store(store, keep_versions=1, keep_daily=2) as table:
        train(table, 5)
    assert versions(store) == [3, 5]  # version 4 and 5 are of one day
    with open_store(store, keep_versions=1, keep_daily=2) as table:
        train(table, 6)
    assert versions(store) == [5, 6]


class TestGoingBack:
    def test_training_continues_from_there_as_if_no_later_version_existed(
        self, store: Path, tmp_path: Path
    ) -> None:
        with VersionStore.open_writer(store) as manifest:
            assert manifest.retention.go_back(2) == [3, 4]
        assert versions(store) == [1, 2]
        with open_store(store, keep_versions=9) as table:
            train(table, 3)
        with open_store(tmp_path / "other", keep_versions=9) as table:
            for number in (1, 2, 3):
                train(table, number)
        assert digests(store) == digests(tmp_path / "other")

    def test_not_over_a_name_or_a_reader(self, store: Path) -> None:
        checkpoints.name_version(str(store), 3, "good")
        with VersionStore.open_writer(store) as manifest, pytest.raises(StoreError, match="'good'"):
            manifest.retention.go_back(2)
        checkpoints.unname(str(store), "good")
        pid, ready, done = _reader(store)
        try:
            with (
                VersionStore.open_writer(store) as manifest,
                pytest.raises(StoreError, match=f"process {pid} reads"),
            ):
                manifest.retention.go_back(2)
        finally:
            os.close(done)
            os.waitpid(pid, 0)
            os.close(ready)
        assert versions(store) == [1, 2, 3, 4]

    def test_versions_are_found_by_number_day_pass_and_name(self, store: Path) -> None:
        checkpoints.name_version(str(store), 1, "good")
        with VersionStore.open_reader(store) as manifest:
            found = {
                what: find_version(manifest, what)
                for what in ("3", "20240102", "20240102/2", "20240103", "good")
            }
            assert found == {"3": 3, "20240102": 3, "20240102/2": 2, "20240103": 4, "good": 1}
            for what in ("5", "20240102/4", "bad", ""):
                with pytest.raises(StoreError, match=r"expected one of 1 .*and the names good"):
                    find_version(manifest, what)


def _reader(store: Path) -> tuple[int, int, int]:
    """A process that reads the newest version until the last descriptor is closed."""
    ready, says_ready = os.pipe()
    waits, done = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(done)
        with VersionStore.open_reader(store) as manifest:
            manifest.pin()
            os.write(says_ready, b"x")
            os.read(waits, 1)
        os._exit(0)
    os.close(waits)
    os.read(ready, 1)
    return pid, ready, done


class TestKept:
    """Passes that end without a commit."""

    def test_the_next_commit_names_them_all(self, tmp_path: Path) -> None:
        with open_store(tmp_path / "a") as table:
            for number in (1, 2):
                push(table, number)
                table.keep(**fields(number))
            assert table.head is None
            train(table, 3)
            assert head_of(table).version == 1
        with open_store(tmp_path / "b") as table:
            for number in (1, 2, 3):
                train(table, number)
            assert head_of(table).live_rows == 400
        assert digests(tmp_path / "a") == digests(tmp_path / "b")

    def test_without_a_commit_they_are_gone(self, store: Path) -> None:
        expected = digests(store)
        with open_store(store) as table:
            push(table, 5)
            table.keep(**fields(5))
        assert digests(store) == expected

    def test_they_are_committed_where_a_later_pass_is_abandoned(
        self, store: Path, tmp_path: Path
    ) -> None:
        with open_store(store) as table:
            push(table, 5)
            table.keep(**fields(5))
            table.begin(table.stage(sorted_unique_keys(np.arange(1, 9, dtype=np.uint64))))
            table.abandon()
            assert table.commit_ended() == 5
            assert table.commit_ended() == 0
            with pytest.raises(PassError, match="reopen"):
                table.digest()
        with open_store(tmp_path / "other") as table:
            for number in range(1, 6):
                train(table, number)
        assert digests(store) == digests(tmp_path / "other")

    def test_parts_of_one_that_is_not_published_are_kept_by_another_try(
        self, tmp_path: Path
    ) -> None:
        def parts(table: Table) -> None:
            push(table, 1)
            table.spill()
            push(table, 2)

        with open_store(tmp_path / "a") as table:
            parts(table)
            native = table.first.native

            class Full:
                def __getattr__(self, name: str) -> Any:
                    return getattr(native, name)

                def publish(self, segments: Any) -> None:
                    table.first.native = native
                    raise StoreError("full")

            table.first.native = Full()
            with pytest.raises(StoreError, match="full"):
                table.keep(**fields(2))
            table.keep(**fields(2))
            table.commit_ended()
        with open_store(tmp_path / "b") as table:
            parts(table)
            table.commit(**fields(2))
        assert digests(tmp_path / "a") == digests(tmp_path / "b")

    def test_a_day_that_ends_is_committed_with_its_passes(self, tmp_path: Path) -> None:
        with open_store(tmp_path / "a") as table:
            push(table, 1)
            table.keep(**fields(1))
            assert table.life.begin_day(DAY + 1)
            assert [head_of(table).version, head_of(table).kind, head_of(table).pass_number] == [
                2,
                "life",
                1,
            ]

    def test_parts_of_a_pass_that_is_abandoned_leave_those_of_the_commit_before(
        self, tmp_path: Path
    ) -> None:
        def parts(table: Table) -> None:
            push(table, 1)
            table.spill()
            push(table, 2)

        with open_store(tmp_path / "a") as table:
            parts(table)
            with table.first.versions.committing:  # held up, as by a slow disk
                future = table.commit(when=When.BACKGROUND, **fields(2))
                table.begin(table.stage(sorted_unique_keys(np.arange(1, 9, dtype=np.uint64))))
                table.abandon()
            future.result()
        with open_store(tmp_path / "b") as table:
            parts(table)
            table.commit(**fields(2))
        assert digests(tmp_path / "a") == digests(tmp_path / "b")


class TestCopies:
    def copy(self, store: Path, uri: str, version: int | None = None) -> int:
        with VersionStore.open_reader(store) as manifest:
            pinned = manifest.pin(version)
            assert pinned is not None
            return copies.copy_version(str(store), pinned, uri)

    @pytest.mark.parametrize("scheme", ["", "file://"])
    def test_a_restored_store_is_the_one_that_was_copied(
        self, store: Path, tmp_path: Path, scheme: str
    ) -> None:
        uri = f"{scheme}{tmp_path}/remote"
        self.copy(store, uri)
        record = copies.restore(uri, tmp_path / "new")
        assert record.version == 4
        assert digests(tmp_path / "new" / "store") == digests(store)
        with open_store(tmp_path / "new" / "store") as table:
            train(table, 5)
            assert head_of(table).version == 5

    def test_errors_do_not_show_what_a_uri_may_hide(self, store: Path, tmp_path: Path) -> None:
        uri = f"file://{tmp_path}/remote?secret_key=hidden"
        self.copy(store, uri)
        with pytest.raises(StoreError, match="holds no copy 'best'; there are: pass-") as error:
            copies.restore(uri, tmp_path / "new", "best")
        assert "hidden" not in str(error.value)

    def test_only_new_files_are_written(self, store: Path, tmp_path: Path) -> None:
        remote = str(tmp_path / "remote")
        first = self.copy(store, remote, 3)
        assert self.copy(store, remote, 3) == 0
        second = self.copy(store, remote, 4)
        assert 0 < second < first
        # One that was cut short is written again.
        file = max((tmp_path / "remote" / "data").iterdir(), key=lambda f: f.stat().st_size)
        os.truncate(file, 10)
        assert self.copy(store, remote, 4) > 0
        copies.restore(remote, tmp_path / "new")
        assert digests(tmp_path / "new" / "store") == digests(store)

    @pytest.mark.parametrize(("number", "gradient"), [(7, 1.0), (4, 2.0)])
    def test_a_run_that_went_back_may_copy_to_the_same_place(
        self, store: Path, tmp_path: Path, number: int, gradient: float
    ) -> None:
        remote = str(tmp_path / "remote")
        before = digests(store)
        self.copy(store, remote)
        with VersionStore.open_writer(store) as manifest:
            manifest.retention.go_back(3)
        with open_store(store) as table:
            # Under the version and segment numbers of before: other rows, or other values of them.
            push(table, number, gradient)
            table.commit(**fields(8))
        self.copy(store, remote)
        copies.restore(remote, tmp_path / "new")
        assert digests(tmp_path / "new" / "store") == digests(store)
        copies.restore(remote, tmp_path / "old", "pass-000000004-000000004")
        assert digests(tmp_path / "old" / "store") == before

    def test_a_damaged_copy_leaves_no_store(self, store: Path, tmp_path: Path) -> None:
        remote = tmp_path / "remote"
        self.copy(store, str(remote))
        dense = next((remote / "data").glob("dense.bin.*"))
        raw = bytearray(dense.read_bytes())
        raw[0] ^= 1
        dense.write_bytes(raw)
        with pytest.raises(CorruptionError, match=r"dense\.bin"):
            copies.restore(str(remote), tmp_path / "new")
        assert not (tmp_path / "new" / "store").exists()

    def test_restoring_over_a_store_or_from_nothing(self, store: Path, tmp_path: Path) -> None:
        remote = str(tmp_path / "remote")
        with pytest.raises(StoreError, match="holds no copy"):
            copies.restore(remote, tmp_path / "new")
        self.copy(store, remote)
        with pytest.raises(StoreError, match="exists already"):
            copies.restore(remote, store.parent)
        with pytest.raises(StoreError, match="holds no copy 'bad'; there are: pass-000000004"):
            copies.restore(remote, tmp_path / "new", "bad")

    def test_commits_are_copied_in_the_background_and_the_last_one_at_the_end(
        self, tmp_path: Path
    ) -> None:
        remote = str(tmp_path / "remote")
        with open_store(tmp_path / "store", keep_versions=1) as table:
            copier = copies.Copier(str(tmp_path / "store"), remote)
            table.committer.after_commit.append(copier.offer)
            for number in (1, 2, 3):
                train(table, number)
                if copier._running is not None:
                    copier._running.result()
            copier.finish(table.head)
            copier.close()
        labels = sorted(path.name for path in (tmp_path / "remote" / "checkpoints").iterdir())
        assert labels == [f"pass-{number:09d}-{number:09d}" for number in (1, 2, 3)]

    def test_a_failed_copy_is_reported_at_the_end(self, tmp_path: Path) -> None:
        (tmp_path / "remote").write_text("a file")
        with open_store(tmp_path / "store") as table:
            copier = copies.Copier(str(tmp_path / "store"), str(tmp_path / "remote"))
            table.committer.after_commit.append(copier.offer)
            train(table, 1)
            with pytest.raises(StoreError, match="cannot copy version 1"):
                copier.finish(table.head)
            copier.close()


def test_the_tool_names_copies_and_restores(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> Any:
        capsys.readouterr()
        assert store_main([*arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    run_dir, remote = str(store.parent), str(tmp_path / "remote")
    assert run("name", run_dir, "20240102/2", "good") == {"name": "good", "version": 2}
    assert run("stat", run_dir)["names"] == [{"name": "good", "version": 2}]
    assert run("copy", run_dir, remote, "--version", "good")["label"] == "good"
    restored = run("restore", remote, str(tmp_path / "new"), "--version", "good")
    assert (restored["version"], restored["damage"]) == (2, [])
    assert digests(tmp_path / "new" / "store") == digests(store, 2)
    assert run("unname", run_dir, "good") == {"name": "good", "version": 2}
    assert store_main(["name", run_dir, "9", "other"]) == 4
    assert "no version '9'" in capsys.readouterr().err


def test_a_merge_is_planned_of_segments_that_the_ssd_tier_has(tmp_path: Path) -> None:
    """A version that names segments is seen by compaction only when they can be read."""
    with open_store(tmp_path / "store") as table:
        native, seen = table.first.native, []

        class Publishing:
            published = False

            def __getattr__(self, name: str) -> Any:
                return getattr(native, name)

            def publish(self, segments: Any) -> None:
                planner.start()
                planner.join(0.2)
                native.publish(segments)
                self.published = True

        held = table.first.native = Publishing()

        def plan() -> None:
            table.first.compactor.plan(1 << 62)
            seen.append(held.published)

        planner = threading.Thread(target=plan)
        push(table, 1)
        table.commit(**fields(1))
        planner.join()
        assert seen == [True]
