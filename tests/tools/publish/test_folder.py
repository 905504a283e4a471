"""Rows in a folder: a reader gets one version whole, or keeps the one that it has."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from paddlebox.errors import CorruptionError, OutOfSpaceError, PaddleBoxError, StoreError
from paddlebox.store.stamped import stamped
from paddlebox.tools.publish import folder as folder_sink
from paddlebox.tools.publish.folder import PUBLISHED, FolderSink
from paddlebox.tools.publish.readers import FolderRows
from paddlebox.tools.publish.sink import Change
from paddlebox.tools.rows.folder import LocalFolder
from paddlebox.tools.rows.manifest import EXPORT, read_manifest
from tests.tools.publish.saved import PROBE, TABLE, Saved, rows_of


class Killed(BaseException):
    """The publisher ends here: nothing after it runs."""


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_sink, "_PART_BYTES", 2000)


def shown(reader: FolderRows, saved: Saved) -> str:
    """The save whose rows a reader has, and no others."""
    assert reader.version is not None
    name = str(reader.version["save"]["name"])
    found, columns = reader.lookup(PROBE, TABLE)
    assert rows_of(PROBE[found], columns) == saved.rows(name)
    at = saved.names.index(name)
    assert reader.dense == Change(saved.save(at), None).dense()
    return name


def versions_in(place: Path) -> list[Path]:
    return sorted(path for path in place.iterdir() if path.is_dir())


@pytest.fixture(params=["path", "uri"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return ("file://" if request.param == "uri" else "") + str(tmp_path / "rows")


def test_each_save_is_shown_whole_deletions_included(place: str, saved: Saved) -> None:
    reader = FolderRows(place)
    assert not reader.refresh()
    for at, name in enumerate(saved.names):
        saved.publish(FolderSink(place), at)
        assert reader.refresh()
        assert not reader.refresh()
        assert shown(reader, saved) == name
        new = FolderRows(place)
        new.refresh()
        assert shown(new, saved) == name


def test_a_delta_has_the_changed_rows_and_the_deletions(tmp_path: Path, saved: Saved) -> None:
    sink = FolderSink(str(tmp_path))
    saved.publish(sink, 0)
    saved.publish(sink, 2)  # the sink was behind: one version for two saves
    base, delta = (read_manifest(LocalFolder(str(path))) for path in versions_in(tmp_path))
    assert (base.since, delta.since) == (None, base.version)
    before, now = saved.rows(saved.names[0]), saved.rows(saved.names[2])
    (table,) = delta.tables
    changed = [f for f in now if now[f] != before.get(f)]
    assert table.rows == len(changed) < len(now)
    gone = {
        int(feasign)
        for path in tmp_path.glob("*/deleted/*")
        for feasign in pq.read_table(path)["feasign"].to_pylist()
    }
    assert gone >= before.keys() - now.keys() != set()
    assert not gone & now.keys()


def test_folders_that_nobody_reads_are_removed(
    tmp_path: Path, saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FolderSink, "_is_long", lambda *_: False)
    sink = FolderSink(str(tmp_path))
    (tmp_path / "of others").mkdir()
    left = tmp_path / "20240101-delta-9.0123abcd-after-89abcdef"
    left.mkdir()
    (left / "dense.npz").write_bytes(b"begun")
    for at in range(4):
        saved.publish(sink, at)
    before = {*versions_in(tmp_path)} - {left}
    assert len(before) == 5
    saved.publish(sink, 4)  # readers may still read the chain before
    assert before < {*versions_in(tmp_path)}
    assert not left.exists()
    saved.publish(sink, 5)
    saved.publish(sink, 0)
    assert len({*versions_in(tmp_path)}) == 4
    assert (tmp_path / "of others").exists()


def test_all_rows_are_published_again_when_the_deltas_take_more(
    tmp_path: Path, saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_sink, "_MOST_DELTAS", 1)
    sink, reader = FolderSink(str(tmp_path)), FolderRows(str(tmp_path))
    whole = []
    for at in range(4):
        saved.publish(sink, at)
        reader.refresh()
        assert shown(reader, saved) == saved.names[at]
        index = json.loads((tmp_path / PUBLISHED).read_text())
        whole.append(len(index["versions"]) == 1)
    assert whole == [True, False, True, False]


@pytest.mark.parametrize(("before", "target"), [(0, 1), (1, 3), (3, 4), (4, 1)])
def test_a_publisher_killed_at_any_step_leaves_a_whole_version(
    tmp_path: Path, saved: Saved, before: int, target: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file is durable or absent (tests/faults); so a kill is between two of them."""
    write, remove = LocalFolder.write, LocalFolder.remove
    for kill_at in range(1000):
        place = tmp_path / str(kill_at)
        saved.publish(FolderSink(str(place)), before)
        reader = FolderRows(str(place))
        reader.refresh()
        left = kill_at

        def step(run: Any, *given: Any) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            run(*given)

        with monkeypatch.context() as patch:
            patch.setattr(LocalFolder, "write", lambda *given: step(write, *given))
            patch.setattr(LocalFolder, "remove", lambda *given: step(remove, *given))
            try:
                saved.publish(FolderSink(str(place)), target)
            except Killed:
                pass
            else:
                break
        reader.refresh()
        assert shown(reader, saved) in (saved.names[before], saved.names[target])
        later = (target + kill_at) % len(saved.names)
        saved.publish(FolderSink(str(place)), later)
        for one in (reader, FolderRows(str(place))):
            one.refresh()
            assert shown(one, saved) == saved.names[later]
        shutil.rmtree(place)
    assert kill_at > 4


