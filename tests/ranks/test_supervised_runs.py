"""Jobs under tools/supervise.py, disturbed in every way that processes can be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PATIENCE_S, ROOT
from tests.faults.kill_ranks import Supervised, kill_ranks, prepare
from tests.support.marks import long

pytestmark = pytest.mark.slow  # each starts ranks several times
Start = Callable[..., Supervised]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("supervised")
    prepare(folder / "data")
    return folder


@pytest.fixture(scope="module")
def whole(scratch: Path) -> Supervised:
    job = Supervised(scratch / "undisturbed", scratch / "data").start()
    assert job.wait() == [0], job.log()
    return job


@pytest.fixture
def start(scratch: Path, tmp_path: Path) -> Iterator[Start]:
    jobs: list[Supervised] = []

    def begin(*options: str, settings: tuple[str, ...] = (), **more: Any) -> Supervised:
        folder = tmp_path / f"job-{len(jobs)}"
        job = Supervised(folder, scratch / "data", options=options, settings=settings, **more)
        jobs.append(job)
        return job.start()

    yield begin
    for job in jobs:
        job.end()


def none_left(job: Supervised) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while left := [*job.alive(), *job.launchers()]:
        assert time.monotonic() < deadline, f"processes {left} live on"
        time.sleep(0.05)


def test_a_job_whose_ranks_are_killed_ends_by_itself_as_the_undisturbed_one(scratch: Path) -> None:
    outcome = kill_ranks(scratch, kills=2, seed=7)
    assert not outcome.wrong, outcome.wrong
    assert len(outcome.kills) == 2


@pytest.mark.long
def test_a_rank_that_is_stopped_is_found_and_named(whole: Supervised, start: Start) -> None:
    job = start("--stall-s", "8")
    job.until(2)
    victim = max(job.alive())
    os.kill(victim, signal.SIGSTOP)
    assert job.wait() == [0], job.log()
    named = [line for line in job.log().splitlines() if f"(process {victim} on" in line]
    assert "no progress in" in named[0], job.log()
    assert "stopped by a signal" in named[0]
    assert job.digests() == whole.digests()


def test_a_killed_supervisor_leaves_no_process_and_the_same_command_goes_on(
    whole: Supervised, start: Start
) -> None:
    job = start()
    job.until(1)
    job.supervisors[0].kill()
    none_left(job)
    job.supervisors = [job.supervisor(0)]
    assert job.wait() == [0], job.log()
    assert job.digests() == whole.digests()


@pytest.mark.long
def test_a_killed_launcher_takes_its_ranks_with_it_and_is_started_again(
    whole: Supervised, start: Start
) -> None:
    job = start()
    job.until(1)
    ranks, (launcher,) = set(job.alive()), job.launchers()
    os.kill(launcher, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_S
    while ranks & set(job.alive()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert job.wait() == [0], job.log()
    assert "attempt 2 begins" in job.log()
    assert job.digests() == whole.digests()


@pytest.mark.long
def test_a_node_that_is_killed_whole_is_waited_for_and_all_start_again(
    whole: Supervised, start: Start
) -> None:
    job = start(ranks=1, nodes=2)
    for struck in (0, 1):
        job.until(1 + 2 * struck)
        job.supervisors[struck].kill()
        for pid in job.alive(struck):
            os.kill(pid, signal.SIGKILL)
        job.supervisors[struck].wait()
        job.supervisors[struck] = job.supervisor(struck)
    assert job.wait() == [0, 0], job.log(0) + job.log(1)
    assert job.digests() == whole.digests()
    none_left(job)


@pytest.mark.parametrize("nodes", [1, long(2)])
def test_sigterm_ends_the_pass_on_every_rank_and_no_one_starts_again(
    nodes: int, whole: Supervised, start: Start
) -> None:
    job = start(ranks=2 // nodes, nodes=nodes)
    job.until(2)
    job.supervisors[-1].send_signal(signal.SIGTERM)
    assert job.wait() == [143] * nodes, job.log()
    dirs = [job.run_dir, job.run_dir / "ranks/1"]
    passes = [len((each / "metrics.jsonl").read_text().splitlines()) for each in dirs]
    assert passes[0] == passes[1] >= 2  # the pass that was open has ended everywhere
    text = (job.folder / f"log-{nodes - 1}" / "workerlog.0").read_text()
    assert "SIGTERM: stopped; the store is at its last commit" in text
    none_left(job)
    job.supervisors = [job.supervisor(node) for node in range(nodes)]
    assert set(job.wait()) == {0}
    assert job.digests() == whole.digests()


def test_a_wrong_configuration_is_not_tried_again(start: Start) -> None:
    job = start(settings=("data.batch_size=-1",))
    assert job.wait() == [2]
    assert "attempt 2" not in job.log()


def test_the_log_folder_holds_no_variable_that_is_not_on_the_list(start: Start) -> None:
    job = start(settings=("data.batch_size=-1",), environment={"PASSWORD_OF_A_BUCKET": "hunter2"})
    assert job.wait() == [2]
    files = [path for path in (job.folder / "log-0").rglob("*") if path.is_file()]
    assert any(path.name.startswith("envlog") for path in files)
    assert not [path for path in files if b"hunter2" in path.read_bytes()]


@pytest.mark.parametrize(
    ("code", "ends_with", "said"), [(3, 3, "only repeat it"), (9, 1, "giving up")]
)
def test_a_program_without_heartbeats_is_judged_by_its_exit_code(
    code: int, ends_with: int, said: str
) -> None:
    program = f"import sys; sys.exit({code})"
    done = subprocess.run(
        [sys.executable, "tools/supervise.py", "--tries", "1", "--", sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == ends_with
    assert said in done.stderr
    assert ("attempt 2" in done.stderr) == (code == 9)
