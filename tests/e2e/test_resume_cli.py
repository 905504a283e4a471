"""`paddlebox train` started again, stopped by signals, and killed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PATIENCE_S, make_synthetic, tool
from tests.e2e.test_tools import CONFIG
from tests.support.marks import long
from tests.support.processes import Forked, start_tool


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_synthetic(tmp_path_factory.mktemp("data"), passes=4, rows=3000)


def arguments(data: Path, run_dir: Path, *more: str, files: str = "train-*") -> list[str]:
    named = [f"data.train_files=['{data}/{files}.txt']", "model.hidden=[16]"]
    named += ["trainer.dense_threads=1", "model.dropout=0.2"]
    options = [text for text in more if text.startswith("-")]
    overrides = [text for text in more if not text.startswith("-")]
    return ["-c", CONFIG, "--run-dir", str(run_dir), *options, "-o", *named, *overrides]


def summary(run_dir: Path) -> dict[str, Any]:
    return dict(json.loads((run_dir / "summary.json").read_text()))


def passes(run_dir: Path) -> list[int]:
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["pass"] for line in lines]


def digests(run_dir: Path) -> tuple[str, str]:
    found = summary(run_dir)
    return found["sparse_digest"], found["dense_digest"]


def trained(*words: str) -> Any:
    done = tool("train", *words)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def unbroken(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four passes of four files."""
    run_dir = tmp_path_factory.mktemp("runs") / "unbroken"
    trained(*arguments(data, run_dir, "checkpoint.keep_versions=9"))
    return run_dir


@pytest.mark.slow
def test_new_files_are_trained_on_and_a_finished_run_is_reported(
    data: Path, tmp_path: Path, unbroken: Path
) -> None:
    run_dir = tmp_path / "r"
    trained(*arguments(data, run_dir, files="train-00[01]"))
    assert passes(run_dir) == [1, 2]
    done = trained(*arguments(data, run_dir, files="train-00[01]"))
    assert "all 2 passes are committed: nothing new to train" in done.stderr
    trained(*arguments(data, run_dir, "data.threads=3", "mem.budget_bytes=1MiB"))
    assert passes(run_dir) == [1, 2, 3, 4]
    assert digests(run_dir) == digests(unbroken)
    assert summary(run_dir)["samples"] == summary(unbroken)["samples"]
    (run_dir / "summary.json").unlink()  # killed after its last commit
    trained(*arguments(data, run_dir))
    assert digests(run_dir) == digests(unbroken)


@pytest.mark.slow
def test_going_back_by_name_and_by_number(data: Path, tmp_path: Path, unbroken: Path) -> None:
    run_dir = tmp_path / "r"
    trained(*arguments(data, run_dir, "checkpoint.keep_versions=9"))
    assert tool("store", "name", run_dir, "2", "good").returncode == 0
    done = trained(*arguments(data, run_dir, "--from=good", "checkpoint.keep_versions=9"))
    assert "went back to version 2, dropped [" in done.stderr
    assert passes(run_dir) == [1, 2, 3, 4]
    assert digests(run_dir) == digests(unbroken)
    done = tool("train", *arguments(data, run_dir, "--from=1"))
    assert done.returncode == 4
    assert "has the name 'good'" in done.stderr


@pytest.mark.slow
def test_rolled_back_over_a_poisoned_file_the_run_is_one_that_never_had_it(
    data: Path, tmp_path: Path
) -> None:
    run_dir, days = tmp_path / "r", ["data.date=20240101", "data.files_per_day=2"]
    words = arguments(data, run_dir, "checkpoint.keep_versions=9", *days)
    trained(*words)
    done = trained("--from=20240102/3", "--skip-files=train-003.txt", *words)
    assert "train-003.txt: is left out after pass 3 (--skip-files)" in done.stderr
    done = tool("train", "--from=20240101/2", "--skip-files=nowhere/*", *words)
    assert done.returncode == 2
    assert "--skip-files nowhere/*: matches none of the 2 files" in done.stderr
    trained("--from=20240101/2", "--skip-files=train-002.txt", *words)
    assert passes(run_dir) == [1, 2, 3]
    found = digests(run_dir)
    done = trained(*words)  # without saying it again
    assert "all 3 passes are committed: nothing new to train" in done.stderr
    other = f"data.train_files=['{data}/train-00[01].txt','{data}/train-003.txt']"
    trained(*arguments(data, tmp_path / "without", *days), other)
    assert digests(tmp_path / "without") == found


