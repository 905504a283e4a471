"""Is the sparse part negligible next to the dense part?

    make bench-setup && .venv-bench/bin/python benchmarks/end_to_end.py

26 slots of one id, 13 dense features, D = 16, MLP 400-400-400, batch 4096, 10 M rows, one thread,
with the CPU settings of training. A step of the static program with our operator is compared with a
step of the same program whose pooled slots are an input of the same shape that takes a gradient.

The same run measures PyTorch (EmbeddingBag and Adagrad) and FBGEMM (row-wise Adagrad), with the
same MLP in float32 under PyTorch: as shipped, and with their best settings, which are found at the
start. Their memory is on huge pages, as our table is. All take turns; a turn is one walk over 24
different batches. These are whole steps; hot_path.py compares kernels.

A push needs a dedup plan of its batch. In a run, the feeder makes it on another core. The peers
find the unique rows within their steps. So the step that is compared with theirs makes its plan,
too. Steps with and without the plan are compared with the one whose pooled slots are an input.
"""

from __future__ import annotations

import argparse
import statistics
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import report
from hot_path import say
from peers import batches, huge_pages
from peers.batches import Setting
from peers.jobs import BEST_ENV
from peers.turns import Subject

MEASURES = ("ops/base", "ops/row", "ops/rule", "ops/table", "ops/paddle/operators", "paddlebox/nn")
PEERS = ("torch", "fbgemm_rowwise")
PLANNED = "paddlebox, with the plan"
SPARSE_PART = 1.10
WARM_UP = 2


def run(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[report.Goal]]:
    setting = Setting("a", 4096, 26, 1, options.rows, 1.05)
    sizes = batches.save(folder, setting, options.batches, options.seed)
    settings = {
        "rows": options.rows,
        "dim": 16,
        "dense": 13,
        "threads": options.threads,
        "folder": str(folder),
    }
    env = {name: str(options.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    turns: dict[str, list[float]] = {}  # median seconds per step
    chosen = {}
    with ExitStack() as stack:
        own = Subject("whole_step", "paddlebox", settings, env)
        stack.callback(own.close)
        subjects = [
            ("paddlebox", own, "own"),
            ("sparse part replaced", own, "replaced"),
            (PLANNED, own, "planned"),
        ]
        for library in () if options.without_peers else PEERS:
            for name, best in (("as shipped", False), ("best settings", True)):
                peer = Subject(
                    "whole_step",
                    "torch",
                    {**settings, "library": library, "best": best},
                    {**env, **huge_pages.ENV, **(BEST_ENV if best else {})},
                )
                stack.callback(peer.close)
                subjects.append((f"{library}, {name}", peer, "step"))
        for name, subject, what in subjects:
            if what in ("own", "step"):
                how = subject.ask("prepare", setting=asdict(setting), count=options.batches)
                chosen[name] = f"{how}; {subject.on_huge_pages()}"
                say(f"{name}: {chosen[name]}")
            for _ in range(WARM_UP):
                subject.ask("turn", what=what)
        for _ in range(options.turns):
            for name, subject, what in subjects:
                seconds = statistics.median(subject.ask("turn", what=what))
                turns.setdefault(name, []).append(seconds)
    print(f"{'ms per step':32}{'median':>8}{'min':>8}{'max':>8}{'to ours':>9}")
    for name, values in turns.items():
        row = (statistics.median(values), min(values), max(values))
        print(f"{name:32}" + "".join(f"{value * 1e3:8.2f}" for value in row), end="")
        print(f"{statistics.median(report.ratios(values, turns[PLANNED])):9.3f}")
    goals = []
    for name, ours in (("a step", "paddlebox"), ("a step that makes its plan", PLANNED)):
        part = report.ratios(turns[ours], turns["sparse part replaced"])
        goals.append(report.at_most(f"{name}, of one without the sparse part", part, SPARSE_PART))
    for name in turns:
        if name.startswith(PEERS):
            times = report.ratios(turns[name], turns[PLANNED])
            goals.append(report.at_least(f"times {name}", times, 1.0))
    spreads = {name: report.spread(values) for name, values in turns.items()}
    return {"batch": sizes, "chosen": chosen, "seconds_a_step": spreads}, goals


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--batches", type=int, default=24)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1, help="for the dense part and the store")
    parser.add_argument("--quick", action="store_true", help="a trial: 1 M rows, 3 turns")
    parser.add_argument("--without-peers", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scratch", type=Path, default=Path("build/bench"), help="50 MB")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/end_to_end.json"))
    options = parser.parse_args()
    if options.quick:
        options.rows, options.turns = min(options.rows, 1_000_000), min(options.turns, 3)
    if min(options.rows // 1000, options.batches, options.turns, options.threads) < 1:
        parser.error(
            "expected --rows of 1000 or more, and --batches, --turns and --threads of 1 or more"
        )
    return report.timed(options, lambda folder: run(options, folder))


if __name__ == "__main__":
    report.run(main)
