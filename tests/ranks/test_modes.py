"""What the modes of `ranks:` promise: processes of the launcher, over loopback."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ranks.test_ranks import _all_rows, _passes, _train_each
from tests.support.marks import long


def _drift(one: dict[str, Any], other: dict[str, Any]) -> float:
    """How far nine rows in ten are off at most, in parts of a row's largest weight. Not the mean: a
    ReLU that is at 0 and on another side for one instance moves a few rows by a lot."""
    expected, found = _all_rows(one), _all_rows(other)
    assert expected.keys() == found.keys()
    names = sorted(expected)
    a, b = (np.stack([rows[name] for name in names])[:, 6:] for rows in (expected, found))
    return float(np.quantile(np.abs(a - b).max(axis=1) / np.abs(a).max(axis=1), 0.9))


_STALE = "{staleness: 3}"
_QUANTIZED = (
    "{rows: int8, gradients: int8}",
    "{rows: float16, gradients: bfloat16}",
)
Runs = dict[str, dict[str, Any]]  # by `ranks:`, whose second run has "again " before it


def _twice(modes: Sequence[str], **settings: Any) -> dict[str, dict[str, Any]]:
    """Trainings for _train_each."""
    return {
        f"{again}{mode}": {"options": mode, **settings}
        for mode in modes
        for again in ("", "again ")
    }


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Runs of four ranks, of one node, where every row travels whole, or of two."""
    folder = tmp_path_factory.mktemp("four")
    trainings = {"{}": {"dim": 16}, "two nodes": {"dim": 16, "per_node": 2}}
    trainings |= _twice((*_QUANTIZED, _STALE), dim=16)
    return _train_each(folder, 4, _passes(folder / "data", 4), trainings)


@pytest.fixture
def flat(four: Runs) -> dict[str, Any]:
    return four["two nodes"]


@pytest.mark.slow
def test_rows_without_an_embedx_travel_without_one_between_nodes_and_no_bit_differs(
    four: Runs, flat: dict[str, Any]
) -> None:
    whole = four["{}"]
    assert (flat["digest"], flat["dense"]) == (whole["digest"], whole["dense"])
    assert 0 < _bytes(flat) < 0.95 * _bytes(whole)


@pytest.mark.slow
@pytest.mark.parametrize("options", _QUANTIZED)
def test_quantized_formats_train_nearly_the_same_rows_and_two_runs_the_same(
    four: Runs, flat: dict[str, Any], options: str
) -> None:
    quantized, again = four[options], four[f"again {options}"]
    assert 0 < _drift(flat, quantized) < 0.01
    assert _bytes(quantized) <= (0.45 if "int8" in options else 0.60) * _bytes(four["{}"])
    for before, after in zip(flat["passes"], quantized["passes"], strict=True):
        assert after["auc"] == pytest.approx(before["auc"], abs=5e-3)
    assert (again["digest"], again["dense"]) == (quantized["digest"], quantized["dense"])


def _bytes(result: dict[str, Any]) -> int:
    """That the first rank has sent in steps."""
    return sum(result["traffic"]["sent"][name] for name in ("ids", "rows", "gradients"))


@pytest.mark.slow
def test_rows_lack_the_gradients_of_just_as_many_steps_as_staleness_says(
    four: Runs, flat: dict[str, Any]
) -> None:
    for result, ahead in ((flat, 0), (four[_STALE], 3)):
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
def test_asynchronous_rows_are_the_same_in_two_runs(four: Runs, flat: dict[str, Any]) -> None:
    stale, again = four[_STALE], four[f"again {_STALE}"]
    assert stale["digest"] != flat["digest"]
    assert (again["digest"], again["dense"]) == (stale["digest"], stale["dense"])


@pytest.mark.slow
@pytest.mark.parametrize("program", ["pir", long("dygraph")])
def test_averages_end_a_pass_with_the_same_parameters_on_every_rank(
    tmp_path: Path, program: str
) -> None:
    options = "{sync_weight_step: 8}"
    trainings = {"{}": {"program": program}, **_twice((options,), program=program)}
    found = _train_each(tmp_path, 2, _passes(tmp_path / "data", 2), trainings)
    usual, mode, again = found["{}"], found[options], found[f"again {options}"]
    of_other = json.loads((tmp_path / options / "result-2-1.json").read_text())
    assert of_other["dense"] == mode["dense"]
    assert 0 < mode["traffic"]["dense"] < 0.5 * usual["traffic"]["dense"]
    for before, after in zip(usual["passes"], mode["passes"], strict=True):
        assert after["auc"] == pytest.approx(before["auc"], abs=0.05)
    assert (again["digest"], again["dense"]) == (mode["digest"], mode["dense"])


@pytest.mark.long
def test_the_way_of_exchange_changes_no_bit_of_a_mode(tmp_path: Path) -> None:
    passes = _passes(tmp_path / "data", 2)
    modes = ("{rows: int8, gradients: int8}", "{rows: float16, staleness: 1}")
    trainings = {mode: {"options": mode, "dim": 16} for mode in modes}
    of_near = _train_each(tmp_path / "near", 2, passes, trainings)
    of_far = _train_each(tmp_path / "far", 2, passes, trainings, launchers=2)
    for mode in modes:
        near, far = of_near[mode], of_far[mode]
        assert (near["on_one_host"], far["on_one_host"]) == (True, False)
        assert far["digest"] == near["digest"]
