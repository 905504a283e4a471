"""Runs that sample negatives: predictions and metrics are those for all instances."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import processes
from tests.support.configs import write_config, write_slots
from tests.support.marks import long

SCRIPT = (Path(__file__).parent / "weights_small.py").read_text()
ROWS, RATE, WEIGHT = 6000, 0.2, 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A click has a probability of 1 of 4 for item 1, of 1 of 12 for item 2."""
    random = np.random.default_rng(5)
    items = random.integers(1, 3, ROWS)
    clicks = random.random(ROWS) < np.where(items == 1, 1 / 4, 1 / 12)
    lines = [
        f"1 {int(click)} 1 {WEIGHT} 1 {at} 1 {item}\n"
        for at, (click, item) in enumerate(zip(clicks.tolist(), items.tolist(), strict=True), 1)
    ]
    (tmp_path / "rows.txt").write_text("".join(lines))
    write_slots(tmp_path, click="label", w="dense", number="sparse", item="sparse")
    write_config(
        tmp_path,
        table={"embedx_dim": 4, "embedx_threshold": 1.0},
        data={
            "format": "multislot",
            "train_files": [f"{tmp_path}/rows.txt"],
            "test_files": [f"{tmp_path}/rows.txt"],
            "batch_size": 100,
            "negative_rate": RATE,
        },
        model={"type": "lr", "slots": ["item"], "dense_scale": "none"},
        optimizer={"averaging": 0.0, "learning_rate": 0.02},
        trainer={"dense_threads": 1, "epochs": 4},
        metrics=[{"name": "named"}, {"name": "scaled", "method": "weighted_auc", "weight": "w"}],
    )
    return tmp_path


def train(folder: Path, program: str = "pir", **options: Any) -> Any:
    given: dict[str, Any] = {"config": str(folder / "config.yaml")}
    given["folder"] = str(folder / f"run-{program}")
    given |= {"overrides": [f"trainer.program={program}"], **options}
    done = processes.run(["-c", SCRIPT, json.dumps(given)])
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["error"] == ""
    return found


@pytest.mark.parametrize("program", ["pir", long("dygraph")])
def test_predictions_and_metrics_are_those_of_all_instances(folder: Path, program: str) -> None:
    instances = [{"w": [WEIGHT], "number": [7], "item": [item]} for item in (1, 2)]
    found = train(folder, program, served=instances)
    last, test = found["lines"][-1], found["test"]
    clicks = test["actual_ctr"] * ROWS
    kept = clicks + (ROWS - clicks) * RATE
    assert last["lines"] == ROWS
    assert last["samples"] == last["metrics"]["size"] == pytest.approx(kept, rel=0.05)
    for metrics, weight in ((last["metrics"], 1), (last["metrics"]["named"], 1)):
        assert metrics["weight"] == pytest.approx(weight * ROWS, rel=0.05)
        assert metrics["copc"] == pytest.approx(1, abs=0.05)
        assert metrics["actual_ctr"] == pytest.approx(test["actual_ctr"], rel=0.05)
    scaled = last["metrics"]["scaled"]
    assert scaled["weight"] == pytest.approx(WEIGHT * ROWS, rel=0.05)
    assert test["size"] == ROWS
    assert test["copc"] == pytest.approx(1, abs=0.05)
    assert test["loss"] == pytest.approx(test["logloss"], rel=1e-4)
    assert found["served"] == pytest.approx([1 / 4, 1 / 12], rel=0.15)
    shows = {int(feasign): row[1] for feasign, row in found["rows"].items()}
    assert sum(shows.values()) == pytest.approx(sum(x["samples"] for x in found["lines"]), rel=1e-6)


@pytest.mark.slow
def test_a_run_is_not_continued_with_another_rate(folder: Path) -> None:
    train(folder)
    given = {
        "config": str(folder / "config.yaml"),
        "folder": str(folder / "run-pir"),
        "overrides": ["data.negative_rate=0.5", "trainer.epochs=5"],
    }
    done = processes.run(["-c", SCRIPT, json.dumps(given)])
    error = json.loads(done.stdout.splitlines()[-1])["error"]
    assert error.startswith("ConfigError")
    assert "data.negative_rate" in error
