"""Weights of instances on two ranks: one rank trains the same; weight 2 is the instance twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ranks.launched import run_launched
from tests.ranks.test_ranks import _all_rows, _assert_same_model, _passes, _train, _train_each
from tests.ranks.worker import SLOTS
from tests.support.configs import write_config, write_slots
from tests.support.marks import long

ROWS, EPOCHS = 200, 4
WEIGHTS = (2, 0, 1, 5)  # of each four instances: a batch of n has 2 n with the repeated ones
MODES = ("{}", "{staleness: 1}", "{sync_weight_step: 2}")
WEIGHTED = {**SLOTS, "w": "weight"}


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
    )


def lines(config: Path, ranks: int, *more: str) -> list[dict[str, Any]]:
    run_dir = config.parent / f"run-{ranks}"
    done = run_launched(ranks, "train", run_dir, config, *more)
    assert done.returncode == 0, done.stdout + done.stderr
    own = run_dir / "rank-0" if (run_dir / "rank-0").is_dir() else run_dir
    return [json.loads(line) for line in (own / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("program", ["pir", long("dygraph")])
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


def weighted(passes: list[list[str]], *, repeat: bool = False) -> list[list[str]]:
    """The files with weights, and after each pass one whose weights are all 0. repeat: each
    instance as often as its weight says, and no such pass."""
    found = []
    for files in passes:
        for name in ("repeated",) if repeat else ("weighted", "nothing"):
            paths = [Path(file).with_suffix(f".{name}") for file in files]
            for file, path in zip(files, paths, strict=True):
                lines = Path(file).read_text().splitlines()
                each = [(line, WEIGHTS[at % len(WEIGHTS)]) for at, line in enumerate(lines)]
                if repeat:
                    each = [(line, 1) for line, weight in each for _ in range(weight)]
                zero = name == "nothing"
                path.write_text("".join(f"{line} 1 {0 if zero else w}\n" for line, w in each))
            found.append([str(path) for path in paths])
    return found


@pytest.fixture(scope="module")
def modes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, dict[str, Any]]]:
    """Runs of two ranks in each mode: with weights, and with the instances repeated."""
    folder = tmp_path_factory.mktemp("modes")
    passes = _passes(folder / "data", 2)
    found = {}
    for name, repeat, batch in (("weighted", False, 32), ("repeated", True, 64)):
        trainings = {mode: {"options": mode, "slots": WEIGHTED, "batch": batch} for mode in MODES}
        found[name] = _train_each(folder / name, 2, weighted(passes, repeat=repeat), trainings)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_weight_2_is_the_instance_twice_in_every_mode(
    modes: dict[str, dict[str, dict[str, Any]]], mode: str
) -> None:
    one, other = modes["weighted"][mode], modes["repeated"][mode]
    rows, repeated = _all_rows(one), _all_rows(other)
    assert len(repeated) > 100
    for feasign, row in repeated.items():
        np.testing.assert_allclose(rows[feasign][1:], row[1:], rtol=1e-5, atol=1e-6)
    for name, values in other["dense"].items():
        np.testing.assert_allclose(one["dense"][name], values, rtol=1e-4, atol=1e-5)
    for weights, plain in zip(one["passes"][::2], other["passes"], strict=True):
        assert weights["loss"] == pytest.approx(plain["loss"], rel=1e-5)
        assert weights["weight"] == plain["weight"]


@pytest.mark.slow
def test_two_ranks_train_the_rows_and_the_network_that_one_trains(
    tmp_path: Path, modes: dict[str, dict[str, dict[str, Any]]]
) -> None:
    passes = weighted(_passes(tmp_path / "data", 1))
    _assert_same_model(_train(tmp_path / "one", 1, passes, slots=WEIGHTED), modes["weighted"]["{}"])
