"""The benchmarks run as their page says; what they measure is theirs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ci import scripts
from tests.conftest import ROOT
from tests.support.marks import long

report = scripts.load("report", "benchmarks")
result_tables = scripts.load("result_tables", "benchmarks")

PAGE = (ROOT / "docs/benchmarks.md").read_text()
SCRIPTS = {path.name: path.read_text() for path in (ROOT / "benchmarks").glob("*.py")}
# What all write with, and what makes the tables of the results.
PARTS = {"report.py", "result_tables.py", "results.py"}


def test_every_benchmark_is_on_the_page() -> None:
    named = re.findall(r"^\| `benchmarks/(\w+\.py)(?: (\w+))?` \|", PAGE, re.MULTILINE)
    assert len(named) == len(set(named))
    assert {script for script, _ in named} == set(SCRIPTS) - PARTS


def test_the_page_names_those_that_have_a_trial() -> None:
    (sentence,) = re.findall(r"^([a-z_, \n]+)\stake `--quick`", PAGE, re.MULTILINE)
    named = {f"{name}.py" for name in re.findall(r"\w+", sentence.replace(" and ", ", "))}
    assert named == {name for name, text in SCRIPTS.items() if '"--quick"' in text}


@pytest.mark.parametrize(
    ("goal", "outcome"),
    [
        (report.at_least("rate", 1.2, 1.0), "ok"),
        (report.at_least("rate", 1.0, 1.0), "ok"),
        (report.at_least("rate", 0.9, 1.0), "MISSED"),
        (report.at_most("time", 0.9, 1.0), "ok"),
        (report.at_most("time", 1.1, 1.0), "MISSED"),
        (report.at_least("rate", [1.1, 1.2, 1.3, 0.9, 1.2], 1.0), "ok"),
        (report.at_least("rate", [1.1, 0.8, 1.3, 0.9, 1.2], 1.0), "tie"),
        (report.at_most("time", [1.1, 0.8, 1.3, 0.9, 1.2], 1.0), "tie"),
        (report.at_most("time", [1.1, 1.2, 1.3], 1.0), "MISSED"),
        (report.not_measured(report.at_least("rate", [], 1.0), "two cores"), "not measured"),
    ],
)
def test_a_goal_is_met_missed_a_tie_or_not_measured(goal: Any, outcome: str) -> None:
    """A bound between the quartiles of the turns is a tie."""
    assert goal.outcome == outcome
    assert str(goal).startswith(outcome)


def test_the_exit_code_tells_a_missed_goal_from_nothing_measured(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    good, missed = report.at_least("a", 2.0, 1.0), report.at_least("b", 0.5, 1.0)
    none = report.not_measured(report.at_least("c", [], 1.0), "no GPU")

    def code(figures: dict[str, int], *goals: Any) -> int:
        return int(report.write(out, {}, figures, goals))

    assert code({"a": 2}, good, none) == 0
    assert code({"a": 2}, good, missed) == 1
    assert code({}) == 2
    assert code({}, none) == 2
    assert json.loads(out.read_text())["goals"] == [
        {"name": "c", "outcome": "not measured", "at_least": 1.0, "why": "no GPU"}
    ]


def test_a_result_tells_what_ran_where_and_each_turn(tmp_path: Path) -> None:
    script, out = tmp_path / "one.py", tmp_path / "found.json"
    script.write_text(
        "import pathlib, report\n"
        f"out = pathlib.Path({str(out)!r})\n"
        "report.write(out, {'rows': 3}, {'a': 1}, [report.at_least('a', [1, 3, 2], 1)])\n"
    )
    subprocess.run(
        [sys.executable, script, "--rows", "3", "--scratch", "a", "--out=b", "--jobs", "2"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "benchmarks")},
        check=True,
    )
    found = json.loads(out.read_text())
    assert found["command"] == ["one.py", "--rows", "3"]
    assert found["date"].endswith("+00:00")
    assert found["machine"].keys() >= {"processor", "cores", "memory_bytes", "root", "gpu"}
    assert found["settings"] == {"rows": 3}
    assert found["seconds"] > 0
    (goal,) = found["goals"]
    assert goal["turns"] == [1, 3, 2]
    assert (goal["value"], goal["quartiles"]) == (2, [1.5, 2.5])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("ranks auc", "not run: DATA/criteo/train.tsv.gz does not exist"),
        long("techniques --parts hot", "not run: DATA/criteo/train.tsv.gz does not exist"),
        long("zoo_claims --configs deepfm_criteo", "nothing was measured"),
        long("ranks rates --ranks 1000 --without-peers", "nothing was measured"),
    ],
)
def test_a_benchmark_that_measures_nothing_ends_with_2_and_says_so(
    tmp_path: Path, script: str, said: str
) -> None:
    name, *arguments = script.split()
    done = subprocess.run(
        [
            sys.executable,
            f"benchmarks/{name}.py",
            *arguments,
            "--out",
            str(tmp_path / "found.json"),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PADDLEBOX_DATA": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert said.replace("DATA", str(tmp_path)) in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "arguments", "figure"),
    [
        (
            "feeder columns",
            "--rows 5000 --group-rows 1000 --threads 1 --repeats 1",
            "ids, 1 thread",
        ),
        long("commit", "--rows 150000 --samples 5000 --turns 2 --passes-per-turn 1", "ratio"),
        long("end_to_end", "--rows 20000 --batches 2 --turns 1 --without-peers", "seconds_a_step"),
        long("serving http", "--rows 5000 --requests 20", "64"),
    ],
)
def test_a_benchmark_writes_what_it_found(
    tmp_path: Path, script: str, arguments: str, figure: str
) -> None:
    out = tmp_path / "found.json"
    name, *part = script.split()
    has_scratch = part or re.search(r'"--scratch"|report\.output\(', SCRIPTS[f"{name}.py"])
    done = subprocess.run(
        [
            *(sys.executable, ROOT / f"benchmarks/{name}.py"),
            *(*part, *arguments.split()),
            *(["--scratch", str(tmp_path)] if has_scratch else []),
            *("--out", str(out)),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    # 1: a goal was missed, as sizes like these may.
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(out.read_text())
    assert figure in found["figures"]
    assert result_tables.block(script.replace(" ", "_"), found).count("\n| ") > len(found["goals"])
