"""Does a run that is killed lose a commit, or end with other bytes?

    python benchmarks/kills.py

tests/faults/kill_run.py kills training runs, and tests/faults/kill_ranks.py a rank of jobs of two
ranks: from outside at random moments, and right after single changes of files. Each run and job is
started again until it ends, and compared with one that was not disturbed.

Goal: nothing is wrong. A commit that was lost, a pass trained twice, other rows, dense state,
metrics or saves at the end, and a file that no version names are wrong.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import report

sys.path.insert(0, str(report.ROOT))

from tests.faults.kill_ranks import kill_ranks
from tests.faults.kill_run import kill_runs


def measure(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[report.Goal]]:
    for name in ("runs", "ranks"):
        (folder / name).mkdir()
    runs = kill_runs(folder / "runs", options.kills, options.seed, options.jobs)
    jobs = kill_ranks(folder / "ranks", options.kills_of_ranks, options.seed)
    figures: dict[str, Any] = {
        "runs": {
            "kills": runs.kills.total(),
            "moments": dict(runs.kills),
            "ended": runs.runs,
            "wrong": runs.wrong,
            "resume_s": report.spread(runs.resume_s) if runs.resume_s else None,
        },
        "jobs of 2 ranks": {
            "kills": len(jobs.kills),
            "moments": jobs.kills,
            "ended": jobs.jobs,
            "wrong": jobs.wrong,
        },
    }
    return figures, [
        report.at_most("wrong in killed runs", len(runs.wrong), 0),
        report.at_most("wrong in jobs with killed ranks", len(jobs.wrong), 0),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200, help="of runs")
    parser.add_argument("--kills-of-ranks", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--scratch", type=Path, default=report.ROOT / "build/bench")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/kills.json"))
    options = parser.parse_args()
    return report.timed(options, lambda folder: measure(options, folder), hidden=("scratch",))


if __name__ == "__main__":
    report.run(main)
