"""Parity: a lost or damaged segment comes back to the bit; what cannot come back is named."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

from paddlebox._native import core
from paddlebox.store import dense_parity, parity
from paddlebox.store.compaction import Policy
from paddlebox.store.manifest import Manifest, VersionRecord
from paddlebox.store.table import Table
from paddlebox.tools.upkeep.cli import main
from tests.store.test_table_life import CONFIG, feasigns_of, train

K = 3


def open_table(folder: Path, **settings: Any) -> Table:
    paddle.disable_static()
    defaults = {"compaction": None, "parity": K, "mem_budget_bytes": 1 << 20}
    return Table(CONFIG, folder=folder, max_segment_bytes=1 << 17, **{**defaults, **settings})


def trained(folder: Path, passes: int = 3, **settings: Any) -> str:
    with open_table(folder, **settings) as table:
        for number in range(1, passes + 1):
            train(table, feasigns_of(number), number)
        return table.digest()


def wait_parity(table: Table) -> None:
    assert table.first.compactor.parity is not None
    table.first.compactor.parity.wait()


def digest(folder: Path) -> str:
    with Table(CONFIG, folder=folder, read_only=True) as table:
        return table.digest()


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "ssd").iterdir())


def members(folder: Path) -> list[list[str]]:
    groups, wrong = parity.groups_of(folder)
    assert wrong == []
    return [sorted(group.members) for group in groups]


def repair(folder: Path, capsys: pytest.CaptureFixture[str], *flags: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert main(["repair", str(folder), "--json", *flags]) == code
    return json.loads(capsys.readouterr().out)


def test_all_segments_of_the_newest_version_are_in_one_group_each(tmp_path: Path) -> None:
    trained(tmp_path, 4)
    named = [name for group in members(tmp_path) for name in group]
    assert sorted(named) == [path.name for path in segments(tmp_path)]
    assert all(len(group) == K for group in members(tmp_path)[:-1])
    assert main(["verify", str(tmp_path)]) == 0


def test_each_lost_segment_in_turn_comes_back_to_the_bit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = trained(tmp_path)
    assert len(segments(tmp_path)) > K  # more than one group
    for path in segments(tmp_path):
        content = path.read_bytes()
        path.unlink()
        found = repair(tmp_path, capsys, code=1)
        assert (found["rebuilt"], found["lost"]) == ([f"ssd/{path.name}"], [])
        assert not path.exists()  # nothing is changed without --yes
        repair(tmp_path, capsys, "--yes")
        assert path.read_bytes() == content
        assert digest(tmp_path) == expected
    assert [p.name for p in segments(tmp_path)] == [s["file"] for s in head(tmp_path)]


def newest(folder: Path) -> VersionRecord:
    with Manifest.open_reader(folder) as manifest:
        record = manifest.head()
        assert record is not None
        return record


def head(folder: Path) -> list[dict[str, Any]]:
    return sorted(newest(folder).segments, key=lambda s: str(s["file"]))


def test_flipped_bits_are_mended_and_the_damaged_file_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = trained(tmp_path)
    path = segments(tmp_path)[1]
    content = path.read_bytes()
    for at in (0, len(content) // 2, len(content) - 30):
        damaged = bytearray(content)
        damaged[at] ^= 1
        path.write_bytes(bytes(damaged))
        assert main(["verify", str(tmp_path)]) == 1
        found = repair(tmp_path, capsys, "--yes")
        assert (found["rebuilt"], found["lost"]) == ([f"ssd/{path.name}"], [])
        assert path.read_bytes() == content
        assert main(["verify", str(tmp_path)]) == 0
    assert (tmp_path / "damaged" / path.name).exists()
    assert digest(tmp_path) == expected


def test_two_lost_in_a_group_are_both_named_and_others_still_come_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path, 4)
    first, second = members(tmp_path)[0][:2]
    alone = members(tmp_path)[1][0]
    flip = bytearray((tmp_path / "ssd" / second).read_bytes())
    flip[100] ^= 1
    (tmp_path / "ssd" / second).write_bytes(bytes(flip))
    (tmp_path / "ssd" / first).unlink()
    (tmp_path / "ssd" / alone).unlink()
    found = repair(tmp_path, capsys, code=1)
    assert found["rebuilt"] == [f"ssd/{alone}"]
    assert f"{first} cannot be rebuilt" in found["no_parity"][0]
    assert f"{second} is damaged" in found["no_parity"][0]
    assert f"{second} cannot be rebuilt" in found["no_parity"][1]
    assert f"{first} is missing" in found["no_parity"][1]
    assert {lost["file"] for lost in found["lost"]} == {f"ssd/{first}", f"ssd/{second}"}
    repair(tmp_path, capsys, "--yes")  # and what is lost is dropped, as without parity
    assert main(["verify", str(tmp_path)]) == 0


def dense_files(folder: Path) -> list[Path]:
    return sorted((folder / "dense").glob("*/dense.*"))


def test_lost_and_damaged_dense_files_come_back_to_the_bit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path)
    newest_dense = f"{newest(tmp_path).dense_version:012d}"
    paths = [path for path in dense_files(tmp_path) if path.parent.name == newest_dense]
    contents = {path: path.read_bytes() for path in paths}
    names = [str(path.relative_to(tmp_path)) for path in paths]
    assert [path.name for path in paths] == ["dense.bin", "dense.json"]
    flip = bytearray(contents[paths[0]])
    flip[5] ^= 1
    for damaged in (bytes(flip), flip[:20], b"", None):
        for path in paths:  # both at once, so neither is made of the other
            if damaged is None:
                path.unlink()
            else:
                path.write_bytes(damaged)
        if damaged is None:
            paths[0].parent.rmdir()
        assert main(["verify", str(tmp_path)]) == 1
        found = repair(tmp_path, capsys, code=1)
        assert (found["rebuilt"], found["not_mended"]) == (names, [])
        found = repair(tmp_path, capsys, "--yes")
        assert (found["rebuilt"], found["not_mended"], found["lost"]) == (names, [], [])
        assert {path: path.read_bytes() for path in paths} == contents
        assert main(["verify", str(tmp_path)]) == 0
    aside = tmp_path / "damaged" / f"dense-{newest_dense}-dense.bin"
    assert aside.read_bytes() == bytes(flip)
    with Table(CONFIG, folder=tmp_path, read_only=True) as table:
        assert table.load_dense()["w"].tolist() == [3, 3, 3]


def test_a_dense_file_with_a_damaged_copy_is_named_and_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path)
    version = f"{newest(tmp_path).dense_version:012d}"
    copy = tmp_path / parity.FOLDER / f"dense-{version}-dense.bin.par"
    content = bytearray(copy.read_bytes())
    content[5] ^= 1
    copy.write_bytes(bytes(content))
    assert main(["verify", str(tmp_path)]) == 1
    (tmp_path / "dense" / version / "dense.bin").write_bytes(b"other")
    found = repair(tmp_path, capsys, "--yes", code=1)
    assert found["rebuilt"] == []
    assert "the parity is damaged" in found["no_parity"][0]
    assert [damage["file"] for damage in found["not_mended"]] == [f"dense/{version}/dense.bin"]


def test_a_dense_file_that_is_damaged_when_it_is_copied_gets_no_copy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained(tmp_path, parity=None)
    version = f"{newest(tmp_path).dense_version:012d}"
    path = tmp_path / "dense" / version / "dense.bin"
    path.write_bytes(bytes(path.stat().st_size))
    with open_table(tmp_path), caplog.at_level("WARNING", "paddlebox"):
        pass
    assert f"differs from what version {int(version)} committed" in caplog.text
    left = [path.name for path in dense_parity.copies_of(tmp_path / parity.FOLDER)]
    assert left == []
    assert members(tmp_path)  # the segments have their parity nevertheless


def test_copies_of_dense_files_follow_the_newest_version(tmp_path: Path) -> None:
    with open_table(tmp_path) as table:
        for number in (1, 2, 3):
            train(table, feasigns_of(number), number)
            wait_parity(table)
            assert table.head is not None
            version = f"{table.head.dense_version:012d}"
            copies = [path.name for path in dense_parity.copies_of(tmp_path / parity.FOLDER)]
            assert copies == [f"dense-{version}-dense.{end}.par" for end in ("bin", "json")]


def test_damaged_parity_is_found_not_used_and_written_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path)
    path = sorted((tmp_path / parity.FOLDER).glob("par-*"))[0]
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(bytes(content))
    assert main(["verify", str(tmp_path)]) == 1
    lost = members(tmp_path)[0][0]
    whole = (tmp_path / "ssd" / lost).read_bytes()
    (tmp_path / "ssd" / lost).unlink()
    assert "the parity is damaged" in repair(tmp_path, capsys, code=1)["no_parity"][0]
    (tmp_path / "ssd" / lost).write_bytes(whole)
    path.write_bytes(content[:100])  # torn: its index is gone too
    assert main(["verify", str(tmp_path)]) == 1
    with open_table(tmp_path):
        pass
    assert main(["verify", str(tmp_path)]) == 0
    assert sorted(name for group in members(tmp_path) for name in group) == [
        p.name for p in segments(tmp_path)
    ]


def test_parity_follows_merges_and_leaves_with_its_setting(tmp_path: Path) -> None:
    policy = Policy(min_bytes=0, merge_depth=3, space_target=1.05)
    with open_table(tmp_path, compaction=policy) as table:
        for number in range(1, 9):
            train(table, feasigns_of(number), number)
        table.compact(full=True)
        wait_parity(table)
        assert table.head is not None
        assert table.head.bytes_written["compaction"] > 0
        named = sorted(name for group in members(tmp_path) for name in group)
        assert named == sorted(s["file"] for s in table.head.segments)
    before = sorted(os.listdir(tmp_path / parity.FOLDER))
    with open_table(tmp_path, parity=None):
        pass
    assert sorted(os.listdir(tmp_path / parity.FOLDER)) == before
    with open_table(tmp_path, parity=0):
        pass
    assert os.listdir(tmp_path / parity.FOLDER) == []


def test_full_groups_stay_and_the_rest_is_grouped_again() -> None:
    def segment(number: int) -> dict[str, Any]:
        return {"file": f"s{number}", "bytes": number}

    def group(number: int, *names: int) -> parity.Group:
        return parity.Group(Path(f"par-{number}"), number, {f"s{n}": n for n in names})

    live = [segment(n) for n in range(1, 6)]
    assert parity.plan(live, [], 2) == ([["s1", "s2"], ["s3", "s4"], ["s5"]], [])
    groups = [group(1, 1, 2), group(2, 3, 4), group(3, 5)]
    assert parity.plan(live, groups, 2) == ([], [])
    assert parity.plan([*live, segment(6)], groups, 2) == ([["s5", "s6"]], [groups[2]])
    without_3 = [s for s in live if s["file"] != "s3"]
    assert parity.plan(without_3, groups, 2) == ([["s4", "s5"]], groups[1:])
    assert parity.plan(live, groups, 0) == ([], groups)
    other_size = [*live[:-1], {"file": "s5", "bytes": 50}]
    assert parity.plan(other_size, groups, 2) == ([["s5"]], [groups[2]])


def test_a_store_damaged_before_its_parity_was_written_is_not_called_mended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path, parity=None)
    path = segments(tmp_path)[0]
    damaged = bytearray(path.read_bytes())
    damaged[100] ^= 1
    path.write_bytes(bytes(damaged))
    parity.update(tmp_path, newest(tmp_path), K)
    found = repair(tmp_path, capsys, "--yes")
    assert found["rebuilt"] == []
    assert "was damaged before its parity was written" in found["no_parity"][0]
    assert main(["verify", str(tmp_path)]) == 0


def test_parity_is_the_exclusive_or(tmp_path: Path) -> None:
    trained(tmp_path, 2)
    group = parity.groups_of(tmp_path)[0][0]
    longest = max(group.members.values())
    total = np.zeros(longest, np.uint8)
    for name, size in group.members.items():
        total[:size] ^= np.fromfile(tmp_path / "ssd" / name, np.uint8)
    assert np.fromfile(group.path, np.uint8)[:longest].tobytes() == total.tobytes()
    assert core.read_parity(str(group.path))["body_bytes"] == longest
