"""`paddlebox store`: what it tells, that it finds each kind of damage, and what a repair loses."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import paddle
import pytest

from paddlebox import _native, ops
from paddlebox.config import Slots, TableConfig
from paddlebox.errors import ConfigError
from paddlebox.store import files
from paddlebox.store.compaction import Policy
from paddlebox.store.record import VersionRecord
from paddlebox.store.table import Table, sorted_unique_keys
from paddlebox.store.version_store import VersionStore
from paddlebox.tools.upkeep import report
from paddlebox.tools.upkeep.cli import store_main
from tests.support.configs import slots_fields

CONFIG = TableConfig(embedx_dim=4, embedx_threshold=0.5)
HUGE = 2**64 - 5


def train(table: Table, feasigns: np.ndarray, number: int) -> None:
    staged = table.stage(sorted_unique_keys(feasigns), day=20000 + number)
    table.begin(staged)
    grad = np.ones((len(feasigns), 3 + CONFIG.embedx_dim), np.float32)
    grad[:, 1] = (feasigns % 2).astype(np.float32)
    ops.push_box_sparse(paddle.to_tensor(feasigns.view(np.int64)), paddle.to_tensor(grad))
    table.end(number)
    table.commit(pass_number=number, dense={"w": np.full(3, number, np.float32)})


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    paddle.disable_static()
    folder = tmp_path_factory.mktemp("run") / "store"
    with Table(CONFIG, folder=folder, mem_budget_bytes=1 << 20, compaction=None) as table:
        train(table, np.arange(1, 4001, dtype=np.uint64), 1)
        train(table, np.append(np.arange(1, 3000, 3, dtype=np.uint64), np.uint64(HUGE)), 2)
        train(table, np.arange(1, 500, dtype=np.uint64), 3)
        table.life.end_of_day(20003, decay=0.5)
    return folder


@pytest.fixture
def store(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "store")
    return tmp_path / "store"


def with_passes(folder: Path, passes: int) -> Path:
    """A store that keeps all of its passes, each with a segment of its own."""
    paddle.disable_static()
    options: dict[str, Any] = {"mem_budget_bytes": 1 << 20, "compaction": None, "keep_versions": 9}
    with Table(CONFIG, folder=folder, **options) as table:
        for number in range(1, passes + 1):
            train(table, np.arange(1, 1000 // number, dtype=np.uint64), number)
    return folder


def newest(store: Path) -> VersionRecord:
    with VersionStore.open_reader(store) as manifest:
        return manifest.records()[-1]


def passes_of(store: Path) -> dict[int, int]:
    """The pass of each version."""
    with VersionStore.open_reader(store) as manifest:
        return {record.version: record.pass_number for record in manifest.records()}


def run(capsys: pytest.CaptureFixture[str], *arguments: Any, code: int = 0) -> Any:
    capsys.readouterr()
    assert store_main([*map(str, arguments), "--json"]) == code
    return json.loads(capsys.readouterr().out)


def text(capsys: pytest.CaptureFixture[str], *arguments: Any, code: int = 0) -> str:
    capsys.readouterr()
    assert store_main([*map(str, arguments)]) == code
    return capsys.readouterr().out


def segment_of(store: Path, sequence: int) -> Path:
    for path in sorted((store / "ssd").iterdir()):
        if _native.core.SegmentFile(str(path)).shape["sequence"] == sequence:
            return path
    raise AssertionError(f"no segment of sequence {sequence}")


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def flip_value(store: Path, key: bytes) -> None:
    with lmdb.open(str(store / "manifest")) as env, env.begin(write=True) as txn:
        value = bytearray(txn.get(key) or b"")
        value[7] ^= 1
        txn.put(key, bytes(value))


def snapshot(store: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(store)): p.read_bytes()
        for p in store.rglob("*")
        if p.is_file() and "leases" not in p.parts
    }


def test_looking_changes_no_byte(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = snapshot(store)
    for command in (["stat"], ["digest"], ["verify"], ["repair"]):
        assert store_main([command[0], str(store)]) == 0
    assert store_main(["lookup", str(store), "1"]) == 0
    assert snapshot(store) == before
    assert list((store / "leases").iterdir()) == []


def test_stat_counts_rows_versions_and_bytes(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(capsys, "stat", store.parent)  # a run dir will do
    assert (found["version"], found["pass_number"], found["live_rows"]) == (4, 3, 4001)
    assert found["stored_rows"] == 4000 + 1001 + 499
    assert found["depth"] == 3
    assert [v["kind"] for v in found["versions"]] == ["pass", "life"]
    assert found["bytes_written"] == {"pass": found["stored_bytes"]}
    assert sum(found["bytes_written_by_day"].values()) == found["stored_bytes"]
    assert found["leases"] == []
    shown = text(capsys, "stat", store)
    assert "version 4, pass 3" in shown
    assert "4,001" in shown


def test_digests_are_the_tables(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, "digest", store)
    with Table(CONFIG, folder=store, read_only=True) as table:
        assert found["sparse_digest"] == table.digest()
    older = run(capsys, "digest", store, "--version", 2)
    assert older["version"] == 2
    assert older["sparse_digest"] != found["sparse_digest"]
    assert text(capsys, "digest", store, "--version", 1, code=4) == ""  # not kept any more


def test_lookup_names_the_fields_and_the_copies(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, huge, absent = run(capsys, "lookup", store, "1", hex(HUGE), "123456789")
    assert one["row"]["show"] == 1.5  # three passes, halved
    assert one["row"]["click"] == 1.5
    assert one["row"]["last_seen_day"] == 20003
    assert one["row"]["life_seq"] == 1
    assert len(one["row"]["embedx_w"]) == 4
    assert [copy["sequence"] for copy in one["copies"]] == [3, 2, 1]
    assert huge["feasign"] == HUGE
    assert huge["row"]["show"] == 0.5
    assert absent["found"] is False
    assert absent["row"] is None
    assert "no row" in text(capsys, "lookup", store, "123456789")


@pytest.mark.parametrize("wrong", ["0", "u56", str(2**64)])
def test_a_word_that_is_not_a_feasign_is_refused_with_advice(
    store: Path, capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    assert store_main(["lookup", str(store), wrong]) == 2
    said = capsys.readouterr().err
    assert f"{wrong}: a feasign is 1 to 2^64 - 1; to look up a value" in said


def test_values_are_not_looked_up_where_a_store_does_not_say_its_slots(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert store_main(["lookup", str(store), "--slot", "user", "u56"]) == 4
    assert "has no record of its slots" in capsys.readouterr().err


def test_a_sound_store_verifies_and_names_what_a_crash_left(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (store / "ssd" / "seg-000000000099.seg.tmp").write_bytes(b"torn")
    found = run(capsys, "verify", store)
    assert found["damage"] == []
    assert found["unreferenced"] == ["ssd/seg-000000000099.seg.tmp"]
    assert found["versions"] == [2, 4]
    assert "no damage" in text(capsys, "verify", store)


@pytest.mark.parametrize("part", ["block", "footer", "missing", "dense", "manifest file", "lmdb"])
def test_verify_names_what_is_damaged(
    store: Path, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    segment = segment_of(store, 1)
    expected = segment.name
    if part == "block":
        flip(segment, 3 * 4096 + 77)
    elif part == "footer":
        flip(segment, segment.stat().st_size - 30)
    elif part == "missing":
        segment.unlink()
    elif part == "dense":
        flip(store / "dense" / "000000000003" / "dense.bin", 2)
        expected = "dense"
    elif part == "manifest file":
        flip(store / "MANIFEST-000000000002", 90)
        expected = "MANIFEST-000000000002"
    else:
        flip_value(store, b"head")
        expected = "data.mdb: expected"
    found = run(capsys, "verify", store, code=1)
    assert len(found["damage"]) >= 1
    assert expected in json.dumps(found["damage"])
    if part == "block":
        (damage,) = found["damage"]
        assert (damage["block"], damage["offset"]) == (3, 3 * 4096)
        assert damage["first_row"] == 3 * damage["rows"]


def test_a_repair_loses_the_damaged_block_and_nothing_else(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Table(CONFIG, folder=store, read_only=True) as table:
        before = dict(zip(*_rows(table), strict=True))
    segment = segment_of(store, 1)
    flip(segment, 3 * 4096 + 77)
    damaged = segment.read_bytes()
    planned = run(capsys, "repair", store, code=1)
    assert planned["done"] is False
    assert segment.read_bytes() == damaged
    shown = text(capsys, "repair", store, "--yes")
    assert "block 3" in shown
    assert "these feasigns start again" in shown
    assert run(capsys, "verify", store)["damage"] == []
    (lost,) = planned["lost"]
    with Table(CONFIG, folder=store, read_only=True) as table:
        after = dict(zip(*_rows(table), strict=True))
    gone = before.keys() - after.keys()
    assert 0 < len(gone) <= lost["rows"]
    keys = [_native.core.mix(int(feasign)) for feasign in gone]
    assert all(lost["min_key"] <= key <= lost["max_key"] for key in keys)
    assert all(np.array_equal(after[key], before[key]) for key in after)
    assert (store / "damaged" / segment.name).read_bytes() == damaged
    paddle.disable_static()
    with Table(CONFIG, folder=store, mem_budget_bytes=1 << 20) as table:
        train(table, np.arange(1, 100, dtype=np.uint64), 4)


def test_rows_lost_in_a_young_segment_come_back_as_they_were(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(segment_of(store, 3), 77)
    shown = text(capsys, "repair", store, "--yes")
    assert "older copies in" in shown
    with Table(CONFIG, folder=store, read_only=True) as table:
        assert len(table.read_all()[0]) == 4001


def test_a_repair_keeps_older_versions_that_name_no_damaged_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = with_passes(tmp_path / "store", 4)
    before = run(capsys, "digest", store, "--version", 2)
    flip(segment_of(store, 3), 77)
    run(capsys, "repair", store, "--yes")
    assert passes_of(store) == {1: 1, 2: 2, 5: 4}  # versions 3 and 4 name the damaged segment
    assert run(capsys, "verify", store)["damage"] == []
    assert run(capsys, "digest", store, "--version", 2) == before
    with Table(CONFIG, folder=store, mem_budget_bytes=1 << 20, keep_versions=9) as table:
        train(table, np.arange(1, 100, dtype=np.uint64), 5)
    assert run(capsys, "digest", store, "--version", 2) == before


def test_a_repair_drops_older_versions_with_damage_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = with_passes(tmp_path / "store", 4)
    flip(Path(files.dense_folder(str(store), 1), "dense.bin"), -1)
    run(capsys, "compact", store, "--full")  # pass 4 has one segment of its own
    flip(segment_of(store, 3), 77)  # of pass 3
    (merged,) = newest(store).segments
    flip(store / "ssd" / merged["file"], 77)
    run(capsys, "repair", store, "--yes")
    assert run(capsys, "verify", store)["damage"] == []
    assert [*passes_of(store).values()] == [2, 4]


def test_a_repair_names_a_damaged_dense_file_and_leaves_it(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(files.dense_folder(str(store), newest(store).dense_version), "dense.bin")
    flip(path, 5)
    damaged = path.read_bytes()
    assert "cannot be repaired: " in text(capsys, "repair", store, code=1)
    found = run(capsys, "repair", store, "--yes", code=1)
    assert [one["file"] for one in found["not_mended"]] == [str(path.relative_to(store))]
    assert (found["lost"], path.read_bytes()) == ([], damaged)


def test_a_damaged_manifest_is_rebuilt(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = run(capsys, "digest", store)
    flip_value(store, b"head")
    assert text(capsys, "stat", store, code=4) == ""
    assert "was rebuilt" in text(capsys, "repair", store, "--yes")
    assert run(capsys, "digest", store) == expected


def test_compact_merges_and_keeps_every_row(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = run(capsys, "digest", store)["sparse_digest"]
    found = run(capsys, "compact", store, "--full")
    assert found["depth"] == {"before": 3, "after": 1}
    assert found["stored_rows"] == {"before": 5500, "after": 4001}
    assert run(capsys, "digest", store)["sparse_digest"] == expected


def test_compact_keeps_each_pass_that_has_a_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = with_passes(tmp_path / "store", 4)
    before = run(capsys, "digest", store, "--version", 1)
    run(capsys, "compact", store, "--full")
    assert [*passes_of(store).values()] == [1, 2, 3, 4]
    assert run(capsys, "digest", store, "--version", 1) == before


def test_compact_is_refused_while_a_writer_is_there(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = Table(CONFIG, folder=store, compaction=Policy())
    try:
        assert store_main(["compact", str(store)]) == 6
    finally:
        held.close()
    assert f"process {os.getpid()} on " in capsys.readouterr().err


def test_a_folder_without_a_store_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert store_main(["stat", str(tmp_path)]) == 4
    assert "holds no store" in capsys.readouterr().err


def _rows(table: Table) -> tuple[list[int], list[np.ndarray]]:
    feasigns, rows = table.read_all()
    return feasigns.tolist(), list(rows)


def test_a_slot_is_named_by_its_name_or_by_its_index_without_names() -> None:
    slots = Slots.model_validate({"slots": slots_fields(click="label", user="sparse", ad="sparse")})
    named = VersionRecord(1, 0, [], {}, 1, config={"slots": slots.model_dump(mode="json")})
    assert [report.index_of(named, slot) for slot in ("user", "ad")] == [0, 1]
    with pytest.raises(ConfigError, match="no slot 'adv'; did you mean 'ad'"):
        report.index_of(named, "adv")
    without = VersionRecord(1, 0, [], {}, 1)
    assert report.index_of(without, "7") == 7
    with pytest.raises(ConfigError, match="expected the index of a slot, found 'ad'"):
        report.index_of(without, "ad")
