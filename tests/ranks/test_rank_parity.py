"""Parity across ranks: the store of any one rank comes back to the bit; what cannot is named."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paddlebox import ops
from paddlebox._native import paddle
from paddlebox.config import Config, load_config
from paddlebox.errors import StoreError
from paddlebox.ranks import World, adopt_stores, rebuild
from paddlebox.ranks.adopt_stores import take_over
from paddlebox.ranks.link import Hosts
from paddlebox.ranks.parity import Parity, RankParity, group_of, kept_sets
from paddlebox.ranks.reshard import write_range
from paddlebox.store import copies, files, parity_set
from paddlebox.store.compaction import Policy
from paddlebox.store.files import crc32c
from paddlebox.store.group import ONE_RANK, key_ranges
from paddlebox.store.options import LEAST_MEM_BYTES, TableOptions
from paddlebox.store.parity_set import (
    ParitySet,
    RankFiles,
    SetFile,
    SetFolder,
    block_bytes,
    protected_files,
)
from paddlebox.store.rank_stores import rank_versions, store_of_rank
from paddlebox.store.record import VersionRecord
from paddlebox.store.table import Table, sorted_unique_keys
from paddlebox.store.version_store import VersionStore
from paddlebox.tools.upkeep.cli import store_main as store_tool
from paddlebox.tools.upkeep.verify import parity_damage
from paddlebox.training import assembly
from tests.conftest import ROOT
from tests.ranks.threads import coordination, one_at_a_time
from tests.support.marks import long, slow


@pytest.fixture(scope="module")
def config() -> Config:
    table = "table.admission={min_count: 2, filter_bytes: 65536}"
    return load_config(ROOT / "configs/dnn_synthetic.yaml", [table, "ssd.max_segment_bytes=64KiB"])


class Ranks:
    """The stores of some ranks, which commit together."""

    def __init__(self, run_dir: Path, config: Config, size: int) -> None:
        self.run_dir, self.config, self.size, self.passes, self.salt = run_dir, config, size, 0, 0

    def apart(self) -> list[Path]:
        """Move the folder of each rank to a host that sees no other. Returns their run dirs."""
        roots = []
        for rank in range(self.size):
            roots.append(self.run_dir.with_name(f"host-{rank}") / "run")
            to = store_of_rank(roots[-1] / "store", rank)
            to.parent.mkdir(parents=True)
            os.rename(self.store(rank), to)
        shutil.rmtree(self.run_dir)
        return roots

    def store(self, rank: int) -> Path:
        return store_of_rank(self.run_dir / "store", rank)

    def train(self, passes: int = 1, *, merge: bool = False, protect: bool = True) -> None:
        """Each rank trains and commits passes of its own feasigns, and protects each of them."""
        paddle.disable_static()
        for _ in range(passes):
            self.passes += 1
            for rank in range(self.size):
                self._pass(rank, merge)
            if protect:
                self.protect()

    def _pass(self, rank: int, merge: bool) -> None:
        number = self.passes
        count = 1500 + 400 * rank
        draw = np.random.default_rng(1000 * self.salt + 100 * number + rank)
        feasigns = np.unique(draw.integers(1, 4000, count).astype(np.uint64))
        policy = Policy(min_bytes=0, merge_depth=2, space_target=1.05) if merge else None
        with self._open(rank, policy) as table:
            keys = sorted_unique_keys(feasigns)
            took = table.count_keys(keys, np.full(len(keys), 2, np.uint32))
            table.begin(table.stage(keys, np.zeros(len(keys), np.uint16), day=20000 + number))
            gradients = draw.normal(size=(len(feasigns), 11)).astype(np.float32)
            gradients[:, :2] = 1.0, 0.0
            ops.push_box_sparse(
                paddle.to_tensor(feasigns.view(np.int64)), paddle.to_tensor(gradients)
            )
            table.end(number)
            table.commit(
                day=20000 + number,
                pass_number=number,
                cursor={"pass": number, "ranks": self.size},
                counted=took,
                dense={"w": np.full(30 + rank, number, np.float32)},
            )
            if merge:
                table.compact()

    def _open(self, rank: int, policy: Policy | None) -> Table:
        return Table(
            self.config.table,
            folder=self.store(rank),
            seed=self.config.seed,
            mem_budget_bytes=LEAST_MEM_BYTES,
            max_segment_bytes=1 << 16,
            compaction=policy,
        )

    def head(self, rank: int) -> VersionRecord:
        with VersionStore.open_reader(self.store(rank)) as manifest:
            found = manifest.newest()
            assert found is not None
            return found

    def protect(
        self, group: int = 0, per_host: int = 0, spoil: Any = None, free_bytes: int = 1 << 40
    ) -> None:
        """What the hook does after a commit."""

        def call(world: World) -> None:
            one = RankParity(
                self.store(world.rank),
                world,
                group_of(world.hosts, group or world.size),
                lambda: free_bytes,
            )
            if spoil is not None:
                spoil(world.rank, one)
            one.offer(self.head(world.rank))
            one.finish()
            one.close()

        coordination(self.size, call, per_host)

    def sets(self, rank: int) -> list[str]:
        """The keys of the sets that a rank has."""
        found, wrong = SetFolder(self.store(rank)).open_sets()
        assert wrong == []
        keys = [one.set.key for one in found]
        for one in found:
            one.check()
            one.close()
        return keys

    def content(self, rank: int) -> dict[str, bytes]:
        """Name -> bytes, of all that the newest version of a rank needs."""
        store = self.store(rank)
        names = protected_files(str(store), self.head(rank))
        return {name: (store / name).read_bytes() for name in names}

    def lose(self, rank: int) -> None:
        store = self.store(rank)
        shutil.rmtree(store if rank == 0 else store.parent)

    def start(self) -> None:
        coordination(self.size, lambda world: take_over(self.run_dir, self.config, world))


@pytest.fixture
def make(config: Config, tmp_path: Path) -> Callable[[int], Ranks]:
    return lambda size: Ranks(tmp_path / "run", config, size)


@pytest.mark.parametrize("size", [2, slow(3), long(4)])
def test_each_rank_in_turn_comes_back_to_the_bit(make: Callable[[int], Ranks], size: int) -> None:
    ranks = make(size)
    ranks.train(3)
    for rank in range(size):
        before, record = ranks.content(rank), ranks.head(rank)
        ranks.lose(rank)
        ranks.start()
        assert ranks.head(rank) == record
        assert ranks.content(rank) == before
        assert store_tool(["verify", str(ranks.store(rank))]) == 0
        ranks.protect()  # as the same start does: the rebuilt rank has no parity
        assert len({tuple(ranks.sets(one)) for one in range(size)}) == 1


def test_it_comes_back_after_merges_have_removed_files_of_its_sets(
    make: Callable[[int], Ranks],
) -> None:
    """The files are made up; all of the first rank's are merged."""
    ranks = make(3)
    segments = {
        rank: [_segment(ranks.store(rank), number, 85000) for number in (1, 2, 3)]
        for rank in range(3)
    }
    for rank in range(3):
        _commit(ranks.store(rank), 3, segments[rank])
    ranks.protect()
    segments[0] = [_segment(ranks.store(0), 4, 150000)]
    for number in (4, 5):
        for rank in range(3):
            segments[rank].append(_segment(ranks.store(rank), 10 + number, 85000))
            _commit(ranks.store(rank), number, segments[rank])
        ranks.protect()
    linked = {path.name for path in SetFolder(ranks.store(0)).path.glob("*/ssd/*")}
    left = {path.name for path in (ranks.store(0) / "ssd").iterdir()}
    assert linked - left == {f"seg-{number:012d}.seg" for number in (1, 2, 3)}
    before = ranks.content(1)
    ranks.lose(1)
    ranks.start()
    assert ranks.content(1) == before


