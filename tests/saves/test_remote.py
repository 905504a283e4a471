"""Saves that are copied to another place and back."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest
from pyarrow._fs import _MockFileSystem

import paddlebox
from paddlebox.errors import ConfigError, CorruptionError, StoreError
from paddlebox.saves import Saver, chain_of, donefile, open_save
from paddlebox.saves.remote import RemoteSaves, SaveCopier
from paddlebox.store import remote
from paddlebox.store.table import Table
from tests.saves.common import apply, base_of, feasigns, open_table, train

URI = "s3://models/ctr"
NEVER, ALWAYS = 0, 1 << 30


class Cloud:
    """A file system in memory, in place of the one that a URI names. Its calls can fail.

    Attributes:
        calls: the number of calls that change something.
        most_calls: calls after these fail. A stream that fails has written half of its last block.
        failing_writes: so many of the next writes fail.
    """

    def __init__(self, system: Any) -> None:
        self.system = system
        self.calls, self.most_calls, self.failing_writes = 0, ALWAYS, 0

    def _count(self, call: str) -> bool:
        """Whether the call fails."""
        self.calls += 1
        fails = call == "write" and self.failing_writes > 0
        self.failing_writes -= fails
        return fails or self.calls > self.most_calls

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


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Cloud:
    made = Cloud(_MockFileSystem())
    real = remote.open_filesystem

    def opened(place: str) -> tuple[Any, str]:
        return (made, place.removeprefix("s3://")) if place.startswith("s3://") else real(place)

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


def sizes_of(folder: Path) -> dict[str, int]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.stat().st_size for path in files}


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
    last, stopped = 0, True
    while stopped:
        last += 1
        cloud.system, cloud.calls, cloud.most_calls = _MockFileSystem(), 0, last
        saves = RemoteSaves(URI)
        with suppress(StoreError):
            saves.put_chain(out)
        stopped = cloud.calls > last
        cloud.most_calls = ALWAYS
        for name in ("20240101/base", "20240101/delta-2"):
            there = remote.RemoteFolder(URI).sizes(name)
            assert "meta.json" not in there or there == sizes_of(out / name)
            assert "meta.json" in there or name not in names(saves.newest_chain())
        saves.put_chain(out)  # the next attempt copies the rest
        back = saves.get("20240101/delta-2", tmp_path / f"again-{last}")
        assert apply(chain_of(back)) == base_of(table)
        assert names(saves.newest_chain()) == ["20240101/base", "20240101/delta-2"]
    assert last > 20


def test_a_call_that_fails_twice_is_tried_a_third_time(
    cloud: Cloud, table: Table, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cloud.failing_writes = 2
    RemoteSaves(URI).put_chain(chain(table, tmp_path / "out"))
    assert cloud.failing_writes == 0
    assert f"{URI}/20240101/base/000/" in caplog.text
    assert "cannot copy, trying again: write failed" in caplog.text
    assert RemoteSaves(URI).get("20240101/base", tmp_path / "back").rows == 50


def test_a_file_system_that_does_not_replace_a_file(
    cloud: Cloud, table: Table, tmp_path: Path
) -> None:
    """HDFS refuses to move a file over another."""
    move = cloud.system.move

    class Hdfs:
        def __getattr__(self, name: str) -> Any:
            return getattr(plain, name)

        def move(self, source: str, target: str) -> None:
            if plain.get_file_info(target).type != pyarrow.fs.FileType.NotFound:
                raise OSError("the target exists")
            move(source, target)

    plain = cloud.system
    cloud.system = Hdfs()
    saver = Saver(table, tmp_path / "out")
    saver.base("20240101/base")
    saver.base("20240102/base")
    saves = RemoteSaves(URI)
    for name in ("20240101/base", "20240102/base"):
        saves.put(open_save(tmp_path / "out" / name))
    assert names(saves.done("base")) == ["20240101/base", "20240102/base"]


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
        cloud.most_calls = NEVER
        copier.offer()
        with pytest.raises(StoreError, match=f"{URI}/20240101/base.*after 3 attempts"):
            copier.finish()
        assert "the copy continues after the next save" in caplog.text
        copier.close()

    def test_a_copy_is_given_up_at_the_end(
        self, cloud: Cloud, table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(remote, "WAITS_S", (600.0, 600.0))
        copier = SaveCopier(chain(table, tmp_path / "out"), URI)
        cloud.most_calls = NEVER
        copier.offer()
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
        saved = base_of(table)
        table.close()
        with open_table(tmp_path / "loaded") as loaded:
            other = paddlebox.BoxWrapper(loaded, spool=str(tmp_path / "other"))
            assert other.load_model(f"{URI}/20240101/delta-3") == 109
            assert base_of(loaded) == saved
        assert list((tmp_path / "other").rglob("meta.json")) == []

    def test_a_call_after_a_failed_copy_copies_the_save(
        self, cloud: Cloud, table: Table, tmp_path: Path
    ) -> None:
        box = paddlebox.BoxWrapper(table, spool=str(tmp_path / "spool"))
        box.save_base("", f"{URI}/20240101/base")
        train(table, feasigns(30, 50), 2)
        cloud.most_calls = NEVER
        delta = f"{URI}/20240101/delta-2"
        for _ in range(2):
            with pytest.raises(StoreError, match=f"{delta}.*after 3 attempts"):
                box.save_delta(delta)
        cloud.most_calls = ALWAYS
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
        cloud.most_calls = NEVER
        with pytest.raises(StoreError, match="after 3 attempts"):
            box.save_delta(f"{URI}/20240101/delta-2")
        cloud.most_calls = ALWAYS
        train(table, feasigns(60, 50), 3)
        with pytest.raises(StoreError, match="delta-2: is done already"):
            box.save_delta(f"{URI}/20240101/delta-2")  # of an earlier pass
        box.save_delta(f"{URI}/20240101/delta-3")
        back = RemoteSaves(URI).get("20240101/delta-3", tmp_path / "back")
        assert len(chain_of(back)) == 3
        assert apply(chain_of(back)) == base_of(table)

    def test_a_uri_needs_a_spool_and_a_name(self, cloud: Cloud, table: Table) -> None:
        box = paddlebox.BoxWrapper(table)
        with pytest.raises(ConfigError, match=f"{URI}/20240101/base: .* spool=FOLDER"):
            box.save_base("", f"{URI}/20240101/base")
        with pytest.raises(ValueError, match="a save is named <day>/<name>"):
            box.save_delta(f"{URI}/base")
