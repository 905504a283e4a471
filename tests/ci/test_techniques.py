"""What benchmarks/techniques.py compares is what it says."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.conftest import ROOT


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])


@pytest.fixture
def ctr() -> ModuleType:
    from peers import small_ctr

    return small_ctr


def made_up(ctr: ModuleType, lines: int = 64) -> Any:
    """Lines whose first field has 2000 features and decides the label; the others have 2."""
    draw = np.random.default_rng(1)
    ids = np.stack([1999 + 2 * f + draw.integers(0, 2, lines) for f in range(ctr.FIELDS)], axis=1)
    ids[:, 0] = 1 + draw.integers(0, 2000, lines)
    fields = np.array([1, *range(2001, 2001 + 2 * ctr.FIELDS, 2)])
    labels = (ids[:, 0] % 2).astype(np.float32)
    dense = np.zeros((lines, ctr.NUMBERS), np.float32)
    return ctr.Rows(ids, dense, labels, lines, fields)


def test_a_push_changes_rows_as_adagrad_does(ctr: ModuleType) -> None:
    table = ctr.Table(np.zeros((3, 3)))
    for _ in range(2):
        table.push(np.array([1]), np.array([[2.0, 1.0, 3.0]], np.float32))
    # G0 is 1: the second step divides by the root of 1 + 4, and of 1 + (1 + 9) / 2.
    weight = -0.05 * 2 * (1 + 1 / np.sqrt(5))
    floats = -0.02 * np.array([1.0, 3.0]) * (1 + 1 / np.sqrt(6))
    np.testing.assert_allclose(table.values[1], [weight, *floats], rtol=1e-6)
    assert not table.values[[0, 2]].any()


def test_a_row_has_its_vector_from_the_threshold_on(ctr: ModuleType) -> None:
    whole = ctr.Whole(4, seed=1, threshold=1.0)
    whole.count(np.array([[1, 2], [1, 3]]), np.array([1.0, 0.0]))
    np.testing.assert_allclose(whole.score, [0, 1.1, 1.0, 0.1], rtol=1e-6)
    assert whole.floats == 2 * ctr.FLOATS + 2  # rows 1 and 2, and a weight each of the others


@pytest.mark.parametrize("kind", ["Hashed", "QuotientRemainder", "TensorTrain"])
def test_compressed_tables_have_the_floats_of_the_budget_and_a_row_for_each_feature(
    ctr: ModuleType, kind: str
) -> None:
    from peers import compressed

    rows = made_up(ctr)
    table = getattr(compressed, kind)(rows, 4, 1)
    assert table.floats == pytest.approx(rows.features * ctr.FLOATS / 4, rel=0.1)
    before = [of.values.copy() for of in table.tables]
    model = ctr.Model(rows, table, 1)
    for _ in range(3):
        model.train(np.arange(rows.trained))
    for old, of in zip(before, table.tables, strict=True):
        assert not np.array_equal(old, of.values)
    every = table.pull(np.arange(1, rows.features), []).numpy()
    assert len(np.unique(every, axis=0)) > 0.98 * rows.features


def test_a_tensor_train_is_the_product_of_its_cores(ctr: ModuleType) -> None:
    from peers import compressed

    table = compressed.TensorTrain(made_up(ctr), 4, 1)
    r, size = table.rank, table.middle
    asked = np.array([5, 1999, 5, 33])
    found = table.shared(asked, []).numpy()
    first, middle, last = (core.values for core in table.cores)
    for number, row in zip(asked, found, strict=True):
        i, j, k = number // (32 * size), number // 32 % size, number % 32
        cores = first[i].reshape(2, r), middle[j].reshape(r, 2, r), last[k].reshape(r, 2)
        expected = np.einsum("ar,rbs,sc->abc", *cores)
        np.testing.assert_allclose(row, expected.ravel(), rtol=1e-4, atol=1e-7)


def test_the_largest_gradients_are_sent_and_the_others_are_left() -> None:
    from peers.simulated_ranks import largest

    values = np.array([1.0, -5.0, 2.0, 4.0], np.float32)
    sent, left = largest(values, 0.5)
    assert sent.tolist() == [0, -5, 0, 4]
    assert left.tolist() == [1, 0, 2, 0]


def test_gradients_of_ranks_are_those_of_their_batches_together(ctr: ModuleType) -> None:
    from peers.simulated_ranks import merged

    rows = made_up(ctr)
    model = ctr.Model(rows, ctr.Whole(rows.features, 1, 0.0), 1)
    whole = model.gradients(np.arange(64))
    parts = [model.gradients(np.arange(begin, begin + 16)) for begin in range(0, 64, 16)]
    np.testing.assert_allclose(
        np.mean([part.dense for part in parts], axis=0), whole.dense, atol=1e-6
    )
    ((_, ids, shows, gradients),) = merged(parts)
    _, expected_ids, expected_shows, expected = whole.rows[0]
    assert ids.tolist() == expected_ids.tolist()
    assert shows.tolist() == expected_shows.tolist()
    np.testing.assert_allclose(gradients, expected, atol=1e-5)


def test_a_slow_rank_is_not_waited_for(ctr: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from peers import simulated_ranks

    rows = made_up(ctr, 640)
    model = ctr.Model(rows, ctr.Whole(rows.features, 1), 1)
    # 40 batches of 16 lines: three ranks take one a unit of time, the slow one a third of one.
    time = simulated_ranks.arrivals(model, 640, 16, 4)
    assert 40 / (3 + 1 / 3) <= time <= 40 / (3 + 1 / 3) + 3
    assert model.steps == 10
    monkeypatch.setattr(simulated_ranks, "LATE", -1)  # every gradient is too late
    late = ctr.Model(rows, ctr.Whole(rows.features, 1), 1)
    simulated_ranks.arrivals(late, 640, 16, 4)
    assert late.steps == 0
