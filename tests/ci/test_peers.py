"""What the peers of the benchmarks promise, so that comparisons with them are fair."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from tests.conftest import ROOT


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])


def test_a_smoothed_rate_never_contains_the_click_of_its_own_row() -> None:
    from peers import trees

    draw = np.random.default_rng(3)
    tokens = draw.integers(0, 5, 200).astype(str)
    labels = draw.integers(0, 2, 200).astype(float)
    asked = np.array(["1", "unknown"])
    before, of_asked = trees.rates(tokens, labels, asked, 1)
    other = labels.copy()
    other[7] = 1 - other[7]
    after, asked_after = trees.rates(tokens, other, asked, 1)
    same = tokens == tokens[7]
    assert after[7, 1] == before[7, 1]
    # Only the prior, the mean of all labels, moves the rate of the row itself.
    prior = trees.STRENGTH * (other.mean() - labels.mean()) / (before[7, 1] + trees.STRENGTH)
    assert after[7, 0] - before[7, 0] == pytest.approx(prior)
    assert np.abs(after[same, 0] - before[same, 0]).max() > 2 * abs(prior)
    assert of_asked[1, 1] == asked_after[1, 1] == 0
