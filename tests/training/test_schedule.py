"""Learning rates that change: when, of what, and how a resumed run goes on with them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from paddlebox.config import Phase, load_config
from paddlebox.training.hooks import Plateau, following
from paddlebox.training.opening import open_table
from paddlebox.training.plan import PlannedPass
from paddlebox.training.runner import Runner, Runners
from tests.conftest import tool
from tests.support.configs import make_config, write_config, write_slots


def test_rates_are_divided_after_an_evaluation_without_a_lower_logloss() -> None:
    state: dict[str, Any] = {}
    found = []
    for logloss in (0.5, 0.4, 0.41, 0.39, 0.39):
        state = following(state, logloss)
        found.append(state["reductions"])
    assert found == [0, 0, 1, 1, 2]
    assert state == {"lowest": 0.39, "reductions": 2}


class Reduced:
    def __init__(self) -> None:
        self.dense: list[float] = []
        self.rows: list[float] = []

    def set_rate(self, factor: float) -> None:
        self.dense.append(factor)


def hook(last: dict[str, Any]) -> tuple[Plateau, list[float]]:
    """A hook, and the factors of the learning rates of its rows."""
    runners = Reduced()
    plateau = Plateau(cast(Runners, runners), runners.rows.append, last)
    assert runners.dense == runners.rows
    return plateau, runners.rows


def test_the_rates_of_dense_parameters_are_multiplied() -> None:
    rates: list[float] = []

    class Recorded:
        program = SimpleNamespace(set_rate=rates.append)

    runners = Runners.__new__(Runners)
    runners._of = {Phase.UPDATE: cast(Runner, Recorded())}
    runners._rates = {Phase.UPDATE: 0.5}
    runners.set_rate(0.1)
    assert rates == [0.05]


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
    assert times == pytest.approx([1, 1, 0.1, 0.01, 0.01])
    _, resumed = hook(lines[-1])
    assert resumed == pytest.approx([0.01])
    # Killed after the commit of the third pass and before its line was written, or restored without
    # metrics.jsonl: the line is that of the commit, and the evaluation is made up for.
    last = {**commits[2], **line(0.55)}
    caught, resumed = hook(last)
    caught.catch_up(last, 3, True)
    assert resumed == pytest.approx([0.1, 0.01])
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
    assert resumed == [1]


def test_a_logloss_that_is_no_number_is_never_the_lowest() -> None:
    state: dict[str, Any] = {}
    for logloss in (float("nan"), 0.5, float("nan")):
        state = following(state, logloss)
    assert state == {"lowest": 0.5, "reductions": 1}


def test_weight_decay_is_an_l2_penalty() -> None:
    from paddlebox import ops
    from paddlebox.training.program import create_optimizer

    paddle = ops.paddle
    paddle.disable_static()
    w = paddle.create_parameter([2], "float32")
    w.set_value(np.ones(2, np.float32))
    (w * paddle.to_tensor([3.0, 4.0])).sum().backward()
    own = {"type": "sgd", "learning_rate": 0.1, "weight_decay": 0.5}
    create_optimizer(make_config(optimizer=own), [w]).step()
    np.testing.assert_allclose(w.numpy(), [1 - 0.1 * (3 + 0.5), 1 - 0.1 * (4 + 0.5)], rtol=1e-6)


def test_plateau_without_evaluations_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"needs trainer\.evaluate_passes: after"):
        make_config(optimizer={"schedule": "plateau"})


def test_phases_with_different_schedules_are_an_error() -> None:
    phases = {
        "join": {"model": {"type": "dnn"}, "optimizer": {"schedule": "plateau"}},
        "update": {"model": {"type": "dnn"}},
    }
    evaluated = {"evaluate_passes": "after"}
    data = {"format": "multislot", "logkey": True, "test_files": ["a"]}
    with pytest.raises(ValueError, match=r"phases: optimizer\.schedule is constant and plateau"):
        make_config(data=data, model=None, phases=phases, trainer=evaluated)


@pytest.mark.slow  # each run is a process that imports Paddle
def test_a_run_rates_its_rows_by_the_schedule(tmp_path: Path) -> None:
    """Predictions rise from pass to pass, and the test file has few clicks: each pass is worse."""
    write_slots(tmp_path, click="label", user={"hash": True})
    for name, of_click in (("0", 3), ("1", 3), ("2", 3), ("test", 12)):
        lines = [f"{number % of_click == 0:d},u{number % 7}" for number in range(300)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["click,user", *lines]) + "\n")
    moved = []
    for schedule in ("constant", "plateau"):
        path = write_config(
            tmp_path,
            data={
                "batch_size": 32,
                "train_files": [f"{tmp_path}/{number}.csv" for number in range(3)],
                "files_per_pass": 1,
                "test_files": [f"{tmp_path}/test.csv"],
            },
            model={"type": "lr"},
            trainer={"epochs": 1, "evaluate_passes": "after"},
            optimizer={"schedule": schedule},
        )
        run_dir = tmp_path / f"run-{schedule}"
        done = tool("train", "-c", path, "--run-dir", run_dir)
        assert done.returncode == 0, done.stderr
        with open_table(load_config(path), run_dir / "store", read_only=True) as table:
            moved.append(np.abs(table.first.read_all()[1][:, 6]).max())  # embed_w
    assert 0 < moved[1] < 0.95 * moved[0]
