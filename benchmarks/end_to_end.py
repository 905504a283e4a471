"""Is the sparse part negligible next to the dense part, and how fast is the dense part?

    make bench-setup && .venv-bench/bin/python benchmarks/end_to_end.py

26 slots of one id, 13 dense features, 16 columns a slot, MLP 400-400-400, batch 4096, 10 M rows,
one thread, with the CPU settings of training. A step of the static program with our operators is
compared with a step of the same program whose pooled slots are an input of the same shape that
takes a gradient.

The same run measures PyTorch (EmbeddingBag and Adagrad) and FBGEMM (row-wise Adagrad), with the
same MLP under PyTorch: as shipped, with their best settings, which are found at the start, and with
the best settings and bfloat16, through autocast. Their memory is on huge pages, as our table is.
All take turns; a turn is one walk over 24 different batches. The walks of a turn proceed together,
six steps of one and then of the next, because other users of a machine may slow it down for a
second. These are whole steps; hot_path.py compares kernels.

A push needs a dedup plan of its batch. In a run, the feeder makes it on another core. The peers
find the unique rows within their steps. So the step that is compared with theirs makes its plan,
too. Steps with and without the plan are compared with the one whose pooled slots are an input.

Then both types are compared with FBGEMM's best for other batch sizes, other MLPs, and two threads
on both sides. These have no goals.

On a processor without AVX512_BF16 and AMX, bfloat16 is not measured.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import report
from hot_path import say
from peers import batches, huge_pages
from peers.batches import Setting
from peers.jobs import BEST_ENV
from peers.turns import Subject

PEERS = ("torch", "fbgemm_rowwise")
TYPES = ("float32", "bfloat16")
OWN, PLANNED, REPLACED = "paddlebox", "paddlebox, with the plan", "sparse part replaced"
SPARSE_PART, FASTER_THAN_FLOAT32, FASTER_THAN_PEERS = 1.10, 1.5, 1.05
WARM_UP = 2
PARTS = 4  # of a walk
TURNS_BESIDE = 3


@dataclass(frozen=True)
class Case:
    """What is trained, and with how many threads."""

    batch: int = 4096
    hidden: tuple[int, ...] = (400, 400, 400)
    threads: int = 1

    def __str__(self) -> str:
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{'-'.join(map(str, self.hidden))}, batch {self.batch}, {threads}"


BESIDE = (
    *(Case(batch=batch) for batch in (128, 512, 16384)),
    *(Case(hidden=hidden) for hidden in ((64, 32), (1024, 512, 256))),
    Case(threads=2),
)


@dataclass(frozen=True)
class Timed:
    """One row of the table: a subject, and what it is asked to do."""

    name: str
    subject: Subject
    what: str


class Steps:
    """The subjects of one case, each in its own process."""

    def __init__(self, stack: ExitStack, case: Case, rows: int, folder: Path) -> None:
        self.stack, self.folder = stack, folder
        self.setting = Setting(f"b{case.batch}", case.batch, 26, 1, rows, 1.05)
        self.settings = {
            "rows": rows,
            "dim": 16,
            "dense": 13,
            "hidden": case.hidden,
            "threads": case.threads,
            "folder": str(folder),
        }
        threads = str(case.threads)
        self.env = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), threads)
        self.chosen: dict[str, str] = {}

    def own(self, count: int) -> Subject:
        return self._prepared("paddlebox", count, "paddlebox", {}, {})

    def peer(self, name: str, count: int, library: str, best: bool, dtype: str) -> Subject:
        settings = {"library": library, "best": best, "dtype": dtype}
        env = {**huge_pages.ENV, **(BEST_ENV if best else {})}
        return self._prepared(name, count, "torch", settings, env)

    def _prepared(
        self, name: str, count: int, kind: str, settings: dict[str, Any], env: dict[str, str]
    ) -> Subject:
        subject = Subject("whole_step", kind, {**self.settings, **settings}, {**self.env, **env})
        self.stack.callback(subject.close)
        how = subject.ask("prepare", setting=asdict(self.setting), count=count)
        self.chosen[name] = f"{how}; {subject.on_huge_pages()}"
        say(f"{name}: {self.chosen[name]}")
        return subject


def in_turns(timed: Sequence[Timed], turns: int) -> dict[str, list[float]]:
    """Median seconds a step, of each turn."""
    seconds: dict[str, list[float]] = {one.name: [] for one in timed}
    for one in timed:
        for _ in range(WARM_UP):
            one.subject.ask("turn", what=one.what)
    for turn in range(turns):
        steps: dict[str, list[float]] = {one.name: [] for one in timed}
        for part in range(PARTS):
            for one in timed if (turn + part) % 2 == 0 else reversed(timed):
                steps[one.name] += one.subject.ask("turn", what=one.what, part=part, parts=PARTS)
        for name, of in steps.items():
            seconds[name].append(statistics.median(of))
    return seconds


def show(case: Case, seconds: dict[str, list[float]]) -> None:
    print(f"{case!s:40}{'median':>8}{'min':>8}{'max':>8}{'to ours':>9}  (ms per step)")
    for name, values in seconds.items():
        row = (statistics.median(values), min(values), max(values))
        print(f"{name:40}" + "".join(f"{value * 1e3:8.2f}" for value in row), end="")
        print(f"{statistics.median(report.ratios(values, seconds[PLANNED])):9.3f}")


def in_bfloat16(name: str) -> str:
    return f"{name}, bfloat16"


def run(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[report.Goal]]:
    main = Case(threads=options.threads)
    figures: dict[str, Any] = {}
    with ExitStack() as stack:
        steps = Steps(stack, main, options.rows, folder)
        figures["batch"] = batches.save(folder, steps.setting, options.batches, options.seed)
        own = steps.own(options.batches)
        types = [dtype for dtype in TYPES if own.ask("has", dtype=dtype)]
        timed = [
            Timed(OWN, own, "float32"),
            Timed(REPLACED, own, "replaced"),
            Timed(PLANNED, own, "planned float32"),
        ]
        if "bfloat16" in types:
            timed.append(Timed(in_bfloat16(PLANNED), own, "planned bfloat16"))
        for library in () if options.without_peers else PEERS:
            ways = [("as shipped", False, "float32")]
            ways += [("best settings", True, dtype) for dtype in types]
            for way, best, dtype in ways:
                name = f"{library}, {way}"
                name = in_bfloat16(name) if dtype == "bfloat16" else name
                peer = steps.peer(name, options.batches, library, best, dtype)
                timed.append(Timed(name, peer, "step"))
        seconds = in_turns(timed, options.turns)
        figures["chosen"] = steps.chosen
    show(main, seconds)
    figures["seconds_a_step"] = {name: report.spread(values) for name, values in seconds.items()}
    figures["beside"] = {
        str(case): beside(case, types, options, folder)
        for case in (() if options.quick or options.without_peers else BESIDE)
        if case.threads <= len(os.sched_getaffinity(0))
    }
    return figures, [*goals_of_sparse_part(seconds), *goals_of_types(seconds, types)]


def beside(
    case: Case, types: Sequence[str], options: argparse.Namespace, folder: Path
) -> dict[str, Any]:
    """Our step and that of FBGEMM with its best settings, in both types."""
    with ExitStack() as stack:
        steps = Steps(stack, case, options.rows, folder)
        batches.save(folder, steps.setting, options.batches, options.seed)
        own = steps.own(options.batches)
        timed = []
        for dtype in types:
            name, peer = PLANNED, "fbgemm_rowwise, best settings"
            if dtype == "bfloat16":
                name, peer = in_bfloat16(name), in_bfloat16(peer)
            timed.append(Timed(name, own, f"planned {dtype}"))
            subject = steps.peer(peer, options.batches, PEERS[1], True, dtype)
            timed.append(Timed(peer, subject, "step"))
        seconds = in_turns(timed, min(TURNS_BESIDE, options.turns))
    show(case, seconds)
    spreads = {name: report.spread(values) for name, values in seconds.items()}
    return {"seconds_a_step": spreads, "chosen": steps.chosen}


def goals_of_sparse_part(seconds: dict[str, list[float]]) -> list[report.Goal]:
    return [
        report.at_most(
            f"{name}, of one without the sparse part",
            report.ratios(seconds[ours], seconds[REPLACED]),
            SPARSE_PART,
        )
        for name, ours in (("a step", OWN), ("a step that makes its plan", PLANNED))
    ]


def goals_of_types(seconds: dict[str, list[float]], types: Sequence[str]) -> list[report.Goal]:
    narrow = in_bfloat16(PLANNED)
    goals = [
        report.at_least(f"times {name}", report.ratios(values, seconds[PLANNED]), 1.0)
        for name, values in seconds.items()
        if name.startswith(PEERS) and not name.endswith("bfloat16")
    ]
    bounds = {
        PLANNED: FASTER_THAN_FLOAT32,
        **{in_bfloat16(f"{peer}, best settings"): FASTER_THAN_PEERS for peer in PEERS},
    }
    for name, bound in bounds.items():
        goal = report.at_least(f"bfloat16, times {name}", 0.0, bound)
        if name.removesuffix(", bfloat16") not in seconds:
            continue  # without peers
        if "bfloat16" not in types:
            goal = report.not_measured(goal, "the processor has no AVX512_BF16")
        else:
            ratios = report.ratios(seconds[name], seconds[narrow])
            goal = report.at_least(goal.name, ratios, bound)
        goals.append(goal)
    return goals


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--batches", type=int, default=24)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1, help="for the dense part and the store")
    parser.add_argument("--quick", action="store_true", help="a trial: 1 M rows, 3 turns, one case")
    parser.add_argument("--without-peers", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scratch", type=Path, default=Path("build/bench"), help="300 MB")
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