def _segment(store: Path, number: int, size: int) -> dict[str, Any]:
    name = f"seg-{number:012d}.seg"
    (store / "ssd").mkdir(parents=True, exist_ok=True)
    (store / "ssd" / name).write_bytes(os.urandom(size))
    fields = dict.fromkeys(("rows", "min_key", "max_key", "footer_crc"), 1)
    fields |= {"id": number, "sequence": number, "bytes": size}
    return {**fields, "file": name, "stamp": "0123456789abcdef"}


def _commit(store: Path, number: int, segments: list[dict[str, Any]]) -> None:
    with VersionStore.open_writer(store) as manifest:
        before = manifest.newest() or VersionRecord(0, 0, [], {}, 0)
        folder = store / "dense" / f"{before.version + 1:012d}"
        folder.mkdir(parents=True)
        content = os.urandom(1000)
        (folder / "dense.bin").write_bytes(content)
        record = before.following(
            "pass",
            segments=list(segments),
            pass_number=number,
            cursor={"pass": number, "ranks": 3},
            dense={"dense.bin": {"bytes": len(content), "crc32c": crc32c(content)}},
            dense_version=before.version + 1,
        )
        manifest.append(record)
        manifest.retention.prune(2)


@pytest.mark.slow
def test_a_name_that_is_used_again_after_going_back_stands_for_the_newest_file(
    make: Callable[[int], Ranks],
) -> None:
    ranks = make(2)
    ranks.train(3, protect=False)
    ranks.protect()  # a set with the files of all passes
    names = set(ranks.content(0))
    for rank in range(2):
        newest = ranks.head(rank).version
        with VersionStore.open_writer(ranks.store(rank)) as manifest:
            manifest.retention.go_back(newest - 1)
    ranks.passes, ranks.salt = 2, 1
    ranks.train(1)
    before = ranks.content(0)
    assert set(before) == names
    assert len(ranks.sets(0)) == 2
    ranks.lose(0)
    ranks.start()
    assert ranks.content(0) == before
    assert store_tool(["verify", str(ranks.store(0))]) == 0


