"""`paddlebox evaluate` prints JSON that people and programs can read."""

from __future__ import annotations

import json

from paddlebox.launch.cli import _as_json

RESULT = {"auc": 0.75, "calibration": [[1, 0, 0.5], [2, 1, 0.25]], "version": 3}


def test_a_program_reads_one_line() -> None:
    assert "\n" not in _as_json(RESULT, on_terminal=False)
    assert json.loads(_as_json(RESULT, on_terminal=False)) == RESULT


def test_a_terminal_shows_a_line_for_each_key() -> None:
    shown = _as_json(RESULT, on_terminal=True)
    assert json.loads(shown) == RESULT
    assert [line.strip().partition(":")[0] for line in shown.splitlines()[1:-1]] == [
        f'"{key}"' for key in RESULT
    ]
