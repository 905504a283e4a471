"""Which passes a run has, and of which day each is."""

from __future__ import annotations

from pathlib import Path

import pytest

from paddlebox.training.plan import plan_passes
from tests.support.configs import make_config


def plan(folder: Path, **data: object) -> list[tuple[int, str, str]]:
    """(number, names of the files, date) of each pass over five files."""
    files = []
    for name in "abcde":
        (folder / name).touch()
        files.append(str(folder / name))
    config = make_config(data={"train_files": files, **data})
    return [
        (p.number, "".join(Path(file).name for file in p.files), p.date)
        for p in plan_passes(config)
    ]


@pytest.mark.parametrize(
    ("settings", "passes"),
    [
        ({}, ["abcde "]),
        ({"files_per_pass": 2}, ["ab ", "cd ", "e "]),
        ({"date": "20231231"}, ["abcde 20231231"]),
        (
            {"date": "20231231", "files_per_pass": 3},
            ["abc 20231231", "de 20231231"],
        ),
        (
            {"date": "20231231", "files_per_day": 2},
            ["ab 20231231", "cd 20240101", "e 20240102"],
        ),
        (  # no pass is of two days
            {"date": "20231231", "files_per_day": 3, "files_per_pass": 2},
            ["ab 20231231", "c 20231231", "de 20240101"],
        ),
    ],
)
def test_files_become_passes_of_one_day_each(
    tmp_path: Path, settings: dict[str, object], passes: list[str]
) -> None:
    expected = [(n + 1, *text.split(" ")) for n, text in enumerate(passes)]
    assert plan(tmp_path, **settings) == expected
