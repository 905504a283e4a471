"""`paddlebox train-on-ray` on a Ray cluster of several raylets on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import PATIENCE_S, ROOT
from tests.faults.kill_ray import kill_ray
from tests.support.ray_cluster import RayCluster, ancestor, needs_ray

pytestmark = [pytest.mark.slow, needs_ray]
_TOOL = (sys.executable, "-m", "paddlebox", "train-on-ray")
_SECRET = "a-credential-that-must-not-leak"
# Locks a file of its rank, writes its environment, waits on its first start, and ends with a code.
_RANK = """
import fcntl, json, os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
rank = os.environ["PADDLE_TRAINER_ID"]
held = open(folder / f"lock.{rank}", "w")
try:
    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit(6)
first = not (folder / f"rank.{rank}").exists()
(folder / f"part.{rank}").write_text(json.dumps(dict(os.environ, pid=str(os.getpid()))))
(folder / f"part.{rank}").rename(folder / f"rank.{rank}")
print(f"rank {rank} waits", flush=True)
time.sleep(float(sys.argv[2]) if first else 0.0)
sys.exit(int(sys.argv[3]))
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with RayCluster(3) as found:
        yield found


def _start(
    cluster: RayCluster,
    folder: Path,
    *words: str,
    seconds: float = 0.0,
    code: int = 0,
    more: tuple[str, ...] = (),
    cwd: Path = ROOT,
) -> subprocess.Popen[str]:
    """A job whose ranks run _RANK. words: options of the tool; more: of the command."""
    program = folder / "rank.py"
    program.write_text(_RANK)
    tool = [*_TOOL, "--address", cluster.address, *words, "--"]
    return subprocess.Popen(
        [*tool, str(program), str(folder), str(seconds), str(code), *more],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "AWS_KEY": _SECRET, "MKL_CBWR": "2"},
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


def test_a_job_goes_on_if_its_actors_take_longer_to_start_than_it_waits_for_nodes(
    cluster: RayCluster, tmp_path: Path
) -> None:
    job = _start(cluster, tmp_path, "--wait-s", "0.01")
    said, _ = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0, said


def test_a_folder_that_a_node_does_not_have_is_one_error_without_another_try(
    cluster: RayCluster, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    job = _start(cluster, tmp_path, cwd=gone)
    assert job.stdout is not None
    while " 1 node with 1 rank each" not in (line := job.stdout.readline()):
        assert line, "the job ended"
    gone.rmdir()  # before an actor can have started
    said, _ = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 2, said
    told = "ConfigError: rank 0 on 127.0.0.1: its actor cannot be started: FileNotFoundError: "
    assert f"{told}[Errno 2] No such file or directory: '{gone}'" in said
    assert "trying again" not in said


def test_the_head_does_not_keep_the_environment_of_ranks(
    cluster: RayCluster, tmp_path: Path
) -> None:
    job = _start(cluster, tmp_path, "--env", "AWS_*", seconds=10 * PATIENCE_S)
    (rank,) = _environments(tmp_path, 1)
    assert rank["AWS_KEY"] == _SECRET
    gcs = cluster.process(cluster.head, "gcs_server")
    # It keeps the arguments of the constructor, and so the command.
    assert _in_memory(gcs, str(tmp_path / "rank.py"))
    assert not _in_memory(gcs, _SECRET)
    job.kill()
    job.communicate()


def _in_memory(pid: int, text: str) -> bool:
    """Whether a process has a text in memory that it may write."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
        for line in maps:
            span, rights, *_ = line.split()
            first, last = (int(one, 16) for one in span.split("-"))
            if rights.startswith("rw"):
                with contextlib.suppress(OSError):
                    memory.seek(first)
                    if text.encode() in memory.read(last - first):
                        return True
    return False


def test_an_actor_that_is_lost_while_its_rank_lives_does_not_end_the_job(
    cluster: RayCluster, tmp_path: Path
) -> None:
    """The actor is stopped, as if its node were cut off. Its rank keeps its lock."""
    job = _start(cluster, tmp_path, "--tries", "10", seconds=10 * PATIENCE_S)
    (rank,) = _environments(tmp_path, 1)
    actor = ancestor(int(rank["pid"]), 1)
    os.kill(actor, signal.SIGSTOP)
    try:
        said, _ = job.communicate(timeout=4 * PATIENCE_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(actor, signal.SIGKILL)
    assert job.returncode == 0, said
    assert "rank 0: no answer for 15 s" in said


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


def test_metrics_of_the_last_pass_are_exported_and_the_output_of_ranks_is_that_of_the_job(
    cluster: RayCluster, tmp_path: Path
) -> None:
    pytest.importorskip("prometheus_client", reason="ray[default] is not installed")
    (tmp_path / "metrics.jsonl").write_text('{"loss": 0.625}\n')
    job = _start(cluster, tmp_path, seconds=10 * PATIENCE_S, more=("--run-dir", str(tmp_path)))
    deadline = time.monotonic() + 2 * PATIENCE_S
    while not (found := re.findall(r"^ray_paddlebox_train_loss\{.*$", _metrics(cluster), re.M)):
        assert time.monotonic() < deadline
        time.sleep(1.0)
    job.send_signal(signal.SIGTERM)
    said, _ = job.communicate(timeout=PATIENCE_S)
    assert re.search(r"\(rank 0 pid=\d+(, ip=[\d.]+)?\).* rank 0 waits", said), said
    assert found[0].endswith(" 0.625")
    assert f'run="{tmp_path}"' in found[0]


def _metrics(cluster: RayCluster) -> str:
    """Of all nodes, as Prometheus reads them."""
    found = ""
    for port in cluster.metrics_ports:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10.0) as answer,
        ):
            found += answer.read().decode()
    return found


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
    assert outcome.counted == 2
