"""Learning rates that change: when, of what, and how a resumed run goes on with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from paddlebox.config import OptimizerConfig, load_config
from paddlebox.ranks.dense_modes import OneRank
from paddlebox.train.hooks.plateau import Plateau, following
from paddlebox.train.opening import open_table
from paddlebox.train.phases import Runners
from paddlebox.train.plan import PlannedPass
from paddlebox.train.program import ModelProgram
from paddlebox.train.runner import Runner
from paddlebox.train.step_callbacks import RATE_STEPS, RateSchedule, factor, is_scheduled
from tests.conftest import tool
from tests.support.configs import make_config, write_config, write_slots


def config(**keys: Any) -> OptimizerConfig:
    return OptimizerConfig.model_validate(keys, strict=False)


def factors(of: OptimizerConfig, *steps: int) -> list[float]:
    return [factor(of, step) for step in steps]


def test_the_factor_rises_in_the_warm_up_and_falls_along_the_cosine() -> None:
    warm = config(warmup_steps=4)
    assert factors(warm, 1, 2, 3, 4, 5, 1000) == [0.25, 0.5, 0.75, 1, 1, 1]
    cosine = config(schedule="cosine", schedule_steps=104, warmup_steps=4)
    # A third of the way the cosine is 1/2, half of the way 0.
    expected = [0.5, 1, 0.01 + 0.99 * 0.5, 0.01, 0.01]
    assert factors(cosine, 2, 4, 54, 104, 1000) == pytest.approx(expected)
    third = factors(config(schedule="cosine", schedule_steps=3), 1)
    assert third == pytest.approx([0.01 + 0.99 * 0.75])
    assert [is_scheduled(of) for of in (warm, cosine, config())] == [True, True, False]


class Recorded:
    """A program that records its learning rates."""

    def __init__(self) -> None:
        self.rates: list[float] = []

    def set_rate(self, rate: float) -> None:
        self.rates.append(rate)

    def step(self, feed: object) -> tuple[float, None]:
        return 0.0, None

    def state(self) -> dict[str, np.ndarray]:
        return {"w": np.zeros(1)}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        assert set(state) == {"w"}


def scheduled(**keys: Any) -> tuple[Runner, list[float], list[float]]:
    """A runner, and the rates of its dense parameters and of its rows."""
    program, of_rows = Recorded(), list[float]()
    of_runner = cast(ModelProgram, program)
    schedule = RateSchedule(of_runner, config(learning_rate=0.5, **keys))
    schedule.rate_rows = of_rows.append
    return Runner(of_runner, OneRank(), [schedule]), program.rates, of_rows


def test_rows_and_dense_parameters_learn_at_the_rate_of_the_step() -> None:
    runner, rates, of_rows = scheduled(warmup_steps=4)
    for _ in range(5):
        runner.train_step({})
    assert of_rows == [0.25, 0.5, 0.75, 1, 1]
    cast(RateSchedule, runner.callbacks[0]).reductions = 2
    runner.train_step({})
    assert of_rows[-1] == pytest.approx(0.01)
    assert rates == pytest.approx([0.5 * rate for rate in of_rows])


def test_a_loaded_state_goes_on_with_its_step() -> None:
    first, _, _ = scheduled(warmup_steps=4)
    first.train_step({})
    state = first.dense_state()
    assert state[RATE_STEPS] == [1]
    second, _, of_rows = scheduled(warmup_steps=4)
    second.load_dense_state(state)
    second.train_step({})
    assert of_rows == [0.5]
    second.load_dense_state({"w": np.zeros(1)})  # of a run without a schedule
    second.train_step({})
    assert of_rows == [0.5, 0.25]


def test_rates_are_divided_after_so_many_evaluations_without_a_lower_logloss() -> None:
    state: dict[str, Any] = {}
    found = []
    for logloss in (0.5, 0.4, 0.41, 0.4, 0.39, 0.42, 0.42, 0.42, 0.42):
        state = following(state, logloss, 2)
        found.append(state["reductions"])
    assert found == [0, 0, 0, 1, 1, 1, 2, 2, 3]
    assert state == {"lowest": 0.39, "since": 0, "reductions": 3}


class Reduced:
    def __init__(self) -> None:
        self.times: list[int] = []

    def reduce_rates(self, times: int) -> None:
        self.times.append(times)


def hook(last: dict[str, Any]) -> tuple[Plateau, list[int]]:
    runners = Reduced()
    return Plateau(cast(Runners, runners), 1, last), runners.times


def line(logloss: float) -> dict[str, Any]:
    return {"samples": 1, "test": {"logloss": logloss}}


def test_a_resumed_run_goes_on_with_the_state_of_the_last_line() -> None:
    planned = PlannedPass(1, 1, ["a"])
    whole, times = hook({})
    lines, commits = [], []
    for logloss in (0.5, 0.6, 0.55, 0.4):
        commits.append({"samples": 1, **whole.before_pass(planned)})
        lines.append({**commits[-1], **line(logloss)})
        whole.after_pass(lines[-1], planned)
    assert times == [0, 0, 1, 2, 2]
    _, resumed = hook(lines[-1])
    assert resumed == [2]
    # Killed after the commit of the third pass and before its line was written, or restored without
    # metrics.jsonl: the line is that of the commit, and the evaluation is made up for.
    last = {**commits[2], **line(0.55)}
    caught, resumed = hook(last)
    caught.catch_up(last, 3, True)
    assert resumed == [1, 2]
    assert last["plateau"] == lines[2]["plateau"]


def test_an_evaluation_without_samples_changes_no_state() -> None:
    planned = PlannedPass(1, 1, ["a"])
    whole, _ = hook({})
    whole.after_pass(line(0.5), planned)
    empty = {**whole.before_pass(planned), "test": {}}
    whole.after_pass(empty, planned)
    _, resumed = hook(empty)
    again, _ = hook(empty)
    assert again.before_pass(planned)["plateau"]["lowest"] == 0.5
    assert resumed == [0]


def test_a_logloss_that_is_no_number_is_never_the_lowest() -> None:
    state: dict[str, Any] = {}
    for logloss in (float("nan"), 0.5, float("nan")):
        state = following(state, logloss, 9)
    assert state == {"lowest": 0.5, "since": 1, "reductions": 0}


def test_weight_decay_is_an_l2_penalty() -> None:
    from paddlebox import ops
    from paddlebox.train.program import create_optimizer

    paddle = ops.paddle
    paddle.disable_static()
    w = paddle.create_parameter([2], "float32")
    w.set_value(np.ones(2, np.float32))
    (w * paddle.to_tensor([3.0, 4.0])).sum().backward()
    own = {"type": "sgd", "learning_rate": 0.1, "weight_decay": 0.5}
    create_optimizer(make_config(optimizer=own), [w]).step()
    np.testing.assert_allclose(w.numpy(), [1 - 0.1 * (3 + 0.5), 1 - 0.1 * (4 + 0.5)], rtol=1e-6)


@pytest.mark.parametrize(
    ("optimizer", "told"),
    [
        ({"schedule": "cosine", "schedule_steps": 5, "warmup_steps": 5}, "schedule_steps above"),
        ({"schedule": "plateau"}, r"needs trainer\.evaluate_after_pass"),
        ({"schedule_steps": 5}, "schedule_steps is set, but schedule is constant"),
        ({"warmup_steps": 5, "patience": 2}, "patience is set, but schedule is constant"),
    ],
)
def test_a_schedule_without_what_it_needs_is_an_error(optimizer: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        make_config(optimizer=optimizer)


@pytest.mark.parametrize("key", ["schedule_steps", "warmup_steps", "schedule"])
def test_phases_with_different_schedules_are_an_error(key: str) -> None:
    keys = {"schedule": "cosine", "schedule_steps": 90, "warmup_steps": 5}
    other = {"schedule": {}, "schedule_steps": {**keys, "schedule_steps": 80}}.get(
        key, {**keys, "warmup_steps": 4}
    )

    def phases(update: dict[str, Any]) -> dict[str, Any]:
        return {
            "join": {"model": {"type": "dnn"}, "optimizer": keys},
            "update": {"model": {"type": "dnn"}, "optimizer": update},
        }

    def make(update: dict[str, Any]) -> None:
        make_config(data={"format": "multislot", "logkey": True}, model=None, phases=phases(update))

    make(keys)
    with pytest.raises(ValueError, match=rf"phases: optimizer\.{key} is .* in join and .* update"):
        make(other)


@pytest.mark.slow  # each run is a process that imports Paddle
def test_a_run_rates_its_rows_by_the_schedule(tmp_path: Path) -> None:
    write_slots(tmp_path, click="label", user={"hash": True})
    lines = [f"{number % 3 == 0:d},u{number % 7}" for number in range(300)]
    (tmp_path / "train.csv").write_text("\n".join(["click,user", *lines]) + "\n")
    moved = []
    for warmup in (0, 10_000_000):
        path = write_config(
            tmp_path,
            data={"batch_size": 32},
            model={"type": "lr"},
            trainer={"epochs": 1},
            optimizer={"warmup_steps": warmup},
        )
        run_dir = tmp_path / f"run-{warmup}"
        done = tool("train", "-c", path, "--run-dir", run_dir)
        assert done.returncode == 0, done.stderr
        with open_table(load_config(path), run_dir / "store", read_only=True) as table:
            moved.append(np.abs(table.first.read_all()[1][:, 6]).max())  # embed_w
    assert moved[0] > 1e-3
    assert 0 < moved[1] < 1e-4 * moved[0]
