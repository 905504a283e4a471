"""Instance weights: weight 2 trains as two instances, in rows, dense parameters and metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.data.batches import WEIGHT
from tests.support import processes
from tests.support.configs import make_slots, write_config, write_slots
from tests.support.marks import long

SCRIPT = (Path(__file__).parent / "weights_small.py").read_text()
ROWS = 240


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """once.txt: instances with weights 0, 1 and 2. repeated.txt: each instance as often as its
    weight says, with weight 1. Each file is one batch."""
    random = np.random.default_rng(5)
    once, repeated = [], []
    for weight in random.integers(0, 3, ROWS).tolist():
        user, item = random.integers(1, 20), random.integers(30, 60)
        click, age = int((user + item) % 3 == 0), random.normal()
        line = f"1 {click} 1 %g 1 {age:.6f} 1 {user} 1 {item}\n"
        once.append(line % weight)
        repeated += [line % 1] * weight
    (tmp_path / "once.txt").write_text("".join(once))
    (tmp_path / "repeated.txt").write_text("".join(repeated))
    (tmp_path / "nothing.txt").write_text("".join(line[:4] + "1 0" + line[7:] for line in once))
    write_slots(tmp_path, click="label", w="weight", age="dense", user="sparse", item="sparse")
    write_config(
        tmp_path,
        table={"embedx_dim": 4, "embedx_threshold": 1.0},
        data={"format": "multislot", "batch_size": 4096},
        model={"type": "dnn", "hidden": [8], "dense_scale": "none"},
        optimizer={"averaging": 0.0},
        trainer={"dense_threads": 1, "epochs": 3},
    )
    return tmp_path


def train(folder: Path, file: str, *overrides: str) -> Any:
    options = {
        "config": str(folder / "config.yaml"),
        "folder": str(folder / f"run-{file}"),
        "overrides": [f"data.train_files=[{folder}/{file}.txt]", *overrides],
    }
    done = processes.run(["-c", SCRIPT, json.dumps(options)])
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def check_equal(one: Any, other: Any) -> None:
    assert one["error"] == other["error"] == ""
    assert one["dense"].keys() == other["dense"].keys()
    for name, values in other["dense"].items():
        assert one["dense"][name] == pytest.approx(values, rel=1e-6, abs=1e-6), name
    for feasign, row in other["rows"].items():
        assert one["rows"][feasign][1:] == pytest.approx(row[1:], rel=1e-6, abs=1e-6), feasign


@pytest.mark.parametrize("program", ["pir", long("dygraph")])
@pytest.mark.parametrize("show_scale", ["true", "false"])
def test_weight_2_is_the_instance_twice(folder: Path, program: str, show_scale: str) -> None:
    options = [f"trainer.program={program}", f"table.show_scale={show_scale}"]
    options.append(f"data.test_files=[{folder}/once.txt]")
    once = train(folder, "once", *options)
    repeated = train(folder, "repeated", *options)
    check_equal(once, repeated)
    for weighted, plain in zip(once["lines"], repeated["lines"], strict=True):
        assert weighted["loss"] == pytest.approx(plain["loss"], abs=1e-6)
        assert weighted["metrics"]["weight"] == plain["metrics"]["weight"]
        for name in ("auc", "copc", "actual_ctr", "logloss"):
            assert weighted["metrics"][name] == pytest.approx(plain["metrics"][name], abs=1e-5)
        assert weighted["samples"] == ROWS
    assert once["test"]["auc"] == pytest.approx(repeated["test"]["auc"], abs=1e-6)
    assert once["test"]["loss"] == pytest.approx(repeated["test"]["loss"], abs=1e-6)


@pytest.mark.parametrize("rule", ["adagrad", long("adam"), long("shared_adam")])
def test_an_instance_of_weight_0_trains_as_if_it_were_not_there(folder: Path, rule: str) -> None:
    # In the second batch, the rows of user 1 and of item 30 have weight 0 only.
    lines = [(1, 1, 1, 30), (0, 1, 2, 31), (1, 0, 1, 30), (0, 1, 3, 31)]
    for name, chosen in (("with", lines), ("without", [*lines[:2], lines[3]])):
        text = (f"1 {click} 1 {w} 1 0.5 1 {user} 1 {item}\n" for click, w, user, item in chosen)
        (folder / f"{name}.txt").write_text("".join(text))
    options = ["data.batch_size=2", f"table.embed.rule={rule}", f"table.embedx.rule={rule}"]
    check_equal(train(folder, "with", *options), train(folder, "without", *options))


def test_a_batch_without_weight_trains_nothing(folder: Path) -> None:
    options = ["optimizer.averaging=0.9"]
    whole = train(folder, "nothing", *options)
    assert whole["error"] == ""
    assert [line["loss"] for line in whole["lines"]] == [0, 0, 0]
    assert all(row[1] == row[2] == 0 for row in whole["rows"].values())
    more = train(folder, "nothing", *options, "trainer.epochs=4")
    check_equal(more, whole)


@pytest.mark.parametrize("weight", ["-0.5", long("-1e30"), "nan", long("inf"), long("1e10")])
def test_a_weight_that_is_none_makes_the_line_bad(folder: Path, weight: str) -> None:
    lines = (folder / "once.txt").read_text().splitlines(keepends=True)
    lines[3] = lines[3][:4] + f"1 {weight}" + lines[3][7:]
    (folder / "bad.txt").write_text("".join(lines))
    found = train(folder, "bad", "data.max_bad_line_ratio=0.1", "trainer.epochs=1")
    assert (found["error"], found["lines"][0]["bad_lines"]) == ("", 1)
    assert found["lines"][0]["samples"] == ROWS - 1
    refused = train(folder, "bad2", "trainer.epochs=1", f"data.train_files=[{folder}/bad.txt]")
    assert "DataError" in refused["error"]
    assert "slot 'w'" in refused["error"]


@pytest.mark.parametrize(
    ("slots", "expected"),
    [
        ({"v": "weight", "w": "weight"}, "at most one slot of type weight, found v, w"),
        ({"w": {"type": "weight", "dim": 2}}, "'w' has dim, which is for dense slots"),
        ({"w": {"type": "weight", "default": 1}}, "'w' has a default, but its value is never"),
        ({"w": {"type": "weight", "clip": [0, 1]}}, "'w' has clip, which is for dense slots"),
    ],
)
def test_slots_that_contradict_each_other_are_refused(slots: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        make_slots(click="label", item="sparse", **slots)


def test_serving_reads_no_weight() -> None:
    slots = make_slots(click="label", w="weight", age="dense", item="sparse")
    assert [slot.name for slot in slots.of_serving().slots] == ["click", "age", "item"]
    assert slots.dense_width == 1
    assert slots.feed_dense_width == 2
    assert WEIGHT == "box_weight"
