"""Sequences of users on two ranks: each user is in the files of one rank, or the job says which is
not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ranks.launched import run_launched, summary
from tests.support.configs import write_config, write_slots

PASSES, ROWS = 2, 400


def write_file(path: Path, users: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    lines = [
        f"1 {random.integers(0, 1000)} 1 {random.integers(0, 2)} 1 {random.choice(users)} "
        f"1 {random.integers(100, 130)}\n"
        for _ in range(ROWS)
    ]
    path.write_text("".join(lines))


def prepare(folder: Path, of_second: list[int]) -> Path:
    """A config of two passes of two files; the first file of a pass has users 1 to 19."""
    for number in range(PASSES):
        write_file(folder / f"{number}a.txt", list(range(1, 20)), 2 * number)
        write_file(folder / f"{number}b.txt", of_second, 2 * number + 1)
    write_slots(folder, click="label", user="sparse", item="sparse")
    cut = {"split": "mask", "max_length": 8, "overlap": 4}
    return write_config(
        folder,
        data={
            "format": "multislot",
            "train_files": [f"{folder}/[0-9][ab].txt"],
            "files_per_pass": 2,
            "batch_size": 64,
            "sequences": {"user": "user", **cut},
        },
        model={"type": "dnn", "hidden": [8]},
        trainer={"dense_threads": 1},
        store={"threads": 1},
    )


def lines_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_two_ranks_train_each_instance_once(tmp_path: Path) -> None:
    config = prepare(tmp_path, list(range(50, 90)))
    done = run_launched(2, "train", tmp_path / "run", config, "seed=3")
    assert done.returncode == 0, done.stderr
    first, second = summary(tmp_path / "run"), summary(tmp_path / "run/ranks/1")
    assert first["sparse_digest"] == second["sparse_digest"]
    assert first["dense_digest"] == second["dense_digest"]
    for line in lines_of(tmp_path / "run"):
        assert line["samples"] == line["metrics"]["size"] == 2 * ROWS
        assert line["sequences"]["context"] > 0
    done = run_launched(2, "train", tmp_path / "kept", config, "data.sequences.history.length=2")
    assert done.returncode == 2, done.stderr
    assert "data.sequences.history: expected one rank, found 2" in done.stderr


@pytest.mark.slow
def test_a_user_on_two_ranks_ends_the_job(tmp_path: Path) -> None:
    config = prepare(tmp_path, [*range(50, 90), 7])
    done = run_launched(2, "train", tmp_path / "run", config, "seed=3")
    assert done.returncode != 0
    assert "is in the files of ranks 0 and 1" in done.stderr + done.stdout
    assert not (tmp_path / "run/summary.json").exists()
