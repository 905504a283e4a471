"""The first script of docs/deploy.md for Slurm, on a Slurm of one node."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import PATIENCE_S, ROOT
from tests.ranks.launched import CONFIG, command, overrides, summary
from tests.support.slurm import local_slurm

_CHANGED = {  # options of the script, for a small machine
    r"--nodes=\d+": "--nodes=1",
    r"--ntasks-per-node=\d+": "--ntasks-per-node=2",
    r"--cpus-per-task=\d+": "--cpus-per-task=1",
    r"--wait=\d+": "--wait=60",
}


def script(folder: Path, train: list[str]) -> str:
    """The script of the page, with the command `train`."""
    page = (ROOT / "docs/deploy.md").read_text()
    (text,) = re.findall(r"^```sh\n(#!/bin/bash\n#SBATCH.*?)^```$", page, re.MULTILINE | re.DOTALL)
    for pattern, option in _CHANGED.items():
        text, count = re.subn(pattern, option, text)
        assert count == 1, pattern
    wanted = r"\.venv/bin/python \\\n  tools/train\.py [^\n]*"
    text, count = re.subn(wanted, lambda _: shlex.join([sys.executable, *train]), text)
    assert count == 1
    return text


def _ranks(run_dir: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            words = (entry / "cmdline").read_text().split("\0")
            if words[0] == sys.executable and str(run_dir) in words:
                found.append(int(entry.name))
    return found


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_job_of_the_script_is_queued_again_when_a_rank_is_killed_and_ends_as_undisturbed(
    undisturbed: Path, data: Path, tmp_path: Path
) -> None:
    if find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed")
    run_dir = tmp_path / "run"
    train = command(1, "train", run_dir, CONFIG, *overrides(data, tmp_path))
    (tmp_path / "script.sh").write_text(script(tmp_path, train))
    log = tmp_path / "job.log"
    variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "POD_IP": "127.0.0.1"}
    with local_slurm(tmp_path / "slurm", cpus=2) as slurm:
        environment = {**os.environ, **variables, **slurm}

        def call(*words: str) -> str:
            return subprocess.run(
                words, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
            ).stdout

        job = call("sbatch", "--parsable", "-o", str(log), str(tmp_path / "script.sh")).strip()
        deadline, killed = time.monotonic() + 5 * PATIENCE_S, False
        while "JobState=COMPLETED" not in (state := call("scontrol", "show", "job", job)):
            said = log.read_text() if log.exists() else ""
            assert time.monotonic() < deadline, state + said
            assert "JobState=FAILED" not in state, state + said
            time.sleep(0.2)
            if not killed and (run_dir / "metrics.jsonl").exists() and (ranks := _ranks(run_dir)):
                os.kill(ranks[0], signal.SIGKILL)
                killed = True
    assert "Restarts=0" not in state
    for rank in ("", "ranks/1"):
        expected, found = summary(undisturbed / rank), summary(run_dir / rank)
        for name in ("sparse_digest", "dense_digest", "samples"):
            assert found[name] == expected[name]
