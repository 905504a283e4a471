"""How long does the trainer wait for data, and how long does each stage take?

    PADDLEBOX_DATA=../shared/data python benchmarks/pipeline.py

Runs tools/train.py on 20 passes of each of these, with the DeepFM of its config:

  synthetic  ten sparse slots of MultiSlot text (datasets/synthetic), one file per pass
  criteo     rows of $PADDLEBOX_DATA/criteo/train.tsv.gz, repeated until a pass has the same number
             of rows; 39 sparse slots; not measured if the file is missing

--hidden makes the dense part slower or faster. A table shows, as medians over the passes, how long
each stage worked per pass and how long it waited. The trainer waits for load, stage, batch and
commit. The first load overlaps with nothing, so the first pass is reported separately. The goal
applies if no stage takes as long as training and the cores suffice for all stages; otherwise it is
"not measured".
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import report
from quality_criteo import criteo_lines

ROOT = report.ROOT
MEASURES = report.TRAINING
WAITED = 0.03
DATA_WAITS = ("load", "stage", "batch", "commit")


def make_synthetic(folder: Path, passes: int, rows: int) -> list[str]:
    subprocess.run(
        [
            sys.executable,
            str(ROOT / "datasets" / "synthetic" / "prepare.py"),
            *("--out", str(folder / "synthetic"), "--passes", str(passes)),
            *("--rows-per-pass", str(rows), "--test-rows", "1000"),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return [f"data.train_files=[{folder}/synthetic/train-*.txt]"]


def make_criteo(folder: Path, passes: int, rows: int) -> list[str]:
    """Writes passes that begin at different rows, so each has keys that the previous one lacks.

    Raises: UnavailableError if the data is missing.
    """
    lines = criteo_lines()
    out = folder / "criteo"
    out.mkdir()
    for number in range(passes):
        at = number * len(lines) // passes
        turned = lines[at:] + lines[:at]
        text = (turned * (rows // len(turned) + 1))[:rows]
        (out / f"train-{number:02}.txt").write_text("".join(text))
    return [f"data.train_files=[{out}/train-*.txt]"]


def train(config: str, folder: Path, overrides: list[str], trace: Path | None) -> list[Any]:
    """Trains a run and returns the lines of its metrics.jsonl."""
    run = folder / f"run-{config}"
    command = [sys.executable, str(ROOT / "tools" / "train.py")]
    command += ["-c", str(ROOT / "configs" / f"deepfm_{config}.yaml"), "--run-dir", str(run)]
    command += ["--trace", str(trace)] if trace is not None else []
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "-o", *overrides],
        check=False,
        cwd=ROOT,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def data_wait(line: Any) -> float:
    return sum(float(line["wait_s"][what]) for what in DATA_WAITS)


def judge(name: str, lines: list[Any], dense_threads: int) -> tuple[Any, list[report.Goal]]:
    steady = lines[1:]
    cores = len(os.sched_getaffinity(0))
    stages = {
        stage: {
            kind: statistics.median(line["stages"][stage][kind] for line in steady)
            for kind in ("work_s", "before_s", "after_s")
        }
        for stage in lines[0]["stages"]
    }
    threads = {
        kind: statistics.median(line["threads"][kind] for line in steady)
        for kind in ("load", "pack")
    }
    seconds = statistics.median(line["seconds"] for line in steady)
    samples = lines[0]["samples"]
    print(f"{name}: {len(lines)} passes of {samples} samples, {seconds:.3f} s per pass;")
    print(f"  threads: load {threads['load']:g}, pack {threads['pack']:g}; median per pass, in s:")
    print(f"  {'stage':8}{'work':>9}{'wait in':>9}{'wait out':>9}")
    for stage, sums in stages.items():
        row = "".join(f"{sums[kind]:9.3f}" for kind in ("work_s", "before_s", "after_s"))
        print(f"  {stage:8}{row}")
    wall = sum(line["seconds"] for line in steady)
    shares = {
        what: sum(line["wait_s"][what] for line in steady) / wall for what in lines[0]["wait_s"]
    }
    waited = sum(data_wait(line) for line in steady) / wall
    total = sum(data_wait(line) for line in lines) / sum(line["seconds"] for line in lines)
    work = {stage: sums["work_s"] for stage, sums in stages.items()}
    # Seconds of each stage per pass, on its threads. Each must be shorter than training.
    alone = {
        "load": (work["read"] + work["parse"]) / cores + work["key"],
        "stage": work["stage"],
        "pack": work["pack"] / max(1, cores // 2),
        "commit": work["commit"],
    }
    busy = sum(work[stage] for stage in work if stage != "train") + work["train"] * dense_threads
    allowed = max(alone.values()) < work["train"] and busy < cores * work["train"]
    parts = ", ".join(f"{what} {share:.2%}" for what, share in shares.items())
    own = 1 - waited - sum(line["stages"]["train"]["work_s"] for line in steady) / wall
    print(f"  the trainer waited {waited:.2%} of wall time ({parts}); {total:.2%} with the first")
    print(f"  pass; {own:.2%} of it was the end of passes: metrics, dense state, the log")
    print(f"  processor time per pass: {busy:.2f} s of {cores * work['train']:.2f} s available")
    figures = {
        "samples_per_pass": lines[0]["samples"],
        "pass_s": report.spread([line["seconds"] for line in steady]),
        "stages": stages,
        "threads": threads,
        "waited": shares,
        "waited_with_first_pass": total,
        "ends_of_passes": own,
        "allowed": allowed,
    }
    goal = goal_of(name, waited)
    if not allowed:
        goal = report.not_measured(goal, "the stages take too long to overlap with training")
    return figures, [goal]


def goal_of(name: str, waited: float | Sequence[float]) -> report.Goal:
    return report.at_most(f"{name}, share of wall time waited", waited, WAITED)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passes", type=int, default=20)
    parser.add_argument("--rows", type=int, default=100_000, help="rows per pass")
    parser.add_argument("--hidden", default="400,400,400", help="widths of the dense part")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--threads", type=int, default=0, help="data.threads; 0: tuned")
    half = min(4, max(1, len(os.sched_getaffinity(0)) // 2))
    parser.add_argument("--dense-threads", type=int, default=half, help="half of the cores, or 4")
    parser.add_argument("--only", choices=("synthetic", "criteo"))
    parser.add_argument("--trace", type=Path, help="folder for a trace of each run")
    parser.add_argument("--scratch", type=Path, default=Path("build/bench"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/pipeline.json"))
    options = parser.parse_args()
    options.scratch.mkdir(parents=True, exist_ok=True)
    figures: dict[str, Any] = {}
    goals: list[report.Goal] = []
    common = [
        "data.files_per_pass=1",
        f"data.batch_size={options.batch_size}",
        f"data.threads={options.threads}",
        f"trainer.dense_threads={options.dense_threads}",
        f"model.hidden=[{options.hidden}]",
    ]
    for name, make in (("synthetic", make_synthetic), ("criteo", make_criteo)):
        if options.only not in (None, name):
            continue
        with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
            folder = Path(scratch).resolve()
            try:
                files = make(folder, options.passes, options.rows)
            except report.UnavailableError as error:
                goals.append(report.not_measured(goal_of(name, []), str(error)))
                continue
            trace = options.trace / f"{name}.json" if options.trace is not None else None
            lines = train(name, folder, [*common, *files], trace)
        figures[name], more = judge(name, lines, options.dense_threads)
        goals += more
    settings = {key: str(value) for key, value in vars(options).items() if key != "out"}
    return report.write(options.out, settings, figures, goals)


if __name__ == "__main__":
    report.run(main)
