"""Weights of instances on two ranks: losses and metrics are those of one rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ranks.launched import run_launched
from tests.support.configs import write_config, write_slots

ROWS, EPOCHS = 200, 4


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Each file is one batch. In the second one, all weights are 0."""
    random = np.random.default_rng(5)
    for name, most in (("0", 4), ("1", 1), ("2", 4)):
        lines = []
        for weight in random.integers(0, most, ROWS).tolist():
            user, item = random.integers(1, 20), random.integers(30, 60)
            lines.append(f"1 {int((user + item) % 3 == 0)} 1 {weight} 1 {user} 1 {item}\n")
        (tmp_path / f"{name}.txt").write_text("".join(lines))
    write_slots(tmp_path, click="label", w="weight", user="sparse", item="sparse")
    return write_config(
        tmp_path,
        table={"embedx_dim": 4, "embedx_threshold": 1.0},
        data={
            "format": "multislot",
            "train_files": [f"{tmp_path}/[0-9].txt"],
            "files_per_pass": 1,
            "share": "instance",
            "batch_size": 4096,
        },
        model={"type": "dnn", "hidden": [8]},
        optimizer={"averaging": 0.0},
        trainer={"dense_threads": 1, "epochs": EPOCHS},
        store={"threads": 1},
    )


def lines(config: Path, ranks: int, *more: str) -> list[dict[str, Any]]:
    run_dir = config.parent / f"run-{ranks}"
    done = run_launched(ranks, "train", run_dir, config, *more)
    assert done.returncode == 0, done.stdout + done.stderr
    own = run_dir / "rank-0" if (run_dir / "rank-0").is_dir() else run_dir
    return [json.loads(line) for line in (own / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("program", ["pir", "dygraph"])
def test_two_ranks_train_the_mean_by_weight_of_all_instances(config: Path, program: str) -> None:
    one, two = (lines(config, ranks, f"trainer.program={program}") for ranks in (1, 2))
    assert len(one) == len(two) == 3 * EPOCHS
    for alone, shared in zip(one, two, strict=True):
        assert shared["samples"] == alone["samples"] == ROWS
        assert shared["loss"] == pytest.approx(alone["loss"], abs=1e-5)
        assert shared["metrics"]["weight"] == alone["metrics"]["weight"]
        assert shared["metrics"]["copc"] == pytest.approx(alone["metrics"]["copc"], abs=1e-4)
    assert one[1]["metrics"]["weight"] == 0
    assert one[-1]["loss"] < one[0]["loss"]
