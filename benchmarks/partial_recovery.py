"""What does a killed rank cost, with and without checkpoint.partial_recovery?

    python benchmarks/partial_recovery.py

Jobs train generated data (datasets/synthetic) asynchronously: 3 passes of 120,000
instances, 256 instances per step over all ranks. One job is not disturbed. In two others, the last
rank gets SIGKILL at step 280 of the 469 steps of the second pass. With partial recovery, the rows
of this rank go back to the end of the first pass; without it, all ranks go back there. The AUC is
that of 40,000 instances that are in no pass.

  lost          instances whose gradients are missing in the rows of the killed rank
  again         instances that are trained a second time
  pass_seconds  time of the pass, after the second start
  seconds       time of the job; most of what a kill adds is the start of the processes

Goals: partial recovery trains nothing twice, and changes the mean AUC by at most 0.001.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import report

sys.path.insert(0, str(report.ROOT))
os.chdir(report.ROOT)
from tests.faults.kill_ranks import Job  # noqa: E402  starts jobs and kills their ranks

STEP, PASS, AT = 256, 120_000, 280
MODES = {"undisturbed": "false", "partial": "true", "all go back": "false"}


def prepare(folder: Path) -> Path:
    counts = ("--passes", "12", "--rows-per-pass", str(PASS // 4), "--test-rows", "40000")
    command = [sys.executable, "datasets/synthetic/prepare.py", "--out", str(folder), *counts]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def measure(folder: Path, data: Path, ranks: int, mode: str, seed: int) -> dict[str, Any]:
    settings = (
        *("data.files_per_pass=4", f"data.batch_size={STEP // ranks}", f"seed={seed}"),
        *("ranks.staleness=1", f"checkpoint.partial_recovery={MODES[mode]}"),
        *("optimizer.learning_rate=0.001", "trainer.evaluate_passes=after"),
    )
    job, killed = Job(folder, data, ranks, settings=settings), 1
    begun = time.monotonic()
    job.start()
    try:
        if mode != "undisturbed":
            killed = job.kill(ranks - 1, "step", passes=1, step=AT)
        code = job.wait()
    finally:
        job.end()
    if code:
        raise RuntimeError(f"{mode}: exit code {code}: {job.log()}")
    seconds, lines = time.monotonic() - begun, job.lines()
    made = STEP * (killed - 1)
    kept = sum(entry["samples"] for entry in lines[1].get("partial_recovery", []))
    return {
        "ranks": ranks,
        "mode": mode,
        "seed": seed,
        "seconds": seconds,
        "pass_seconds": lines[1]["seconds"],
        "lost": kept,
        "again": sum(line["samples"] for line in lines)
        + kept
        - 3 * PASS
        + (made if not kept else 0),
        "auc": [line["test"]["auc"] for line in lines],
    }


def run(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[report.Goal]]:
    data, found = prepare(folder / "data"), []
    for seed in range(1, options.seeds + 1):
        for ranks in options.ranks:
            for mode in MODES:
                name = f"{ranks}-{seed}-{mode.replace(' ', '-')}"
                found.append(measure(folder / name, data, ranks, mode, seed))
                print(found[-1], flush=True)
    table, goals = [], []
    for ranks in options.ranks:
        for mode in MODES:
            runs = [one for one in found if (one["ranks"], one["mode"]) == (ranks, mode)]
            mean = {
                name: statistics.mean(one[name] for one in runs)
                for name in ("seconds", "pass_seconds", "lost", "again")
            }
            auc = [statistics.mean(one["auc"][at] for one in runs) for at in range(3)]
            table.append({"ranks": ranks, "mode": mode, **mean, "auc": auc})
        whole, partial, _ = table[-3:]
        moved = abs(partial["auc"][-1] - whole["auc"][-1])
        goals.append(report.at_most(f"AUC moved, {ranks} ranks", moved, 0.001))
        again = partial["again"]
        goals.append(report.at_most(f"trained twice, {ranks} ranks", again, 0))
    return {"mean": table, "runs": found}, goals


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--seeds", type=int, default=3)
    report.output(parser, "partial_recovery")
    options = parser.parse_args()
    return report.timed(options, lambda folder: run(options, folder), hidden=("scratch",))


if __name__ == "__main__":
    report.run(main)
