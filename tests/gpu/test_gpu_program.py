"""benchmarks/gpu_program.py goes on after a step that fails, and ends in time."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.ci.scripts import load

program = load("gpu_program", "benchmarks")
runs = sys.modules["peers.gpu_runs"]


@pytest.fixture
def work(tmp_path: Path) -> Any:
    return runs.Work("host", tmp_path, tmp_path / "host.json")


def test_all_steps_together_take_at_most_nine_minutes() -> None:
    assert sum(step.seconds for step in program.STEPS) <= 540


def test_a_step_has_the_outcome_of_what_it_did(work: Any) -> None:
    def failing(_: Any) -> Any:
        work.partial = {"found": 1}
        raise OSError("broken")

    def lacking(_: Any) -> Any:
        raise program.report.UnavailableError("no GPU")

    def late(_: Any) -> Any:
        work.run(sys.executable, "-c", "import time; time.sleep(60)")

    def outcome(measure: Any, seconds: int = 60) -> Any:
        line = program.take(program.Step("one", seconds, measure), work, 1.0)
        return {name: value for name, value in line.items() if name not in ("step", "seconds")}

    begun = time.monotonic()
    assert outcome(lambda _: {"x": 2}) == {"outcome": "ok", "x": 2}
    assert outcome(failing) == {"outcome": "failed", "found": 1, "why": "OSError: broken"}
    assert outcome(lacking) == {"outcome": "not measured", "why": "no GPU"}
    assert outcome(late, 0)["outcome"] == "timeout"
    wrong = program.checked({"largest": 3.0}, False, "differs")
    assert outcome(lambda _: wrong) == {"outcome": "failed", "largest": 3.0, "why": "differs"}
    assert time.monotonic() - begun < 30


@pytest.mark.slow
def test_a_program_that_is_late_is_killed_with_its_children(work: Any, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    child = f"import time; time.sleep(3); open({str(mark)!r}, 'w')"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    work.ends = time.monotonic() + 1
    with pytest.raises(runs.LateError, match="did not end in time"):
        work.run(sys.executable, "-c", code)
    time.sleep(3)
    assert not mark.exists()


def test_a_nan_counts_as_the_largest_difference() -> None:
    assert program.largest([0.0, math.nan, 1.0]) == math.inf
    assert program.largest([0.0, 1.0]) == 1.0


def test_the_shares_of_a_run_add_up_to_one() -> None:
    stages = {"train": {"work_s": 8.0, "before_s": 2.0}}
    line = {"stages": stages, "samples": 100, "kernel_s": {"pull": 1.0, "push": 2.0, "plan": 0.0}}
    found = runs.of_run([line] * 5, [0.0, 0.5, 0.7])
    assert found["samples_per_s"] == pytest.approx(10.0)
    assert found["in_steps"] == pytest.approx(12.5)
    expected = {"pull": 0.1, "push": 0.2, "plan": 0.0, "feed": 0.2, "idle": 0.4, "dense": 0.3}
    assert found["shares"] == pytest.approx(expected)


def test_without_a_gpu_nothing_is_measured(tmp_path: Path) -> None:
    if program.report.gpu() is not None:
        pytest.skip("this machine has a GPU")
    out = tmp_path / "found.json"
    command = [sys.executable, "benchmarks/gpu_program.py", "--out", str(out)]
    done = subprocess.run(command, cwd=program.ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    goals = program.json.loads(out.read_text())["goals"]
    assert {goal["outcome"] for goal in goals} == {"not measured"}
    assert {goal["why"] for goal in goals} == {"nvidia-smi finds no GPU"}
