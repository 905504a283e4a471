"""Where ranks go on that stand at different places, and when rows of one moment are had again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paddlebox import _native
from paddlebox.config import TableConfig
from paddlebox.config.load import load_config
from paddlebox.errors import ConfigError, TrainingError
from paddlebox.ranks import World, check_config, recovery
from paddlebox.store.checkpoints import find_version
from paddlebox.store.group import ONE_RANK
from paddlebox.store.life import numbered
from paddlebox.store.rank_stores import newest_after_passes
from paddlebox.store.record import VersionRecord
from paddlebox.store.table import Table
from paddlebox.store.version_store import VersionStore
from tests.support.processes import free_port

CONFIG = "configs/dnn_synthetic.yaml"
_ON = ["ranks.staleness=1", "checkpoint.partial_recovery=true"]


def make_store(folder: Path, *standing: tuple[int, int]) -> None:
    """Versions at (passes, steps of the next one)."""
    with VersionStore.open_writer(folder / "store") as manifest:
        record = VersionRecord(0, 0, [], {}, 0)
        for passes, step in standing:
            partial = {"partial": {"step": step, "samples": 10 * step}} if step else {}
            cursor = {"pass": passes, "ranks": len(standing), **partial}
            kind = "partial" if step else "pass"
            events = numbered([{"kind": "decay"}], 0) if passes > 1 else []
            record = record.following(kind, pass_number=passes, cursor=cursor, events=events)
            manifest.append(record)


def versions(folder: Path) -> list[VersionRecord]:
    with VersionStore.open_reader(folder / "store") as manifest:
        return [manifest.version(number) for number in manifest.numbers()]


def agree(folders: list[Path]) -> list[recovery.Recovered | None]:
    """As ranks, here threads, find it that meet over a store of their own."""
    config = load_config(CONFIG, _ON)
    port = free_port()

    def of_rank(rank: int) -> recovery.Recovered | None:
        found = versions(folders[rank])
        world = World(rank, len(folders))
        return recovery.agree(folders[rank], config, found[-1] if found else None, world)

    with pytest.MonkeyPatch.context() as patch:
        # The environment may not change while Paddle's threads of the store read it.
        patch.setenv("PADDLE_MASTER", f"127.0.0.1:{port}")
        store = _native.paddle.base.core.TCPStore("127.0.0.1", port, True, 1, 30)
        with ThreadPoolExecutor(len(folders)) as ranks:
            found = list(ranks.map(of_rank, range(len(folders))))
        del store
    return found


@pytest.mark.parametrize(
    ("standing", "step", "source", "went_back"),
    [
        # The second died in pass 3; the third was a step behind the first when it heard of it.
        ([(2, 50), (2, 0), (2, 49)], 50, 0, {"1": {"pass": 3, "step": 0}}),
        # It had been kept at step 20, by an earlier recovery.
        ([(2, 49), (2, 20), (2, 50)], 50, 2, {"1": {"pass": 3, "step": 20}}),
        # The first died while it committed pass 2.
        ([(1, 0), (2, 0), (2, 0)], 0, 1, {"0": {"pass": 2, "step": 0}}),
        (
            [(1, 7), (2, 0), (2, 9)],
            9,
            2,
            {"0": {"pass": 2, "step": 7}, "1": {"pass": 3, "step": 0}},
        ),
        # The second died at once: what it lacks was on its way, and the pass is gone on with.
        ([(2, 1), (2, 0), (2, 1)], 1, 0, {}),
        # All stand where they should.
        ([(2, 0), (2, 0), (2, 0)], 0, 0, {}),
    ],
)
def test_all_go_on_where_the_one_stands_that_has_come_furthest(
    standing: list[tuple[int, int]],
    step: int,
    source: int,
    went_back: dict[str, Any],
    tmp_path: Path,
) -> None:
    folders = [tmp_path / str(rank) for rank in range(3)]
    for folder, at in zip(folders, standing, strict=True):
        make_store(folder, *([(1, 0)] if at != (1, 0) else []), at)
    found = agree(folders)
    assert found == [found[0]] * 3
    if not step and not went_back:
        assert found[0] is None
        return
    assert found[0] is not None
    assert found[0].at == (2, step, 10 * step)
    assert found[0].source == source
    (entry,) = found[0].entries
    assert entry == {"pass": 3, "step": step, "samples": 10 * step, "went_back": went_back}
    # Whoever lacked the pass stands there too, and has seen the events of its end.
    heads = [versions(folder)[-1] for folder in folders]
    assert [head.cursor["pass"] for head in heads] == [2, 2, 2]
    assert [head.events for head in heads] == [heads[1].events] * 3
    again = agree(folders)
    assert again[0] is not None
    assert again[0].at == found[0].at
    assert again[0].entries[0]["pass"] == 3  # it is not forgotten where the start was in vain


def test_before_the_first_commit_rows_are_kept_and_after_it_all_need_one(tmp_path: Path) -> None:
    folders = [tmp_path / str(rank) for rank in range(2)]
    make_store(folders[0], (0, 30))
    make_store(folders[1])
    found = agree(folders)
    assert found[0] == found[1]
    assert found[0] is not None
    assert found[0].at == (0, 30, 300)
    assert found[0].entries[0]["went_back"] == {"1": {"pass": 1, "step": 0}}
    later = [tmp_path / f"later-{rank}" for rank in range(2)]
    make_store(later[0], (1, 0))
    make_store(later[1])
    assert agree(later) == [None, None]  # `agreed_passes` takes the first commit back


def test_a_dense_state_that_is_not_finite_is_not_kept(tmp_path: Path) -> None:
    dense = {"b": np.ones(2, np.float32), "w": np.array([1, np.inf, np.nan], np.float32)}
    with Table(TableConfig(name="t", embedx_dim=4), folder=tmp_path / "store") as table:
        table.begin(table.stage(np.arange(1, 9, dtype=np.uint64)))
        with pytest.raises(TrainingError, match="2 of 3 values of w are not finite"):
            recovery.commit_partial(table, dense, {"step": 1})
    assert versions(tmp_path) == []


def test_losses_of_the_last_pass_are_reported_without_a_pass_after_it(tmp_path: Path) -> None:
    folders = [tmp_path / str(rank) for rank in range(2)]
    make_store(folders[0], (1, 0), (2, 0))
    make_store(folders[1], (1, 0))
    (found, _) = agree(folders)
    assert found is not None
    table: Any = SimpleNamespace(world=ONE_RANK)
    runners: Any = None  # no pass begins
    hook = recovery.PartialRecovery(table, runners, {}, found)
    (entry,) = hook.summary()["partial_recovery"]
    assert entry["went_back"] == {"1": {"pass": 2, "step": 0}}
    assert recovery.PartialRecovery(table, runners, {}, None).summary() == {}


def test_what_reads_a_run_or_goes_back_has_whole_versions_where_there_are_some(
    tmp_path: Path,
) -> None:
    make_store(tmp_path, (1, 0), (2, 0), (2, 40), (2, 80))
    found = newest_after_passes(versions(tmp_path))
    assert {number: record.version for number, record in found.items()} == {1: 1, 2: 2}
    with VersionStore.open_reader(tmp_path / "store") as manifest:
        assert find_version(manifest, "4") == 4
    recovery.forget(tmp_path)
    assert [record.version for record in versions(tmp_path)] == [1, 2]
    recovery.forget(tmp_path)
    assert [record.version for record in versions(tmp_path)] == [1, 2]
    only = tmp_path / "only"
    make_store(only, (2, 40))
    assert newest_after_passes(versions(only))[2].is_partial
    with pytest.raises(ConfigError, match=r"train with checkpoint\.partial_recovery: true"):
        recovery.forget(only)
    begun = tmp_path / "begun"
    make_store(begun, (0, 40))
    recovery.forget(begun)
    assert not versions(begun)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["checkpoint.partial_recovery=true"], "set ranks.staleness: 1"),
        ([*_ON, "checkpoint.every=date"], "needs checkpoint.every: pass, found 'date'"),
        ([*_ON, "checkpoint.every=2"], "needs checkpoint.every: pass, found 2"),
    ],
)
def test_it_is_of_asynchronous_runs_that_commit_each_pass(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(CONFIG, overrides)


def test_ranks_without_shared_memory_are_refused_and_one_rank_has_no_peer_to_recover() -> None:
    config = load_config(CONFIG, _ON)
    check_config(config, ONE_RANK)
    check_config(load_config(CONFIG, []), World(0, 2))
    with pytest.raises(ConfigError, match="expected all ranks on one host"):
        check_config(config, World(0, 2))
    assert not recovery.is_of_a_death(RuntimeError("the job's store is gone"), ONE_RANK)
