"""What the keys of `save:` do: which saves the hook of a run writes, and where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paddlebox.saves import donefile
from paddlebox.training.plan import PlannedPass
from paddlebox.training.save_hooks import Save
from tests.saves.common import FIRST_DAY, feasigns, open_table, train
from tests.support.configs import make_config, make_slots


def saves_of(folder: Path, days: int = 2, **save: Any) -> tuple[list[str], list[str]]:
    """Names of the bases and deltas in folder/out after two passes on each of these days."""
    slots = make_slots(click="label", user="sparse")
    config = make_config(save={"out": str(folder / "out"), **save})
    with open_table(folder / "store") as table:
        hook = Save(config, slots, table, lambda: None)
        for number in range(1, 2 * days + 1):
            day = (number - 1) // 2
            train(table, feasigns(number, 100), number, day=FIRST_DAY + day)
            hook.after_pass({}, PlannedPass(number, 1, (), f"2024010{1 + day}"))
        hook.end()
        hook.close(None)
    bases, deltas = (donefile.read(folder / "out", kind) for kind in ("base", "delta"))
    return [done.name for done in bases], [done.name for done in deltas]


@pytest.fixture(autouse=True)
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside").mkdir()
    monkeypatch.chdir(tmp_path / "beside")


def test_each_date_has_a_base_and_then_deltas_in_save_out(tmp_path: Path) -> None:
    expected = (["20240101/base", "20240102/base"], ["20240101/delta-2", "20240102/delta-4"])
    assert saves_of(tmp_path) == expected
    assert not list((tmp_path / "beside").iterdir())


@pytest.mark.parametrize(
    ("every", "expected"), [(0, []), (4, ["20240102/delta-4"])], ids=["never", "every fourth pass"]
)
def test_a_delta_is_written_after_so_many_passes(
    tmp_path: Path, every: int, expected: list[str]
) -> None:
    bases = ["20240101/base", "20240102/base"]
    assert saves_of(tmp_path, delta_every=every) == (bases, expected)


def test_saves_are_copied_to_another_place(tmp_path: Path) -> None:
    there = tmp_path / "there"
    saves_of(tmp_path, copy_to=f"file://{there}")
    copied = [[done.name for done in donefile.read(there, kind)] for kind in ("base", "delta")]
    assert copied == [["20240101/base", "20240102/base"], ["20240101/delta-2", "20240102/delta-4"]]
