"""A model of some ranks becomes one of another number of them, whenever it is interrupted."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox import ops
from paddlebox._native import core, paddle
from paddlebox.config import Config, load_config
from paddlebox.errors import ConfigError, OutOfSpaceError, StoreError
from paddlebox.ranks import World, adopt_stores, reshard
from paddlebox.ranks.adopt_stores import take_over
from paddlebox.ranks.recovery import agreed_passes
from paddlebox.ranks.reshard import overlapping, write_range
from paddlebox.ranks.sightings import Found, Sighting, valid_move
from paddlebox.store.compactor import DiskBudget
from paddlebox.store.copies import copy_version
from paddlebox.store.group import ONE_RANK, key_ranges
from paddlebox.store.options import LEAST_MEM_BYTES, TableOptions
from paddlebox.store.rank_stores import rank_versions, store_of_rank, sum_of_digests
from paddlebox.store.table import Table, sorted_unique_keys
from paddlebox.tools.upkeep.cli import store_main as store_tool
from tests.conftest import ROOT
from tests.ranks.threads import coordination, one_at_a_time

ROWS = 3000


@pytest.fixture(scope="module")
def config() -> Config:
    table = "table.admission={min_count: 2, filter_bytes: 65536}"
    return load_config(ROOT / "configs/dnn_synthetic.yaml", [table, "ssd.max_segment_bytes=64KiB"])


def _open(config: Config, store: Path, **arguments: Any) -> Table:
    arguments = {"mem_budget_bytes": LEAST_MEM_BYTES, "compaction": None, **arguments}
    return Table(config.table, seed=config.seed, folder=store, **arguments)


def _pass(table: Table, number: int, feasigns: np.ndarray, counted: int, ranks: int = 1) -> None:
    paddle.disable_static()
    feasigns = feasigns[np.argsort([core.mix(int(f)) for f in feasigns])]
    keys = sorted_unique_keys(feasigns)
    took = table.count_keys(keys, np.full(len(keys), counted, np.uint32))
    table.begin(table.stage(keys, np.zeros(len(keys), np.uint16), day=20000 + number))
    gradients = np.random.default_rng(number).normal(size=(len(feasigns), 11)).astype(np.float32)
    gradients[:, :2] = 1.0, 0.0
    ids = paddle.to_tensor(feasigns.view(np.int64))
    ops.push_box_sparse(ids, paddle.to_tensor(gradients))
    table.end(number)
    table.commit(
        day=20000 + number,
        pass_number=number,
        cursor={"pass": number, "ranks": ranks},
        counted=took,
        dense={"w": np.full(3, number, np.float32)},
    )


@pytest.fixture(scope="module")
def one(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run dir of a rank: two passes, a decay that the rows of the first alone have not seen,
    deltas that were saved, and feasigns that have occurred too seldom."""
    run_dir = tmp_path_factory.mktemp("one")
    feasigns = np.arange(1, ROWS + 1, dtype=np.uint64)
    with _open(config, run_dir / "store") as table:
        _pass(table, 1, feasigns, counted=2)
        table.life.end_of_day(20001, 0.5)
        table.life.reset_delta(table.first.save_filter(delta=True))
        _pass(table, 2, feasigns[: ROWS // 2] + np.uint64(ROWS // 4), counted=1)
    return run_dir


def _digest(run_dir: Path, config: Config) -> str:
    found = []
    for store, record in rank_versions(run_dir / "store"):
        with _open(config, store, read_only=True, version=record.version) as table:
            found.append(table.digest())
    return sum_of_digests(found)


def _counts(run_dir: Path, config: Config) -> np.ndarray:
    """What all ranks have counted, each in its range."""
    total = np.zeros(config.table.admission.filter_bytes, np.uint32)
    for store, record in rank_versions(run_dir / "store"):
        with _open(config, store, read_only=True, version=record.version) as table:
            found = table.first.admission_counts()
            assert found is not None
            total += found
    return total


def _as_ranks(source: Path, size: int, to: Path, config: Config) -> Path:
    stores = [(store, record.version) for store, record in rank_versions(source / "store")]
    for rank, own in enumerate(key_ranges(size)):
        write_range(
            [stores[r] for r in overlapping(own, len(stores))],
            config.tables,
            own,
            store_of_rank(to / "store", rank),
            version=stores[0][1] + 1,
            ranks=size,
            options=TableOptions(seed=config.seed, max_segment_bytes=1 << 16),
        )
    return to


def test_rows_clock_scores_counts_and_dense_state_are_the_same_over_any_number_of_ranks(
    one: Path, config: Config, tmp_path: Path
) -> None:
    expected, run_dir = _digest(one, config), one
    before = rank_versions(one / "store")[0][1]
    for number, size in enumerate([2, 4, 3, 1]):
        run_dir = _as_ranks(run_dir, size, tmp_path / str(number), config)
        assert _digest(run_dir, config) == expected
        stores = rank_versions(run_dir / "store")
        assert len(stores) == size
        for store, record in stores:
            assert record.version == before.version + number + 1
            assert record.live_rows < 1.5 * before.live_rows / size
            for name in ("events", "day", "pass_number"):
                assert getattr(record, name) == getattr(before, name)
            with _open(config, store, read_only=True, version=record.version) as table:
                np.testing.assert_array_equal(table.load_dense()["w"], [2.0, 2.0, 2.0])
        counts, of_one = _counts(run_dir, config), _counts(one, config)
        if size in (2, 4):
            np.testing.assert_array_equal(counts, of_one)
        else:  # three ranges end inside of blocks, which are counted on both sides
            assert np.all(counts >= of_one)
            assert np.count_nonzero(counts != of_one) <= 2 * 64


@pytest.fixture
def two(one: Path, config: Config, tmp_path: Path) -> Path:
    """The run dir of two ranks."""
    return _as_ranks(one, 2, tmp_path / "two", config)


class KilledError(Exception):
    pass


def _die_at(step: int, patch: pytest.MonkeyPatch) -> None:
    """Let the process die after so many changes of the folders of stores."""
    left = [step]

    def mortal(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *arguments: Any, **keywords: Any) -> None:
            if "store" in os.path.basename(path):
                left[0] -= 1
                if left[0] < 0:
                    raise KilledError
            real(path, *arguments, **keywords)

        return call

    patch.setattr(os, "rename", mortal(os.rename))
    patch.setattr(shutil, "rmtree", mortal(shutil.rmtree))


@pytest.mark.slow
def test_a_move_that_is_killed_at_any_step_is_made_by_the_next_start(
    one: Path, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, two = _digest(one, config), _as_ranks(one, 2, tmp_path / "two", config)
    for step in range(40):
        run_dir = Path(shutil.copytree(two, tmp_path / str(step)))
        with monkeypatch.context() as patch:
            _die_at(step, patch)
            try:
                take_over(run_dir, config, ONE_RANK)
                done = True
            except KilledError:
                done = False
        if not done:
            take_over(run_dir, config, ONE_RANK)
        assert _digest(run_dir, config) == expected
        assert [path.name for path in run_dir.glob("store*")] == ["store"]
        assert not list(run_dir.glob("ranks/*/store*"))
        if done:
            break
    assert done
    assert step > 3, "the move was hardly interrupted"


@pytest.mark.slow
def test_a_move_between_disks_that_is_killed_at_any_step_is_made_by_the_next_start(
    one: Path, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, done = _digest(one, config), False
    monkeypatch.setattr(adopt_stores, "write_range", one_at_a_time(write_range))
    for step in range(60):
        roots = [tmp_path / f"{step}-{rank}/run" for rank in range(2)]
        shutil.copytree(one, roots[0])

        def start(world: World, roots: list[Path] = roots) -> None:
            take_over(roots[world.rank], config, world)

        with monkeypatch.context() as patch:
            _die_at(step, patch)
            try:
                coordination(2, start)
                done = True
            except KilledError:
                pass
        if not done:
            coordination(2, start)
        found = []
        for rank, root in enumerate(roots):
            with _open(config, store_of_rank(root / "store", rank), read_only=True) as table:
                found.append(table.digest())
            assert len(list(root.glob("**/store*"))) == 1
        assert sum_of_digests(found) == expected
        if done:
            break
    assert done
    assert step > 6


def test_ranks_that_do_not_see_each_other_get_the_segments_with_keys_of_their_range(
    one: Path, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = _as_ranks(one, 2, tmp_path / "two", config)
    of_two = [record for _, record in rank_versions(two / "store")]
    roots = [tmp_path / f"host-{rank}" / "run" for rank in range(3)]
    for rank in range(2):
        to = store_of_rank(roots[rank] / "store", rank)
        to.parent.mkdir(parents=True)
        os.rename(store_of_rank(two / "store", rank), to)
    sent = list[tuple[int, dict[str, Any]]]()
    make_part = reshard._part

    def part(store: Path, version: int, own: tuple[int, int]) -> dict[str, Any]:
        found = make_part(store, version, own)
        sent.append((key_ranges(3).index(own), found))
        return found

    monkeypatch.setattr(reshard, "_part", part)
    monkeypatch.setattr(adopt_stores, "write_range", one_at_a_time(write_range))
    coordination(3, lambda world: take_over(roots[world.rank], config, world))
    found = []
    for rank, root in enumerate(roots):
        store = store_of_rank(root / "store", rank)
        with _open(config, store, read_only=True) as table:
            found.append(table.digest())
            assert table.head is not None
            assert table.head.events == of_two[0].events
            np.testing.assert_array_equal(table.load_dense()["w"], [2.0, 2.0, 2.0])
        assert len(list(root.glob("**/store*"))) == 1
    assert sum_of_digests(found) == _digest(one, config)
    # Rank 1 gets the part of rank 0 from a third on, rank 2 that of rank 1 from two thirds on.
    assert sorted(receiver for receiver, _ in sent) == [1, 2]
    for receiver, of_part in sent:
        files = {name for name, _ in of_part["files"] if name.startswith("ssd/")}
        first, last = key_ranges(3)[receiver]
        whole = of_two[receiver - 1].segments
        assert files == {
            f"ssd/{s['file']}" for s in whole if s["min_key"] <= last and s["max_key"] >= first
        }
    assert sum(len(of_part["files"]) for _, of_part in sent) < sum(
        len(record.segments) + len(record.dense) for record in of_two
    )


def test_a_full_disk_of_one_rank_is_one_error_on_all_and_the_old_store_is_as_before(
    one: Path,
    config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_dir, free = Path(shutil.copytree(one, tmp_path / "run")), DiskBudget.free_bytes
    roots = [run_dir, tmp_path / "other/run"]  # threads cannot open one manifest at a time

    def few(budget: DiskBudget) -> int:
        return 1000 if "/ranks/1/" in str(budget.folder) else free(budget)

    def move(world: World) -> str:
        try:
            take_over(roots[world.rank], config, world)
        except OutOfSpaceError as error:
            return str(error)
        return ""

    monkeypatch.setattr(adopt_stores, "write_range", one_at_a_time(write_range))
    with monkeypatch.context() as patch:
        patch.setattr(DiskBudget, "free_bytes", few)
        first, second = coordination(2, move)
    assert first == second
    assert re.search(
        r"rank 1 on \S+: \S+/ranks/1/store.moving: \d+ rows of \S+ need \d+ bytes, 1000 are free",
        first,
    )
    assert [path.name for path in tmp_path.glob("**/store*")] == ["store"]
    assert _digest(run_dir, config) == _digest(one, config)
    assert coordination(2, move) == ["", ""]
    os.rename(roots[1] / "ranks", run_dir / "ranks")
    assert len(rank_versions(run_dir / "store")) == 2
    assert _digest(run_dir, config) == _digest(one, config)


def test_the_log_shows_the_rows_that_were_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reshard, "_LOG_EVERY_S", 0.0)
    with caplog.at_level("INFO", "paddlebox"):
        reshard._progress(Path("run/store.moving"), [7, 8], lambda _: None)(5)
    assert "run/store.moving: 5 rows so far, from stores of 7 + 8 rows" in caplog.text


def test_ranks_whose_stores_cannot_be_seen_are_named_with_their_hashes(
    two: Path, config: Config
) -> None:
    shutil.rmtree(two / "ranks")
    with pytest.raises(ConfigError, match=r"rank 1, hashes 0x8000000000000000 to 0xf{16}"):
        take_over(two, config, ONE_RANK)


def test_a_rank_that_is_gone_is_moved_from_its_copy(
    one: Path, two: Path, config: Config, tmp_path: Path
) -> None:
    uri = tmp_path / "copies"
    (_, _), (store, record) = rank_versions(two / "store")
    copy_version(str(store), record, f"{uri}/ranks/1")
    shutil.rmtree(two / "ranks")
    checkpoint = config.checkpoint.model_copy(update={"copy_to": str(uri)})
    take_over(two, config.model_copy(update={"checkpoint": checkpoint}), ONE_RANK)
    assert _digest(two, config) == _digest(one, config)


def test_names_and_copies_are_of_all_ranks_and_a_name_keeps_them_as_they_are(
    one: Path, two: Path, config: Config, tmp_path: Path
) -> None:
    version, uri = str(rank_versions(two / "store")[0][1].version), tmp_path / "copies"
    assert store_tool(["name", str(two), version, "good"]) == 0
    with pytest.raises(StoreError, match=r"has the name 'good' and would be lost"):
        take_over(two, config, ONE_RANK)
    assert store_tool(["copy", str(two), str(uri), "--version", "good"]) == 0
    assert [path.name for path in uri.glob("**/checkpoints/*")] == ["good", "good"]
    assert store_tool(["unname", str(two), "good"]) == 0
    assert store_tool(["restore", f"{uri}/ranks/1", str(tmp_path / "restored")]) == 0
    take_over(two, config, ONE_RANK)
    assert _digest(two, config) == _digest(one, config)


class _BesideOther(World):
    """The first of two ranks, the other of which says always the same."""

    def __init__(self, other: int) -> None:
        super().__init__(0, 2)
        self._other = other

    def gather(self, what: str, mine: Any) -> list[Any]:
        return [mine, self._other]


def test_an_empty_rank_takes_no_more_from_the_others_than_their_first_commit(
    one: Path, config: Config, tmp_path: Path
) -> None:
    run_dir = Path(shutil.copytree(one, tmp_path / "run"))
    with pytest.raises(
        StoreError, match=r"0 passes, this one keeps versions after passes \[1, 2\]"
    ):
        agreed_passes(run_dir, 2, _BesideOther(0))
    assert agreed_passes(run_dir, 2, _BesideOther(1)) == 1
    assert agreed_passes(run_dir, 1, _BesideOther(0)) == 0


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (2, "other life events"),
        (1, r"do not belong together.*/store is rank 0 of 2, .*ranks/1/store is rank 1 of 1, "),
    ],
)
def test_stores_that_never_were_of_one_model_are_not_put_together(
    two: Path, config: Config, ranks: int, message: str
) -> None:
    feasigns = np.arange(1, 100, dtype=np.uint64)
    shutil.rmtree(two / "ranks/1/store")
    with _open(config, two / "ranks/1/store") as other:
        _pass(other, 1, feasigns, counted=2, ranks=ranks)
        other.life.end_of_day(20001, 0.25)
        _pass(other, 2, feasigns, counted=2, ranks=ranks)
    with pytest.raises(StoreError, match=message):
        take_over(two, config, ONE_RANK)
    assert (two / "store").is_dir()
    assert (two / "ranks/1/store").is_dir()


def test_a_store_that_an_earlier_move_has_left_is_not_part_of_a_later_one() -> None:
    def seen(rank: int, version: int) -> Sighting:
        return Sighting(rank, rank, Found(2, {version: version}, version), "")

    later = Found(2, {9: 9}, 9)
    assert valid_move([seen(0, 9)], [seen(1, 9)]) == later
    assert valid_move([seen(1, 7), seen(0, 9), seen(1, 9)], [seen(0, 7)]) == later
    assert valid_move([seen(0, 7)], [seen(0, 8), seen(1, 8)]) is None
    assert valid_move([seen(0, 9)], []) is None


def test_a_damaged_store_of_one_rank_is_one_error_on_all(
    two: Path, config: Config, tmp_path: Path
) -> None:
    roots = [two, tmp_path / "other/run"]
    roots[1].mkdir(parents=True)
    os.rename(two / "ranks", roots[1] / "ranks")
    data = roots[1] / "ranks/1/store/manifest/data.mdb"
    data.write_bytes(b"\0" * data.stat().st_size)

    def start(world: World) -> str:
        try:
            take_over(roots[world.rank], config, world)
        except StoreError as error:
            return str(error)
        return ""

    first, second = coordination(2, start)
    assert first == second
    assert first.startswith("rank 1 on ")


def test_the_store_tool_shows_and_checks_all_ranks(
    one: Path, two: Path, config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    assert store_tool(["verify", str(two)]) == 0
    assert capsys.readouterr().out.count("no damage") == 2
    assert store_tool(["digest", str(two)]) == 0
    assert f"all ranks: sparse_digest {_digest(one, config)}" in capsys.readouterr().out
    assert store_tool(["lookup", str(two), "1", "2", "3", "4"]) == 0
    assert capsys.readouterr().out.count("embed_w") == 4
    segment = next((two / "ranks/1/store/ssd").glob("*"))
    segment.write_bytes(segment.read_bytes()[:-9])
    assert store_tool(["verify", str(two)]) == 1
    assert "rank 1" in capsys.readouterr().out