def _copied(source: Path, target: Path, chance: random.Random) -> None:
    """Some of the files of a place, in any order, some of them cut short, some twice."""
    there = [path for path in source.rglob("*") if path.is_file()]
    for path in chance.choices(there, k=max(1, len(there) // 3)):
        content = path.read_bytes()
        if chance.random() < 0.1:
            content = content[: len(content) // 2]
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(content)


@pytest.mark.parametrize("seed", range(4))
def test_three_replicas_of_reordered_and_doubled_uploads_show_one_version(
    tmp_path: Path, saved: Saved, seed: int
) -> None:
    chance = random.Random(seed)
    place, copies = tmp_path / "rows", [tmp_path / f"copy-{number}" for number in range(3)]
    replicas = [FolderRows(str(copy)) for copy in copies]
    seen: set[str] = set()
    refused = 0
    for at in (0, 1, 2, 3, 4, 5, 0, 3):
        saved.publish(FolderSink(str(place)), at)
        for _ in range(6):
            for copy, replica in zip(copies, replicas, strict=True):
                copy.mkdir(exist_ok=True)
                _copied(place, copy, chance)
                try:
                    replica.refresh()
                except PaddleBoxError:
                    refused += 1
                if replica.version is not None:
                    seen.add(shown(replica, saved))
    for copy, replica in zip(copies, replicas, strict=True):
        shutil.copytree(place, copy, dirs_exist_ok=True)
        replica.refresh()
        assert shown(replica, saved) == saved.names[3]
    assert refused > 10
    assert len(seen) > 1


# ---- damage, and places that refuse


def test_damage_of_a_version_is_named_and_the_reader_keeps_the_one_before(
    tmp_path: Path, saved: Saved
) -> None:
    sink, reader = FolderSink(str(tmp_path)), FolderRows(str(tmp_path))
    saved.publish(sink, 0)
    reader.refresh()
    saved.publish(sink, 1)
    (delta,) = (path for path in versions_in(tmp_path) if "after" in path.name)
    for path in sorted(path for path in delta.rglob("*") if path.is_file()):
        content = path.read_bytes()
        for wrong in (content[:-9], content[:40] + b"\xff" + content[41:], None):
            path.unlink() if wrong is None else path.write_bytes(wrong)
            with pytest.raises(PaddleBoxError, match=path.name):
                reader.refresh()
            assert shown(reader, saved) == saved.names[0]
            path.write_bytes(content)
    reader.refresh()
    assert shown(reader, saved) == saved.names[1]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "does not name published versions"),
        (b"[]", "does not name published versions"),
        (json.dumps(stamped({}, 7)).encode(), "has format 7, expected 1"),
        (b'{"format": 1, "crc32c": 0, "versions": []}', "has CRC32C .*, expected 0"),
    ],
)
def test_a_damaged_index_is_named(tmp_path: Path, saved: Saved, content: bytes, why: str) -> None:
    (tmp_path / PUBLISHED).write_bytes(content)
    with pytest.raises(StoreError, match=f"{PUBLISHED}: .*{why}"):
        FolderSink(str(tmp_path)).held()
    with pytest.raises(StoreError, match=f"{PUBLISHED}: "):
        saved.publish(FolderSink(str(tmp_path)), 0)
    (tmp_path / PUBLISHED).unlink()
    saved.publish(FolderSink(str(tmp_path)), 1)
    reader = FolderRows(str(tmp_path))
    reader.refresh()
    assert shown(reader, saved) == saved.names[1]


