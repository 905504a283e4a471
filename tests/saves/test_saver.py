"""Saver: what a chain of saves holds is what the table holds."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paddlebox import _native
from paddlebox.config.checkpoint import SaveConfig
from paddlebox.config.table import RowPrecision
from paddlebox.errors import CorruptionError, OutOfSpaceError, PassError, StoreError
from paddlebox.saves import Saver, chain_of, changes, donefile, open_save, saver
from paddlebox.saves.load import merge_saves
from paddlebox.saves.meta import BASE, DELTA, read_meta
from paddlebox.saves.reader import Served
from paddlebox.saves.saver import BackgroundSaves
from paddlebox.store.table import Table, sorted_unique_keys
from tests.saves.common import (
    FIRST_DAY,
    apply,
    base_of,
    config,
    feasigns,
    files_bytes,
    open_table,
    train,
)
from tests.store.commit_held import Held

STEPS = st.one_of(
    st.tuples(st.just("train"), st.integers(1, 60), st.integers(1, 40), st.sampled_from([1, 6])),
    st.tuples(st.just("decay"), st.sampled_from([0.5, 0.9])),
    st.tuples(st.just("shrink"), st.sampled_from([0.3, 1.0]), st.integers(0, 3)),
    st.tuples(st.just("day"), st.integers(1, 4)),
    st.tuples(st.just("delta")),
    st.tuples(st.just("base")),
    st.tuples(st.just("reopen")),
)


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    steps=st.lists(STEPS, max_size=14),
    stored=st.booleans(),
    worth_it=st.sampled_from([0.0, 1e9]),
    precision=st.sampled_from([RowPrecision.FLOAT32, RowPrecision.FLOAT16]),
)
@pytest.mark.slow
def test_a_base_and_its_deltas_are_the_rows_of_a_base(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[Any, ...]],
    stored: bool,
    worth_it: float,
    precision: RowPrecision,
) -> None:
    changes._WORTH_IT = worth_it  # never and always by the touched feasigns alone, where that holds
    tmp = tmp_path_factory.mktemp("chain")
    folder = tmp / "store" if stored else None
    layout = config(precision, delta_keep_days=2)
    table = open_table(folder, layout, compaction=None)
    number, day = 1, FIRST_DAY
    try:
        train(table, feasigns(1, 30), number, day=day)
        Saver(table, tmp / "out").base("20240101/base-0")
        for at, (what, *values) in enumerate([*steps, ("delta",)], 1):
            if what == "train":
                number += 1
                train(table, feasigns(*values[:2]), number, day=day, show=values[2])
            elif what == "day":
                day += values[0]
                number += 1
                train(table, feasigns(200 + number, 3), number, day=day)
            elif what == "decay":
                table.life.end_of_day(day, decay=values[0])
            elif what == "shrink":
                table.life.shrink(day, min_score=values[0], max_unseen_days=values[1])
            elif what == "reopen" and folder is not None:
                table.close()
                table = open_table(folder, layout, compaction=None)
            elif what in ("delta", "base"):
                saver = Saver(table, tmp / "out")
                save = getattr(saver, what)(f"20240101/{what}-{at}")
                chain = chain_of(save)
                held = base_of(table)
                assert apply(chain) == held
                in_one = Served(chain).take()
                assert len(in_one[0]) == len(held)
                assert (np.diff(in_one[0].astype(object)) > 0).all()
    finally:
        changes._WORTH_IT = 0.2
        table.close()
        shutil.rmtree(tmp)


def made(due: dict[str, Any] | None) -> dict[str, Any]:
    """What a save that was due tells of itself."""
    assert due is not None
    return due


def read_whole(table: Table, saver: Saver, name: str) -> bool:
    """Saves a delta, which must be right; whether the whole table was read for it."""
    seen = []
    visit = table.first.visit

    def watched(*arguments: Any) -> Any:
        seen.append(1)
        return visit(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table.first, "visit", watched)
        save = saver.delta(f"20240101/{name.replace(' ', '-')}")
    assert apply(chain_of(save)) == base_of(table)
    return bool(seen)


def test_a_delta_after_a_change_of_all_rows_is_refused(tmp_path: Path) -> None:
    with open_table(tmp_path / "store", config(delta_threshold=0.25)) as table:
        train(table, feasigns(1, 30), 1)
        saver = Saver(table, tmp_path / "out")
        first = saver.base("20240101/first")
        table.life.reset_rows()
        with pytest.raises(StoreError, match=f"reset_rows changed all rows since {first.name}"):
            saver.delta()
        saver.base("20240101/second")
        train(table, feasigns(1, 3), 2)
        saver.delta()


def test_a_delta_without_a_threshold_has_a_change_of_all_rows(tmp_path: Path) -> None:
    with open_table(tmp_path / "store") as table:
        train(table, feasigns(1, 30), 1)
        saver = Saver(table, tmp_path / "out")
        saver.base()
        table.life.reset_rows()
        assert apply(chain_of(saver.delta())) == base_of(table)


def test_only_touched_feasigns_are_looked_at_while_nothing_else_can_have_changed(
    tmp_path: Path,
) -> None:
    with open_table(tmp_path / "store", keep_versions=1) as table:
        train(table, feasigns(1, 5000), 1)
        saver = Saver(table, tmp_path / "out")
        saver.base()
        train(table, feasigns(4990, 20), 2)
        train(table, feasigns(5000, 5), 3)
        assert not read_whole(table, saver, "touched")
        train(table, feasigns(1, 20), 4)
        table.compact(full=True)  # the touched rows are in large segments now
        assert read_whole(table, saver, "merged")
        train(table, feasigns(1, 4000), 5)
        assert read_whole(table, saver, "many")
        train(table, feasigns(1, 20), 6)
        table.life.end_of_day(FIRST_DAY, decay=0.9)
        assert read_whole(table, saver, "decayed")
        train(table, feasigns(1, 20), 7, day=FIRST_DAY + 1)
        assert read_whole(table, saver, "another day")
        train(table, feasigns(1, 20), 8, day=FIRST_DAY + 1)
        assert not read_whole(table, saver, "same day again")
        last = saver.last()
        assert last is not None
        merged = merge_saves([last], tmp_path / "out", "20240101/one")
        train(table, feasigns(1, 20), 9, day=FIRST_DAY + 1)
        assert not read_whole(table, saver, "upon a merge")
        last = saver.last()
        assert last is not None
        assert last.meta["base"] == merged.name
    with open_table(tmp_path / "other") as table:  # another store that goes on with the chain
        for number in range(1, 10):
            train(table, feasigns(1, 100 * number), number, day=FIRST_DAY + 1)
        assert read_whole(table, Saver(table, tmp_path / "out"), "another store")


def test_a_touched_row_that_is_deleted_in_a_chain_is_found_again(tmp_path: Path) -> None:
    with open_table(tmp_path / "store") as table:
        train(table, feasigns(1, 1000), 1)
        saver = Saver(table, tmp_path / "out")
        saver.base()
        train(table, feasigns(1, 20), 2)
        table.life.shrink(FIRST_DAY, min_score=0.9)  # five shows are not enough, ten are
        assert read_whole(table, saver, "shrunk")
        train(table, feasigns(500, 20), 3)
        assert not read_whole(table, saver, "back")


def test_a_delta_of_5_percent_of_the_rows_has_at_most_6_percent_of_the_bytes(
    tmp_path: Path,
) -> None:
    with open_table(tmp_path / "store") as table:
        train(table, feasigns(1, 100_000), 1)
        saver = Saver(table, tmp_path / "out", dense={})
        base = saver.base()
        train(table, feasigns(1, 5_000) * np.uint64(20), 2)
        delta = saver.delta()
        assert delta.meta["rows"] == 5_000
        assert delta.meta["deleted"] == 0
        assert files_bytes(delta.folder) <= 0.06 * files_bytes(base.folder)


def test_above_threshold_0_rows_that_changed_little_lag_until_they_changed_enough(
    tmp_path: Path,
) -> None:
    # A show scores 0.1: three shows make the threshold of 0.25, two do not.
    with open_table(tmp_path / "store", config(delta_threshold=0.25)) as table:
        even = feasigns(1, 10) * np.uint64(2)
        train(table, even, 1, show=9)
        saver = Saver(table, tmp_path / "out")
        base = saver.base()
        train(table, even[:4], 2, show=2)
        first = saver.delta()
        assert first.meta["rows"] == 0
        assert apply([base, first]) == apply([base])  # lags on purpose
        train(table, even[:4], 3, show=2)  # 0.4 since the base
        second = saver.delta()
        assert second.meta["rows"] == 4
        assert apply([base, first, second]) == base_of(table)
        table.life.end_of_day(FIRST_DAY, decay=0.9)
        train(table, feasigns(1000, 1), 4)
        third = saver.delta()
        assert third.meta["rows"] == 1  # rows that only decayed lag
        table.life.shrink(FIRST_DAY, min_score=1.0)  # deletions never do: 0.81 is left of the six
        fourth = saver.delta("20240101/delta-5")
        held = apply([base, first, second, third, fourth])
        assert fourth.meta["deleted"] == 7
        assert held.keys() == base_of(table).keys()


def test_a_row_that_falls_under_the_base_threshold_is_deleted_and_may_come_back(
    tmp_path: Path,
) -> None:
    with open_table(None) as table:
        train(table, feasigns(2, 1), 1, show=6)  # scores 0.6
        saver = Saver(table, tmp_path)
        saver.base()
        table.life.end_of_day(FIRST_DAY, decay=0.5)
        gone = saver.delta("20240101/delta-1")
        assert (gone.meta["rows"], gone.meta["deleted"]) == (0, 1)
        assert [f.tolist() for f in gone.deleted()] == [[2]]
        again = saver.delta("20240101/delta-2")
        assert (again.meta["rows"], again.meta["deleted"]) == (0, 0)
        train(table, feasigns(2, 1), 2, show=6)
        back = saver.delta("20240101/delta-3")
        assert (back.meta["rows"], back.meta["deleted"]) == (1, 0)
        assert apply(chain_of(back)) == base_of(table)


def test_a_save_sees_committed_rows_while_the_next_pass_is_staged(tmp_path: Path) -> None:
    with open_table(tmp_path / "store") as table:
        train(table, feasigns(1, 100), 1)
        expected = base_of(table)
        staged = table.stage(sorted_unique_keys(feasigns(50, 100)), day=FIRST_DAY)
        save = Saver(table, tmp_path / "out").base()
        assert apply([save]) == expected
        table.begin(staged)
        with pytest.raises(PassError, match="a pass is open"):
            Saver(table, tmp_path / "out").delta("20240101/delta-9")
        assert not (tmp_path / "out" / "20240101" / ".delta-9.tmp").exists()
        table.abandon()


EVERY_PASS = SaveConfig(out="unused", delta_every=1)


def begun(table: Table, out: Path) -> BackgroundSaves:
    return BackgroundSaves(Saver(table, out), EVERY_PASS)


def test_a_pass_trains_beside_the_save_before_it_and_is_committed_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    going_on = threading.Event()
    base = Saver.base

    def slow(self: Saver, name: str = "", **arguments: Any) -> Any:
        assert going_on.wait(60)
        return base(self, name, **arguments)

    with open_table(tmp_path / "store", keep_versions=1) as table:
        train(table, feasigns(1, 3000), 1)
        expected = base_of(table)
        saves = begun(table, tmp_path / "out")
        monkeypatch.setattr(Saver, "base", slow)
        found = saves.due()
        assert found is not None
        assert (found["kind"], found["name"]) == (BASE, "20240101/base")
        following = threading.Thread(target=train, args=(table, feasigns(1, 3000), 2))
        following.start()
        following.join(0.5)
        assert following.is_alive()
        assert table.head is not None
        assert table.head.pass_number == 1
        assert donefile.last(tmp_path / "out") is None
        going_on.set()
        following.join(60)
        assert table.head.pass_number == 2
        last = Saver(table, tmp_path / "out").last()
        assert last is not None
        assert apply([last]) == expected
        assert last.dense()["w"].tolist() == [1, 1, 1]
        table.life.shrink(FIRST_DAY, min_score=1.2)
        train(table, feasigns(5000, 10), 3)
        table.compact(full=True)
        assert made(saves.due())["kind"] == DELTA
        saves.finish()
        delta = Saver(table, tmp_path / "out").last()
        assert delta is not None
        assert apply([last, delta]) == base_of(table)
        table.first.versions.retention.drop_old()
        assert not list((tmp_path / "store" / "leases").iterdir())
        saves.close()


def test_a_pass_after_which_no_save_is_due_is_committed_beside_the_next(tmp_path: Path) -> None:
    every_third = SaveConfig(out="unused", delta_every=3)
    with open_table(tmp_path / "store") as table:
        saves = BackgroundSaves(Saver(table, tmp_path / "out"), every_third)
        train(table, feasigns(1, 100), 1)
        assert saves.due(1, "20240101") is not None
        saves.finish()
        held = Held(table.first, "record")
        train(table, feasigns(50, 100), 2, background=True)
        assert held.reached.wait(60)
        assert saves.due(2, "20240101") is None
        assert table.head is not None
        assert table.head.pass_number == 1
        held.let_go()
        train(table, feasigns(90, 100), 3, background=True)
        assert made(saves.due(3, "20240101"))["name"] == "20240101/delta-3"
        train(table, feasigns(90, 100), 4, day=FIRST_DAY + 1)
        assert made(saves.due(4, "20240102"))["name"] == "20240102/base"
        saves.finish()
        saves.close()


def test_a_save_that_goes_wrong_lets_no_later_pass_be_committed_and_is_made_again(
    tmp_path: Path,
) -> None:
    with open_table(tmp_path / "store", config(delta_threshold=0.25)) as table:
        train(table, feasigns(2, 300), 1, show=9)
        saves = begun(table, tmp_path / "out")
        saves.due()
        saves.finish()
        train(table, feasigns(2, 100), 2, show=3)
        expected = base_of(table)
        _native.core.inject_write_fault(9000, errno.ENOSPC)
        try:
            saves.due()
            with pytest.raises(OutOfSpaceError):
                saves.finish()
        finally:
            _native.core.inject_write_fault(-1, 0)
        with pytest.raises(OutOfSpaceError):
            train(table, feasigns(100, 50), 3, show=2)
        assert table.head is not None
        assert table.head.pass_number == 2
        assert donefile.read(tmp_path / "out", DELTA) == []
        saves.close()
    with open_table(tmp_path / "store", config(delta_threshold=0.25)) as table:
        saves = begun(table, tmp_path / "out")
        assert made(saves.due())["name"] == "20240101/delta-2"
        saves.finish()
        last = Saver(table, tmp_path / "out").last()
        assert last is not None
        assert apply(chain_of(last)) == expected
        train(table, feasigns(200, 5), 3, show=2)
        saves.due()
        saves.close()
        again = Saver(table, tmp_path / "out").last()
        assert again is not None
        assert again.meta["rows"] == 2  # those with a click; the others lag, as the threshold says


def test_a_long_chain_ends_with_a_base_and_the_day_keeps_two_chains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver, "LONG_CHAIN", 3)  # the deltas change all rows
    out, kinds = tmp_path / "out", ""
    for first in (1, 6):
        with open_table(tmp_path / "store") as table:  # the second time as after a kill
            saves = begun(table, out)
            for number in range(first, first + 5):
                train(table, feasigns(number, 100), number)
                kinds += made(saves.due())["kind"][0]
                saves.finish()
                last = Saver(table, out).last()
                assert last is not None
                assert apply(chain_of(last)) == base_of(table)
            saves.close()
        if first == 1:
            shutil.copytree(out / "20240101/base", out / "20240101/base-copy")  # of the user
    assert kinds == "bddbddbddb"
    done = {one.name for kind in (BASE, DELTA) for one in donefile.read(out, kind)}
    assert done == {f"20240101/{name}" for name in ("base-3", "delta-8", "delta-9", "base-4")}
    done.add("20240101/base-copy")
    assert {f"20240101/{path.name}" for path in (out / "20240101").iterdir()} == done


def test_a_chain_of_small_deltas_is_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saver, "LONG_CHAIN", 2)
    monkeypatch.setattr(saver, "LONGEST_CHAIN", 5)
    with open_table(tmp_path / "store") as table:
        train(table, feasigns(1, 1000), 1)
        saves = begun(table, tmp_path / "out")
        kinds = made(saves.due())["kind"][0]
        for number in range(2, 8):
            train(table, feasigns(10 * number, 100), number)
            kinds += made(saves.due())["kind"][0]
        saves.close()
    assert kinds == "bddddbd"


@pytest.mark.parametrize("daily", [True, False])
def test_a_run_over_a_stream_keeps_the_two_newest_chains_of_all_dates(
    tmp_path: Path, daily: bool
) -> None:
    out = tmp_path / "out"
    with open_table(tmp_path / "store") as table:
        saves = BackgroundSaves(Saver(table, out), EVERY_PASS, daily=daily)
        for number in range(1, 9):  # two of each date
            train(table, feasigns(10 * number, 100), number, day=FIRST_DAY + number // 2)
            saves.due()
            saves.finish()
        saves.close()
        last = Saver(table, out).last()
        assert last is not None
        assert apply(chain_of(last)) == base_of(table)
    dates = [date for date in sorted(os.listdir(out)) if date.isdecimal()]
    assert dates == [f"2024010{n}" for n in range(1, 6)][0 if daily else -2 :]
    named = {one.name for kind in (BASE, DELTA) for one in donefile.read(out, kind)}
    assert {f"{date}/{save.name}" for date in dates for save in (out / date).iterdir()} == named


@pytest.mark.parametrize("daily", [True, False])
@pytest.mark.parametrize(
    "death",
    [
        "before it changes a donefile",
        "between the donefiles",
        "before it removes folders",
        "while it removes one",
    ],
)
def test_a_run_that_was_killed_while_it_dropped_a_chain_removes_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, death: str, daily: bool
) -> None:
    out = tmp_path / "out"
    skipped = "drop_earlier" if "donefile" in death else "remove_dropped"
    with open_table(tmp_path / "store") as table:
        saves = BackgroundSaves(Saver(table, out), EVERY_PASS, daily=daily)
        monkeypatch.setattr(saver, "LONGEST_CHAIN", 2)
        monkeypatch.setattr(donefile, skipped, lambda *_, **__: None)
        for number in range(1, 7):
            train(table, feasigns(10 * number, 100), number)
            saves.due()
            saves.finish()
        saves.close()
        monkeypatch.undo()
        folder = out / "20240101"
        assert (folder / "base" / "meta.json").exists()
        if death == "between the donefiles":
            deltas = out / donefile.NAMES[DELTA]
            lines = deltas.read_text().splitlines(keepends=True)
            deltas.write_text("".join(line for line in lines if "/delta-2/" not in line))
            assert len(deltas.read_text().splitlines()) == len(lines) - 1
        if death == "while it removes one":
            (folder / "base").rename(folder / ".base.tmp")
        for copied in ("base-kept", "delta-2-of-monday"):
            shutil.copytree(folder / "delta-2", folder / copied)
        BackgroundSaves(Saver(table, out), EVERY_PASS, daily=daily).close()
    named = {one.name for kind in (BASE, DELTA) for one in donefile.read(out, kind)}
    assert named == {f"20240101/{name}" for name in ("base-2", "delta-4", "base-3", "delta-6")}
    copies = {"20240101/base-kept", "20240101/delta-2-of-monday"}
    assert {f"20240101/{save.name}" for save in folder.iterdir()} == named | copies


@pytest.mark.parametrize("death", ["before the save", "beside it", "after it"])
def test_a_run_that_was_killed_around_a_save_ends_with_the_saves_and_rows_of_another(
    tmp_path: Path, death: str
) -> None:
    digests, saved = [], []
    for dies in (False, True):
        folder = tmp_path / str(dies)
        with open_table(folder / "store", config(delta_threshold=0.25)) as table:
            for number in (1, 2):
                train(table, feasigns(2 * number, 300), number, show=3)
                saves = begun(table, folder / "out")
                if dies and number == 2 and death != "after it":
                    break
                saves.due()
                if dies and number == 2:
                    saves.close()  # what makes it durable that delta_score begins anew is missing
                else:
                    saves.finish()
        if dies and death == "beside it":
            (folder / "out" / "20240101" / ".delta-2.tmp" / "000").mkdir(parents=True)
        with open_table(folder / "store", config(delta_threshold=0.25)) as table:
            for number in (2, 3):
                if number == 3:
                    train(table, feasigns(100, 300), 3, show=3)
                saves = begun(table, folder / "out")
                found = saves.due()  # where the save of pass 2 is there, it is not made again
                assert found is not None
                assert found["name"] == f"20240101/delta-{number}"
                saves.finish()
                saves.close()
            digests.append(table.digest())
            last = Saver(table, folder / "out").last()
            assert last is not None
            saved.append([apply([save]) for save in chain_of(last)])
            assert apply(chain_of(last)) == base_of(table)
        names = sorted(path.name for path in (folder / "out" / "20240101").iterdir())
        assert names == ["base", "delta-2", "delta-3"]
    assert digests[0] == digests[1]
    assert saved[0] == saved[1]


def test_a_batch_has_every_row_with_its_delta_score(tmp_path: Path) -> None:
    with open_table(tmp_path / "store") as table:
        train(table, feasigns(2, 10) * np.uint64(2), 1, show=1)  # 0.1 is in no base
        save = Saver(table, tmp_path / "out").batch()
        assert save.folder == tmp_path / "out" / "20240101" / "1"
        found, rows = next(iter(save))
        assert len(found) == 10
        assert rows[:, 3] == pytest.approx(0.1)
        assert save.dense()["w"].tolist() == [1, 1, 1]
        assert Saver(table, tmp_path / "out").base("20240101/base").meta["rows"] == 0


def test_donefiles_have_fleet_utils_lines(tmp_path: Path) -> None:
    with open_table(tmp_path / "store") as table:
        train(table, feasigns(1, 10), 1)
        saver = Saver(table, tmp_path / "out")
        base = saver.base()
        train(table, feasigns(1, 10), 2)
        saver.delta()
        saver.batch()
    line = json.loads((tmp_path / "out" / "xbox_patch_done.txt").read_text())
    assert line["input"] == f"{tmp_path}/out/20240101/delta-2/000"
    assert line["key"] == str(base.meta["key"])
    assert line["record_count"] == "10"
    # As FleetUtil reads day and pass of the last save.
    assert line["input"].split("/")[-3:-1] == ["20240101", "delta-2"]
    assert (tmp_path / "out" / "donefile.txt").read_text().split("\t")[3:] == ["2", "0\n"]


def test_a_save_is_written_once_and_an_unannounced_folder_is_replaced(
    tmp_path: Path,
) -> None:
    with open_table(tmp_path / "store") as table:
        train(table, feasigns(1, 10), 1)
        saver = Saver(table, tmp_path / "out")
        base = saver.base()
        with pytest.raises(StoreError, match="is done already"):
            saver.base()
        # Killed between the folder's name and the donefile's line:
        os.unlink(tmp_path / "out" / "xbox_base_done.txt")
        assert saver.last() is None
        assert saver.base().folder == base.folder


def test_a_full_disk_leaves_no_save(tmp_path: Path) -> None:
    with open_table(tmp_path / "store") as table:
        train(table, feasigns(1, 3000), 1)
        saver = Saver(table, tmp_path / "out")
        _native.core.inject_write_fault(9000, errno.ENOSPC)
        try:
            with pytest.raises(OutOfSpaceError):
                saver.base()
        finally:
            _native.core.inject_write_fault(-1, 0)
        assert os.listdir(tmp_path / "out" / "20240101") == []
        assert saver.last() is None
        assert saver.base().meta["rows"] == 3000


def test_a_delta_of_another_chain_is_refused(tmp_path: Path) -> None:
    with open_table(None) as table:
        train(table, feasigns(1, 10), 1)
        saver = Saver(table, tmp_path)
        saver.base()
        train(table, feasigns(1, 10), 2)
        delta = saver.delta("20240101/delta-2")
        shutil.rmtree(tmp_path / "20240101" / "base")
        (tmp_path / "xbox_base_done.txt").unlink()
        with pytest.raises(StoreError, match="no complete save"):
            chain_of(delta)
        train(table, feasigns(1, 20), 3)
        saver.base("20240101/base")
        with pytest.raises(StoreError, match="belongs to another chain"):
            chain_of(delta)


def test_a_chain_may_be_moved(tmp_path: Path) -> None:
    with open_table(None) as table:
        train(table, feasigns(1, 10), 1)
        Saver(table, tmp_path / "a").base()
        train(table, feasigns(1, 10), 2)
        Saver(table, tmp_path / "a").delta("20240101/delta-2")
        os.rename(tmp_path / "a", tmp_path / "b")
        last = Saver(table, tmp_path / "b").last()
        assert last is not None
        assert apply(chain_of(last)) == base_of(table)


def test_every_flipped_byte_of_a_save_is_found(tmp_path: Path) -> None:
    with open_table(None) as table:
        train(table, feasigns(1, 40), 1)
        saver = Saver(table, tmp_path, dense={"w": np.ones(3)}, extra={"slots.yaml": b"slots"})
        saver.base()
        table.life.shrink(FIRST_DAY, min_score=1.0)
        save = saver.delta("20240101/delta-1")
        assert save.meta["deleted"] > 0
    random = np.random.default_rng(1)
    for path in sorted(p for p in save.folder.rglob("*") if p.is_file()):
        data = path.read_bytes()
        for at in {0, len(data) - 2, *random.integers(0, len(data), 20).tolist()}:
            damaged = bytearray(data)
            damaged[at] ^= 4
            path.write_bytes(bytes(damaged))
            with pytest.raises((CorruptionError, StoreError), match=path.name):
                read_all(save.folder)
        path.write_bytes(data)
    read_all(save.folder)


def test_every_changed_byte_of_the_record_of_a_save_is_found(tmp_path: Path) -> None:
    with open_table(None) as table:
        train(table, feasigns(1, 40), 1)
        save = Saver(table, tmp_path).base()
    path = save.folder / "meta.json"
    data = path.read_bytes()
    for at, byte in enumerate(data):
        other = (
            b"\n"[0] if byte == b" "[0] else byte ^ 1
        )  # a line break leaves the fields as they are
        path.write_bytes(data[:at] + bytes([other]) + data[at + 1 :])
        with pytest.raises(CorruptionError, match=r"meta\.json: "):
            read_meta(save.folder)
    path.write_bytes(data)
    read_meta(save.folder)


def read_all(folder: Path) -> None:
    save = open_save(folder)
    list(save)
    list(save.deleted())
    save.dense()
    save.file("slots.yaml")


def test_segments_of_a_save_are_cut_and_read_in_the_order_of_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paddlebox.saves.writer._SEGMENT_BYTES", 1000)
    with open_table(None) as table:
        train(table, feasigns(1, 100), 1)
        save = Saver(table, tmp_path).base()
        assert len(save.meta["segments"]) > 5
        keys = np.concatenate([keys for keys, _ in save.chunks()])
        assert (keys[1:] > keys[:-1]).all()
        assert apply([save]) == base_of(table)


def test_the_last_save_is_that_of_the_last_base(tmp_path: Path) -> None:
    with open_table(None) as table:
        train(table, feasigns(1, 10), 1)
        saver = Saver(table, tmp_path)
        first = saver.base("20240101/base")
        saver.delta("20240101/delta-1")
        second = saver.base("20240102/base")
        assert second.meta["key"] > first.meta["key"]
        assert donefile.last(tmp_path) == "20240102/base"
        assert [d.name for d in donefile.read(tmp_path, BASE)] == ["20240101/base", "20240102/base"]
        assert len(donefile.read(tmp_path, DELTA)) == 1


def test_a_reader_can_save_and_changes_nothing(tmp_path: Path) -> None:
    with open_table(tmp_path / "store") as table:
        train(table, feasigns(1, 100), 1)
        expected = base_of(table)
    before = sorted(os.listdir(tmp_path / "store"))
    with open_table(tmp_path / "store", read_only=True) as reader:
        save = Saver(reader, tmp_path / "out").base()
        assert apply([save]) == expected
        assert reader.first.events == []  # nothing begins anew: the store is not the reader's
    assert sorted(os.listdir(tmp_path / "store")) == before
