"""Weighted ids on two ranks: the losses of one rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ranks.launched import run_launched
from tests.support.configs import write_config, write_slots
from tests.support.marks import long

ROWS = 200


@pytest.fixture
def config(tmp_path: Path) -> Path:
    random = np.random.default_rng(5)
    lines = ["click,user,tags"]
    for _ in range(ROWS):
        user, tags = random.integers(1, 20), random.integers(30, 60, random.integers(0, 4)).tolist()
        pairs = "|".join(f"{tag}:{random.integers(0, 5) / 2}" for tag in tags)
        lines.append(f"{int((user + sum(tags)) % 3 == 0)},{user},{pairs}")
    (tmp_path / "train.csv").write_text("".join(f"{line}\n" for line in lines))
    write_slots(tmp_path, click="label", user={}, tags={"weighted": True, "pooling": "sqrtn"})
    return write_config(
        tmp_path,
        table={"embedx_dim": 4, "embedx_threshold": 1.0},
        data={"share": "instance", "batch_size": 4096},
        model={"type": "dnn", "hidden": [8]},
        optimizer={"averaging": 0.0},
        trainer={"dense_threads": 1, "epochs": 6},
    )


def losses(config: Path, ranks: int, program: str) -> list[float]:
    run_dir = config.parent / f"run-{ranks}-{program}"
    done = run_launched(ranks, "train", run_dir, config, f"trainer.program={program}")
    assert done.returncode == 0, done.stdout + done.stderr
    own = run_dir / "rank-0" if (run_dir / "rank-0").is_dir() else run_dir
    lines: list[dict[str, Any]] = [
        json.loads(line) for line in (own / "metrics.jsonl").read_text().splitlines()
    ]
    assert [line["samples"] for line in lines] == [ROWS] * 6
    return [line["loss"] for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("program", ["pir", long("dygraph")])
def test_two_ranks_train_what_one_trains(config: Path, program: str) -> None:
    one, two = (losses(config, ranks, program) for ranks in (1, 2))
    assert two == pytest.approx(one, abs=1e-5)
    assert one[-1] < one[0]
