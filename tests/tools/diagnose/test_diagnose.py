"""`diagnose` and `auc-runner` on the run whose slot `a` decides the click."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from paddlebox.tools.diagnose.slots import copc_by_value
from tests.conftest import tool
from tests.tools.common import SAMPLES

pytestmark = pytest.mark.slow  # each test starts processes that import Paddle


def test_slots_are_reported_with_their_coverage_and_rows(
    data: Path, run_dir: Path, tmp_path: Path
) -> None:
    out = tmp_path / "d.json"
    done = tool("diagnose", run_dir, "--slice", "a", "--out", out)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["samples"] == SAMPLES
    a, b, c = found["slots"]
    assert [one["slot"] for one in (a, b, c)] == ["a", "b", "c"]
    assert (a["coverage"], a["values"], a["unique"]) == (1.0, 1.0, 10)
    assert (c["coverage"], c["values"], c["unique"]) == (0.25, 2.0, 10)
    assert (a["new"], b["new"], a["has_embedx"]) == (0, 0, 1.0)
    assert a["embed_w"] > 3 * b["embed_w"]
    assert sum(one["gradient_share"] for one in (a, b, c)) == pytest.approx(1)
    values = found["slices"]["values"]
    assert [one["value"] is None for one in values] == [False] * 10
    assert sum(one["samples"] for one in values) == SAMPLES
    assert sum(one["samples"] * one["ctr"] for one in values) == pytest.approx(
        found["metrics"]["actual_ctr"] * SAMPLES
    )
    # All rows exported: what is left is how the dense part adds its floats up.
    assert found["serving"]["largest_difference"] < 1e-5
    assert "layer" not in done.stderr  # of the export, which is temporary
    for word in ("coverage", "gradient", "copc", "serving, largest difference"):
        assert word in done.stdout


def test_a_feasign_that_was_not_trained_is_new(data: Path, run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "test.txt").write_text("1 1 1 0.5 1 1 1 999 1 0\n1 0 1 0.5 1 2 1 999 1 301\n")
    out = tmp_path / "d.json"
    files = ["--files", tmp_path / "test.txt"]
    done = tool("diagnose", run_dir, *files, "--no-serving", "--out", out)
    assert done.returncode == 0, done.stderr
    a, b, c = json.loads(out.read_text())["slots"]
    assert (a["new"], b["new"], b["new_unique"], c["new"]) == (0, 1, 1, 0)
    assert (b["embed_w"], c["coverage"]) == (None, 0.5)


def test_the_slot_that_decides_is_worth_most_and_the_others_nothing(
    run_dir: Path, tmp_path: Path
) -> None:
    out = tmp_path / "a.json"
    done = tool("auc-runner", run_dir, "--repeats", "2", "--out", out)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    losses = {one["slots"][0]: one for one in found["slots"]}
    assert found["slots"][0]["slots"] == ["a"]
    assert losses["a"]["loss"] > 0.15
    assert abs(losses["b"]["loss"]) < 0.05
    assert abs(losses["c"]["loss"]) < 0.05
    assert losses["a"]["losses"][0] != losses["a"]["losses"][1]  # other draws
    assert losses["a"]["spread"] == pytest.approx(np.std(losses["a"]["losses"], ddof=1))
    last = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    assert found["auc"] == last["test"]["auc"]
    assert done.stdout.splitlines()[2].startswith("a ")


@pytest.mark.long
def test_slots_are_replaced_in_groups(run_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    groups = ["--group", "a", "b", "--group", "c"]
    done = tool("auc-runner", run_dir, *groups, "--repeats", "1", "--out", out)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())["slots"]
    assert [one["slots"] for one in found] == [["a", "b"], ["c"]]
    assert [one["spread"] for one in found] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("diagnose", ["--slice", "aa"], "no slot 'aa'; there are: click, x, a, b, c"),
        ("auc-runner", ["--group", "x"], "x: not a sparse slot; expected a, b, c"),
        ("auc-runner", ["--repeats", "0"], "repeats: expected at least 1"),
        ("diagnose", ["--files", "/none/*"], "no file matches"),
    ],
)
def test_mistakes_are_reported(
    run_dir: Path, name: str, arguments: list[str], message: str
) -> None:
    done = tool(name, run_dir, *arguments)
    assert done.returncode in (2, 3)
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_calibration_by_value_gathers_the_rare_ones() -> None:
    values = np.array([5, 5, 5, 7, 7, 9], np.uint64)
    labels = np.array([1, 0, 0, 1, 1, 0], np.float32)
    predictions = np.array([0.5, 0.5, 0.5, 0.5, 0.5, 0.0], np.float32)
    assert copc_by_value(predictions, labels, values, 2) == [
        {"value": 5, "samples": 3, "ctr": 1 / 3, "predicted": 0.5, "copc": 1 / 1.5},
        {"value": 7, "samples": 2, "ctr": 1.0, "predicted": 0.5, "copc": 2.0},
        {"value": None, "samples": 1, "ctr": 0.0, "predicted": 0.0, "copc": None},
    ]


def test_calibration_by_value_counts_instances_by_their_weights() -> None:
    values = np.array([5, 5, 5, 7], np.uint64)
    labels = np.array([1, 0, 1, 1], np.float32)
    predictions = np.array([0.5, 0.25, 0.5, 0.5], np.float32)
    weights = np.array([1, 2, 0, 0], np.float32)
    assert copc_by_value(predictions, labels, values, 2, weights) == [
        {"value": 5, "samples": 3, "ctr": 1 / 3, "predicted": 1 / 3, "copc": 1.0},
        {"value": 7, "samples": 1, "ctr": None, "predicted": None, "copc": None},
    ]
