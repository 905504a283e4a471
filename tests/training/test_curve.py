"""The points inside a pass: what they measure, and how many there are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paddlebox.config import Phase
from paddlebox.training.curve import Curve, Point, Points, auc_of, points_of
from paddlebox.training.metrics import PassMetrics
from paddlebox.training.plan import PlannedPass

Columns = tuple[np.ndarray, ...]


def batches_of(count: int, size: int, *, weighted: bool = False) -> list[Columns]:
    """Batches whose predictions are better the later they come."""
    rng = np.random.default_rng(4)
    made = []
    for number in range(count):
        labels = (rng.random(size) < 0.3).astype(np.float32)
        noise = rng.normal(scale=2.0 / (1 + number), size=size)
        predictions = 1 / (1 + np.exp(-(labels - 2 + noise)))
        weights = [rng.integers(1, 9, size).astype(np.float32)] if weighted else []
        made.append((predictions.astype(np.float32), labels, *weights))
    return made


def shown(watch: Any, batches: list[Columns], losses: list[float]) -> None:
    """Shows batches to a watcher, as a batch loop does."""
    metrics, samples = PassMetrics(weighted=len(batches[0]) > 2), 0
    for number, (columns, loss) in enumerate(zip(batches, losses, strict=True), 1):
        metrics.add(*columns)
        samples += len(columns[0])
        watch(number, samples, loss, metrics)
        columns[1][:] = 0  # the arrays of a batch are used again


def exact(batches: list[Columns]) -> float:
    metrics = PassMetrics(weighted=len(batches[0]) > 2)
    for columns in batches:
        metrics.add(*columns)
    return float(metrics.compute()["auc"])


@pytest.mark.parametrize("weighted", [False, True])
def test_a_point_measures_the_tenth_of_the_pass_before_it(weighted: bool) -> None:
    batches = batches_of(100, 80, weighted=weighted)
    copies = [tuple(column.copy() for column in columns) for columns in batches]
    losses = [float(number) for number in range(100)]
    found: list[Point] = []
    shown(Points(20, 8000, found.append), batches, losses)
    # A point after 5 batches each; a tenth of the pass are two points.
    assert [samples for samples, _, _ in found] == [400 * at for at in range(1, 21)]
    assert [loss for _, loss, _ in found][:3] == [2.0, 4.5, 9.5]
    assert found[-1][1] == sum(range(90, 100)) / 10
    for at, (_, _, auc) in list(enumerate(found, 1))[::6]:
        assert auc == pytest.approx(exact(copies[max(0, 5 * at - 10) : 5 * at]), abs=2e-3)


def test_many_small_batches_are_summed_before_the_next_point() -> None:
    batches = batches_of(200, 8)
    batches[:100] = [(1 - predictions, labels) for predictions, labels in batches[:100]]
    copies = [tuple(column.copy() for column in columns) for columns in batches]
    found: list[Point] = []
    shown(Points(1, 1600, found.append), batches, [0.5] * 200)
    ((samples, loss, auc),) = found
    assert (samples, loss) == (1600, 0.5)
    assert auc == pytest.approx(exact(copies), abs=2e-3)


def test_an_auc_needs_both_classes_and_equal_predictions_count_half() -> None:
    assert auc_of(np.array([[2.0, 0.0], [0.0, 3.0]])) == 1.0
    assert auc_of(np.array([[2.0, 2.0], [1.0, 3.0]])) == (2 * 3 + (2 * 1 + 2 * 3) / 2) / 16
    assert auc_of(np.array([[2.0, 2.0], [0.0, 0.0]])) is None


def test_a_batch_without_samples_of_its_own_counts_nothing() -> None:
    metrics, found = PassMetrics(), list[Point]()
    watch = Points(2, 8, found.append)
    predictions, labels = np.array([0.1, 0.9], np.float32), np.array([1, 0], np.float32)
    metrics.add(predictions, labels)
    watch(1, 4, 1.0, metrics)
    watch(2, 4, 9.0, metrics)  # only context
    metrics.add(predictions, 1 - labels)
    watch(3, 8, 2.0, metrics)
    assert found == [(4, 1.0, 0.0), (8, 2.0, 1.0)]


def test_the_points_of_a_run_of_any_length_are_few() -> None:
    counts = [points_of(number) for number in range(1, 40_001)]
    assert counts[:8] == [50] * 8
    assert sum(counts[:100]) < 1600
    assert set(counts[100:]) <= {4}


def test_the_line_of_a_pass_has_its_points_by_share_of_the_pass() -> None:
    curve, line = Curve(), dict[str, Any]()
    live: list[Point] = []
    curve.on_point = live.append
    planned = PlannedPass(1, 1, ["a"])
    assert curve.watcher(planned, 400, Phase.JOIN) is None
    # A quarter of the instances are no samples, so that the pass ends before its last points.
    watch = curve.watcher(planned, 400, Phase.UPDATE)
    shown(watch, batches_of(30, 10), [0.123456789] * 30)
    curve.after_pass(line, planned)
    assert len(line["curve"]) == len(live) == 30
    assert line["curve"][0][:2] == [0.0333, 0.12346]
    assert line["curve"][-1][0] == 1.0
    assert line["curve"][-1][2] == pytest.approx(live[-1][2], abs=1e-5)


def test_a_program_without_logits_has_a_loss_only() -> None:
    curve, line = Curve(), dict[str, Any]()
    planned = PlannedPass(1, 1, ["a"])
    watch = curve.watcher(planned, 4, Phase.UPDATE)
    assert watch is not None
    watch(1, 4, 0.5, PassMetrics())
    curve.after_pass(line, planned)
    assert line["curve"] == [[1.0, 0.5, None]]
    curve.watcher(planned, 0, Phase.UPDATE)
    curve.after_pass(line := {}, planned)
    assert line == {}  # no samples
