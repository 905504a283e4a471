"""Saves that are copied to another place and back."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest
from pyarrow._fs import _MockFileSystem

import paddlebox
from paddlebox.errors import ConfigError, CorruptionError, OutOfSpaceError, StoreError
from paddlebox.heartbeat import Heartbeat
from paddlebox.saves import Saver, chain_of, donefile, open_save
from paddlebox.saves import remote as remote_saves
from paddlebox.saves.remote import RemoteSaves, SaveCopier
from paddlebox.store import remote
from paddlebox.store.remote import RemoteFolder
from paddlebox.store.table import Table
from tests.saves.common import apply, base_of, feasigns, open_table, train

URI = "s3://models/ctr"


def never(*_: object) -> bool:
    return False


def always(*_: object) -> bool:
    return True


def after(last: int, *also: int) -> Callable[[int, str], bool]:
    """Whether a call fails: those above a number, and some others."""
    return lambda number, _: number > last or number in also


class Cloud:
    """A file system in memory, in place of the one that a URI names. Its calls can fail.

    Args:
        system: a file system of pyarrow.
        fails: told the number of each call that changes something, and its name; whether the call
            fails. A stream that fails has written half of its last block.
    """

    def __init__(self, system: Any) -> None:
        self.system = system
        self.calls = 0
        self.fails: Callable[[int, str], bool] = never

    def _count(self, call: str) -> bool:
        self.calls += 1
        return self.fails(self.calls, call)

    def __getattr__(self, name: str) -> Any:
        work = getattr(self.system, name)
        if name not in ("move", "delete_file", "delete_dir", "open_output_stream"):
            return work

        def called(*arguments: Any) -> Any:
            if self._count(name):
                raise OSError(f"{name} failed")
            made = work(*arguments)
            return _Stream(made, self._count) if name == "open_output_stream" else made

        return called


class _Stream:
    def __init__(self, stream: Any, count: Callable[[str], bool]) -> None:
        self._stream, self._count = stream, count

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *raised: object) -> None:
        self._stream.close()

    def write(self, block: bytes) -> None:
        if self._count("write"):
            self._stream.write(block[: len(block) // 2])
            raise OSError("write failed")
        self._stream.write(block)


class Hdfs:
    """Refuses to move a file over another, as HDFS does."""

    def __init__(self) -> None:
        self.system = _MockFileSystem()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.system, name)

    def move(self, source: str, target: str) -> None:
        if self.system.get_file_info(target).type != pyarrow.fs.FileType.NotFound:
            raise OSError("the target exists")
        self.system.move(source, target)


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Cloud:
    made = Cloud(_MockFileSystem())
    real = remote.open_filesystem

    def opened(place: str) -> tuple[Any, str]:
        if place.startswith("s3://"):
            return made, remote.shown(place).removeprefix("s3://")
        return real(place)

    monkeypatch.setattr(remote, "open_filesystem", opened)
    monkeypatch.setattr(remote, "WAITS_S", (0.0, 0.0))
    return made


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    with open_table(tmp_path / "store") as opened:
        train(opened, feasigns(1, 50), 1)
        yield opened


def chain(table: Table, out: Path) -> Path:
    """Saves a base and a delta to out."""
    saver = Saver(table, out, extra={"slots.yaml": b"slots: []"})
    saver.base()
    train(table, feasigns(30, 50), 2)
    saver.delta()
    return out


def names(of: list[donefile.Done]) -> list[str]:
    return [done.name for done in of]


def test_a_chain_goes_there_and_back(cloud: Cloud, table: Table, tmp_path: Path) -> None:
    out = chain(table, tmp_path / "out")
    saves = RemoteSaves(URI)
    saves.put_chain(out)
    assert names(saves.newest_chain()) == ["20240101/base", "20240101/delta-2"]
    back = saves.get("20240101/delta-2", tmp_path / "back")
    assert apply(chain_of(back)) == base_of(table)
    assert back.dense()["w"].tolist() == [2, 2, 2]
    for path in (out / "20240101").rglob("*"):
        if path.is_file():
            copy = tmp_path / "back" / path.relative_to(out)
            assert copy.read_bytes() == path.read_bytes()
    line = cloud.system.open_input_stream("models/ctr/xbox_patch_done.txt").read().decode()
    assert f'"input": "{URI}/20240101/delta-2/000"' in line


@pytest.mark.parametrize("kind", ["file", "subtree", "folder"])
def test_places_are_uris_and_folders(
    kind: str, table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = {"file": f"file://{tmp_path}/there", "subtree": "sub://x", "folder": "there"}[kind]
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    if kind == "subtree":
        system = pyarrow.fs.SubTreeFileSystem(str(tmp_path), pyarrow.fs.LocalFileSystem())
        monkeypatch.setattr(remote, "open_filesystem", lambda _: (system, "there"))
    saves = RemoteSaves(place)
    saves.put_chain(chain(table, tmp_path / "out"))
    assert apply(chain_of(open_save(tmp_path / "there" / "20240101" / "delta-2"))) == base_of(table)
    assert saves.get("20240101/base", tmp_path / "back").rows == 50


def test_whatever_stops_a_copy_leaves_a_complete_save_or_none(
    cloud: Cloud, table: Table, tmp_path: Path
) -> None:
    out = chain(table, tmp_path / "out")
    last, stopped, text = 0, True, ""
    while stopped:
        last += 1
        cloud.system, cloud.calls, stopped = _MockFileSystem(), 0, False
        cloud.fails = after(last)
        saves = RemoteSaves(URI)
        try:
            saves.put_chain(out)
        except StoreError as error:
            stopped, text = True, str(error)
        assert not stopped or (f"{URI}/" in text and "after 3 attempts" in text)
        cloud.fails = never
        for done in saves.newest_chain():
            saves.get(done.name, tmp_path / f"back-{last}")
        saves.put_chain(out)  # the next attempt copies the rest
        back = saves.get("20240101/delta-2", tmp_path / f"again-{last}")
        assert apply(chain_of(back)) == base_of(table)
        assert names(saves.newest_chain()) == ["20240101/base", "20240101/delta-2"]
    assert last > 20


def test_a_call_that_fails_twice_is_tried_a_third_time(
    cloud: Cloud, table: Table, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failed: list[int] = []

    def fails(number: int, call: str) -> bool:
        if call == "write" and len(failed) < 2:
            failed.append(number)
            return True
        return False

    cloud.fails = fails
    RemoteSaves(URI).put_chain(chain(table, tmp_path / "out"))
    assert len(failed) == 2
    assert f"{URI}/20240101/base/000/" in caplog.text
    assert "cannot copy, trying again: write failed" in caplog.text
    assert RemoteSaves(URI).get("20240101/base", tmp_path / "back").rows == 50


@pytest.mark.parametrize("kind", [_MockFileSystem, Hdfs])
@pytest.mark.parametrize("later", [0, 1, 2])
def test_whatever_stops_a_copy_leaves_the_earlier_saves(
    cloud: Cloud, table: Table, tmp_path: Path, kind: Callable[[], Any], later: int
) -> None:
    """One call fails, `later` calls work, and then all fail."""
    bases = ["20240101/base", "20240102/base"]
    first, second = (Saver(table, tmp_path / "out").base(name) for name in bases)
    last, outages = 0, 0
    while cloud.calls >= last:
        last += 1
        cloud.system, cloud.fails = kind(), never
        saves = RemoteSaves(URI)
        saves.put(first)
        cloud.calls = 0
        cloud.fails = after(last + later, last)
        try:
            saves.put(second)
        except StoreError:
            outages += 1
        calls, cloud.fails = cloud.calls, never
        found = names(saves.done("base"))
        assert found == bases[: len(found)]
        assert "20240101/base" in found
        saves.put(second)
        assert names(saves.done("base")) == bases
        assert saves.get("20240102/base", tmp_path / f"back-{last}").rows == 50
        cloud.calls = calls
    assert outages > 10


def test_a_save_of_another_model_is_not_overwritten(
    cloud: Cloud, table: Table, tmp_path: Path
) -> None:
    RemoteSaves(URI).put_chain(chain(table, tmp_path / "out"))
    train(table, feasigns(1, 10), 3)
    other = Saver(table, tmp_path / "other").base("20240101/base")
    with pytest.raises(StoreError, match=f"{URI}/20240101/base: another save of this name"):
        RemoteSaves(URI).put(other)
    with pytest.raises(StoreError, match=f"{URI}/20240101/base: is done already"):
        RemoteSaves(URI).check_free("20240101/base")
    with pytest.raises(StoreError, match=f"{tmp_path}/other/.*: another save than {URI}/2"):
        RemoteSaves(URI).get("20240101/base", tmp_path / "other")


def test_what_is_missing_or_damaged_there_is_named(
    cloud: Cloud, table: Table, tmp_path: Path
) -> None:
    saves = RemoteSaves(URI)
    with pytest.raises(StoreError, match=f"{URI}/20240101/base: holds no complete save"):
        saves.get("20240101/base", tmp_path / "back")
    saves.put_chain(chain(table, tmp_path / "out"))
    with cloud.system.open_output_stream("models/ctr/20240101/base/meta.json") as stream:
        stream.write(b"{}")
    with pytest.raises(CorruptionError, match=f"{URI}/20240101/base: the copy is damaged"):
        saves.get("20240101/base", tmp_path / "back")
    with pytest.raises(StoreError, match="nosuch://x: cannot be opened"):
        RemoteSaves("nosuch://x")


def test_a_file_that_is_shorter_there_is_not_copied(
    cloud: Cloud, table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves = RemoteSaves(URI)
    saves.put_chain(chain(table, tmp_path / "out"))
    sizes = remote.RemoteFolder.sizes
    monkeypatch.setattr(
        remote.RemoteFolder,
        "sizes",
        lambda *of: {path: size + 1 for path, size in sizes(*of).items()},
    )
    with pytest.raises(StoreError, match=f"{URI}/20240101/base/.* has .* bytes, expected"):
        saves.get("20240101/base", tmp_path / "back")


def test_an_error_of_a_local_disk_is_not_tried_again(
    cloud: Cloud,
    table: Table,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    saves = RemoteSaves(URI)
    saves.put_chain(chain(table, tmp_path / "out"))

    sync = os.fsync

    def full(fd: int) -> None:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OutOfSpaceError, match=f"{tmp_path}/back/20240101/.base.tmp/"):
            saves.get("20240101/base", tmp_path / "back")
    with pytest.raises(StoreError, match=f"{tmp_path}/out/20240101/base/"):
        RemoteFolder(URI).put(tmp_path / "out" / "20240101" / "base" / "000" / "gone", "gone")
    assert "trying again" not in caplog.text


def test_credentials_of_a_uri_are_not_shown() -> None:
    assert remote.shown("/data/a?b@c") == "/data/a?b@c"
    assert remote.shown("hdfs://host:8020/a@b") == "hdfs://host:8020/a@b"
    place = "s3://key:secret@bucket/a?secret_key=secret"
    assert remote.shown(place) == "s3://bucket/a"
    with pytest.raises(StoreError, match="nosuch://bucket/a: cannot be opened") as raised:
        RemoteSaves("nosuch://key:secret@bucket/a?secret_key=secret")
    assert "secret" not in str(raised.value)


class TestCopier:
    def test_an_offer_copies_what_is_missing(
        self, cloud: Cloud, table: Table, tmp_path: Path
    ) -> None:
        out = chain(table, tmp_path / "out")
        copier = SaveCopier(out, URI)
        copier.offer()
        copier.finish()
        assert names(RemoteSaves(URI).newest_chain()) == ["20240101/base", "20240101/delta-2"]
        calls = cloud.calls
        copier.finish()
        assert cloud.calls == calls  # nothing is written twice
        copier.close()

    def test_only_the_end_raises(
        self, cloud: Cloud, table: Table, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        copier = SaveCopier(chain(table, tmp_path / "out"), URI)
        cloud.fails = always
        copier.offer()
        with pytest.raises(StoreError, match=f"{URI}/20240101/base.*after 3 attempts"):
            copier.finish()
        assert "the copy continues after the next save" in caplog.text
        copier.close()

    def test_any_error_is_logged_and_the_next_offer_copies(
        self, cloud: Cloud, table: Table, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        copier, out = SaveCopier(tmp_path / "out", URI), chain(table, tmp_path / "out")
        meta, elsewhere = out / "20240101/base/meta.json", tmp_path / "meta.json"
        meta.rename(elsewhere)
        meta.mkdir()  # read_bytes is an OSError
        copier.offer()
        copier._thread.submit(int).result()
        assert "the copy continues after the next save" in caplog.text
        meta.rmdir()
        elsewhere.rename(meta)
        copier.offer()
        copier._thread.submit(int).result()
        assert names(RemoteSaves(URI).newest_chain()) == ["20240101/base", "20240101/delta-2"]
        copier.close()

    def test_the_heartbeat_tells_that_the_last_copy_proceeds(
        self, cloud: Cloud, table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        beats: list[tuple[str, str]] = []
        heartbeat = Heartbeat()
        monkeypatch.setattr(heartbeat, "stage", lambda *said: beats.append(said))
        monkeypatch.setattr(remote_saves, "BEAT_S", 0.01)
        copier = SaveCopier(chain(table, tmp_path / "out"), URI)

        def slow(*_: object) -> bool:
            time.sleep(0.05)
            return False

        cloud.fails = slow
        copier.finish(heartbeat)
        assert len(beats) > 1
        assert all(stage == "end" and "copying saves" in text for stage, text in beats)
        assert len(set(beats)) == len(beats)  # none without progress
        copier.close()

    def test_a_copy_is_given_up_at_the_end(
        self, cloud: Cloud, table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(remote, "WAITS_S", (600.0, 600.0))
        copier = SaveCopier(chain(table, tmp_path / "out"), URI)
        cloud.fails = always
        copier.offer()
        while cloud.calls == 0:
            time.sleep(0.01)
        copier.close()  # does not wait for 20 minutes
        assert RemoteSaves(URI).newest_chain() == []


class TestBoxWrapper:
    def test_the_saves_of_two_machines_are_one_chain(
        self, cloud: Cloud, table: Table, tmp_path: Path
    ) -> None:
        box = paddlebox.BoxWrapper(table, spool=str(tmp_path / "spool"))
        assert box.last_save(URI) is None
        base = f"{URI}/20240101/base"
        assert box.save_base(f"{URI}/20240101/1", base) == base
        assert names(RemoteSaves(URI).done("batch")) == ["20240101/1"]
        train(table, feasigns(30, 50), 2)
        box.save_delta(f"{URI}/20240101/delta-2/")
        # The spool keeps the chain, but no batch. Without it the chain comes from the URI.
        kept = {path.parent.name for path in (tmp_path / "spool").rglob("meta.json")}
        assert kept == {"base", "delta-2"}
        shutil.rmtree(tmp_path / "spool")
        train(table, feasigns(60, 50), 3)
        box.save_delta(f"{URI}/20240101/delta-3")
        assert names(RemoteSaves(URI).newest_chain()) == [
            *("20240101/base", "20240101/delta-2", "20240101/delta-3"),
        ]
        merged = box.merge_model(f"{URI}/20240101/delta-3", f"{tmp_path}/20240101/merged")
        assert apply([open_save(merged)]) == base_of(table)
        assert box.merge_multi_models([merged], f"{URI}/20240101/all") == f"{URI}/20240101/all"
        assert names(RemoteSaves(URI).newest_chain()) == ["20240101/all"]
        rows = base_of(table)
        table.close()
        with open_table(tmp_path / "loaded") as loaded:
            other = paddlebox.BoxWrapper(loaded, spool=str(tmp_path / "other"))
            assert other.load_model(f"{URI}/20240101/delta-3") == len(rows)
            assert base_of(loaded) == rows
        assert list((tmp_path / "other").rglob("meta.json")) == []

    def test_a_call_after_a_failed_copy_copies_the_save(
        self, cloud: Cloud, table: Table, tmp_path: Path
    ) -> None:
        box = paddlebox.BoxWrapper(table, spool=str(tmp_path / "spool"))
        box.save_base("", f"{URI}/20240101/base")
        train(table, feasigns(30, 50), 2)
        cloud.fails = always
        delta = f"{URI}/20240101/delta-2"
        for _ in range(2):
            with pytest.raises(StoreError, match=f"{delta}.*after 3 attempts"):
                box.save_delta(delta)
        cloud.fails = never
        box.save_delta(delta)
        with pytest.raises(StoreError, match=f"{delta}: is done already"):
            box.save_delta(delta)
        back = RemoteSaves(URI).get("20240101/delta-2", tmp_path / "back")
        assert apply(chain_of(back)) == base_of(table)

    def test_a_later_save_brings_one_whose_copy_failed(
        self, cloud: Cloud, table: Table, tmp_path: Path
    ) -> None:
        box = paddlebox.BoxWrapper(table, spool=str(tmp_path / "spool"))
        box.save_base("", f"{URI}/20240101/base")
        train(table, feasigns(30, 50), 2)
        cloud.fails = always
        with pytest.raises(StoreError, match="after 3 attempts"):
            box.save_delta(f"{URI}/20240101/delta-2")
        cloud.fails = never
        train(table, feasigns(60, 50), 3)
        with pytest.raises(StoreError, match="delta-2: is done already"):
            box.save_delta(f"{URI}/20240101/delta-2")  # of an earlier pass
        box.save_delta(f"{URI}/20240101/delta-3")
        back = RemoteSaves(URI).get("20240101/delta-3", tmp_path / "back")
        assert len(chain_of(back)) == 3
        assert apply(chain_of(back)) == base_of(table)

    def test_a_save_of_another_kind_or_store_is_not_taken_for_the_one_whose_copy_failed(
        self, cloud: Cloud, table: Table, tmp_path: Path
    ) -> None:
        name = f"{URI}/20240101/model"
        cloud.fails = always
        box = paddlebox.BoxWrapper(table, spool=str(tmp_path / "spool"))
        with pytest.raises(StoreError, match="after 3 attempts"):
            box.save_base("", name)
        cloud.fails = never
        with pytest.raises(StoreError, match=f"{tmp_path}/spool/.*/model: is done already"):
            box.save_base(name, f"{URI}/20240101/base")  # a batch of this name
        table.close()
        with open_table(tmp_path / "store-2") as other:
            train(other, feasigns(1, 60), 1)
            box = paddlebox.BoxWrapper(other, spool=str(tmp_path / "spool"))
            with pytest.raises(StoreError, match=f"{tmp_path}/spool/.*/model: is done already"):
                box.save_base("", name)
        assert RemoteSaves(URI).names() == set()

    def test_a_call_whose_batch_is_copied_already_copies_the_base(
        self, cloud: Cloud, table: Table, tmp_path: Path
    ) -> None:
        box = paddlebox.BoxWrapper(table, spool=str(tmp_path / "spool"))
        paths = (f"{URI}/20240101/1", f"{URI}/20240101/base")
        cloud.fails = lambda *_: RemoteSaves(URI).done("batch") != []
        with pytest.raises(StoreError, match=r"20240101/base.*after 3 attempts"):
            box.save_base(*paths)
        cloud.fails = never
        assert box.save_base(*paths) == paths[1]
        assert RemoteSaves(URI).names() == {"20240101/1", "20240101/base"}
        train(table, feasigns(1, 50), 2)
        with pytest.raises(StoreError, match=f"{paths[0]}: is done already"):
            box.save_base(paths[0], f"{URI}/20240101/base-2")

    def test_a_save_that_is_not_copied_stays_in_the_spool(
        self, cloud: Cloud, table: Table, tmp_path: Path
    ) -> None:
        box = paddlebox.BoxWrapper(table, spool=str(tmp_path / "spool"))
        box.save_base("", f"{URI}/20240101/base")
        box.save_base("", f"{URI}/20240101/base-2")
        cloud.fails = always
        with pytest.raises(StoreError, match=r"20240101/1.*after 3 attempts"):
            box.save_base(f"{URI}/20240101/1", f"{URI}/20240101/base-3")
        cloud.fails = never
        (folder,) = (tmp_path / "spool").glob("*/20240101")
        (folder / ".old.tmp").mkdir()  # of a removal that was interrupted
        merged = box.merge_model(f"{URI}/20240101/base", f"{tmp_path}/20240101/merged")
        assert sorted(path.name for path in folder.iterdir()) == ["1", "base-2"]
        assert box.save_base(f"{URI}/20240101/1", f"{URI}/20240101/base-3").endswith("base-3")
        assert open_save(merged).rows == 50

    def test_a_merge_whose_copy_failed_needs_another_name(
        self, cloud: Cloud, table: Table, tmp_path: Path
    ) -> None:
        box = paddlebox.BoxWrapper(table, spool=str(tmp_path / "spool"))
        for name in ("a", "b"):
            box.save_base("", f"{URI}/20240101/{name}")
        paths = [f"{URI}/20240101/{name}" for name in ("a", "b")]
        failing = cloud.calls
        cloud.fails = always
        with pytest.raises(StoreError, match=r"20240101/all.*after 3 attempts"):
            box.merge_multi_models(paths, f"{URI}/20240101/all")
        assert cloud.calls > failing
        cloud.fails = never
        with pytest.raises(StoreError, match=f"{tmp_path}/spool/.*/all: is done already"):
            box.merge_multi_models(paths, f"{URI}/20240101/all")
        box.merge_multi_models(paths, f"{URI}/20240101/all-2")
        assert names(RemoteSaves(URI).newest_chain()) == ["20240101/all-2"]
        assert [path.parent.name for path in (tmp_path / "spool").rglob("meta.json")] == [
            *("all", "all-2"),
        ]

    def test_options_of_a_uri_are_refused_and_credentials_are_not_shown(
        self, cloud: Cloud, table: Table, tmp_path: Path
    ) -> None:
        box = paddlebox.BoxWrapper(table, spool=str(tmp_path / "spool"))
        with pytest.raises(ConfigError) as raised:
            box.save_base("", "s3://key:secret@models/20240101/base?access_key=secret")
        assert "s3://models/20240101/base: found options after '?'" in str(raised.value)
        assert "secret" not in str(raised.value)
        assert box.save_base("", "s3://key:secret@models/ctr/20240101/base") == (
            "s3://models/ctr/20240101/base"
        )
        assert not [path for path in (tmp_path / "spool").rglob("*") if "secret" in str(path)]
        stream = cloud.system.open_input_stream("models/ctr/xbox_base_done.txt")
        assert b'"s3://models/ctr/20240101/base/000"' in stream.read()

    def test_a_uri_needs_a_spool_and_a_name(self, cloud: Cloud, table: Table) -> None:
        box = paddlebox.BoxWrapper(table)
        with pytest.raises(ConfigError, match=f"{URI}/20240101/base: .* spool=FOLDER"):
            box.save_base("", f"{URI}/20240101/base")
        with pytest.raises(ValueError, match="a save is named <day>/<name>"):
            box.save_delta(f"{URI}/base")
