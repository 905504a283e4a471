"""Many passes, each of whose commits stands still until somebody waits for it, as on a disk that
needs as long as a pass: rows, dense state, kept versions and saves are those of a run in which no
commit was ever beside anything."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from paddlebox.config import LifeConfig, TableConfig
from paddlebox.saves.saver import Saver
from paddlebox.store.committer import When
from paddlebox.store.compaction import Policy
from paddlebox.store.table import sorted_unique_keys
from paddlebox.store.table_set import StagedSet, TableSet
from paddlebox.store.version_store import VersionStore
from tests.store.commit_held import POINTS, before_point
from tests.store.test_overlap import push
from tests.store.test_table_set import SLOTS

MIB = 1 << 20
PASSES, PASSES_A_DAY, PASSES_A_SAVE = 18, 3, 5
FIRST_DAY = 20000
LIFE = LifeConfig(
    show_click_decay_rate=0.7,
    delete_threshold=0.4,
    delete_after_unseen_days=2,
    base_threshold=0.0,
    delta_threshold=0.0,
)
ADMISSION = {"min_count": 2, "filter_bytes": 1 << 18}
CONFIGS = tuple(
    TableConfig.model_validate(
        {**fields, "embedx_threshold": 1.5, "life": LIFE, "admission": ADMISSION}
    )
    for fields in (
        {"embedx_dim": 8},
        {"name": "wide", "embedx_dim": 16, "row_precision": "bfloat16"},
    )
)
#: Merges run all the time, and nothing waits for them.
OFTEN = Policy(min_bytes=0, merge_depth=3, space_target=1.05, space_above=1e9, max_depth=1 << 20)


@dataclass
class Slow:
    """Commits of a group that stand still, at one point after another, until they are waited for.
    Where `overlapping` is False they are not held."""

    group: TableSet
    overlapping: bool
    at: int = 0  # of the commit that runs: the number of its pass
    begun: int = 0  # the last pass that was
    beside: int = 0  # commits that stood still until the next pass had begun
    _go: Event = field(default_factory=Event)

    def __post_init__(self) -> None:
        for number, table in enumerate(self.group.members):
            for which, point in enumerate(POINTS):
                before_point(table, point, lambda t=number, p=which: self._hold(t, p))  # type: ignore[misc]
        background, wait = self.group.committer, self.group.committer.wait

        def waits() -> float:
            if background._running is not None:
                self._go.set()
            return wait()

        background.wait = waits  # type: ignore[method-assign]
        for table in self.group.members:
            table._settle = table.compactor._settle = waits

    def commit(self, number: int, **arguments: Any) -> None:
        self.group.wait_commit()
        self.at = number
        self._go.clear()
        self.group.commit(when=When.BACKGROUND, pass_number=number, **arguments)
        if not self.overlapping:
            self.group.wait_commit()

    def _hold(self, table: int, point: int) -> None:
        if self.overlapping and (table, point) == (self.at % 2, self.at // 2 % len(POINTS)):
            assert self._go.wait(60), "this commit was never waited for"
            self.beside += self.begun > self.at


def keys_of(number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keys, counts and slots of a pass, by table."""
    random = np.random.default_rng(number)
    keys, slots = [], []
    for table in range(2):
        chosen = np.flatnonzero(random.random(40_000) < 0.5).astype(np.uint64) + np.uint64(1)
        keys.append(sorted_unique_keys(chosen))
        slots.append(np.full(len(chosen), 1 - table, np.uint16))
    of_all = np.concatenate(keys)
    return of_all, np.ones(len(of_all), np.uint32), np.concatenate(slots)


def stage(group: TableSet, number: int) -> tuple[StagedSet, int]:
    keys, counts, slots = keys_of(number)
    counted = group.count_keys(keys, counts, slots)
    return group.stage(keys, slots, day=day_of(number)), counted


def day_of(number: int) -> int:
    return FIRST_DAY + (number - 1) // PASSES_A_DAY


def look(group: TableSet, number: int) -> None:
    """An evaluation between two passes."""
    keys, _, slots = keys_of(number)
    group.begin(group.stage(keys[::7], slots[::7], train=False))
    group.abandon(evaluation=True)


def run(folder: Path, *, overlapping: bool) -> dict[str, Any]:
    sizes: dict[str, Any] = {"hbm_budget_bytes": 256 * MIB, "mem_budget_bytes": 2 * MIB}
    group = TableSet(
        CONFIGS,
        slots=SLOTS,
        folder=folder / "store",
        max_segment_bytes=1 << 18,
        keep_versions=2,
        keep_daily=2,
        compaction=OFTEN,
        threads=2,
        **sizes,
    )
    weights, saves = np.zeros(64, np.float32), list[tuple[str, int, int]]()
    with group, ThreadPoolExecutor(1) as stager:
        slow, saver = Slow(group, overlapping), Saver(group, folder / "saves")
        following: Future[tuple[StagedSet, int]] = stager.submit(stage, group, 1)
        for number in range(1, PASSES + 1):
            group.life.begin_day(day_of(number))
            staged, counted = following.result()
            group.begin(staged)
            slow.begun = number
            if overlapping and number < PASSES:
                following = stager.submit(stage, group, number + 1)
            for table, part in zip(group.members, staged.parts, strict=True):
                push(table, part, 0.01 * number)
            weights += number
            group.end(number)
            dense = {"w": weights.copy()}
            slow.commit(number, dense=dense, day=day_of(number), counted=counted)
            if number % PASSES_A_SAVE == 0:
                save = saver.delta() if saves else saver.base()
                saves.append((save.name, save.rows, save.deletions))
            if number % 4 == 0:
                look(group, number)
            if not overlapping and number < PASSES:
                following = stager.submit(stage, group, number + 1)
        group.wait_commit()
        counts = [table.admission_counts() for table in group.members]
        found: dict[str, Any] = {
            "digest": group.digest(),
            "dense": group.load_dense()["w"].tolist(),
            "counts": [each.tobytes() for each in counts if each is not None],
            "events": [table.events for table in group.members],
            "saves": saves,
        }
        counters = group.counters()
    assert len(found["counts"]) == len(CONFIGS)
    assert counters["mem_evicted"] > 0
    assert counters["ssd_merge_bytes_written"] > 0
    assert counters["life_dead_staged"] + counters["life_dead_merged"] > 0
    with VersionStore.open_reader(folder / "store") as manifest:
        newest = {record.pass_number: record.version for record in manifest.records()}
    for number, version in newest.items():
        with TableSet(
            CONFIGS, slots=SLOTS, folder=folder / "store", read_only=True, version=version, **sizes
        ) as kept:
            found[f"kept {number}"] = kept.digest()
    found["beside"] = slow.beside
    return found


@pytest.mark.slow
def test_a_run_whose_commits_last_as_long_as_passes_is_one_in_which_they_take_no_time(
    tmp_path: Path,
) -> None:
    alone = run(tmp_path / "alone", overlapping=False)
    slow = run(tmp_path / "slow", overlapping=True)
    assert alone.pop("beside") == 0
    # A day's end, and a save, wait for the commit before them.
    beside = [n for n in range(1, PASSES) if n % PASSES_A_DAY and n % PASSES_A_SAVE]
    assert slow.pop("beside") == len(beside)
    assert alone.keys() == slow.keys()
    assert alone == slow
