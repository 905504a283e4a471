"""The AUC that generated training rows permit: between no interactions and the best possible."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT, call


def limits(*rows: int) -> list[list[float]]:
    """The three limits for each number of rows in a pass, and the best possible AUC."""
    sizes = f"--test-rows 4000 --rows-per-pass {' '.join(map(str, rows))}"
    best, *lines = call(ROOT, f"python datasets/synthetic/limit.py {sizes}").splitlines()
    (top,) = re.findall(r"0\.\d{4}", best)
    return [[*map(float, re.findall(r"0\.\d{4}", line)), float(top)] for line in lines]


@pytest.mark.slow
def test_the_limit_rises_with_the_rows_to_the_best_possible_auc() -> None:
    few, many, endless = limits(1000, 150_000, 10**9)
    for one in (few, many, endless):
        assert one == sorted(one)
        assert len(one) == 4
    assert few[2] + 0.01 < many[2] < endless[2]
    assert many[0] + 0.002 < many[1]  # what the interactions are worth
    assert endless[1] == pytest.approx(endless[3], abs=2e-4)
