"""tools/train_on_ray.py on a Ray cluster of several raylets on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import PATIENCE_S, ROOT
from tests.faults.kill_ray import kill_ray
from tests.support.ray_cluster import RayCluster, require_ray

pytestmark = pytest.mark.slow
# Writes the environment of its rank, says what it is told to, and waits if it is told to.
_RANK = """
import json, os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
rank = os.environ["PADDLE_TRAINER_ID"]
(folder / f"part.{rank}").write_text(json.dumps(dict(os.environ, pid=str(os.getpid()))))
(folder / f"part.{rank}").rename(folder / f"rank.{rank}")
time.sleep(float(sys.argv[2]))
sys.exit(int(sys.argv[3]))
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    require_ray()
    with RayCluster(3) as found:
        yield found


def _start(
    cluster: RayCluster, folder: Path, *words: str, seconds: float = 0.0, code: int = 0
) -> subprocess.Popen[str]:
    """A job whose ranks run _RANK. words: options of the tool."""
    program = folder / "rank.py"
    program.write_text(_RANK)
    tool = [sys.executable, "tools/train_on_ray.py", "--address", cluster.address, *words, "--"]
    return subprocess.Popen(
        [*tool, str(program), str(folder), str(seconds), str(code)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "AWS_SECRET_ACCESS_KEY": "s", "MKL_CBWR": "2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _environments(folder: Path, ranks: int) -> list[dict[str, str]]:
    deadline = time.monotonic() + PATIENCE_S
    while len(found := sorted(folder.glob("rank.?"))) < ranks:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return [json.loads(path.read_text()) for path in found]


def test_ranks_get_the_listed_variables_and_none_of_ray(
    cluster: RayCluster, tmp_path: Path
) -> None:
    job = _start(cluster, tmp_path, "--nodes", "2")
    said, _ = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0, said
    first, second = _environments(tmp_path, 2)
    assert not [name for name in first if name.startswith(("AWS_", "RAY_"))]
    assert first["MKL_CBWR"] == "2"
    assert first.get("OMP_NUM_THREADS") == os.environ.get("OMP_NUM_THREADS")  # Ray sets it to 1
    assert [one["PADDLEBOX_HOST"] for one in (first, second)] == ["0", "1"]
    assert first["PADDLE_MASTER"] == second["PADDLE_MASTER"]
    assert first["PADDLE_CURRENT_ENDPOINT"].startswith("127.0.0.1:")


def test_the_exit_code_of_a_rank_that_a_restart_would_repeat_is_that_of_the_job(
    cluster: RayCluster, tmp_path: Path
) -> None:
    job = _start(cluster, tmp_path, code=3)
    said, _ = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 3, said
    assert "exit code 3 (data): a restart would only repeat it" in said


def test_too_few_nodes_are_one_error_within_the_stated_time(
    cluster: RayCluster, tmp_path: Path
) -> None:
    job = _start(cluster, tmp_path, "--nodes", "4", "--wait-s", "2")
    said, _ = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 1, said
    (error,) = [line for line in said.splitlines() if "Error" in line]
    nodes = ", ".join(["127.0.0.1: 1 of 1 CPUs"] * 3)
    assert error.startswith(
        "RankError: Ray has not enough resources within 2 s: expected 4 nodes with 1 free CPUs "
        f"each, found {nodes}: add nodes"
    )
    assert not list(tmp_path.glob("rank.?"))


def test_ranks_end_with_the_job_that_is_killed(cluster: RayCluster, tmp_path: Path) -> None:
    job = _start(cluster, tmp_path, "--nodes", "2", seconds=10 * PATIENCE_S)
    pids = [int(one["pid"]) for one in _environments(tmp_path, 2)]
    job.kill()
    job.communicate()
    deadline = time.monotonic() + PATIENCE_S
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_signal_to_the_job_ends_it_without_a_restart(cluster: RayCluster, tmp_path: Path) -> None:
    job = _start(cluster, tmp_path, "--nodes", "2", seconds=10 * PATIENCE_S)
    _environments(tmp_path, 2)
    job.send_signal(signal.SIGTERM)
    said, _ = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 143, said
    assert "attempt 2" not in said


def test_a_job_whose_raylets_and_ranks_are_killed_ends_as_the_undisturbed_one(
    cluster: RayCluster, tmp_path: Path
) -> None:
    outcome = kill_ray(tmp_path, cluster, kills=2, seed=1)
    assert not outcome.wrong, outcome.wrong
    assert len(outcome.kills) == 2
