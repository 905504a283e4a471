"""Rows with an expand part on several ranks, in a custom loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ranks.test_ranks import _all_rows, _assert_same_model, _passes, _train, _train_each

_EXPAND = 3
_TABLE = {
    "expand_dim": _EXPAND,
    "embedx": {"rule": "adam", "initial_range": 0.1, "learning_rate": 0.02},
}


def _expand_of(result: dict[str, Any]) -> np.ndarray:
    """Of each row by feasign, the columns from expand on; Adam keeps 2 E + 2 of state."""
    rows = _all_rows(result)
    return np.stack([rows[name] for name in sorted(rows)])[:, -(3 * _EXPAND + 2) :][:, :_EXPAND]


@pytest.mark.slow
def test_two_ranks_train_the_rows_with_both_embeddings_that_one_trains(tmp_path: Path) -> None:
    """Over twenty steps."""
    one = _train(tmp_path / "one", 1, _passes(tmp_path / "a", 1), table=_TABLE)
    two = _train(tmp_path / "two", 2, _passes(tmp_path / "b", 2), table=_TABLE)
    _assert_same_model(one, two)
    moved = np.abs(_expand_of(two)).max(axis=1)
    assert 5 < np.count_nonzero(moved > 0.11) < len(moved), "all beyond what they began with"


@pytest.mark.slow
def test_pulls_of_their_own_train_what_one_pull_trains_on_one_rank_and_on_two(
    tmp_path: Path,
) -> None:
    """The rules of the table are not linear: they see the sum of a step, over pulls and ranks."""
    one_file = _passes(tmp_path / "a", 1)
    trainings = {name: {"table": _TABLE, "own_pulls": name == "own"} for name in ("whole", "own")}
    runs = _train_each(tmp_path / "one", 1, one_file, trainings)
    _assert_same_model(runs["whole"], runs["own"])
    trainings = {name: {"table": _TABLE, "own_pulls": True} for name in ("first", "again")}
    two = _train_each(tmp_path / "two", 2, _passes(tmp_path / "b", 2), trainings)
    _assert_same_model(runs["whole"], two["first"])
    assert two["first"]["digest"] == two["again"]["digest"]


@pytest.mark.slow
def test_quantized_rows_and_steps_that_do_not_wait_have_the_expand_part_too(tmp_path: Path) -> None:
    modes = ("{rows: int8, gradients: int8}", "{staleness: 2}")
    trainings: dict[str, dict[str, Any]] = {"{}": {"table": _TABLE}}
    for mode in modes:
        trainings |= {name: {"table": _TABLE, "options": mode} for name in (mode, f"again {mode}")}
    runs = _train_each(tmp_path, 2, _passes(tmp_path / "data", 2), trainings)
    for mode in modes:
        whole, found, again = runs["{}"], runs[mode], runs[f"again {mode}"]
        assert found["digest"] == again["digest"] != whole["digest"]
        expected, other = _expand_of(whole), _expand_of(found)
        assert 0 < np.abs(other - expected).mean() < 0.1 * np.abs(expected).mean()


@pytest.mark.long
def test_ranks_of_two_launchers_end_with_the_same_bits(tmp_path: Path) -> None:
    """Where rows travel early."""
    passes = _passes(tmp_path / "data", 2)
    near = _train(tmp_path / "near", 2, passes, table=_TABLE)
    far = _train(tmp_path / "far", 2, passes, table=_TABLE, launchers=2)
    assert far["sent"]["sent_bytes_early"] > 0
    assert far["digest"] == near["digest"]
