"""Runs with data.holdout, through tools/train.py and tools/evaluate.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.config import Format
from paddlebox.config.data import HoldoutConfig
from paddlebox.data.holdout import Rows, Side
from tests.conftest import tool
from tests.support.configs import make_slots, write_config, write_slots
from tests.support.options import load_options
from tests.support.processes import run
from tests.support.shared import once

FILES, ROWS, SEED = 3, 600, 4
HOLDOUT: dict[str, Any] = {"share": 0.2, "by": "user"}
SLOTS: dict[str, Any] = {
    "click": "label",
    "age": "dense",
    "user": {"hash": True},
    "item": {"hash": True},
}


def make_data(folder: Path) -> None:
    """`whole`, and `trained` and `held`, which are cut by hand; each with its config."""
    random = np.random.default_rng(1)
    write_slots(folder, **SLOTS)
    schema = load_options(Format.CSV, make_slots(**SLOTS), 1).schema()
    for name in ("whole", "trained", "held"):
        (folder / name).mkdir()
    for number in range(FILES):
        users, items = random.integers(0, 80, ROWS), random.integers(0, 30, ROWS)
        lines = [
            f"{int(random.random() < 0.1 + 0.02 * item)},{user % 7},u{user},i{item}\n"
            for user, item in zip(users.tolist(), items.tolist(), strict=True)
        ]
        head, name = "click,age,user,item\n", f"{number}.csv"
        (folder / "whole" / name).write_text(head + "".join(lines))
        for side in (Rows.TRAINED, Rows.HELD_OUT):
            rule = Side(HoldoutConfig(**HOLDOUT), SEED, side, name)
            own = rule.lines("".join(lines).encode(), 0, schema, drop=True)[0].decode()
            part = "trained" if side is Rows.TRAINED else "held"
            (folder / part / name).write_text(head + own)
    for name in ("whole", "trained"):
        config = write_config(
            folder,
            seed=SEED,
            data={
                "train_files": [f"{folder}/{name}"],
                "files_per_pass": 1,
                "batch_size": 50,
                **({"holdout": HOLDOUT} if name == "whole" else {}),
            },
            model={"hidden": [8], "dense_scale": "none"},
            trainer={"dense_threads": 1, "evaluate_passes": "after"},
        )
        config.rename(folder / f"{name}.yaml")
    made = ran("train", "-c", folder / "whole.yaml", "--run-dir", folder / "run")
    assert "held out, " in made.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory, "holdout", make_data)


def ran(name: str, *arguments: Any) -> Any:
    done = tool(name, *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def evaluated(*arguments: Any) -> dict[str, Any]:
    return dict(json.loads(ran("evaluate", *arguments).stdout))


def lines_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def digests(run_dir: Path) -> tuple[str, str]:
    summary = json.loads((run_dir / "summary.json").read_text())
    return summary["sparse_digest"], summary["dense_digest"]


def rows_in(folder: Path) -> list[int]:
    return [path.read_text().count("\n") - 1 for path in sorted(folder.iterdir())]


@pytest.mark.slow
def test_a_run_is_that_of_files_that_were_cut_by_hand(folder: Path, tmp_path: Path) -> None:
    by_hand = tmp_path / "by-hand"
    tests = f"data.test_files=[{folder}/held]"
    ran("train", "-c", folder / "trained.yaml", "--run-dir", by_hand, "-o", tests)
    assert digests(by_hand) == digests(folder / "run")
    found, expected = lines_of(folder / "run"), lines_of(by_hand)
    assert [line["samples"] for line in found] == rows_in(folder / "trained")
    assert [line["held_out"] for line in found] == rows_in(folder / "held")
    for line, other in zip(found, expected, strict=True):
        assert line["test"]["samples"] == sum(rows_in(folder / "held")) > 0
        assert line["test"] == other["test"]
        assert line["metrics"] == other["metrics"]
        assert "held_out" not in other


@pytest.mark.slow
def test_an_evaluation_reads_the_holdout_or_the_files_that_are_named(
    folder: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    ran("train", "-c", folder / "whole.yaml", "--run-dir", run_dir)
    held = evaluated(run_dir)
    assert held["samples"] == sum(rows_in(folder / "held"))
    assert held["holdout"] == HOLDOUT
    assert held["auc"] == lines_of(run_dir)[-1]["test"]["auc"]
    dump = tmp_path / "dump.txt"
    assert evaluated(run_dir, "--dump", dump)["auc"] == held["auc"]
    assert len(dump.read_text().splitlines()) == held["samples"]
    named = evaluated(run_dir, "--files", folder / "held")
    assert named["auc"] == held["auc"]
    assert "holdout" not in named
    assert evaluated(run_dir, "--files", folder / "whole")["samples"] == FILES * ROWS
    importance = tool("auc-runner", run_dir, "--repeats", "1")
    assert f"{held['samples']} samples" in importance.stdout, importance.stderr
    figures = tool("diagnose", run_dir, "--out", tmp_path / "figures.json")
    assert figures.returncode == 0, figures.stderr
    assert json.loads((tmp_path / "figures.json").read_text())["samples"] == held["samples"]


@pytest.mark.long
def test_two_ranks_train_and_evaluate_the_same_instances(folder: Path, tmp_path: Path) -> None:
    launcher = ["-m", "paddle.distributed.launch", "--nproc_per_node", "2"]
    launcher += ["--log_dir", f"{tmp_path}/log", "tools/train.py"]
    run_dir = tmp_path / "run"
    done = run([*launcher, "-c", f"{folder}/whole.yaml", "--run-dir", f"{run_dir}"])
    assert done.returncode == 0, done.stderr[-3000:]
    found, expected = lines_of(run_dir), lines_of(folder / "run")
    for line, other in zip(found, expected, strict=True):
        assert line["samples"] == other["samples"]
        assert line["held_out"] == other["held_out"]
        assert line["test"]["samples"] == other["test"]["samples"]


@pytest.mark.slow
def test_a_resumed_run_keeps_its_holdout(folder: Path, tmp_path: Path) -> None:
    run_dir, first = tmp_path / "run", f"data.train_files=[{folder}/whole/0.csv]"
    start: list[Any] = ["train", "-c", folder / "whole.yaml", "--run-dir", run_dir]
    ran(*start, "-o", first)
    for other in ("data.holdout.share=0.3", "data.holdout=null", "data.holdout.by="):
        changed = tool(*start, "-o", other)
        assert changed.returncode != 0
        assert "data.holdout" in changed.stderr
        assert "cannot go on with this one" in changed.stderr
    refused = tool("evaluate", run_dir, "-o", "data.holdout.share=0.3")
    assert refused.returncode != 0
    assert "data.holdout.share: was 0.2, now 0.3" in refused.stderr
    refused = tool("evaluate", run_dir, "-o", "seed=5")  # it would split the files otherwise
    assert "seed" in refused.stderr
    assert refused.returncode != 0
    ran("train", run_dir, "-o", f"data.train_files=[{folder}/whole]", "data.files_per_pass=1")
    assert digests(run_dir) == digests(folder / "run")


@pytest.mark.slow
def test_a_file_that_is_skipped_is_not_evaluated(folder: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    for path in (folder / "whole").iterdir():
        (whole / path.name).write_bytes(path.read_bytes())
    (whole / "2.csv").write_text("click,age,user,item\n" + "broken\n" * ROWS)
    run_dir, files = tmp_path / "run", f"data.train_files=[{whole}]"
    start: list[Any] = ["train", "-c", folder / "whole.yaml", "--run-dir", run_dir, "-o", files]
    assert tool(*start).returncode != 0
    ran(*start, "--skip-files", "2.csv")
    held = sum(rows_in(folder / "held")[:2])
    assert lines_of(run_dir)[-1]["test"]["samples"] == held
    assert evaluated(run_dir)["samples"] == held


@pytest.mark.slow
@pytest.mark.parametrize(
    ("holdout", "said"),
    [
        ("{share: 0.000001}", "holds out none: raise share"),
        ("{column: age, at_least: 0}", "holds out all: correct at_least or equals"),
        ("{share: 0.1, by: usr}", "no such column; did you mean 'user'?"),
    ],
)
def test_a_holdout_without_two_sides_ends_the_run_before_it_trains(
    folder: Path, tmp_path: Path, holdout: str, said: str
) -> None:
    more = [f"data.holdout={holdout}", "data.files_per_pass=0", "trainer.evaluate_passes=none"]
    start: list[Any] = [
        "train",
        "-c",
        folder / "whole.yaml",
        "--run-dir",
        tmp_path / "run",
        "-o",
        *more,
    ]
    done = tool(*start)
    assert done.returncode != 0
    assert said in done.stderr
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.slow
def test_a_run_without_a_holdout_has_nothing_to_evaluate(folder: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    one = f"data.train_files=[{folder}/trained/0.csv]"
    ran("train", "-c", folder / "trained.yaml", "--run-dir", run_dir, "-o", one)
    none = tool("evaluate", run_dir)
    assert "expected files to evaluate on, found none, and no data.holdout" in none.stderr
    late = tool("evaluate", run_dir, "-o", "data.holdout={share: 0.1}")
    assert "data.holdout.share: was null, now 0.1" in late.stderr
