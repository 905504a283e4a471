"""A short last batch is a batch of its own size: a plain float64 model says what it leaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.marks import long
from tests.training.runs import Runs

SCRIPT = (Path(__file__).parent / "short_batch.py").read_text()
# click, user, words: 10 lines in batches of 4; what the last two share with others differs.
LINES = [
    (1, 1, [5]), (0, 2, [5, 6]), (0, 1, [7]), (1, 3, [6, 8]), (0, 2, [7, 8]),
    (1, 4, [5]), (0, 1, [6]), (0, 3, [5, 8]), (1, 1, [8]), (1, 4, [5, 7]),
]  # fmt: skip


def reference() -> tuple[list[float], float]:
    """AdaGrad of PaddleBox: the gradient of the sum loss, divided by the key's shows in the batch;
    rate 0.05, G0 3."""
    weights, grown = np.zeros(9), np.zeros(9)
    bias = 0.0
    for begin in range(0, len(LINES), 4):
        batch = LINES[begin : begin + 4]
        errors = []
        gradient, shows = np.zeros(9), np.zeros(9)
        for click, user, words in batch:
            keys = [user, *words]
            error = 1 / (1 + np.exp(-(weights[keys].sum() + bias))) - click
            errors.append(error)
            np.add.at(gradient, keys, error)
            np.add.at(shows, keys, 1)
        for key in np.flatnonzero(shows):
            scaled = gradient[key] / shows[key]
            weights[key] -= 0.05 * scaled * np.sqrt(3 / (3 + grown[key]))
            grown[key] += scaled**2
        bias -= 0.5 * float(np.mean(errors))
    return weights[1:].tolist(), bias


@pytest.mark.parametrize("mode", ["pir", long("dygraph")])
def test_rows_and_bias_after_a_short_batch_are_those_of_float64(
    in_new_process: Callable[..., Any], tmp_path: Path, mode: str
) -> None:
    file = tmp_path / "lines.txt"
    file.write_text(
        "".join(
            f"1 {click} 1 {user} {len(words)} {' '.join(map(str, words))}\n"
            for click, user, words in LINES
        )
    )
    weights, bias = in_new_process(SCRIPT, mode, str(tmp_path / "store"), str(file))
    expected, expected_bias = reference()
    np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-7)
    assert bias == pytest.approx(expected_bias, rel=1e-5)


def test_a_run_of_which_every_batch_was_dropped_is_an_error(runs: Runs) -> None:
    short = ["data.drop_last=true", "data.batch_size=1000"]
    (answer,) = runs.train(runs.job("short", runs.files[:2], *short))
    assert answer["error"] == "TrainingError"
    assert "2 passes without one training step" in answer["text"]
