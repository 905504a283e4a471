"""What the modes of `ranks:` promise: processes of the launcher, over loopback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ranks.test_ranks import _all_rows, _assert_same_model, _passes, _train


def _drift(one: dict[str, Any], other: dict[str, Any]) -> float:
    """How far nine rows in ten are off at most, in parts of a row's largest weight. Not the mean: a
    ReLU that is at 0 and on another side for one instance moves a few rows by a lot."""
    expected, found = _all_rows(one), _all_rows(other)
    assert expected.keys() == found.keys()
    names = sorted(expected)
    a, b = (np.stack([rows[name] for name in names])[:, 6:] for rows in (expected, found))
    return float(np.quantile(np.abs(a - b).max(axis=1) / np.abs(a).max(axis=1), 0.9))


@pytest.fixture(scope="module")
def flat(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("flat")
    return _train(folder / "four", 4, _passes(folder / "data", 4), dim=16, options="{per_node: 2}")


@pytest.mark.slow
def test_two_levels_train_what_one_level_trains_with_fewer_bytes_between_nodes(
    flat: dict[str, Any], tmp_path: Path
) -> None:
    passes = _passes(tmp_path / "data", 4)
    options = "{two_level: true, per_node: 2}"
    two = _train(tmp_path / "two", 4, passes, dim=16, options=options)
    _assert_same_model(flat, two)
    assert 0 < _bytes(two, "between_nodes") < _bytes(flat, "between_nodes")
    again = _train(tmp_path / "again", 4, passes, dim=16, options=options)
    assert again["digest"] == two["digest"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of one node, where every row travels whole."""
    folder = tmp_path_factory.mktemp("whole")
    return _train(folder / "four", 4, _passes(folder / "data", 4), dim=16)


@pytest.mark.slow
def test_rows_without_an_embedx_travel_without_one_between_nodes_and_no_bit_differs(
    flat: dict[str, Any], whole: dict[str, Any]
) -> None:
    assert (flat["digest"], flat["dense"]) == (whole["digest"], whole["dense"])
    assert 0 < _bytes(flat) < 0.95 * _bytes(whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        "{rows: int8, gradients: int8}",
        "{rows: float16, gradients: bfloat16}",
        "{rows: int8, gradients: int8, two_level: true, per_node: 2}",
        "{rows: int8, gradients: int8, error_feedback: false}",
    ],
)
def test_narrow_formats_train_nearly_the_same_rows_and_two_runs_the_same(
    flat: dict[str, Any], whole: dict[str, Any], tmp_path: Path, options: str
) -> None:
    passes = _passes(tmp_path / "data", 4)
    narrow = _train(tmp_path / "narrow", 4, passes, dim=16, options=options)
    assert 0 < _drift(flat, narrow) < 0.01
    if "two_level" not in options:
        assert _bytes(narrow) <= (0.45 if "int8" in options else 0.60) * _bytes(whole)
    for before, after in zip(flat["passes"], narrow["passes"], strict=True):
        assert after["auc"] == pytest.approx(before["auc"], abs=5e-3)
    again = _train(tmp_path / "again", 4, passes, dim=16, options=options)
    assert (again["digest"], again["dense"]) == (narrow["digest"], narrow["dense"])


def _bytes(result: dict[str, Any], which: str = "sent") -> int:
    """That the first rank has sent in steps."""
    return sum(result["traffic"][which][name] for name in ("ids", "rows", "gradients"))


@pytest.mark.slow
def test_rows_lack_the_gradients_of_just_as_many_steps_as_staleness_says(
    flat: dict[str, Any], tmp_path: Path
) -> None:
    for result, ahead in ((flat, 0), (None, 3)):
        if result is None:
            passes = _passes(tmp_path / "data", 4)
            options = "{sparse_sync: async, staleness: 3}"
            result = _train(tmp_path / "stale", 4, passes, dim=16, options=options)
        steps = 10  # of each of two passes
        assert len(result["order"]) == 2 * 2 * steps
        given = 0
        for what, number in result["order"]:
            if what == "fetch":
                in_pass = number % steps
                assert given == number - in_pass + max(0, in_pass - ahead)
            else:
                given += 1


@pytest.mark.slow
def test_asynchronous_rows_are_the_same_in_two_runs(flat: dict[str, Any], tmp_path: Path) -> None:
    passes = _passes(tmp_path / "data", 4)
    options = "{sparse_sync: async, staleness: 3}"
    stale = _train(tmp_path / "stale", 4, passes, dim=16, options=options)
    assert stale["digest"] != flat["digest"]
    again = _train(tmp_path / "again", 4, passes, dim=16, options=options)
    assert (again["digest"], again["dense"]) == (stale["digest"], stale["dense"])


@pytest.mark.slow
@pytest.mark.parametrize("program", ["pir", "dygraph"])
@pytest.mark.parametrize(
    "options", ["{dense: average, sync_weight_step: 8}", "{dense_top_k: 0.05}"]
)
def test_dense_modes_end_a_pass_with_the_same_parameters_on_every_rank(
    tmp_path: Path, program: str, options: str
) -> None:
    passes = _passes(tmp_path / "data", 2)
    usual = _train(tmp_path / "usual", 2, passes, program=program)
    mode = _train(tmp_path / "mode", 2, passes, program=program, options=options)
    of_other = json.loads((tmp_path / "mode/result-2-1.json").read_text())
    assert of_other["dense"] == mode["dense"]
    assert 0 < mode["traffic"]["dense"] < 0.5 * usual["traffic"]["dense"]
    for before, after in zip(usual["passes"], mode["passes"], strict=True):
        assert after["auc"] == pytest.approx(before["auc"], abs=0.05)
    again = _train(tmp_path / "again", 2, passes, program=program, options=options)
    assert (again["digest"], again["dense"]) == (mode["digest"], mode["dense"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    ["{rows: int8, gradients: int8, dense_top_k: 0.1}", "{rows: float16, sparse_sync: async}"],
)
def test_the_way_of_exchange_changes_no_bit_of_a_mode(tmp_path: Path, options: str) -> None:
    passes = _passes(tmp_path / "data", 2)
    near = _train(tmp_path / "near", 2, passes, dim=16, options=options)
    far = _train(tmp_path / "far", 2, passes, dim=16, options=options, launchers=2)
    assert (near["on_one_host"], far["on_one_host"]) == (True, False)
    assert far["digest"] == near["digest"]
    if "top_k" in options:  # an all-reduce adds up in an order of its own
        assert far["dense"] == near["dense"]
