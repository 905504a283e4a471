"""What does a rank that is killed cost with checkpoint.partial_recovery, and without?

    python benchmarks/partial_recovery.py

Supervised jobs on generated data (datasets/synthetic): 3 passes of 120,000 instances, asynchronous,
256 instances a step over all ranks. One job is left alone; of two others the last rank gets SIGKILL
at step 280 of the second pass's 469 steps. With partial recovery its rows go back to the first
pass's end; without, all go back there. AUC is that of 40,000 instances that no pass has.

lost: instances whose gradients the dead rank's rows lack. again: instances that are trained a
second time. pass_seconds: of the pass, after the second start. seconds: of the job; a start of its
processes is the larger part of what a kill adds to them.

Goals: partial recovery trains nothing twice, and changes the mean AUC by at most 0.001.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import report

sys.path.insert(0, str(report.ROOT))
os.chdir(report.ROOT)
from tests.faults.kill_ranks import Supervised  # noqa: E402  jobs and their killing

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
        *("ranks.sparse_sync=async", f"checkpoint.partial_recovery={MODES[mode]}"),
        *("optimizer.learning_rate=0.001", "trainer.evaluate_after_pass=true"),
    )
    job = Supervised(folder, data, ranks, settings=settings)
    begun = time.monotonic()
    job.start()
    try:
        if mode != "undisturbed":
            job.kill(ranks - 1, "step", passes=1, step=AT)
        codes = job.wait()
    finally:
        job.end()
    if codes != [0]:
        raise RuntimeError(f"{mode}: exit codes {codes}: {job.log()}")
    seconds, lines = time.monotonic() - begun, job.lines()
    killed = re.search(r"killed by signal 9 in step (\d+)", job.log())
    made = STEP * (int(killed[1]) - 1) if killed else 0
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
        goals.append(report.Goal(f"AUC moved, {ranks} ranks", moved, 0.001, moved <= 0.001))
        again = partial["again"]
        goals.append(report.Goal(f"trained twice, {ranks} ranks", again, 0, again == 0))
    return {"mean": table, "runs": found}, goals


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--scratch", type=Path, default=report.ROOT / "build/bench")
    parser.add_argument(
        "--out", type=Path, default=report.ROOT / "benchmarks/results/partial_recovery.json"
    )
    options = parser.parse_args()
    return report.timed(options, lambda folder: run(options, folder), hidden=("scratch",))


if __name__ == "__main__":
    sys.exit(main())
