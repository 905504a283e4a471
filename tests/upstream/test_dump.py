"""Dumps of a training program: the lines of PaddleBox's format, and which instances they have."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.fixtures import WriteLines
from tests.support.instances import multislot_lines

SCRIPT = (Path(__file__).parent / "dumped_program.py").read_text()
ROWS, BATCH = 100, 32


def values(text: str) -> list[str]:
    """The values of ":<value>:<value>...", behind the name and the count."""
    return text.split(":")


def test_a_dump_has_what_the_steps_computed(
    in_new_process: Callable[..., Any], write_lines: WriteLines, tmp_path: Path
) -> None:
    lines = multislot_lines(ROWS)
    plain = write_lines("plain.txt", lines)
    with_ids = write_lines("ids.txt", [f"1 id{n} {line}" for n, line in enumerate(lines)])
    report = in_new_process(SCRIPT, str(tmp_path), plain, with_ids)
    fetched = report["fetched"][: math.ceil(ROWS / BATCH)]
    (file,) = sorted((tmp_path / "whole").iterdir())
    assert file.name == "part-00-00000-00000"
    found = iter(file.read_text().splitlines())
    number = 0
    for batch, (users, ages, weight) in enumerate(fetched):
        for user, age in zip(users, ages, strict=True):
            ins_id, user_text, age_text = next(found).split("\t")
            assert ins_id == str(number)
            assert values(user_text) == ["user", "1", str(user[0] % 2**64)]
            assert values(age_text)[:2] == ["age", "2"]
            assert np.array_equal(np.array(values(age_text)[2:], np.float32), np.float32(age))
            number += 1
        head, *texts = values(next(found))
        flat = np.float32(weight).reshape(-1)
        assert head == f"({batch},weight,{flat.size})"
        assert np.array_equal(np.array(texts, np.float32), flat)
    assert number == ROWS
    assert next(found, None) is None

    ids: dict[str, list[str]] = {name: [] for name in ("by_id", "random")}
    for name, chosen in ids.items():
        (file,) = sorted((tmp_path / name).iterdir())
        chosen += [line.split("\t")[0] for line in file.read_text().splitlines()]
        assert 0 < len(chosen) < ROWS / 2
        assert chosen == sorted(chosen, key=lambda text: int(text.removeprefix("id")))
    assert ids["by_id"] != ids["random"]

    assert report["again"].endswith("the dump cannot be written: File exists")
    assert "no parameter absent; there are: " in report["unknown"]
    assert "expected mode 0, 1 or 2, found 3" in report["mode"]
    assert "expected interval >= 1, found 0" in report["interval"]
    assert report["unopened"].endswith("it writes only within a with statement")
    assert "expected one row for each of 3 instances, found shape (1,)" in report["shape"]
