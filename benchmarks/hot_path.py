"""How close do pull and push come to the speed of memory, and how do they compare with peers?

    make bench-setup && .venv-bench/bin/python benchmarks/hot_path.py

10 M rows, D = 16. Setting (a) has 26 slots of one id and batch 4096; (b) has 100 slots of 1 to 5
ids, sum-pooled, and batch 1024. Ids follow Zipf 1.05 within each slot. Every subject has its own
process and walks in turn through the same 24 different batches, first without being timed. Pull is
the pooled forward; push is the backward and the rule: kernels, not whole training steps, which
end_to_end.py compares. A push needs a plan of the batch's unique rows. Peers find these rows within
their push, so our pull and push are compared with theirs with the time of the plan, made on the
same core, and those of FBGEMM also without it, as kernels alone. In a run, the feeder makes the
plan on another core. For our table, the kernels are called through the native library's bindings,
with counts, accessor and CVM: a pull reads 19 floats, and a push updates 17 weights and 2 states,
where the peers have 16 weights.

`weight_decay` is our table again, with table.weight_decay. Its rows are brought up to date by the
pull. What its pull and push take longer than ours is compared with our push.

Peers: FBGEMM's table-batched embeddings on the CPU (row-wise and exact Adagrad), PyTorch's
EmbeddingBag(sparse) with Adagrad, and Paddle's Embedding(sparse) with Adagrad. FBGEMM's operators
are called without its module and autograd. PyTorch and Paddle have no such operators: their pull
has the graph for the gradient, and their push is a backward and a step of the optimizer. Peers are
on huge pages, as our table is (peers/huge_pages.py). Bounds: a plain gather of the same ids at the
same width, and a plain update of the same unique rows.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import report
from peers import batches, huge_pages
from peers.batches import Setting
from peers.turns import Subject

OWN, DECAY, BOUNDS = "paddlebox", "weight_decay", "bounds"
PEERS = ("fbgemm_rowwise", "fbgemm_exact", "torch", "paddle")
# Bounds of the goals: the time of a peer's pull + push over ours.
WITH_PLAN = {"fbgemm_rowwise": 1.6, "fbgemm_exact": 6.0, "torch": 12.0, "paddle": 12.0}
KERNELS = {"fbgemm_rowwise": 2.0, "fbgemm_exact": 6.0}
LAYERS = {"torch": "torch's layer and optimizer", "paddle": "paddle's layer and optimizer"}
PULL_OF_BOUND, PUSH_OF_BOUND = 0.75, 0.60
DECAY_OF_PUSH = 0.20
WARM_UP = 2  # number of turns; rows get their weights in the first

# Seconds per batch by kind, one number per turn.
Times = dict[str, list[float]]


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


class Bench:
    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.settings = (
            Setting("a", 4096, 26, 1, options.rows, 1.05),
            Setting("b", 1024, 100, 5, options.rows, 1.05),
        )
        self.sizes = {
            setting.name: batches.save(folder, setting, options.batches, options.seed)
            for setting in self.settings
        }
        self.chosen: dict[str, str] = {}
        self.times: dict[tuple[str, int], dict[str, Times]] = {}  # (setting, threads), subject
        self.about: dict[str, Any] = {}

    def run(self) -> tuple[dict[str, Any], list[report.Goal]]:
        for threads in self.options.threads:
            with ExitStack() as stack:
                subjects = self.start(threads, stack)
                for setting in self.settings:
                    self.measure(setting, threads, subjects)
        return self.figures(), self.goals()

    def start(self, threads: int, stack: ExitStack) -> list[Subject]:
        settings = {
            "rows": self.options.rows,
            "dim": self.options.dim,
            "threads": threads,
            "folder": str(self.folder),
        }
        env = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        subjects = []
        for name in (OWN, DECAY, BOUNDS, *(() if self.options.without_peers else PEERS)):
            own_env = {**env, **huge_pages.ENV} if name in PEERS else env
            subject = Subject("sparse", name, settings, own_env)
            stack.callback(subject.close)
            subjects.append(subject)
            if name == OWN:
                self.about = subject.ask("about")
                settings = {**settings, "row_bytes": self.about["row_bytes"]}
        return subjects

    def measure(self, setting: Setting, threads: int, subjects: Sequence[Subject]) -> None:
        measured = self.times[setting.name, threads] = {}
        for subject in subjects:
            way = subject.ask("prepare", setting=asdict(setting), count=self.options.batches)
            name = f"{setting.name}, {threads} threads, {subject.name}"
            self.chosen[name] = f"{way}; {subject.on_huge_pages()}"
            for _ in range(WARM_UP):
                subject.ask("turn")
            measured[subject.name] = {}
        for _ in range(self.options.turns):
            for subject in subjects:
                for kind, seconds in subject.ask("turn").items():
                    median = statistics.median(seconds)
                    measured[subject.name].setdefault(kind, []).append(median)
        error = subjects[0].ask("check")
        if error > 1e-4:
            sys.exit(f"({setting.name}) pulled shows differ from the pushed ones by {error}")
        self.tell(setting, threads)

    def tell(self, setting: Setting, threads: int) -> None:
        size = self.sizes[setting.name]
        say(
            f"({setting.name}) {threads} thread{'s'[: threads > 1]}, {size['ids']:,.0f} ids, "
            f"{size['unique']:,.0f} unique rows per batch; ms per batch, median of "
            f"{self.options.turns} turns (min - max)"
        )
        print(f"{'':16}{'pull':>22}{'push':>22}{'both':>22}")
        for name, times in self.times[setting.name, threads].items():
            print(f"{name:16}" + "".join(_cell(times.get(k)) for k in ("pull", "push", "both")))
            if "planned" in times:
                print(f"{'  with plan':60}" + _cell(times["planned"]))
                for kind in ("plan", "plan with factors"):
                    print(f"{'  ' + kind:60}" + _cell(times[kind]))
            if "push+" in times:
                print(f"{'  and gradients':38}" + _cell(times["push+"]))

    def figures(self) -> dict[str, Any]:
        return {
            "batch": self.sizes,
            "table": self.about,
            "chosen": self.chosen,
            "seconds_a_batch": {
                f"{setting}, {threads} threads": {
                    name: {kind: report.spread(values) for kind, values in times.items()}
                    for name, times in measured.items()
                }
                for (setting, threads), measured in self.times.items()
            },
        }

    def goals(self) -> list[report.Goal]:
        goals: list[report.Goal] = []
        for (setting, threads), measured in self.times.items():
            own, where = measured[OWN], f"({setting}) {threads} threads"

            def times(
                name: str,
                of: Sequence[float],
                to: Sequence[float],
                bound: float,
                where: str = where,
            ) -> None:
                ratios = report.ratios(of, to)
                goals.append(report.at_least(f"{where}: {name}", ratios, bound))

            bounds = measured[BOUNDS]
            times("pull, of a bare gather", bounds["pull"], own["pull"], PULL_OF_BOUND)
            times("push, of a bare update", bounds["push"], own["push"], PUSH_OF_BOUND)
            more = [
                (decayed - plain) / push
                for decayed, plain, push in zip(
                    measured[DECAY]["both"], own["both"], own["push"], strict=True
                )
            ]
            goals.append(report.at_most(f"{where}: weight decay, of a push", more, DECAY_OF_PUSH))
            for peer in (name for name in PEERS if name in measured):
                both = measured[peer]["both"]
                name = LAYERS.get(peer, peer)
                times(f"times {name}, with the plan", both, own["planned"], WITH_PLAN[peer])
                if peer in KERNELS:
                    times(f"times {peer}, kernels alone", both, own["both"], KERNELS[peer])
        return goals


def _cell(values: Sequence[float] | None) -> str:
    if values is None:
        return f"{'':22}"
    low, middle, high = (f(values) * 1e3 for f in (min, statistics.median, max))
    return f"{middle:8.3f} ({low:.2f} - {high:.2f})".rjust(22)


def threads_list(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--dim", type=int, default=16, help="D; FBGEMM takes multiples of 4")
    parser.add_argument("--batches", type=int, default=24)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--threads", type=threads_list, default=[1, 2], help="such as 1,2")
    parser.add_argument("--quick", action="store_true", help="a trial: 1 M rows, 3 turns")
    parser.add_argument("--without-peers", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scratch", type=Path, default=Path("build/bench"), help="100 MB")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/hot_path.json"))
    options = parser.parse_args()
    if options.quick:
        options.rows, options.turns = min(options.rows, 1_000_000), min(options.turns, 3)
    if min(options.rows // 1000, options.batches, options.turns, *options.threads) < 1:
        parser.error(
            "expected --rows of 1000 or more, and --batches, --turns and --threads of 1 or more"
        )
    return report.timed(options, lambda folder: Bench(options, folder).run())


if __name__ == "__main__":
    report.run(main)