@pytest.mark.slow
def test_sets_follow_the_versions_and_take_as_much_space_as_they_say(
    make: Callable[[int], Ranks],
) -> None:
    ranks = make(3)
    ranks.train(8, merge=True)
    (newest, *_) = ranks.sets(0)[::-1]
    for rank in range(3):
        folder = SetFolder(ranks.store(rank))
        found, _ = folder.open_sets()
        assert [one.set.key for one in found][-1] == newest
        named = protected_files(str(ranks.store(rank)), ranks.head(rank))
        held = {name for one in found for name, _ in one.own.files if folder.holds(one, name)}
        assert set(named) - held == set()  # each file of the version is in a set
        stored = sum(one.path.stat().st_size for one in found)
        most = max(sum(one.set.parts[of].bytes for one in found) for of in range(3))
        assert stored < 0.6 * most + 20000  # one byte for two, and the indexes
        names = {path.name for path in folder.path.iterdir()}
        assert names == {f"{one.set.number:012d}{end}" for one in found for end in ("", ".set")}
        for one in found:
            one.close()


def test_nothing_is_written_if_the_version_is_protected(make: Callable[[int], Ranks]) -> None:
    ranks = make(2)
    ranks.train(2)
    before = [path.stat().st_mtime_ns for path in SetFolder(ranks.store(0)).path.glob("*.set")]
    ranks.protect()
    after = [path.stat().st_mtime_ns for path in SetFolder(ranks.store(0)).path.glob("*.set")]
    assert after == before != []


