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

--batch, --hidden and --threads measure other cases, whose goals are the same.

On a processor without AVX512_BF16 and AMX, bfloat16 is not measured.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
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
BEST = tuple(f"{peer}, best settings" for peer in PEERS)
TYPES = ("float32", "bfloat16")
OWN, PLANNED, REPLACED = "paddlebox", "paddlebox, with the plan", "sparse part replaced"
SPARSE_PART, SPARSE_PART_BFLOAT16 = 1.10, 1.12
FASTER_THAN_FLOAT32, FASTER_THAN_PEERS = 1.5, 1.05
WARM_UP = 2
PARTS = 4  # of a walk


@dataclass(frozen=True)
class Case:
    """What is trained, and with how many threads."""

    batch: int = 4096
    hidden: tuple[int, ...] = (400, 400, 400)
    threads: int = 1  # for the dense part and the store

    def __str__(self) -> str:
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{'-'.join(map(str, self.hidden))}, batch {self.batch}, {threads}"


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
    main = Case(options.batch, tuple(options.hidden), options.threads)
    figures: dict[str, Any] = {}
    with ExitStack() as stack:
        steps = Steps(stack, main, options.rows, folder)
        figures["batch"] = batches.save(folder, steps.setting, options.batches, options.seed)
        own = steps.own(options.batches)
        types = [dtype for dtype in TYPES if own.ask("has", dtype=dtype)]
        timed = [
            Timed(OWN, own, "float32"),
            Timed(REPLACED, own, "replaced float32"),
            Timed(PLANNED, own, "planned float32"),
        ]
        if "bfloat16" in types:
            timed.append(Timed(in_bfloat16(REPLACED), own, "replaced bfloat16"))
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
    return figures, [*goals_of_sparse_part(seconds), *goals_of_types(seconds, types)]


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
    goals = [
        report.at_least(
            f"times {name}",
            report.ratios(values, seconds[PLANNED]),
            FASTER_THAN_PEERS if "best settings" in name else 1.0,
        )
        for name, values in seconds.items()
        if name.startswith(PEERS) and not name.endswith("bfloat16")
    ]
    narrow = in_bfloat16(PLANNED)
    goals += [
        _goal_of_bfloat16(seconds, types, f"times {name}", (of, narrow), report.at_least, bound)
        for name, of, bound in (
            (PLANNED, PLANNED, FASTER_THAN_FLOAT32),
            *((in_bfloat16(peer), in_bfloat16(peer), FASTER_THAN_PEERS) for peer in BEST),
        )
        if of.removesuffix(", bfloat16") in seconds  # not without peers
    ]
    name = "a step that makes its plan, of one without the sparse part"
    of = (narrow, in_bfloat16(REPLACED))
    goals.append(_goal_of_bfloat16(seconds, types, name, of, report.at_most, SPARSE_PART_BFLOAT16))
    return goals


def _goal_of_bfloat16(
    seconds: dict[str, list[float]],
    types: Sequence[str],
    name: str,
    of: tuple[str, str],
    bounded: Callable[[str, Sequence[float], float], report.Goal],
    bound: float,
) -> report.Goal:
    """of: whose seconds are divided by whose."""
    name = f"bfloat16, {name}"
    if "bfloat16" not in types:
        return report.not_measured(bounded(name, [], bound), "the processor has no AVX512_BF16")
    return bounded(name, report.ratios(seconds[of[0]], seconds[of[1]]), bound)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--batches", type=int, default=24)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--batch", type=int, default=Case.batch)
    parser.add_argument("--hidden", type=int, nargs="+", default=Case.hidden)
    parser.add_argument("--threads", type=int, default=Case.threads)
    parser.add_argument("--quick", action="store_true", help="a trial: 1 M rows, 3 turns")
    parser.add_argument("--without-peers", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scratch", type=Path, default=Path("build/bench"), help="300 MB")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/end_to_end.json"))
    options = parser.parse_args()
    if options.quick:
        options.rows, options.turns = min(options.rows, 1_000_000), min(options.turns, 3)
    counts = (options.batches, options.turns, options.batch, options.threads, *options.hidden)
    if min(options.rows // 1000, *counts) < 1:
        parser.error("expected --rows of 1000 or more, and other numbers of 1 or more")
    return report.timed(options, lambda folder: run(options, folder))


if __name__ == "__main__":
    report.run(main)
