"""`table.max_rows`: never exceeded after a commit, and the rows that stay are those of a plain
sort, whatever the budgets, threads, parts and kills."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

from paddlebox import ops
from paddlebox._native import core
from paddlebox.config import Slots, TableConfig
from paddlebox.errors import PassError
from paddlebox.saves.reader import open_save
from paddlebox.saves.saver import Saver
from paddlebox.store import life
from paddlebox.store.committer import When
from paddlebox.store.options import TableOptions
from paddlebox.store.table import Table, fields_of_rows, sorted_unique_keys
from paddlebox.store.table_set import TableSet

LIMIT = 320
KEPT = LIMIT - LIMIT // 16
DAY = 20000


@pytest.fixture(autouse=True)
def dygraph() -> None:
    paddle.disable_static()


def config(**changes: Any) -> TableConfig:
    fields = {"embedx_dim": 2, "embedx_threshold": 0.5, "max_rows": LIMIT, **changes}
    return TableConfig.model_validate(fields)


def open_table(folder: Path | None, table: TableConfig, **changes: Any) -> Table:
    options: dict[str, Any] = {"mem_budget_bytes": 1 << 20, "compaction": None, **changes}
    return Table(table, folder=folder, **options)


def push(feasigns: np.ndarray, shows: np.ndarray, clicks: np.ndarray) -> None:
    grad = np.full((len(feasigns), 5), 0.5, np.float32)
    grad[:, 0], grad[:, 1] = shows, clicks
    ops.push_box_sparse(paddle.to_tensor(feasigns.view(np.int64)), paddle.to_tensor(grad))


Pass = tuple[np.ndarray, np.ndarray, np.ndarray]


def passes(count: int, seed: int = 3) -> list[Pass]:
    """Feasigns of which some come again, with few different counts, so that many scores tie."""
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        feasigns = np.unique(random.integers(1, 1500, 200)).astype(np.uint64)
        shows = random.integers(1, 4, len(feasigns)).astype(np.float32)
        made.append((feasigns, shows, random.integers(0, 2, len(feasigns)).astype(np.float32)))
    return made


def run_pass(
    table: Table, of: Pass, number: int, when: When = When.NOW, *, day: int | None = None
) -> None:
    day = DAY + number if day is None else day
    table.begin(table.stage(sorted_unique_keys(of[0]), day=day))
    push(*of)
    table.end(number)
    table.commit(when=when, day=day, pass_number=number)


def fields(table: Table) -> dict[int, tuple[float, int]]:
    """Score and day of each row."""
    table.wait_commit()
    feasigns, rows = table.read_all()
    found = fields_of_rows(dict(table.first.native.layout), rows)
    score = life.scores(found["show"], found["click"])
    days = found["last_seen_day"]
    return {int(f): (float(s), int(d)) for f, s, d in zip(feasigns, score, days, strict=True)}


def sorted_rows(rows: dict[int, tuple[float, int]], evict: str) -> list[int]:
    """Feasigns, the first ones to evict first."""

    def rank(feasign: int) -> tuple[int, float, int]:
        score, day = rows[feasign]
        return day if evict == "least_recent" else 0, score, int(core.mix(feasign))

    return sorted(rows, key=rank)


@pytest.mark.parametrize("evict", ["least_score", "least_recent"])
@pytest.mark.parametrize("folder", [True, False])
def test_the_rows_that_stay_are_those_of_a_sort(tmp_path: Path, evict: str, folder: bool) -> None:
    free, bound = config(max_rows=0), config(evict=evict)
    where = tmp_path / "bound" if folder else None
    model: dict[int, tuple[float, int]] = {}
    evictions = 0
    with open_table(where, bound, mem_budget_bytes=64 << 20) as table:
        for number, of in enumerate(passes(12), 1):
            for feasign, show, click in zip(*(a.tolist() for a in of), strict=True):
                score, _ = model.get(feasign, (0.0, 0))
                added = np.float32(show - click) * np.float32(0.1) + np.float32(click)
                model[feasign] = (float(score + added), DAY + number)
            run_pass(table, of, number)
            found = fields(table)
            assert len(found) <= LIMIT
            if len(model) > LIMIT:
                evictions += 1
                assert len(found) > KEPT - LIMIT // 64
                order = sorted_rows(_rounded(model, found), evict)
                model = {f: model[f] for f in order[len(order) - len(found) :]}
            assert found.keys() == model.keys()
    assert evictions > 3
    assert free.max_rows == 0


def _rounded(
    model: dict[int, tuple[float, int]], found: dict[int, tuple[float, int]]
) -> dict[int, tuple[float, int]]:
    """The model with scores that the table has summed up in float32."""
    return {f: (found.get(f, (round(s, 4), 0))[0], day) for f, (s, day) in model.items()}


def digest_of(folder: Path | None, table: TableConfig, of: list[Pass], **options: Any) -> str:
    with open_table(folder, table, **options) as opened:
        for number, one in enumerate(of, 1):
            run_pass(opened, one, number, options.pop("when", When.NOW))
        opened.wait_commit()
        return opened.digest()


def test_the_digest_does_not_depend_on_threads_restarts_or_merges(tmp_path: Path) -> None:
    of, expected = passes(10), ""
    with open_table(tmp_path / "a", config()) as table:
        for number, one in enumerate(of, 1):
            run_pass(table, one, number)
        expected = table.digest()
        assert any(event["kind"] == life.EVICT for event in table.first.events)
    with open_table(tmp_path / "b", config(), threads=3) as table:
        for number, one in enumerate(of, 1):
            run_pass(table, one, number, When.BACKGROUND)
            if number % 3 == 0:
                table.wait_commit()
                table.compact(full=True)
        table.wait_commit()
        assert table.digest() == expected
    for number, one in enumerate(of, 1):  # as after a kill between passes
        with open_table(tmp_path / "c", config()) as table:
            run_pass(table, one, number)
            last = table.digest()
    assert last == expected


def test_passes_that_are_staged_early_or_kept_end_alike(tmp_path: Path) -> None:
    of = passes(10)
    with open_table(tmp_path / "a", config()) as table:
        for number, one in enumerate(of, 1):
            run_pass(table, one, number)
        expected = table.digest()
    with open_table(tmp_path / "b", config()) as table:
        staged = table.stage(sorted_unique_keys(of[0][0]), day=DAY + 1)
        for number, one in enumerate(of, 1):
            table.begin(staged)
            if number < len(of):  # while this one trains
                staged = table.stage(sorted_unique_keys(of[number][0]), day=DAY + number + 1)
            push(*one)
            table.end(number)
            take = table.commit if number % 3 == 0 or number == len(of) else table.keep
            take(when=When.BACKGROUND, day=DAY + number, pass_number=number)
        table.wait_commit()
        assert table.digest() == expected


def test_a_pass_in_parts_evicts_once_for_all_of_them(tmp_path: Path) -> None:
    feasigns = np.arange(1, 601, dtype=np.uint64)
    with open_table(tmp_path, config()) as table:
        for part in (feasigns[:200], feasigns[200:400], feasigns[400:]):
            table.begin(table.stage(sorted_unique_keys(part), day=DAY))
            push(part, np.full(200, 1.0), np.full(200, 0.0))
            table.end(1)
            if part[-1] < 600:
                table.spill()
        table.commit(pass_number=1, day=DAY)
        assert KEPT - LIMIT // 64 < len(fields(table)) <= KEPT
        assert sum(event["kind"] == life.EVICT for event in table.first.events) == 1


def test_new_rows_that_are_evicted_at_once_are_not_written(tmp_path: Path) -> None:
    feasigns = np.arange(1, 1001, dtype=np.uint64)
    shows = np.where(feasigns <= 200, 9, 1).astype(np.float32)
    with open_table(tmp_path, config(max_rows=200)) as table:
        run_pass(table, (feasigns, shows, np.zeros(1000, np.float32)), 1)
        assert sum(segment["rows"] for segment in table.head.segments) <= 200  # type: ignore[union-attr]


def test_the_end_of_a_day_makes_room(tmp_path: Path) -> None:
    lots = config(life={"delete_threshold": 0.25, "show_click_decay_rate": 1.0})
    with open_table(tmp_path, lots) as table:
        feasigns = np.arange(1, 301, dtype=np.uint64)
        shows = np.where(feasigns <= 200, 1, 9).astype(np.float32)
        run_pass(table, (feasigns, shows, np.zeros(300, np.float32)), 1)
        table.life.shrink_table()
        more = np.arange(1001, 1201, dtype=np.uint64)
        run_pass(table, (more, np.full(200, 1.0), np.zeros(200)), 2)
        assert len(fields(table)) == 300  # 100 are left of the first pass
        assert not any(event["kind"] == life.EVICT for event in table.first.events)


def test_a_delta_deletes_evicted_rows(tmp_path: Path) -> None:
    every = config(life={"base_threshold": 0.0, "delta_threshold": 0.0})
    with open_table(tmp_path / "store", every) as table:
        saver = Saver(table, str(tmp_path / "saves"))
        of = passes(4)
        run_pass(table, of[0], 1)
        run_pass(table, of[1], 2)
        saver.base()
        before = fields(table).keys()
        run_pass(table, of[2], 3)
        run_pass(table, of[3], 4)
        gone = before - fields(table).keys()
        saved = saver.delta()
        deleted = {int(f) for chunk in open_save(saved.folder).deleted() for f in chunk}
        assert deleted == gone
        assert gone


def test_each_table_has_a_bound_of_its_own(tmp_path: Path) -> None:
    named = [config(name="default"), config(name="wide", max_rows=0)]
    slots = Slots.model_validate(
        {
            "slots": [
                {"name": "y", "type": "label"},
                {"name": "a", "type": "sparse"},
                {"name": "b", "type": "sparse", "table": "wide"},
            ]
        }
    )
    options = TableOptions(folder=tmp_path, mem_budget_bytes=4 << 20, compaction=None)
    feasigns = sorted_unique_keys(np.arange(1, 601, dtype=np.uint64))
    keys, of = np.concatenate([feasigns, feasigns]), np.repeat(np.array([0, 1], np.uint16), 600)
    with TableSet(named, options, slots=slots) as tables:
        staged = tables.stage(keys, of)
        tables.begin(staged)
        for table, part in zip(tables.members, staged.parts, strict=True):
            table.native.push_pooled(
                part.row_of_key,
                np.arange(601, dtype=np.int32),
                1,
                True,
                np.ones((600, 2), np.float32),
                np.empty(0, np.int32),
                np.full((600, 5), 0.01, np.float32),
            )
        tables.end(1)
        tables.commit(pass_number=1)
        found = [len(table.read_all()[0]) for table in tables.members]
        assert found[0] <= LIMIT
        assert found[1] == 600


def test_rows_are_evicted_only_between_the_end_of_a_pass_and_its_commit(tmp_path: Path) -> None:
    with open_table(tmp_path, config()) as table:
        native = table.first.native
        with pytest.raises(PassError, match="between end_pass and the commit"):
            native.evict(False, (0, 0, 5))
        run = passes(1)[0]
        table.begin(table.stage(sorted_unique_keys(run[0])))
        with pytest.raises(PassError, match="is open; rows can be evicted after"):
            native.count_ranks(False, (0, 0, 0), 76)
        table.end(1)
        table.commit()


@pytest.mark.slow
def test_evictions_and_saves_of_a_day_leave_few_events(tmp_path: Path) -> None:
    """The events that later ones make superfluous are left out. In memory, rows see each event at
    once."""
    of, most = passes(300), 0
    digests: dict[int, str] = {}

    def train(table: Table, number: int) -> str:
        run_pass(table, of[number - 1], number, day=DAY + number // 100)
        if number % 3 == 0:
            table.life.reset_delta(table.first.save_filter(delta=number % 9 != 0))
        if number % 100 == 99:
            table.life.shrink_table()
        return table.digest() if number % 50 == 45 else ""

    with open_table(None, config(), mem_budget_bytes=64 << 20) as table:
        expected = {number: train(table, number) for number in range(1, 301)}
    for first in range(1, 301, 60):
        with open_table(tmp_path, config(), keep_versions=9) as table:
            for number in range(first, first + 60):
                digests[number] = train(table, number)
                most = max(most, len(table.first.events))
                if number == 295:
                    old = table.head.version  # type: ignore[union-attr]
            if number == 180:
                table.compact(full=True)
        assert table.first.events[-1]["seq"] > number
    assert digests == expected
    assert most < 40
    with open_table(tmp_path, config(), read_only=True, version=old) as table:
        assert table.digest() == expected[295]
