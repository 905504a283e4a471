"""A user's own static program through paddlebox.train_from_dataset: slots as (B, n) variables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures import WriteLines
from tests.support.instances import multislot_lines

SCRIPT = (Path(__file__).parent / "own_program.py").read_text()


@pytest.fixture
def run(
    in_new_process: Callable[..., Any], write_lines: WriteLines, tmp_path: Path
) -> Callable[[str], Any]:
    file = write_lines("a.txt", multislot_lines(500))
    return lambda case: in_new_process(SCRIPT, str(tmp_path / "store"), file, case)


def test_it_trains_and_evaluates_with_metrics(run: Callable[[str], Any]) -> None:
    report = run("works")
    assert report["samples"] == [500, 500]
    assert report["losses"][1] < report["losses"][0]
    assert report["aucs"][1] > report["aucs"][0] + 0.05  # it has seen these samples
    assert report["test_auc"] > report["aucs"][1]
    assert report["task"][1]["predicted_value"] == pytest.approx(report["mean_logit"], rel=1e-4)
    assert report["task"][1]["size"] == 500
    assert report["feasigns"] > 500
    assert report["reopened"] == [2, report["digest"]]


@pytest.mark.parametrize(
    ("case", "kind", "message"),
    [
        ("size", "ValueError", "pull_box_sparse: size is 12"),
        ("nan", "TrainingError", "batch 1 (samples 0 to 32): push_box_sparse: push: the gradient "),
    ],
)
def test_a_mistake_is_one_error_and_the_store_stays_at_its_last_commit(
    run: Callable[[str], Any], case: str, kind: str, message: str
) -> None:
    report = run(case)
    assert report["error"][0] == kind
    assert report["error"][1].startswith(message)
    assert report["reopened"] == [2, report["digest"]]
