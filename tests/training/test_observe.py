"""What a run writes down for its report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from paddlebox._native import core
from paddlebox.config import load_config
from paddlebox.training.metrics import PassMetrics, calibration
from paddlebox.training.run_dir import write_environment
from tests.conftest import ROOT


def measured(predictions: list[float], labels: list[int]) -> PassMetrics:
    metrics = PassMetrics()
    metrics.add(np.array(predictions, np.float32), np.array(labels, np.float32))
    return metrics


def test_calibration_has_groups_of_equal_size_by_rising_prediction() -> None:
    predictions = [0.1, 0.2, 0.3, 0.4, 0.7, 0.8]
    found = calibration(measured(predictions, [0, 1, 0, 0, 1, 1]), bins=3)
    assert [(n, clicks) for n, clicks, _ in found] == [(2, 1), (2, 0), (2, 2)]
    assert [mean for _, _, mean in found] == pytest.approx([0.15, 0.35, 0.75], abs=1e-6)


def test_equal_predictions_stay_in_one_group() -> None:
    found = calibration(measured([0.25] * 8, [1, 0] * 4), bins=4)
    assert [(n, clicks) for n, clicks, _ in found] == [(8, 4)]
    assert calibration(PassMetrics()) == []


def test_calibration_agrees_with_the_sums_of_the_metrics() -> None:
    rng = np.random.default_rng(5)
    predictions = rng.random(10_000).astype(np.float32)
    metrics = PassMetrics()
    metrics.add(predictions, (rng.random(10_000) < predictions).astype(np.float32))
    found, whole = calibration(metrics), metrics.compute()
    assert sum(n for n, _, _ in found) == 10_000
    assert sum(clicks for _, clicks, _ in found) / 10_000 == whole["actual_ctr"]
    predicted = sum(n * mean for n, _, mean in found) / 10_000
    assert predicted == pytest.approx(whole["predicted_ctr"], abs=1e-6)


def test_calibration_sums_weights() -> None:
    metrics = PassMetrics(weighted=True)
    columns = [[0.1, 0.1, 0.7], [0, 1, 1], [2.5, 0.5, 3]]
    metrics.add(*(np.array(column, np.float32) for column in columns))
    found = calibration(metrics, bins=2)
    assert [(n, clicks) for n, clicks, _ in found] == [(3, 0.5), (3, 3)]
    assert [mean for _, _, mean in found] == pytest.approx([0.1, 0.7], abs=1e-6)


def test_the_environment_names_versions_and_threads_but_not_the_machine(tmp_path: Path) -> None:
    config = load_config(ROOT / "configs/deepfm_synthetic.yaml", ["data.threads=3"])
    write_environment(tmp_path, config)
    found = json.loads((tmp_path / "environment.json").read_text())
    assert found["threads"]["store"] == 3
    assert found["threads"]["feeder"] == 3
    assert found["vector_path"] == core.vector_path()
    assert {"paddlebox", "python", "numpy"} <= set(found["versions"])
    assert "host" not in found
