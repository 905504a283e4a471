"""Jobs on a local Ray cluster whose raylets and ranks are killed.

    python -m tests.faults.kill_ray --kills 20

Three raylets, of which the head is not killed, and a job of two nodes with a rank each. At random
moments, SIGKILL is sent to a rank, or to a raylet that runs a rank; another raylet then takes its
place. Only `paddlebox train-on-ray` restarts ranks. Each job must exit with 0, and its ranks must
end with the digests and the metrics of an undisturbed job without Ray. Meanwhile the newest pass
that all ranks have committed must not go back. Only kills that led to a restart are counted.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tests.conftest import ROOT
from tests.faults.kill_ranks import PASSES, Job, prepare
from tests.faults.witness import Witness, newest_pass, unsound
from tests.support.ray_cluster import RayCluster

_LONGEST_S = 1800.0
_PASS_S = 1.0  # about the time of a pass
_A_JOB = 4  # kills; more of them would mostly meet its last pass, again and again
# On a busy machine, Ray may need minutes to start an actor.
_PATIENT = ("--tries", "20", "--stall-s", "120", "--limit", "start=900", "--wait-s", "1800")


@dataclass
class OnRay(Job):
    """A job on a Ray cluster. `ranks` is their number, one a node."""

    cluster: RayCluster | None = None
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> Self:
        assert self.cluster is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "job.log", "ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "paddlebox", "train-on-ray"),
                    *("--address", self.cluster.address),
                    *("--nodes", str(self.ranks), *_PATIENT, "--", *self.command()),
                ],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def ended(self) -> bool:
        return self.process.poll() is not None

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def alive(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                ours = "tools/train.py" in words and str(self.run_dir) in words
                if entry.name.isdigit() and ours and "--nodes" not in words:
                    found.append(int(entry.name))
        return found

    def attempts(self) -> int:
        return self.log().count(" begins\n")

    def log(self) -> str:
        text = (self.folder / "job.log").read_text(errors="replace")
        said = (" train-on-ray: ", "RankError", "ConfigError")
        return "".join(line for line in text.splitlines(True) if any(one in line for one in said))


@dataclass
class Outcome:
    kills: list[str] = field(default_factory=list)
    counted: int = 0  # kills that led to a restart
    jobs: int = 0
    wrong: list[str] = field(default_factory=list)


def undisturbed(scratch: Path) -> Job:
    """Without Ray, with the layout of the jobs here."""
    if not (scratch / "data").exists():
        prepare(scratch / "data")
    whole = Job(scratch / "whole", scratch / "data", ranks=1, nodes=2).start()
    assert whole.wait(_LONGEST_S) == 0, whole.log()
    return whole


def kill_ray(scratch: Path, cluster: RayCluster, kills: int, seed: int) -> Outcome:
    chance, outcome = random.Random(seed), Outcome()
    whole = undisturbed(scratch)
    while outcome.counted < kills and not outcome.wrong:
        folder = scratch / f"killed-{outcome.jobs}"
        job = OnRay(folder, scratch / "data", 2, cluster=cluster)
        witness = Witness(functools.partial(newest_pass, job.run_dir / "store"), tries=20)
        try:
            left = min(kills - outcome.counted, _A_JOB)
            killed = _kill_until_it_ends(job.start(), cluster, chance, left, witness)
            outcome.kills += killed
            outcome.counted += min(len(killed), job.attempts() - 1)
            wrong = [*witness.errors, *_wrong_with(job, whole)]
            outcome.wrong += [f"{job.folder}: {text}\n{job.log()}" for text in wrong]
            ended = "; ".join(wrong) or "ends as the undisturbed job"
            print(f"  {folder.name}: {job.attempts() - 1} restarts, {ended}", flush=True)
        finally:
            job.end()
        outcome.jobs += 1
    return outcome


def _kill_until_it_ends(
    job: OnRay,
    cluster: RayCluster,
    chance: random.Random,
    most: int,
    witness: Witness,
) -> list[str]:
    """Returns what was killed.

    Each kill is aimed at a pass, because ranks need longer to start than to train.
    """
    due, last, kills, done = 0.0, time.monotonic() + _LONGEST_S, list[str](), False
    aim = -1  # number of passes from which on it kills
    while not job.ended() and time.monotonic() < last:
        time.sleep(0.05)
        witness.look()
        alive = job.alive()
        if len(kills) == most or done or len(alive) < job.ranks:
            continue  # it waits until all ranks have started
        if aim < 0:
            aim = chance.randrange(min(job.passes(), PASSES - 1), PASSES)
        if not due and job.passes() >= aim:
            due = time.monotonic() + chance.uniform(0.0, _PASS_S)
        if not due or time.monotonic() < due:
            continue
        done = job.passes() == PASSES  # such a job would mostly be killed while its ranks start
        kills.append(f"{_kill(cluster, chance, alive)}, after pass {job.passes()}")
        print(f"  {job.folder.name}: {kills[-1]}", flush=True)
        last, due, aim = time.monotonic() + _LONGEST_S, 0.0, -1
    return kills


def _kill(cluster: RayCluster, chance: random.Random, ranks: list[int]) -> str:
    node = cluster.kill_raylet(chance, ranks) if chance.random() < 0.5 else None
    if node is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(chance.choice(sorted(ranks)), signal.SIGKILL)
        return "a rank"
    cluster.add()
    cluster.remove(node)
    return "a raylet"


def _wrong_with(job: OnRay, whole: Job) -> list[str]:
    if (code := job.process.poll()) != 0:
        return [f"exit code {code}, after {_LONGEST_S:.0f} s without a kill at most"]
    wrong = unsound(job.run_dir / "store")
    if job.result() != whole.result():
        wrong.append("the ranks do not end as the undisturbed ones")
    if left := job.alive():
        wrong.append(f"processes {left} live on")
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scratch", type=Path, help="kept; default: a folder that is removed")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="pbx-kill-ray-") as temporary,
        RayCluster(3) as cluster,
    ):
        scratch = options.scratch or Path(temporary)
        scratch.mkdir(parents=True, exist_ok=True)
        killed = kill_ray(scratch, cluster, options.kills, options.seed)
    print(f"kills {len(killed.kills)}: {'; '.join(killed.kills)}")
    print(f"kills that led to a restart {killed.counted}")
    print(f"jobs that ended {killed.jobs}; wrong {len(killed.wrong)}; ", end="")
    print(f"{time.monotonic() - started:.0f} s in all")
    print("\n".join(killed.wrong))
    return 1 if killed.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
