"""The life of rows over days, against a model of single rows: the same rows are alive, with counts
that are the same to the bit, through all tiers, restarts and merges; and all bits are those of a
run that nothing disturbed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Timer
from typing import Any

import numpy as np
import paddle
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paddlebox import ops
from paddlebox.config import LifeConfig, TableConfig
from paddlebox.errors import OutOfSpaceError, PassError, StoreError
from paddlebox.store import life
from paddlebox.store.committer import When
from paddlebox.store.compaction import Merge, Policy
from paddlebox.store.table import Table
from paddlebox.store.table_set import StagedSet
from paddlebox.store.tiered_table import sorted_unique_keys

FIRST_DAY = 20000
DIM = 2
f32 = np.float32
ZERO = f32(0)
OFTEN = Policy(min_bytes=0, merge_depth=3, space_target=1.05)
LIFE = LifeConfig(
    show_click_decay_rate=0.7,
    delete_threshold=0.25,
    delete_after_unseen_days=3,
    base_threshold=0.6,
    delta_threshold=0.35,
    delta_keep_days=2,
)
CONFIG = TableConfig(embedx_dim=DIM, embedx_threshold=1.0, life=LIFE)


@pytest.fixture(autouse=True)
def _dygraph() -> None:
    paddle.disable_static()


def open_table(folder: Path | None, **changes: Any) -> Table:
    budget = 1 << 20 if folder else 64 << 20
    return Table(
        CONFIG,
        **{"folder": folder, "mem_budget_bytes": budget, "max_segment_bytes": 1 << 16} | changes,
    )


# ---- the model


@dataclass
class Row:
    """The counts of a row, as one who never heard of events would keep them."""

    show: np.float32 = ZERO
    click: np.float32 = ZERO
    delta: np.float32 = ZERO
    seen: int = 0

    @property
    def score(self) -> np.float32:
        return score(self.show, self.click)


def score(show: np.float32, click: np.float32) -> np.float32:
    return (show - click) * f32(0.1) + click * f32(1.0)


@dataclass
class Model:
    rows: dict[int, Row] = field(default_factory=dict)
    deleted: int = 0

    def push(self, feasign: int, show: np.float32, click: np.float32, day: int) -> None:
        row = self.rows.setdefault(feasign, Row())
        row.show += show
        row.click += click
        row.delta += score(show, click)
        row.seen = day

    def end_day(self, day: int) -> None:
        before = len(self.rows)
        for row in self.rows.values():
            row.show *= f32(LIFE.show_click_decay_rate)
            row.click *= f32(LIFE.show_click_decay_rate)
        self.rows = {
            feasign: row
            for feasign, row in self.rows.items()
            if row.score >= f32(LIFE.delete_threshold)
            and day - row.seen <= LIFE.delete_after_unseen_days
        }
        self.deleted += before - len(self.rows)

    def saved(self, day: int, min_delta: float) -> list[int]:
        return sorted(
            feasign
            for feasign, row in self.rows.items()
            if row.score >= f32(LIFE.base_threshold)
            and row.delta >= f32(min_delta)
            and day - row.seen <= LIFE.delta_keep_days
        )

    def save_delta(self, day: int) -> list[int]:
        saved = self.saved(day, LIFE.delta_threshold)
        for feasign in saved:
            self.rows[feasign].delta = f32(0)
        return saved


# ---- a job: passes on days that go forward, saves between


@dataclass(frozen=True)
class Work:
    """One pass: what it pushes, and what is done after it."""

    day: int
    feasigns: np.ndarray  # (n) int64, each once
    show_click: np.ndarray  # (n, 2) float32
    save_delta: bool


def make_work(seed: int, passes: int, population: int) -> list[Work]:
    random = np.random.default_rng(seed)
    day, work = FIRST_DAY, list[Work]()
    for _ in range(passes):
        day += int(random.integers(0, 3)) if work else 0
        # Some feasigns come in every pass, others almost never.
        chosen = random.random(population) < np.linspace(0.02, 0.7, population) ** 2
        feasigns = np.flatnonzero(chosen) + 1
        show = random.integers(1, 8, len(feasigns))
        click = random.integers(0, 2, len(feasigns)) * (random.random(len(feasigns)) < 0.3)
        counts = np.stack([show, click], 1).astype(np.float32)
        work.append(Work(day, feasigns, counts, bool(random.random() < 0.3)))
    return work


def stage(table: Table, work: Work) -> StagedSet:
    return table.stage(sorted_unique_keys(work.feasigns), day=work.day)


def push(work: Work, number: int) -> None:
    grad = np.ones((len(work.feasigns), 3 + DIM), np.float32)
    grad[:, :2] = work.show_click
    grad[:, 2:] = np.sin(work.feasigns[:, None] + np.arange(1 + DIM) + number) * 0.1
    ops.push_box_sparse(paddle.to_tensor(work.feasigns), paddle.to_tensor(grad))


def feasigns_of_delta(table: Table) -> tuple[list[int], life.SaveFilter]:
    chosen: list[int] = []
    saved = table.rows_of_delta(lambda feasigns, _: chosen.extend(feasigns.tolist()))
    return sorted(chosen), saved


def segment_ids(table: Table) -> set[int]:
    assert table.head is not None
    return {segment["id"] for segment in table.head.segments}


def check(table: Table, model: Model) -> None:
    feasigns, rows = table.read_all()
    assert sorted(feasigns.tolist()) == sorted(model.rows)
    expected = [model.rows[int(f)] for f in feasigns]
    np.testing.assert_array_equal(rows[:, 1], np.array([r.show for r in expected], f32))
    np.testing.assert_array_equal(rows[:, 2], np.array([r.click for r in expected], f32))
    np.testing.assert_array_equal(rows[:, 3], np.array([r.delta for r in expected], f32))
    assert rows.view(np.uint32)[:, 4].tolist() == [r.seen for r in expected]
    for name, least in (("base", 0.0), ("delta", LIFE.delta_threshold)):
        found: list[int] = []
        visit = getattr(table, f"rows_of_{name}")
        visit(lambda some, _, found=found: found.extend(some.tolist()))
        assert sorted(found) == model.saved(table.day, least)


def run(work: list[Work], folder: Path | None, seed: int) -> tuple[str, Model]:
    """Trains it all; a run with a folder is disturbed as the seed says."""
    random = np.random.default_rng(seed)
    model = Model()
    disturbed = folder is not None

    def happens(chance: float) -> bool:
        return disturbed and bool(random.random() < chance)

    def reopen() -> Table:
        budget = int(random.integers(1 << 20, 1 << 21)) if disturbed else 64 << 20
        policy = (None, OFTEN)[int(random.integers(2))]
        return open_table(folder, mem_budget_bytes=budget, compaction=policy)

    table = reopen()
    staged = None
    try:
        for number, (current, following) in enumerate(zip(work, [*work[1:], None], strict=True), 1):
            staged = staged or stage(table, current)
            if number > 1 and work[number - 2].day < current.day:
                model.end_day(work[number - 2].day)
            table.life.begin_day(current.day)
            assert not table.life.begin_day(current.day)  # once
            table.begin(staged)
            staged = None
            push(current, number)
            for feasign, (show, click) in zip(
                current.feasigns.tolist(), current.show_click, strict=True
            ):
                model.push(feasign, show, click, current.day)
            early = following is not None and not current.save_delta and happens(0.5)
            if early and following is not None and happens(0.5):
                staged = stage(table, following)  # while this one trains
            table.end(number)
            if early and following is not None and staged is None:
                staged = stage(table, following)  # while this one is committed
            table.commit(when=When.BACKGROUND, pass_number=number, day=current.day)
            if current.save_delta:
                chosen, saved = feasigns_of_delta(table)
                assert chosen == model.save_delta(current.day)
                table.life.reset_delta(saved)
            if happens(0.3):
                table.wait_commit()
                table.compact(full=happens(0.5))
            if staged is None and happens(0.3):
                table.close()
                table = reopen()
        check(table, model)
        if disturbed:
            digest = table.digest()
            table.compact()
            before = segment_ids(table)
            table.compact(full=True)
            assert table.digest() == digest
            assert table.head is not None
            # Nothing dead is left, and nothing alive is counted twice or not at all. A segment that
            # overlaps no other one is not merged, and keeps rows that have expired since.
            if not before & segment_ids(table):
                assert sum(s["rows"] for s in table.head.segments) == len(model.rows)
                assert table.head.live_rows == len(model.rows)
            check(table, model)
        else:
            assert table.counters()["mem_rows"] >= len(model.rows)
        return table.digest(), model
    finally:
        table.close()


@settings(
    max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(0, 2**32 - 1))
def test_rows_decay_and_expire_as_in_the_model_despite_disturbances(seed: int) -> None:
    work = make_work(seed, passes=9, population=600)
    undisturbed, model = run(work, None, seed)
    for disturbance in (1, 2):
        with TemporaryDirectory() as folder:
            assert run(work, Path(folder) / "s", seed + disturbance)[0] == undisturbed
    assert model.deleted > 0


@pytest.mark.slow
def test_rows_beyond_the_memory_decay_and_expire_as_in_the_model(tmp_path: Path) -> None:
    work = make_work(5, passes=7, population=60_000)  # 16,000 rows fit into 1 MiB
    undisturbed, model = run(work, None, 5)
    assert run(work, tmp_path / "s", 6)[0] == undisturbed
    assert model.deleted > 10_000


# ---- days that end by themselves


def work_of(day: int, feasigns: np.ndarray, show: float = 1, click: float = 0) -> Work:
    counts = np.tile(np.array([show, click], np.float32), (len(feasigns), 1))
    return Work(day, feasigns, counts, False)


def train(table: Table, work: Work, number: int = 1) -> None:
    staged = stage(table, work)
    table.life.begin_day(work.day)
    table.begin(staged)
    push(work, number)
    table.end(number)
    table.commit(pass_number=number, day=work.day)


def shows(table: Table) -> list[float]:
    return sorted(set(table.read_all()[1][:, 1].tolist()))


MANY = np.arange(1, 101)


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_day_ends_when_a_later_one_begins(tmp_path: Path, in_memory: bool) -> None:
    with open_table(None if in_memory else tmp_path / "s") as table:
        train(table, work_of(FIRST_DAY, MANY, 10), 1)
        train(table, work_of(FIRST_DAY, MANY, 10), 2)
        assert table.first.events == []
        train(table, work_of(FIRST_DAY + 4, MANY[:2], 10), 3)
        decay, shrink = table.first.events
        assert (decay["kind"], decay["day"], decay["decay"]) == ("decay", FIRST_DAY, 0.7)
        assert (shrink["kind"], shrink["day"]) == ("shrink", FIRST_DAY)
        assert shows(table) == [14, 24]  # 20 * 0.7, and 10 more
        # An earlier day, as a run that looks at old data again has it, ends nothing.
        train(table, work_of(FIRST_DAY + 1, MANY[:2], 10), 4)
        train(table, work_of(FIRST_DAY + 2, MANY[:2], 10), 5)
        assert [e["day"] for e in table.first.events if e["kind"] == "decay"] == [
            FIRST_DAY,
            FIRST_DAY + 1,
        ]
        train(table, work_of(FIRST_DAY + 1, MANY[:2], 10), 6)
        train(table, work_of(FIRST_DAY + 2, MANY[:2], 10), 7)
        assert len(table.first.events) == 4


def test_a_pass_begins_beside_the_commit_before_it_unless_its_day_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_table(tmp_path / "s") as table:
        staged = stage(table, work_of(FIRST_DAY, MANY))
        table.begin(staged)
        push(work_of(FIRST_DAY, MANY, 10), 1)
        table.end(1)
        write, go_on = table.committer._write, Event()
        monkeypatch.setattr(table.committer, "_write", lambda *a: go_on.wait() and write(*a))
        committing = table.commit(when=When.BACKGROUND, pass_number=1, day=FIRST_DAY)
        assert not table.life.begin_day(FIRST_DAY)
        table.begin(table.stage(MANY.astype(np.uint64), train=False))
        table.abandon(evaluation=True)
        assert not committing.done()
        Timer(0.2, go_on.set).start()
        assert table.life.begin_day(FIRST_DAY + 1)
        assert committing.done()
        assert [event["day"] for event in table.first.events] == [FIRST_DAY, FIRST_DAY]
        assert shows(table) == [7]


def test_a_commit_that_failed_is_heard_when_the_next_pass_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise OutOfSpaceError("no room")

    with open_table(tmp_path / "s") as table:
        table.begin(stage(table, work_of(FIRST_DAY, MANY)))
        table.end(1)
        with monkeypatch.context() as patch:
            patch.setattr(table.committer, "_write", full)
            committing = table.commit(when=When.BACKGROUND, pass_number=1, day=FIRST_DAY)
            assert isinstance(committing.exception(), OutOfSpaceError)
        with pytest.raises(OutOfSpaceError, match="no room"):
            table.life.begin_day(FIRST_DAY)


def test_a_day_ends_once_despite_kills_and_repeated_calls(tmp_path: Path) -> None:
    with open_table(tmp_path / "s") as table:
        train(table, work_of(FIRST_DAY, MANY, 10))
    with open_table(tmp_path / "s") as table:  # killed before the day ended
        staged = stage(table, work_of(FIRST_DAY + 1, MANY))
        assert table.life.begin_day(FIRST_DAY + 1)
        table.begin(staged)
        table.abandon()
    with open_table(tmp_path / "s") as table:  # killed in the first pass of the new day
        assert table.day == FIRST_DAY
        assert not table.life.begin_day(FIRST_DAY + 1)
        assert not table.life.shrink_table()
        assert shows(table) == [7]
        assert len(table.first.events) == 2


def test_a_day_that_was_ended_by_hand_does_not_end_again(tmp_path: Path) -> None:
    with open_table(tmp_path / "s") as table:
        train(table, work_of(FIRST_DAY, MANY, 10))
        assert table.life.shrink_table()
        train(table, work_of(FIRST_DAY, MANY, 10), 2)  # more of that day
        assert not table.life.begin_day(FIRST_DAY + 1)
        assert shows(table) == [17]


def test_without_dates_days_end_by_hand(tmp_path: Path) -> None:
    with open_table(tmp_path / "s") as table:
        train(table, work_of(0, MANY, 10))
        assert not table.life.begin_day(FIRST_DAY)
        assert table.life.shrink_table()
        assert table.life.shrink_table()  # without a date each call counts
        assert shows(table) == [pytest.approx(4.9)]


def test_the_decay_comes_before_the_shrink(tmp_path: Path) -> None:
    with open_table(tmp_path / "s") as table:
        # 0.1 a show: 4 shows score 0.4, and 0.28 after the decay; 3 score 0.3, then 0.21 < 0.25.
        train(table, work_of(FIRST_DAY, MANY, 4))
        train(table, work_of(FIRST_DAY, MANY + 1000, 3), 2)
        table.life.shrink_table()
        assert sorted(table.read_all()[0].tolist()) == MANY.tolist()


def test_a_row_unseen_for_too_long_goes_and_comes_back_new(tmp_path: Path) -> None:
    with open_table(tmp_path / "s") as table:
        train(table, work_of(FIRST_DAY, MANY, 1000))
        embed_w = table.read_all()[1][:, 6].copy()
        for later in (3, 4):  # unseen for 3 days it stays, for 4 it goes
            train(table, work_of(FIRST_DAY + later, MANY + 1000, 1000), later)
            table.life.shrink_table()
            assert (1 in table.read_all()[0].tolist()) == (later == 3)
        before = table.counters()["life_dead_staged"]
        train(table, work_of(FIRST_DAY + 4, MANY, 1000), 1)
        feasigns, rows = table.read_all()
        again = rows[np.isin(feasigns, MANY)]
        assert set(again[:, 1].tolist()) == {1000}
        np.testing.assert_array_equal(again[:, 6], embed_w)  # as its first push left it
        assert table.counters()["life_dead_staged"] - before == 100


def test_the_example_of_the_docs_is_what_happens() -> None:
    # docs/life.md, "By hand"; a third row of 8 shows, a fourth of 9. The config has the defaults.
    first = Work(
        FIRST_DAY, np.arange(1, 5), np.array([[4, 1], [40, 10], [8, 0], [9, 0]], f32), False
    )
    other = np.array([99, 100])
    scores: dict[int, list[float]] = {1: [], 2: [], 3: [], 4: []}
    config = TableConfig(embedx_dim=DIM)
    with Table(config, mem_budget_bytes=1 << 20) as table:
        train(table, first)
        for number in range(2, 34):
            table.life.shrink_table()
            feasigns, rows = table.read_all()
            for feasign, row in zip(feasigns.tolist(), rows, strict=True):
                if feasign in scores:
                    scores[feasign].append(float(score(row[1], row[2])))
            train(table, work_of(FIRST_DAY + number - 1, other, 20), number)
    assert len(scores[1]) == 24
    assert scores[1][:2] == pytest.approx([1.274, 1.2485], abs=1e-4)
    assert scores[1][-1] == pytest.approx(0.8005, abs=1e-4)
    assert len(scores[2]) == 31
    assert scores[2][-1] == pytest.approx(13 * 0.98**30 * 0.98, abs=1e-3)
    assert scores[3] == []
    assert len(scores[4]) > 0


def test_events_that_no_reader_could_apply_are_refused_before_they_are_durable(
    tmp_path: Path,
) -> None:
    with open_table(tmp_path / "s") as table:
        train(table, work_of(FIRST_DAY, MANY))
        for event, message in (
            ({"kind": "decays"}, "kind 'decays', expected one of decay, shrink, delta_reset"),
            ({"kind": "decay", "decay": 0.0}, "decay 0.0, expected above 0"),
            ({"kind": "decay", "decay": float("nan")}, "decay nan"),
            ({"kind": "shrink", "min_score": float("inf")}, "min_score inf"),
            ({"kind": "shrink", "max_unseen_days": -1}, "max_unseen_days -1"),
            ({"kind": "shrink", "day": 2**32}, "day 4294967296"),
            ({"kind": "shrink", "min_scor": 1.0}, "unknown min_scor"),
        ):
            with pytest.raises(ValueError, match=message):
                table.life.append([[{"kind": "decay", "decay": 0.5}, event]])
        assert table.first.events == []
        assert shows(table) == [1]
    with open_table(tmp_path / "s", read_only=True) as reader, pytest.raises(StoreError):
        reader.life.shrink_table()


def test_a_day_does_not_end_while_a_pass_is_open(tmp_path: Path) -> None:
    with open_table(tmp_path / "s") as table:
        train(table, work_of(FIRST_DAY, MANY))
        table.begin(stage(table, work_of(FIRST_DAY, MANY)))
        with pytest.raises(PassError, match="a pass is open"):
            table.life.begin_day(FIRST_DAY + 1)
        with pytest.raises(PassError, match="a pass is open"):
            table.life.shrink_table()
        table.abandon()
        assert table.first.events == []


def test_what_a_delta_held_is_not_in_the_next_one(tmp_path: Path) -> None:
    with open_table(tmp_path / "s") as table:
        train(table, work_of(FIRST_DAY, MANY, 10))  # scores 1
        train(table, work_of(FIRST_DAY, MANY[:10], 2), 2)  # and 0.2 more
        chosen, saved = feasigns_of_delta(table)
        assert chosen == MANY.tolist()
        table.life.reset_delta(saved)
        train(table, work_of(FIRST_DAY, MANY[5:], 3), 3)  # 0.3 < 0.35
        assert feasigns_of_delta(table)[0] == []
        train(table, work_of(FIRST_DAY, MANY[:5], 4), 4)  # 0.4 >= 0.35
        assert feasigns_of_delta(table)[0] == MANY[:5].tolist()
        base: list[int] = []
        table.rows_of_base(lambda feasigns, _: base.extend(feasigns.tolist()))
        assert sorted(base) == MANY.tolist()
        table.rows_of_base(lambda *_: base.clear(), day=FIRST_DAY + 3)
        assert len(base) == 100  # seen too long ago: visit was not called


# ---- counts


def merge_sequence(table: Table, sequence: int) -> None:
    """Merges the segments of one age alone, as compaction does where younger ones lie over them."""
    assert table.head is not None
    ids = tuple(s["id"] for s in table.head.segments if s["sequence"] == sequence)
    merge = Merge(ids, 0, "test")
    merging = table.first.compactor
    merging.record([(merge, merging.merge(merge, True))])


def test_a_row_counts_once_however_often_it_died(tmp_path: Path) -> None:
    with open_table(tmp_path / "s", compaction=None) as table:
        train(table, work_of(FIRST_DAY, np.arange(1, 2001), 1), 1)  # scores 0.1: below 0.25
        table.life.shrink_table()
        train(table, work_of(FIRST_DAY, np.arange(501, 2501), 9), 2)
        train(table, work_of(FIRST_DAY, np.arange(2501, 3001), 9), 3)
        assert table.head is not None
        assert table.head.live_rows == 3000  # the dead ones too, until a merge has dropped them
        merge_sequence(table, 1)
        assert table.head.live_rows == pytest.approx(2500, abs=10)  # a filter may err
        assert table.counters()["life_dead_merged"] == 2000
        assert len(table.read_all()[0]) == 2500


def test_a_row_that_a_merge_drops_under_a_staged_pass_is_counted_again(tmp_path: Path) -> None:
    with open_table(tmp_path / "s", compaction=None) as table:
        train(table, work_of(FIRST_DAY, np.arange(1, 2001), 1), 1)
        train(table, work_of(FIRST_DAY, np.arange(3001, 4001), 9), 2)
        table.life.shrink_table()
        work = work_of(FIRST_DAY, np.arange(1, 1001), 9)
        staged = stage(table, work)
        merge_sequence(table, 1)
        assert table.head is not None
        assert table.head.live_rows == pytest.approx(1000, abs=10)
        table.begin(staged)
        push(work, 3)
        table.end(3)
        table.commit(pass_number=3, day=work.day)
        assert table.head.live_rows == pytest.approx(2000, abs=10)
        assert len(table.read_all()[0]) == 2000
