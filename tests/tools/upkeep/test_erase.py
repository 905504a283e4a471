"""`paddlebox store erase`: the rows are gone from every file, and everything else stays."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

from paddlebox import ops
from paddlebox._native import core
from paddlebox.data.history import History
from paddlebox.errors import ConfigError, CorruptionError, StoreError
from paddlebox.saves.reader import open_save
from paddlebox.saves.saver import Saver
from paddlebox.store import copies, erase_requests, life
from paddlebox.store.group import Group
from paddlebox.store.locks import KeptLock
from paddlebox.store.record import VersionRecord
from paddlebox.store.table import Table, sorted_unique_keys
from paddlebox.store.table_life import TableLife
from paddlebox.store.version_store import HISTORY, VersionStore
from paddlebox.tools.upkeep import erase as erase_tool
from paddlebox.tools.upkeep.cli import store_main
from tests.conftest import tool
from tests.faults.crash_images import build_preloaded
from tests.store.test_table_set import first_two, opened
from tests.support.marks import long
from tests.tools.upkeep.test_store_tool import CONFIG, newest, train

PASSES = 4
ERASED = [7, 1500, 3999]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Every pass has its own segments, and has changed the rows of ERASED."""
    paddle.disable_static()
    folder = tmp_path / "run" / "store"
    with open_table(folder) as table:
        for number in range(1, PASSES + 1):
            train(table, np.arange(1, 4001, number, dtype=np.uint64), number)
            train(table, np.array(ERASED, np.uint64), number)
    return folder


def open_table(folder: Path) -> Table:
    return Table(CONFIG, folder=folder, mem_budget_bytes=1 << 20, compaction=None, keep_versions=3)


def erase(store: Path, *arguments: str) -> None:
    assert store_main(["erase", str(store), *arguments]) == 0


def rows_of(store: Path) -> dict[int, bytes]:
    with Table(CONFIG, folder=store, mem_budget_bytes=1 << 20, read_only=True) as table:
        feasigns, rows = table.read_all()
    rows.view(np.uint32)[:, 5] = 0  # life_seq
    return {int(f): row.tobytes() for f, row in zip(feasigns, rows, strict=True)}


def traces(folder: Path, feasign: int) -> Iterator[str]:
    """Files below a folder with the feasign or its key, as bytes or as a number in a text."""
    key = int(core.mix(feasign))
    wanted = [key.to_bytes(8, "little"), str(key).encode()]
    if feasign > 2**32:
        wanted += [feasign.to_bytes(8, "little"), str(feasign).encode()]
    for where, _, names in os.walk(folder):
        for name in names:
            content = (Path(where) / name).read_bytes()
            if any(bytes_ in content for bytes_ in wanted):
                yield os.path.relpath(os.path.join(where, name), folder)


def test_erased_rows_are_in_no_file_of_the_run_and_all_others_stay(store: Path) -> None:
    before = rows_of(store)
    assert all(list(traces(store, feasign)) for feasign in ERASED)
    erase(store.parent, *map(str, ERASED), "--everywhere")
    assert not [name for feasign in ERASED for name in traces(store, feasign)]
    after = rows_of(store)
    assert after == {feasign: row for feasign, row in before.items() if feasign not in ERASED}
    assert store_main(["verify", str(store)]) == 0


