"""AUCs of drawn instances, and the interval of their difference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from paddlebox.tools.report.compare import (
    Predictions,
    _sorted,
    auc_difference,
    same_instances,
    weighted_auc,
)


def made(
    values: Sequence[float] | np.ndarray,
    labels: Sequence[int] | np.ndarray,
    ids: Sequence[int] | None = None,
) -> Predictions:
    count = len(labels)
    names = np.array([str(i) for i in (ids if ids is not None else range(count))])
    return Predictions(names, np.array(labels, np.float32), np.array(values, np.float32))


def pairs(values: np.ndarray, labels: np.ndarray, weight: np.ndarray) -> float:
    """The AUC from its definition."""
    won = every = 0.0
    for p, y, w in zip(values, labels, weight, strict=True):
        for q, z, v in zip(values, labels, weight, strict=True):
            if y > z:
                every += w * v
                won += w * v * (1.0 if p > q else 0.5 if p == q else 0.0)
    return won / every


def test_the_auc_is_the_share_of_pairs_in_order() -> None:
    values, labels = np.array([0.1, 0.4, 0.4, 0.8]), np.array([0, 1, 0, 1])
    # Of four pairs three are in order and one is a tie.
    got = weighted_auc(*_sorted(values), labels > 0, np.ones(4, int))
    assert got == 3.5 / 4
    rng = np.random.default_rng(3)
    values, labels = rng.integers(0, 9, 60) / 9, rng.integers(0, 2, 60)
    weight = rng.integers(0, 4, 60)
    got = weighted_auc(*_sorted(values), labels > 0, weight)
    assert got == pytest.approx(pairs(values, labels, weight))


def test_one_class_has_no_auc() -> None:
    assert weighted_auc(*_sorted(np.array([0.1, 0.2])), np.array([True, True]), np.ones(2)) == -0.5


def test_the_interval_holds_zero_for_equals_and_not_for_a_better_one() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 4000)
    noise = rng.normal(size=(3, 4000))
    one = made(labels + 2 * noise[0], labels)
    same = made(labels + 2 * noise[1], labels)
    better = made(labels + noise[2], labels)
    equal, apart = auc_difference(one, same), auc_difference(one, better)
    assert equal.low < 0 < equal.high
    assert 0 < apart.low < apart.value < apart.high
    assert auc_difference(one, one).high == 0
    assert auc_difference(one, better) == apart  # drawn by a seed


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (made([0.5], [1]), "has 2 instances"),
        (made([0.5, 0.6], [1, 0], ids=[1, 0]), "differ, or have another order"),
        (made([0.5, 0.6], [0, 1]), "differ, or have another order"),
    ],
)
def test_other_instances_are_not_compared(other: Predictions, why: str) -> None:
    assert why in same_instances(made([0.1, 0.2], [1, 0]), other)


def test_instances_of_one_class_are_not_compared() -> None:
    one = made([0.1, 0.2], [1, 1])
    assert "both classes" in same_instances(one, one)
