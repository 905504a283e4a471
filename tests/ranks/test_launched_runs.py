"""tools/train.py and tools/evaluate.py under `python -m paddle.distributed.launch`."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from paddlebox.store.version_store import VersionStore
from tests.conftest import PATIENCE_S
from tests.ranks.launched import (
    CONFIG,
    command,
    launch,
    overrides,
    summary,
)
from tests.ranks.test_durable_runs import check_saves
from tests.support import processes


@pytest.mark.slow
def test_two_ranks_share_the_files_and_evaluate_as_one(undisturbed: Path, data: Path) -> None:
    first, second = summary(undisturbed), summary(undisturbed / "ranks/1")
    assert (first["passes"], first["samples"]) == (4, 32000)
    assert second["sparse_digest"] == first["sparse_digest"]
    assert second["dense_digest"] == first["dense_digest"]
    lines = (undisturbed / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["samples"] for line in lines] == [8000] * 4
    done = launch("evaluate", undisturbed, data)
    assert done.returncode == 0, done.stderr
    assert list(undisturbed.glob("evaluate-*.json")), done.stdout
    found = json.loads(next(undisturbed.glob("evaluate-*.json")).read_text())
    assert found["size"] == 2000


@pytest.mark.long
def test_ranks_of_which_one_has_a_pass_less_are_evaluated_at_the_pass_that_both_have(
    undisturbed: Path, data: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(undisturbed, run_dir)
    with VersionStore.open_writer(run_dir / "ranks/1/store") as manifest:
        third = [n for n in manifest.numbers() if manifest.version(n).pass_number == 3]
        manifest.retention.rewind(third[-1])
    done = launch("evaluate", run_dir, data)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    found = json.loads(max(run_dir.glob("evaluate-*.json"), key=os.path.getmtime).read_text())
    assert found["auc"] == pytest.approx(lines[2]["test"]["auc"], abs=1e-6)
    assert abs(lines[3]["test"]["auc"] - lines[2]["test"]["auc"]) > 1e-4


@pytest.mark.slow
def test_another_number_of_ranks_may_train_but_not_evaluate_and_the_error_names_the_right_one(
    undisturbed: Path, data: Path
) -> None:
    done = launch("evaluate", undisturbed, data, ranks=1)
    assert done.returncode == 2, done.stderr
    assert "--nproc_per_node 2" in done.stderr


def _passes(run_dir: Path) -> int:
    lines = run_dir / "metrics.jsonl"
    return len(lines.read_text().splitlines()) if lines.exists() else 0


@pytest.mark.long
def test_a_job_whose_ranks_are_killed_ends_as_the_undisturbed_one(
    undisturbed: Path, data: Path, tmp_path: Path
) -> None:
    random.seed(5)
    run_dir, struck = tmp_path / "run", 0
    for attempt in range(12):
        job = processes.start(command(2, "train", run_dir, CONFIG, *overrides(data, tmp_path)))
        if attempt < 4:
            # The first while its ranks start or train, each later one some passes further.
            while job.poll() is None and not (_workers(job.pid) and _passes(run_dir) >= attempt):
                time.sleep(0.02)
            time.sleep(random.random() / (1 + attempt))
            workers = _workers(job.pid)
            if workers:
                os.kill(random.choice(workers), signal.SIGKILL)
                struck += 1
        if job.wait(PATIENCE_S) == 0:
            break
    assert struck > 0, "no job lived long enough to be struck"
    expected, found = summary(undisturbed), summary(run_dir)
    for name in ("sparse_digest", "dense_digest", "samples"):
        assert found[name] == expected[name]
    check_saves(tmp_path / "out", run_dir)


@pytest.mark.slow
def test_a_rank_that_is_killed_is_named_by_its_peer_which_waits_no_longer(
    data: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    job = processes.start(
        command(2, "train", run_dir, CONFIG, *overrides(data, tmp_path), "trainer.epochs=50")
    )
    deadline = time.monotonic() + PATIENCE_S
    while not (run_dir / "metrics.jsonl").exists():
        assert time.monotonic() < deadline
        assert job.poll() is None
        time.sleep(0.02)
    workers = {}
    for pid in _workers(job.pid):
        rank = re.search(r"PADDLE_TRAINER_ID=(\d)", Path(f"/proc/{pid}/environ").read_text())
        assert rank is not None
        workers[rank[1]] = pid
    job.send_signal(signal.SIGSTOP)  # or the launcher's SIGTERM may come first
    os.kill(workers["1"], signal.SIGKILL)
    while Path(f"/proc/{workers['0']}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    job.send_signal(signal.SIGCONT)
    assert job.wait(PATIENCE_S) != 0
    said = (tmp_path / "log/workerlog.0").read_text()
    assert f"RankError: rank 1 (process {workers['1']}) has ended" in said, said[-2000:]


@pytest.mark.long
def test_a_signal_to_one_rank_ends_all_after_the_pass_and_the_job_goes_on(
    undisturbed: Path, data: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    job = processes.start(command(2, "train", run_dir, CONFIG, *overrides(data, tmp_path)))
    deadline = time.monotonic() + PATIENCE_S
    while not (run_dir / "metrics.jsonl").exists() and job.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    workers = _workers(job.pid)
    if workers:
        os.kill(workers[-1], signal.SIGTERM)
    job.wait(PATIENCE_S)
    passes = [len((d / "metrics.jsonl").read_text().splitlines()) for d in _dirs(run_dir)]
    assert passes[0] == passes[1] > 0
    done = launch("train", run_dir, data)
    assert done.returncode == 0, done.stdout + done.stderr
    assert summary(run_dir)["sparse_digest"] == summary(undisturbed)["sparse_digest"]
    assert summary(run_dir)["dense_digest"] == summary(undisturbed)["dense_digest"]


def _dirs(run_dir: Path) -> list[Path]:
    return [run_dir, run_dir / "ranks/1"]


def _workers(launcher: int) -> list[int]:
    """Its ranks; it starts other processes, too."""
    found = []
    for pid in _children(launcher):
        with contextlib.suppress(OSError):
            command_line = Path(f"/proc/{pid}/cmdline").read_bytes()
            # A child that has not begun another program yet has the launcher's own arguments.
            if b"tools/train.py" in command_line and b"distributed.launch" not in command_line:
                found.append(pid)
    return found


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(child) for child in text.split()]
