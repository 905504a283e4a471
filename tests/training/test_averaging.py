"""`optimizer.averaging`: what is evaluated, kept and served."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from paddlebox.store.files import averaged
from paddlebox.training.program import ModelProgram
from paddlebox.training.runner import START, Averages, OneRank, Runner
from tests.conftest import tool
from tests.support.configs import write_config, write_slots


class Counting:
    """A program of one parameter, to which each step adds 1; its logit is the parameter."""

    def __init__(self) -> None:
        self.value = np.zeros(1, np.float32)

    def step(self, feed: object, *, train: bool = True) -> tuple[float, np.ndarray]:
        self.value = self.value + train
        return 0.0, self.value

    def state(self) -> dict[str, np.ndarray]:
        return {"w": self.value, "w_moment": self.value * 2}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        assert set(state) == {"w", "w_moment"}
        self.value = state["w"]

    def parameters(self) -> dict[str, np.ndarray]:
        return {"w": self.value.copy()}

    view = parameters

    def set(self, state: Mapping[str, np.ndarray]) -> None:
        self.value = state["w"].copy()


def counting(decay: float) -> Runner:
    program = cast(ModelProgram, Counting())
    return Runner(program, OneRank(), Averages(program, decay))


def expected(steps: int, decay: float) -> float:
    average = 0.0
    for step in range(1, steps + 1):
        kept = min(decay, step / (step + START))
        average = kept * average + (1 - kept) * step
    return average


@pytest.mark.parametrize("decay", [0.2, 0.99])
def test_evaluation_sees_the_average_and_training_the_parameter(decay: float) -> None:
    runner = counting(decay)
    for step in range(1, 30):
        assert runner.train_step({})[1] == step  # evaluating in between changes nothing
        assert runner.evaluate_step({})[1] == pytest.approx(expected(step, decay), rel=1e-5)


def test_a_loaded_state_continues_like_an_uninterrupted_one() -> None:
    whole, first, second = (counting(0.9) for _ in range(3))
    for _ in range(20):
        whole.train_step({})
    for _ in range(7):
        first.train_step({})
    first.evaluate_step({})  # the averages are in place of the parameters now
    state = first.dense_state()
    assert state["w"] == 7
    second.load_dense_state(state)
    for _ in range(13):
        second.train_step({})
    left, right = whole.dense_state(), second.dense_state()
    assert left.keys() == right.keys()
    assert all(np.array_equal(left[name], right[name]) for name in left)


def test_a_state_without_averages_is_where_they_begin() -> None:
    runner = counting(0.9)
    runner.load_dense_state({"w": np.full(1, 5, np.float32), "w_moment": np.zeros(1, np.float32)})
    assert runner.evaluate_step({})[1] == 5


def test_what_is_served_is_the_average() -> None:
    state = {"w": np.zeros(1), "w_average": np.ones(1), "b": np.full(1, 2.0)}
    served = averaged(state)
    assert served["w"] == 1
    assert served["b"] == 2


@pytest.mark.slow  # six processes that import Paddle
def test_static_and_dygraph_evaluate_the_same_averages(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    users, ages = draw.integers(1, 9, 640), draw.random(640)
    clicks = draw.random(640) < 0.1 + 0.1 * users * ages
    lines = zip(clicks.astype(int), ages, users, strict=True)
    text = "".join(f"1 {click} 1 {age:.3f} 1 {user}\n" for click, age, user in lines)
    (tmp_path / "a.txt").write_text(text)
    write_slots(tmp_path, click="label", age="dense", user="sparse")
    files = [f"{tmp_path}/a.txt"]
    config = write_config(
        tmp_path,
        data={
            "format": "multislot", "train_files": files, "test_files": files, "batch_size": 16,
        },
        model={"type": "lr"},
        optimizer={"learning_rate": 0.05},
    )  # fmt: skip

    def logloss(program: str, averaging: float) -> float:
        run = ("-c", config, "--run-dir", tmp_path / f"{program}-{averaging}")
        options = ("-o", f"trainer.program={program}", f"optimizer.averaging={averaging}")
        said("train", *run, *options)
        return float(json.loads(said("evaluate", *run, *options))["logloss"])

    static = logloss("pir", 0.9)
    assert logloss("dygraph", 0.9) == pytest.approx(static, rel=1e-4)
    assert logloss("pir", 0.0) != pytest.approx(static, rel=1e-4)


def said(tool_name: str, *arguments: object) -> str:
    done = tool(tool_name, *arguments)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)