def test_without_everywhere_older_versions_are_listed_and_go_later(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store_main(["name", str(store), str(newest(store).version - 1), "monday"])
    capsys.readouterr()
    assert store_main(["erase", str(store), "7", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rows"] == 1
    assert {one["kind"] for one in told["holders"]} == {"version", "name"}
    assert 7 not in rows_of(store)
    assert list(traces(store, 7))
    erase(store, "7", "--everywhere")
    assert not list(traces(store, 7))


def test_a_row_that_training_makes_later_stays(store: Path) -> None:
    erase(store, "7")
    with open_table(store) as table:
        train(table, np.array([7, 8], np.uint64), PASSES + 1)
        found, fields = table.lookup(np.array([7, 1500]))
        assert list(found) == [True, True]
        assert fields["show"][0] == 1.0
    assert store_main(["compact", str(store), "--full"]) == 0
    assert 7 in rows_of(store)


def test_a_training_run_erases_before_its_next_pass(store: Path) -> None:
    with KeptLock(store):
        erase(store, "7")
    assert len(erase_requests.read(store)) == 1
    with open_table(store) as table:
        assert table.lookup(np.array([7]))[0].all()
        table.life.erase_requested()
        assert not table.lookup(np.array([7]))[0].any()
        assert not erase_requests.read(store)
        table.compact()
    assert not [s for s in newest(store).segments if _has(store, s, 7)]


def test_a_request_is_carried_out_once(store: Path) -> None:
    request = erase_requests.add(store, [7], -1)
    asked = (store / "erase" / f"{request}.json").read_bytes()
    with open_table(store) as table:
        table.life.erase_requested()
        events = len(table.life._tables[0].events)
        (store / "erase" / f"{request}.json").write_bytes(asked)  # killed before it was removed
        table.life.erase_requested()
        assert len(table.life._tables[0].events) == events


def test_a_damaged_request_is_an_error_that_names_the_file(store: Path) -> None:
    request = erase_requests.add(store, [7], -1)
    (store / "erase" / f"{request}.json").write_text('{"feasigns": [0]')
    with pytest.raises(CorruptionError, match=f"{request}.json: not a request"):
        erase_requests.read(store)


def _has(store: Path, segment: dict[str, Any], feasign: int) -> bool:
    file = core.SegmentFile(str(store / "ssd" / segment["file"]), segment)
    return file.find(int(core.mix(feasign))) is not None


def test_a_staged_pass_trains_new_rows_in_place_of_erased_ones(store: Path) -> None:
    with open_table(store) as table:
        staged = table.stage(sorted_unique_keys(np.array([7, 9], np.uint64)), day=20009)
        table.life.erase(np.array([7], np.uint64))
        table.begin(staged)
        table.end(PASSES + 1)
        table.commit(pass_number=PASSES + 1)
        assert list(table.lookup(np.array([7, 9]))[0]) == [False, True]


def test_a_slot_is_erased_as_a_whole_and_only_with_yes(store: Path) -> None:
    with open_table(store) as table:
        feasigns = np.arange(5001, 5101, dtype=np.uint64)
        keys = sorted_unique_keys(feasigns)
        table.begin(table.stage(keys, np.full(len(keys), 3, np.uint16)))
        ids = paddle.to_tensor(feasigns.view(np.int64))
        grad = np.ones((len(feasigns), 3 + CONFIG.embedx_dim), np.float32)
        ops.push_box_sparse(ids, paddle.to_tensor(grad))
        table.end(PASSES + 1)
        table.commit(pass_number=PASSES + 1)
    before = rows_of(store)
    assert store_main(["erase", str(store), "--slot", "3"]) != 0
    assert rows_of(store) == before
    erase(store, "--slot", "3", "--yes", "--everywhere")
    assert rows_of(store) == {f: row for f, row in before.items() if f <= 5000}
    assert not [name for f in (5001, 5050) for name in traces(store, f)]


def test_a_delta_deletes_erased_rows_and_older_saves_are_listed(store: Path) -> None:
    out = store.parent / "saves"
    with open_table(store) as table:
        saver = Saver(table, str(out))
        saver.base()
        table.life.erase(np.array([7], np.uint64))
        saver.delta()
    saves = [open_save(meta.parent) for meta in sorted(out.glob("*/*/meta.json"))]
    deleted = {save.meta["kind"]: [int(f) for one in save.deleted() for f in one] for save in saves}
    assert deleted == {"base": [], "delta": [7]}
    held = list(erase_tool._saves(str(out), erase_tool.Erased((7,))))
    assert [Path(one.where).name for one in held] == ["base"]


def test_copies_of_older_versions_are_replaced_and_those_of_other_runs_stay(
    store: Path, tmp_path: Path
) -> None:
    uri = str(tmp_path / "copies")
    with VersionStore.open_reader(store) as manifest:
        for record in manifest.records():
            copies.copy_version(str(store), record, uri)
    other = newest(store)
    foreign = VersionRecord(**{**asdict(other), "created_at": "2020-01-01T00:00:00+00:00"})
    copies.copy_version(str(store), foreign, uri, "other")
    assert set(erase_tool._old_copies(store, uri)) == set()
    erase(store, "7")
    old = erase_tool._old_copies(store, uri)
    assert len(old) == len(copies.all_copies(uri)) - 1
    erase_tool._copy_again(store, uri)
    assert {label for label, _ in copies.all_copies(uri)} == {
        "other",
        copies.label_of(newest(store)),
    }
    copies.remove_copies(uri, ["other"])
    assert not list(traces(Path(uri), 7))
    restored = tmp_path / "restored"
    copies.restore(uri, restored)
    assert rows_of(restored / "store") == rows_of(store)


def test_histories_lose_users_and_values() -> None:
    # User 1: events (5 | 6) and (7 | ); user 2: (6 | 8).
    history = History(
        np.array([1, 2], np.uint64),
        np.array([3, 3]),
        np.array([2, 1]),
        np.array([2, 1]),
        np.array([10, 11, 12]),
        np.array([0, 1, 0], np.float32),
        np.zeros((3, 1), np.float32),
        np.array([[1, 1], [1, 0], [1, 1]], np.uint32),
        np.array([5, 6, 7, 6, 8], np.uint64),
    )
    left = history.without(np.array([1], np.uint64))
    assert left.users.tolist() == [2]
    assert left.times.tolist() == [12]
    assert left.feasigns.tolist() == [6, 8]
    left = history.without(np.array([6], np.uint64))
    assert left.users.tolist() == [1, 2]
    assert left.sizes.tolist() == [[1, 0], [1, 0], [0, 1]]
    assert left.feasigns.tolist() == [5, 7, 8]
    left = history.without(np.array([], np.uint64), slot=0)
    assert left.sizes.tolist() == [[0, 1], [0, 0], [0, 1]]
    assert left.feasigns.tolist() == [6, 8]
    History.of(left.arrays(), 2, 1)


def test_a_run_that_keeps_histories_must_be_stopped(store: Path) -> None:
    with open_table(store) as table:
        keys = sorted_unique_keys(np.array([9], np.uint64))
        table.begin(table.stage(keys))
        table.end(PASSES + 1)
        dense = {HISTORY + "users": np.array([7], np.uint64)}
        table.commit(pass_number=PASSES + 1, dense=dense)
    with KeptLock(store), pytest.raises(StoreError, match="stop it, and repeat"):
        erase_tool.ask(store, erase_tool.Erased((7,)))


@pytest.fixture
def ranks(store: Path) -> list[Path]:
    """The stores of a run of two ranks, which have the same rows here."""
    with open_table(store) as table:
        table.begin(table.stage(sorted_unique_keys(np.array([9], np.uint64))))
        table.end(PASSES + 1)
        table.commit(pass_number=PASSES + 1, cursor={"pass": PASSES + 1, "ranks": 2})
    second = store.parent / "ranks" / "1" / "store"
    shutil.copytree(store, second)
    return [store, second]


def requests_of(store: Path) -> list[str]:
    return [event["request"] for event in newest(store).events if event["kind"] == life.ERASE]


def test_the_stores_and_the_copies_of_all_ranks_are_erased(
    ranks: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir, folder = ranks[0].parent, ranks[0].parent / "copies"
    uri = f"file://{folder}?secret=1234"
    config = {"checkpoint": {"copy_to": uri}, "save": {"copy_to": "s3://me:1234@host/saves"}}
    monkeypatch.setattr(erase_tool, "_config", lambda _: config)
    assert store_main(["copy", str(run_dir), uri]) == 0
    capsys.readouterr()
    erase(run_dir, "7", "--json")
    out = capsys.readouterr().out
    assert "1234" not in out
    told = json.loads(out)
    assert told["rows"] == 2
    assert {one["where"].split()[0] for one in told["holders"] if one["kind"] == "copy"} == {
        f"file://{folder}",
        f"file://{folder}/ranks/1",
    }
    erase(run_dir, "7", "--everywhere")
    assert not list(traces(run_dir, 7))
    label = copies.label_of(newest(ranks[1]))
    assert [one for one, _ in copies.all_copies(copies.of_rank(uri, 1))] == [label]


def test_no_store_changes_before_those_of_all_ranks_are_locked(ranks: list[Path]) -> None:
    versions = [newest(one).version for one in ranks]
    with KeptLock(ranks[1]):
        erase(ranks[0].parent, "7")
    assert [newest(one).version for one in ranks] == versions
    assert len(erase_requests.read(ranks[0])) == 1
    erase(ranks[0].parent, "1500")  # carries out what waits, too
    assert not erase_requests.read(ranks[0])
    assert len(requests_of(ranks[0])) == 2
    assert requests_of(ranks[0]) == requests_of(ranks[1])
    assert all(newest(one).version > version for one, version in zip(ranks, versions, strict=True))


def test_a_part_of_the_ranks_or_tables_is_refused(ranks: list[Path]) -> None:
    shutil.rmtree(ranks[0].parent / "ranks")
    version = newest(ranks[0]).version
    with pytest.raises(StoreError, match="is of 2 ranks, expected the stores of all"):
        erase_tool.run_erase(ranks[:1], erase_tool.Erased((7,)), everywhere=False)
    shutil.copytree(ranks[0], ranks[0] / "tables" / "wide")
    with pytest.raises(StoreError, match="wide: is one of several tables: give the run dir"):
        erase_tool.run_erase([ranks[0] / "tables/wide"], erase_tool.Erased((7,)), everywhere=False)
    assert newest(ranks[0]).version == version


def test_each_rank_carries_out_the_requests_of_the_first_once(ranks: list[Path]) -> None:
    asked = [erase_requests.add(ranks[0], [one], -1) for one in (7, 1500)]
    with open_table(ranks[1]) as table:  # killed after the first request, before it was removed
        table.life.erase(np.array([7], np.uint64), request=asked[0])

    told: list[Any] = []

    class Rank(Group):
        def first(self, what: str, mine: Any) -> Any:
            told.extend(mine)
            return told

    for number, store in enumerate(ranks):
        with open_table(store) as table:
            world = Rank()
            world.rank, world.size = number, 2
            TableLife([table.first], table.committer, world).erase_requested()
            found = table.lookup(np.array([7, 1500, 9]))[0]
        assert found.tolist() == [False, False, True]
        assert requests_of(store) == asked
    assert not erase_requests.read(ranks[0])


def test_all_tables_of_a_run_lose_the_row(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as group:
        first_two(group)
    erase(tmp_path, "45", "65", "--everywhere")
    with opened(tmp_path / "store") as group:
        for table in group.members:
            assert not table.lookup(np.array([45, 65], np.uint64))[0].any()
            assert table.lookup(np.array([46, 66], np.uint64))[0].all()
        assert group.digest()
    assert not [name for feasign in (45, 65) for name in traces(tmp_path, feasign)]
    assert store_main(["verify", str(tmp_path / "store")]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "on", "at"),
    [
        ("recorder", "/ranks/1/store/ssd/", 1),
        long("recorder", "/erase/", 3),
        long("recorder", "/store/ssd/", 1),
        long("recorder", "/store/manifest/data.mdb", 1),
        long("recorder", "/store/manifest.tmp", 2),
        long("recorder", "/store/checkpoints/", 1),
        ("full", "/ranks/1/store/ssd/", 0),
        long("full", "/erase/", 0),
        long("full", "/store/manifest/data.mdb", 0),
    ],
)
def test_a_command_that_is_killed_or_finds_no_room_is_repeated(
    library: str, on: str, at: int, ranks: list[Path], tmp_path: Path
) -> None:
    run_dir, preloaded = ranks[0].parent, str(build_preloaded(tmp_path, library))
    assert store_main(["name", str(ranks[0]), str(newest(ranks[0]).version - 1), "monday"]) == 0
    before = rows_of(ranks[0])
    environment = {"LD_PRELOAD": preloaded, "PBX_ROOT": str(run_dir)}
    environment |= {"PBX_KILL_ON": on, "PBX_KILL_AT": str(at)}
    environment |= {"PBX_FULL_ON": on, "PBX_FULL_AFTER": str(at)}
    command = ["store", "erase", str(run_dir), *map(str, ERASED), "--everywhere"]
    done = tool(*command, env=environment)
    assert done.returncode == (4 if library == "full" else -signal.SIGKILL), done.stderr
    assert "Traceback" not in done.stderr
    assert library != "full" or "o space" in done.stderr
    for store in ranks:
        assert len({feasign in rows_of(store) for feasign in ERASED}) == 1
        assert store_main(["verify", str(store)]) == 0
    assert tool(*command).returncode == 0
    assert not [name for feasign in ERASED for name in traces(run_dir, feasign)]
    expected = {feasign: row for feasign, row in before.items() if feasign not in ERASED}
    assert [rows_of(store) for store in ranks] == [expected, expected]
    assert requests_of(ranks[0]) == requests_of(ranks[1])


def test_too_many_feasigns_are_refused(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life, "MOST_ERASED_KEYS", 2)
    before = newest(store).version
    with open_table(store) as table, pytest.raises(ConfigError, match="3 feasigns at once"):
        table.life.erase(np.array([1, 2, 3], np.uint64))
    assert newest(store).version == before