@pytest.mark.slow
def test_sets_that_a_killed_process_did_not_remove_go_though_nothing_is_written(
    make: Callable[[int], Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = make(2)
    with monkeypatch.context() as patch:
        patch.setattr(SetFolder, "keep", lambda *_: None)
        ranks.train(8, merge=True)
    stayed = ranks.sets(0)
    ranks.protect()
    assert len(ranks.sets(0)) < len(stayed) == 8
    before = ranks.content(0)
    ranks.lose(0)
    ranks.start()
    assert ranks.content(0) == before


def test_a_set_that_would_exceed_the_disk_budget_is_given_up(
    make: Callable[[int], Ranks], caplog: pytest.LogCaptureFixture
) -> None:
    ranks = make(2)
    ranks.train(1)
    before = [ranks.sets(rank) for rank in range(2)]
    ranks.train(1, protect=False)
    ranks.protect(free_bytes=5000)
    assert "rank_parity: a parity set needs up to" in caplog.text
    assert "bytes, 5000 are free on the disk or of ssd.disk_budget_bytes" in caplog.text
    assert [ranks.sets(rank) for rank in range(2)] == before


def test_a_rank_that_cannot_read_its_sets_is_named_and_loses_none(
    make: Callable[[int], Ranks], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = make(2)
    ranks.train(2)
    before = [ranks.sets(rank) for rank in range(2)]

    def unreadable() -> Any:
        raise OSError("input/output error")

    def spoil(rank: int, one: RankParity) -> None:
        """The sets of later versions can still be looked for, before this."""
        if rank == 1:
            forget_later = one._folder.forget_later

            def then_spoil(*arguments: int) -> None:
                forget_later(*arguments)
                monkeypatch.setattr(one._folder, "open_sets", unreadable)

            monkeypatch.setattr(one._folder, "forget_later", then_spoil)

    ranks.protect(spoil=spoil)
    assert f"parity of ranks is not complete: rank 1, {ranks.store(1)}: input/output" in caplog.text
    assert [ranks.sets(rank) for rank in range(2)] == before


def test_a_set_that_one_rank_could_not_write_is_given_up_and_named(
    make: Callable[[int], Ranks], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = make(3)
    ranks.train(2)
    before = [ranks.sets(rank) for rank in range(3)]
    ranks.train(1, protect=False)

    def full(rank: int, one: RankParity) -> None:
        def append(*_: Any) -> None:
            raise StoreError("no space to write a parity set")

        if rank == 1:
            folder = one._folder
            make_writer = folder.writer

            def writer(number: int) -> Any:
                made = make_writer(number)
                monkeypatch.setattr(made, "append", append)
                return made

            monkeypatch.setattr(folder, "writer", writer)

    ranks.protect(spoil=full)
    assert f"parity of ranks is not complete: rank 1, {ranks.store(1)}: no space to" in caplog.text
    assert [ranks.sets(rank) for rank in range(3)] == before
    for rank in range(3):
        assert not list(SetFolder(ranks.store(rank)).path.glob("*.tmp"))
    ranks.lose(2)
    ranks.start()  # the newest pass has no parity: the pass before it
    assert ranks.head(2).pass_number == 2
    ranks.protect()


class KilledError(Exception):
    pass


@pytest.mark.slow
def test_killed_at_any_change_of_a_file_there_is_parity_for_a_pass_that_all_ranks_have(
    make: Callable[[int], Ranks], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a set is written, and the sets that it replaces are removed."""
    ranks = make(2)
    ranks.train(5, merge=True)
    ranks.train(1, merge=True, protect=False)
    saved = Path(shutil.copytree(ranks.run_dir, tmp_path / "saved", copy_function=os.link))
    newest, done = ranks.head(1), False
    for step in range(60):
        shutil.rmtree(ranks.run_dir)
        shutil.copytree(saved, ranks.run_dir, copy_function=os.link)
        done = _protect_until(ranks, step, monkeypatch)
        ranks.lose(1)
        ranks.start()
        assert ranks.head(1).pass_number in (5, 6)
        assert not done or ranks.head(1) == newest
        assert store_tool(["verify", str(ranks.store(1))]) == 0
        if done:
            break
    assert done
    assert step > 8


def _protect_until(ranks: Ranks, step: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """All ranks die at the n-th change of a file. Returns whether they were done before."""
    left = [step]

    def mortal(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            if any(parity_set.FOLDER in os.fspath(path) for path in arguments[:1]):
                left[0] -= 1
                if left[0] < 0:
                    raise KilledError
            return real(*arguments, **keywords)

        return call

    with monkeypatch.context() as patch:
        for owner, name in ((os, "rename"), (os, "unlink"), (shutil, "rmtree"), (os, "mkdir")):
            patch.setattr(owner, name, mortal(getattr(owner, name)))
        with contextlib.suppress(KilledError, threading.BrokenBarrierError):
            ranks.protect()
            return True
    assert left[0] < 0
    return False


def test_killed_while_it_is_rebuilt_the_next_start_rebuilds_it(
    make: Callable[[int], Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = make(3)
    ranks.train(2)
    before = ranks.content(0)
    ranks.lose(0)
    rename = os.rename

    def dying(path: Any, *arguments: Any) -> None:
        if str(path).endswith("store.restoring"):
            raise KilledError
        rename(path, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", dying)
        with pytest.raises(Exception):  # noqa: B017  of whichever rank comes first
            ranks.start()
    assert not (ranks.store(0) / "manifest").exists()
    ranks.start()
    assert ranks.content(0) == before
    assert not list(ranks.run_dir.glob("store.*"))


@pytest.mark.parametrize("what", ["a file", "a row"])
def test_damage_that_prevents_a_rebuild_is_named_on_every_rank(
    make: Callable[[int], Ranks], what: str
) -> None:
    ranks = make(3)
    ranks.train(1)
    folder = SetFolder(ranks.store(2)).path
    path = sorted(folder.glob("*.set") if what == "a row" else folder.glob("*/ssd/*.seg"))[0]
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.unlink()  # a new inode: the store's own file is not damaged
    path.write_bytes(content)
    ranks.lose(1)
    named = r"ssd/\S+: \d+ bytes have CRC32C" if what == "a file" else r"\S+\.set: row 0 has"
    with pytest.raises(
        StoreError, match=rf"^rank 1 cannot be rebuilt: rank 2 on \S+: (rank 2: .*)?{named} [^;]*$"
    ):
        ranks.start()
    assert not ranks.store(1).exists()
    assert store_tool(["verify", str(ranks.store(2))]) == 1


def test_two_lost_ranks_of_a_group_are_named_with_the_passes_that_there_are(
    make: Callable[[int], Ranks],
) -> None:
    ranks = make(3)
    ranks.train(1)
    ranks.lose(1)
    ranks.lose(2)
    with pytest.raises(StoreError, match=r"rank 1 .* is gone, .* rank 1 has no store"):
        ranks.start()


@pytest.mark.slow
def test_one_rank_of_each_group_can_be_lost(make: Callable[[int], Ranks]) -> None:
    ranks = make(4)
    ranks.train(2, protect=False)
    ranks.protect(group=2, per_host=2)  # (0, 2) and (1, 3)
    before = [ranks.content(rank) for rank in range(4)]
    ranks.lose(2)
    ranks.lose(3)
    ranks.start()
    assert [ranks.content(rank) for rank in range(4)] == before


def test_a_rank_that_is_lost_and_not_replaced_is_rebuilt_before_its_rows_are_moved(
    make: Callable[[int], Ranks], config: Config
) -> None:
    ranks = make(3)
    ranks.train(2)
    _in_range(ranks)
    ranks.protect()
    expected: dict[int, bytes] = {}
    for rank in range(3):
        expected |= _rows(ranks.store(rank), config)
    ranks.lose(1)
    take_over(ranks.run_dir, config, ONE_RANK)
    assert len(rank_versions(ranks.run_dir / "store")) == 1
    assert _rows(ranks.store(0), config) == expected
    assert not list(ranks.run_dir.glob("**/store.*"))


def test_a_rank_with_parity_and_a_rank_with_a_copy_are_brought_back_together(
    make: Callable[[int], Ranks], config: Config, tmp_path: Path
) -> None:
    """Before their rows are moved. Two of a group of two are lost, and one of the other group."""
    ranks = make(4)
    ranks.train(2, protect=False)
    _in_range(ranks)
    ranks.protect(group=2, per_host=2)  # (0, 2) and (1, 3)
    expected: dict[int, bytes] = {}
    for rank in range(4):
        expected |= _rows(ranks.store(rank), config)
    for rank in (1, 3):
        uri = f"{tmp_path}/copies/ranks/{rank}"
        copies.copy_version(str(ranks.store(rank)), ranks.head(rank), uri)
    for rank in (1, 2, 3):
        ranks.lose(rank)
    checkpoint = config.checkpoint.model_copy(update={"copy_to": f"{tmp_path}/copies"})
    take_over(ranks.run_dir, config.model_copy(update={"checkpoint": checkpoint}), ONE_RANK)
    assert _rows(ranks.store(0), config) == expected


@pytest.mark.parametrize("agents", [(0, None, 1, 1), (0, None, 0, 0), (1, None, 1, 0)])
def test_a_rank_that_reads_several_folders_sends_a_holder_one_block_of_all(
    make: Callable[[int], Ranks],
    agents: Sequence[int | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """agents: the rank of the new job that reads the folder of each former one."""
    ranks = make(4)
    ranks.train(2)
    (newest,) = ranks.sets(1)[-1:]
    before, sent = ranks.content(1), list[int]()
    real = rebuild._Rebuilding._exchange

    def exchange(one: rebuild._Rebuilding, row: int) -> list[list[np.ndarray]]:
        found = real(one, row)
        of_others = [of for at, of in enumerate(found) if at != one._world.rank]
        sent.extend(sum(map(len, of)) for of in of_others)
        assert all(size <= 3 * one._set.block_bytes for size in sent)
        return found

    def call(world: World) -> None:
        stores = {one: ranks.store(one) for one in range(4) if agents[one] == world.rank}
        known = rebuild.look(stores, world)
        rebuild.rebuild(1, newest, tmp_path / "rebuilt/store", 0, known, world)

    monkeypatch.setattr(rebuild._Rebuilding, "_exchange", exchange)
    (tmp_path / "rebuilt").mkdir()
    coordination(2, call)
    assert {name: (tmp_path / "rebuilt/store" / name).read_bytes() for name in before} == before
    assert any(sent) == (len({*agents}) > 2)


@pytest.mark.parametrize(
    "lost", [pytest.param(0, marks=pytest.mark.slow), 1, pytest.param(2, marks=pytest.mark.slow)]
)
def test_a_host_that_is_lost_and_not_replaced_is_rebuilt_though_no_disk_is_shared(
    make: Callable[[int], Ranks], config: Config, lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = make(3)
    ranks.train(2)
    _in_range(ranks)
    ranks.protect()
    expected: dict[int, bytes] = {}
    for rank in range(3):
        expected |= _rows(ranks.store(rank), config)
    roots = ranks.apart()
    monkeypatch.setattr(adopt_stores, "write_range", one_at_a_time(write_range))
    shutil.rmtree(roots.pop(lost))
    coordination(2, lambda world: take_over(roots[world.rank], config, world))
    parts = [_rows(store_of_rank(root / "store", rank), config) for rank, root in enumerate(roots)]
    assert {**parts[0], **parts[1]} == expected
    assert len(parts[0]) + len(parts[1]) == len(expected)
    for root in roots:
        assert len(list(root.glob("**/store"))) == 1
        assert not list(root.glob("**/store.*")) + list(root.glob("**/moving-sources"))


# ---- a node that comes back


def _went_on(ranks: Ranks, tmp_path: Path) -> list[Path]:
    """The run dirs of two hosts and an empty one. The first is away after pass 2; the second,
    alone, trains to pass 5."""
    ranks.train(2)
    _in_range(ranks)
    ranks.protect()
    roots = [*ranks.apart(), tmp_path / "host-2/run"]
    for name, root in zip(("old", "new"), roots[:2], strict=True):
        folder = store_of_rank(root / "store", int(name == "new")).parent
        (folder / "metrics.jsonl").write_text(name)
    take_over(roots[1], ranks.config, ONE_RANK)
    assert (roots[1] / "metrics.jsonl").read_text() == "new"
    alone = Ranks(roots[1], ranks.config, 1)
    alone.passes = 2
    alone.train(3, protect=False)
    return roots


def _heads(root: Path) -> dict[str, tuple[int, int]]:
    """Folder of each store -> its number of ranks and its newest pass."""
    found = {}
    for store in sorted(root.glob("**/store")):
        with VersionStore.open_reader(store) as manifest:
            head = manifest.newest()
            assert head is not None
            where = str(store.relative_to(root))
            found[where] = (int(head.cursor["ranks"]), int(head.cursor["pass"]))
    return found


@pytest.mark.parametrize("size", [2, 3])
def test_a_node_that_comes_back_gets_the_rows_of_those_that_went_on(
    make: Callable[[int], Ranks],
    config: Config,
    tmp_path: Path,
    size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is the first rank, and its store is not the newest."""
    roots = _went_on(make(2), tmp_path)
    expected = _rows(roots[1] / "store", config)
    monkeypatch.setattr(adopt_stores, "write_range", one_at_a_time(write_range))
    coordination(size, lambda world: take_over(roots[world.rank], config, world))
    parts = dict[int, bytes]()
    for rank, root in enumerate(roots[:size]):
        folder = "store" if rank == 0 else f"ranks/{rank}/store"
        assert _heads(root) == {folder: (size, 5)}
        parts |= _rows(root / folder, config)
    assert parts == expected
    assert (roots[0] / "metrics.jsonl").read_text() == "new"


def test_stores_are_named_and_kept_if_it_is_not_certain_which_are_the_newest(
    make: Callable[[int], Ranks], config: Config, tmp_path: Path
) -> None:
    """The first host has trained on too."""
    roots = _went_on(make(2), tmp_path)
    other = Ranks(roots[0], config, 2)
    other.passes = 6
    paddle.disable_static()
    other._pass(0, merge=False)
    before = [_heads(root) for root in roots]
    named = (
        rf"do not belong together.*{roots[1]}/store is rank 0 of 1, after pass 5 .*"
        rf"{roots[0]}/store is rank 0 of 2, after pass 6 "
    )
    with pytest.raises(StoreError, match=named):
        coordination(3, lambda world: take_over(roots[world.rank], config, world))
    assert [_heads(root) for root in roots] == before


def test_an_outdated_store_is_an_error_if_a_newer_model_lacks_a_rank(
    make: Callable[[int], Ranks], config: Config
) -> None:
    """The newer one could be rebuilt, but the older one too."""
    ranks = make(2)
    ranks.train(2)
    first, second = ranks.apart()
    outdated = Ranks(first.with_name("outdated"), config, 3)
    outdated.train(1, protect=False)
    shutil.rmtree(first / "store")
    os.rename(outdated.store(0), first / "store")
    before = [_heads(first), _heads(second)]
    roots = [first, second]
    with pytest.raises(StoreError, match=r"do not belong together.*rank 0 of 3.*rank 1 of 2"):
        coordination(2, lambda world: take_over(roots[world.rank], config, world))
    assert [_heads(first), _heads(second)] == before


def test_ranks_that_changed_their_nodes_do_not_start_from_nothing(
    make: Callable[[int], Ranks], config: Config
) -> None:
    ranks = make(2)
    ranks.train(1)
    roots = ranks.apart()[::-1]
    with pytest.raises(StoreError, match="start the ranks on their former nodes"):
        coordination(2, lambda world: take_over(roots[world.rank], config, world))


def test_an_old_store_in_the_place_of_a_newer_one_is_named(
    make: Callable[[int], Ranks], config: Config
) -> None:
    ranks = make(3)
    ranks.train(2)
    saved = Path(shutil.copytree(ranks.store(2), ranks.run_dir.with_name("saved")))
    ranks.train(1)
    newest = ranks.content(2)
    shutil.rmtree(ranks.store(2))
    os.rename(saved, ranks.store(2))
    with pytest.raises(StoreError, match=r"rank 2 is after pass 2, .* have committed pass 3 with"):
        ranks.start()
    assert ranks.head(0).pass_number == 3
    ranks.lose(2)
    ranks.start()
    assert ranks.content(2) == newest


def test_a_pass_that_was_trained_again_is_not_rebuilt_from_older_parity(
    make: Callable[[int], Ranks],
) -> None:
    ranks = make(2)
    ranks.train(3, protect=False)
    ranks.protect()
    for rank in range(2):
        newest = ranks.head(rank).version
        with VersionStore.open_writer(ranks.store(rank)) as manifest:
            manifest.retention.go_back(newest - 1)
    ranks.protect()  # as a start does
    before = ranks.content(0)
    ranks.passes, ranks.salt = 2, 1
    ranks.train(1, protect=False)
    ranks.lose(0)
    ranks.start()
    assert ranks.head(0).pass_number == 2
    assert ranks.content(0) == before


def test_a_rebuild_replaces_no_committed_store(make: Callable[[int], Ranks]) -> None:
    ranks = make(1)
    ranks.train(1, protect=False)
    with pytest.raises(StoreError, match="expected no store, found version"):
        adopt_stores._set_empty_aside(ranks.run_dir)
    shutil.rmtree(ranks.store(0) / "manifest")
    adopt_stores._set_empty_aside(ranks.run_dir)
    assert not ranks.store(0).exists()


def test_what_a_killed_rebuild_has_left_goes_though_the_store_is_there(
    make: Callable[[int], Ranks],
) -> None:
    ranks = make(2)
    ranks.train(1)
    before = ranks.content(1)
    left = ranks.store(1).with_name("store.restoring")
    left.mkdir()
    ranks.start()
    assert not left.exists()
    assert ranks.content(1) == before


def test_a_job_with_ranks_parity_protects_its_newest_commit(make: Callable[[int], Ranks]) -> None:
    ranks = make(2)
    ranks.train(1, protect=False)
    options = load_config(ROOT / "configs/dnn_synthetic.yaml", ["ranks.parity=2"])

    def call(world: World) -> None:
        run_dir = ranks.store(world.rank).parent
        of_run: Any = SimpleNamespace(config=options, run_dir=run_dir, world=world)
        budget = SimpleNamespace(free_bytes=lambda: 1 << 40)
        table: Any = SimpleNamespace(
            first=SimpleNamespace(compactor=SimpleNamespace(budget=budget)),
            committer=SimpleNamespace(after_commit=[]),
            head=ranks.head(world.rank),
        )
        hook = assembly.parity_of(of_run, table)
        assert hook is not None
        hook.catch_up(None, 1, on_any_rank=True)
        hook.end()
        hook.close(None)

    coordination(2, call)
    assert len(ranks.sets(0)) == len(ranks.sets(1)) == 1


def test_a_job_of_one_rank_says_that_it_has_no_parity(
    make: Callable[[int], Ranks], caplog: pytest.LogCaptureFixture
) -> None:
    ranks = make(2)
    ranks.train(1)
    options = SimpleNamespace(ranks=SimpleNamespace(parity=2))
    of_run: Any = SimpleNamespace(config=options, run_dir=ranks.run_dir, world=ONE_RANK)
    assert assembly.parity_of(of_run, None) is None  # type: ignore[arg-type]
    assert "ranks.parity is 2, but this job has one rank: there is no parity" in caplog.text
    assert ranks.sets(0) == []


def test_a_rank_that_failed_leaves_the_job_before_it_waits_for_its_set() -> None:
    done, hook, error = list[Any](), object.__new__(Parity), StoreError("failed")
    hook._world = SimpleNamespace(leave=done.append)  # type: ignore[assignment]
    hook._parity = SimpleNamespace(close=lambda: done.append("closed"))  # type: ignore[assignment]
    hook.close(None)
    hook.close(error)
    assert done == ["closed", error, "closed"]


def test_a_fresh_start_moves_the_run_dirs_of_all_nodes_aside(make: Callable[[int], Ranks]) -> None:
    ranks = make(3)
    ranks.train(1)
    roots = [*ranks.apart()[:2]]
    roots.append(roots[1])  # two ranks share a disk
    coordination(3, lambda world: assembly.move_all_aside(roots[world.rank], world))
    for root in roots:
        assert [path.name for path in root.parent.iterdir()] == ["run.old-1"]


def test_a_named_version_on_a_disk_that_no_other_rank_sees_prevents_a_move(
    make: Callable[[int], Ranks], config: Config
) -> None:
    ranks = make(3)
    ranks.train(2)
    roots = ranks.apart()
    shutil.rmtree(roots.pop(0))
    version = str(_version(roots[0] / "ranks/1/store"))
    assert store_tool(["name", str(roots[0] / "ranks/1/store"), version, "good"]) == 0
    with pytest.raises(StoreError, match="has the name 'good' and would be lost"):
        coordination(2, lambda world: take_over(roots[world.rank], config, world))
    assert (roots[0] / "ranks/1/store/manifest").is_dir()


def _version(store: Path) -> int:
    with VersionStore.open_reader(store) as manifest:
        head = manifest.newest()
        assert head is not None
        return head.version


def _in_range(ranks: Ranks) -> None:
    """Give each rank the rows of its key range only, as in a job."""
    for rank, own in enumerate(key_ranges(ranks.size)):
        store, head = ranks.store(rank), ranks.head(rank)
        options = TableOptions(seed=ranks.config.seed)
        to = store.with_name("new")
        write_range(
            [(store, head.version)],
            ranks.config.tables,
            own,
            to,
            version=head.version + 1,
            ranks=ranks.size,
            options=options,
        )
        shutil.rmtree(store)
        os.rename(to, store)


def _rows(store: Path, config: Config) -> dict[int, bytes]:
    with Table(config.table, folder=store, seed=config.seed, read_only=True) as table:
        feasigns, rows = table.read_all()
    return {int(f): row.tobytes() for f, row in zip(feasigns, rows, strict=True)}


# ---- groups, stripes, and the file


def test_a_group_has_one_rank_of_each_host() -> None:
    def groups(per_host: Sequence[int], size: int) -> list[tuple[int, ...]]:
        firsts = [host for host, count in enumerate(per_host) for _ in range(count)]
        found = [group_of(Hosts.of(rank, firsts), size) for rank in range(len(firsts))]
        assert all(rank in group for rank, group in enumerate(found))
        return sorted(set(found))

    assert groups([2, 2], 2) == [(0, 2), (1, 3)]
    assert groups([1, 1, 1], 2) == [(0, 1, 2)]
    assert groups([2, 2, 2], 3) == [(0, 2, 4), (1, 3, 5)]
    assert groups([4], 2) == [(0, 1), (2, 3)]
    assert groups([2], 5) == [(0, 1)]
    assert groups([1] * 7, 3) == [(0, 1, 2), (3, 4, 5, 6)]


def test_blocks_go_to_the_other_ranks_in_turn() -> None:
    name, blocks = files.manifest_path("", 1), (7, 3, 0)
    parts = {
        rank: RankFiles(1, 1, ((name, size),), "0" * 8 * blocks[rank])
        for rank, size in enumerate((25, 9, 0))
    }
    one = ParitySet(7, 4, (), parts)
    assert one.group == (0, 1, 2)
    assert [one.holders(rank) for rank in range(3)] == [[1, 2], [0, 2], [0, 1]]
    assert [one.block(0, holder, row) for row in (0, 1) for holder in (1, 2)] == [0, 1, 2, 3]
    assert [one.size(0, block) for block in (0, 5, 6, 7)] == [4, 4, 1, 0]
    assert one.rows == 4
    assert [one.row_bytes(1, row) for row in range(4)] == [4, 4, 4, 1]
    assert [one.row_bytes(0, row) for row in range(3)] == [4, 1, 0]
    assert ParitySet.of(one.fields()) == one
    assert [block_bytes(3, longest) for longest in (1, 8193, 1 << 30)] == [4096, 8192, 1 << 20]
    assert [block_bytes(size, 1 << 40) for size in (17, 18, 255)] == [1 << 20, 983040, 65536]


def test_a_set_is_kept_if_all_have_it_and_half_of_its_bytes_are_named() -> None:
    one, two = {"a": [5, 10], "b": [1, 10], "c": [9, 9]}, {"a": [5, 10], "b": [10, 11]}
    assert kept_sets([one, two]) == ["a", "b"]
    assert kept_sets([one, {"a": [4, 10]}]) == []


def test_a_damaged_or_later_file_is_named_and_not_used(make: Callable[[int], Ranks]) -> None:
    ranks = make(2)
    ranks.train(1)
    (path,) = SetFolder(ranks.store(0)).path.glob("*.set")
    content = path.read_bytes()
    for at, message in ((-1, "expected b'PBXRANKP'"), (-20, "has CRC32C"), (-60, "has CRC32C")):
        damaged = bytearray(content)
        damaged[at] ^= 1
        path.write_bytes(bytes(damaged))
        with pytest.raises(StoreError, match=message):
            SetFile(path)
        assert store_tool(["verify", str(ranks.store(0))]) == 1
    for size in (0, 5, 24, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(StoreError):
            SetFile(path)
    path.write_bytes(content)
    other = path.rename(path.with_name("000000000099.set"))
    with pytest.raises(StoreError, match="holds set 1, which has another file name"):
        SetFile(other)
    other.unlink()
    ranks.protect()  # its files get new parity
    assert len(ranks.sets(0)) == len(ranks.sets(1)) == 1
    assert rebuild.Known({}, {}, {}).passes(1) == {}


def test_verify_reports_that_no_set_protects_the_newest_pass(
    make: Callable[[int], Ranks], capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = make(2)
    ranks.train(2)
    store = ranks.store(1)
    *_, newest = sorted(SetFolder(store).path.glob("*.set"))
    assert store_tool(["verify", str(store)]) == 0
    assert "unprotected" not in capsys.readouterr().out
    newest.unlink()
    assert store_tool(["verify", str(store)]) == 0
    out = capsys.readouterr().out
    assert "no parity set protects version 2, pass 2; the newest one protects pass 1" in out


@pytest.mark.slow
def test_verify_names_a_set_of_which_any_byte_is_changed(make: Callable[[int], Ranks]) -> None:
    """Every byte of the index and of the end, and every 61st of the rows."""
    ranks = make(2)
    ranks.train(1)
    store = ranks.store(1)
    (path,) = SetFolder(store).path.glob("*.set")
    with SetFile(path) as one:
        rows = one.body_bytes
    content = bytearray(path.read_bytes())
    assert list(parity_damage(store)) == []
    for at in (*range(0, rows, 61), *range(rows, len(content))):
        content[at] ^= 1 << at % 8
        path.write_bytes(content)
        content[at] ^= 1 << at % 8
        (found,) = parity_damage(store)
        assert str(path) in found.message or path.name in found.file, f"byte {at}: {found}"
        assert "expected" in found.message, f"byte {at}: {found}"