def test_a_name_outside_of_the_place_is_refused(tmp_path: Path) -> None:
    fields = stamped({"number": 1, "versions": [], "before": ["../other"]}, 1)
    (tmp_path / PUBLISHED).write_text(json.dumps(fields))
    with pytest.raises(CorruptionError, match="other folders than those of versions"):
        FolderSink(str(tmp_path)).held()


def test_a_place_that_is_a_file_is_named(tmp_path: Path, saved: Saved) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(StoreError, match="/f: expected a folder, found a file"):
        saved.publish(FolderSink(str(tmp_path / "f")), 0)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes into read-only folders")
def test_a_read_only_folder_is_named(tmp_path: Path, saved: Saved) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match=f"{tmp_path}/.*Permission denied"):
        saved.publish(FolderSink(str(tmp_path)), 0)


@pytest.mark.parametrize("wrong", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_place_that_takes_no_file_keeps_the_version_before(
    tmp_path: Path, saved: Saved, wrong: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, reader = FolderSink(str(tmp_path)), FolderRows(str(tmp_path))
    saved.publish(sink, 0)

    def refuses(_: int) -> None:
        raise OSError(wrong, os.strerror(wrong))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuses)
        kind = OutOfSpaceError if wrong == errno.ENOSPC else StoreError
        with pytest.raises(kind, match=f"{tmp_path}/20240101-delta-2"):
            saved.publish(sink, 1)
    reader.refresh()
    assert shown(reader, saved) == saved.names[0]
    saved.publish(sink, 1)
    reader.refresh()
    assert shown(reader, saved) == saved.names[1]


# ---- precision


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_rows_are_rounded_to_the_precision(tmp_path: Path, saved: Saved, precision: str) -> None:
    saved.publish(FolderSink(str(tmp_path)), 0)
    saved.publish(FolderSink(str(tmp_path), precision), 1)
    assert len(versions_in(tmp_path)) == 2  # all rows again, in the new precision
    index = json.loads((tmp_path / PUBLISHED).read_text())
    assert [version["precision"] for version in index["versions"]] == [precision]
    reader = FolderRows(str(tmp_path))
    reader.refresh()
    found, columns = reader.lookup(PROBE, TABLE)
    exact, rows = saved.rows(saved.names[1]), rows_of(PROBE[found], columns)
    assert exact.keys() == rows.keys()
    for feasign, row in exact.items():
        most = np.abs(row[4:]).max()
        step = {"float16": max(most / 2048, 2**-25), "int8": most / 127 / 2}[precision]
        assert rows[feasign][:4] == row[:4]
        np.testing.assert_allclose(rows[feasign][4:], row[4:], atol=1.0001 * step, rtol=0)


def test_the_manifest_of_a_version_is_that_of_an_export(tmp_path: Path, saved: Saved) -> None:
    saved.publish(FolderSink(str(tmp_path), "int8"), 0)
    (version,) = versions_in(tmp_path)
    assert (version / EXPORT).exists()
    part = pq.read_table(next(version.glob("rows/*.parquet")))
    assert str(part.schema.field("embedx_q").type).startswith("fixed_size_list<")
    assert "int8" in str(part.schema.field("embedx_q").type)
    assert str(part.schema.field("embedx_scale").type) == "float"