@pytest.mark.slow
def test_a_fresh_start_moves_the_run_aside(data: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "r"
    trained(*arguments(data, run_dir, files="train-000"))
    first = digests(run_dir)
    trained(*arguments(data, run_dir, "--fresh", "seed=2", files="train-000"))
    assert digests(run_dir) != first
    assert digests(tmp_path / "r.old-1") == first


@pytest.mark.slow
def test_another_configuration_is_refused_with_every_value_that_differs(
    data: Path, tmp_path: Path, unbroken: Path
) -> None:
    before = (unbroken / "config.json").read_bytes()
    done = tool("train", *arguments(data, unbroken, "seed=9", "model.type=dnn", "name=other"))
    assert done.returncode == 2
    for text in ("seed: was 1, now 9", 'model.type: was "deepfm", now "dnn"', "--fresh"):
        assert text in done.stderr
    assert "name" not in done.stderr.split("put these")[0].split("cannot go on")[1]
    done = tool("train", *arguments(data, unbroken, files="train-00[123]"))
    assert done.returncode == 2
    assert "the 4 passes that were trained are no longer the first 4" in done.stderr
    assert (unbroken / "config.json").read_bytes() == before


@pytest.mark.slow
def test_copies_are_made_and_a_run_goes_on_from_one_elsewhere(
    data: Path, tmp_path: Path, unbroken: Path
) -> None:
    run_dir, remote = tmp_path / "r", tmp_path / "remote"
    copied = f"checkpoint.copy_to={remote}"
    trained(*arguments(data, run_dir, copied, files="train-00[01]"))
    assert tool("store", "restore", remote, tmp_path / "new").returncode == 0
    trained(*arguments(data, tmp_path / "new"))
    assert digests(tmp_path / "new") == digests(unbroken)
    assert passes(tmp_path / "new") == [2, 3, 4]  # what is in the store


@pytest.mark.slow
def test_a_guarded_pass_is_not_committed(data: Path, tmp_path: Path) -> None:
    flip = {"1 0": "1 1", "1 1": "1 0"}
    lines = (data / "train-003.txt").read_text().splitlines(True)
    (tmp_path / "flipped.txt").write_text("".join(flip[line[:3]] + line[3:] for line in lines))
    files = f"data.train_files=['{data}/train-00[012].txt','{tmp_path}/flipped.txt']"
    words = [
        *arguments(
            data, tmp_path / "r", "checkpoint.guard.quality=stop", "alerts.max_auc_drop=0.05"
        ),
        files,
    ]
    done = tool("train", *words, "optimizer.learning_rate=0.001")
    assert done.returncode == 7, done.stderr
    assert "GuardError: pass 4: AUC 0." in done.stderr
    assert "expected at most 0.05 (alerts.max_auc_drop)" in done.stderr
    assert passes(tmp_path / "r") == [1, 2, 3]
    stat = json.loads(tool("store", "stat", tmp_path / "r", "--json").stdout)
    assert stat["pass_number"] == 3
    done = trained(*words, "optimizer.learning_rate=0.001", "checkpoint.guard.quality=warn")
    assert "alert auc_drop, firing: pass 4: AUC 0." in done.stderr
    assert passes(tmp_path / "r") == [1, 2, 3, 4]


def start(data: Path, run_dir: Path, *more: str) -> Forked:
    return start_tool("train", *arguments(data, run_dir, *more))


def wait_for_versions(trainer: Forked, run_dir: Path, count: int) -> None:
    while len(list(run_dir.glob("store/MANIFEST-*"))) < count and trainer.poll() is None:
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "more"),
    [
        long(signal.SIGTERM, []),
        (signal.SIGINT, ["trainer.grace_s=0"]),
        long(signal.SIGTERM, ["checkpoint.every=never", "trainer.grace_s=0.01"]),
    ],
)
def test_a_stopped_run_is_committed_and_goes_on(
    data: Path, tmp_path: Path, number: signal.Signals, more: list[str]
) -> None:
    run_dir, epochs = tmp_path / "r", "trainer.epochs=100"
    trainer = start(data, run_dir, epochs, *more)
    while trainer.poll() is None:
        path = run_dir / "metrics.jsonl"
        if path.is_file() and len(path.read_text().splitlines()) >= 3:
            break
        time.sleep(0.01)
    trainer.send_signal(number)
    _, stderr = trainer.communicate(timeout=PATIENCE_S)
    assert trainer.returncode == 128 + number, stderr
    assert f"{number.name}: stopped; the store is at its last commit" in stderr
    assert "Traceback" not in stderr
    stat = json.loads(tool("store", "stat", run_dir, "--json").stdout)
    # Every pass that ended is committed.
    assert stat["pass_number"] >= len(passes(run_dir)) >= 3
    plan = "trainer.epochs=" + str(-(-(stat["pass_number"] + 1) // 4))
    trained(*arguments(data, run_dir, plan))
    trained(*arguments(data, tmp_path / "unbroken", plan))
    assert digests(run_dir) == digests(tmp_path / "unbroken")
    assert passes(run_dir) == passes(tmp_path / "unbroken")


@pytest.mark.slow
@pytest.mark.parametrize("kills", [3, long(8)])
def test_killed_at_some_moments_it_ends_as_unbroken(data: Path, tmp_path: Path, kills: int) -> None:
    """SIGKILL at a random moment after each start."""
    run_dir, random_ = tmp_path / "r", random.Random(7)
    more = ["trainer.epochs=8", "data.shuffle=true", "checkpoint.every=2"]
    trained(*arguments(data, tmp_path / "unbroken", *more))
    began = time.monotonic()
    trained(*arguments(data, tmp_path / "warm", *more))
    whole = time.monotonic() - began
    killed = 0
    while killed < kills:
        trainer = start(data, run_dir, *more)
        try:
            code = trainer.wait(timeout=random_.uniform(0.3, 1.0) * whole)
            assert code == 0, trainer.communicate()
        except subprocess.TimeoutExpired:
            trainer.kill()
            trainer.communicate()
        killed += 1
        if (run_dir / "summary.json").exists():
            assert digests(run_dir) == digests(tmp_path / "unbroken")
            run_dir.rename(tmp_path / f"done-{killed}")
    trained(*arguments(data, run_dir, *more))
    assert digests(run_dir) == digests(tmp_path / "unbroken")
    assert passes(run_dir) == passes(tmp_path / "unbroken")
