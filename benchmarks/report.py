"""The output of all benchmarks: what ran, on which machine, its figures and goals."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
# At the start, before a script binds itself to a core.
_STARTED, _CORES = time.time(), len(os.sched_getaffinity(0))

_INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_tile")  # that the kernels differ by


@dataclass(frozen=True)
class Goal:
    """A bound for a figure. `at_least`, `at_most` and `not_measured` make one."""

    name: str
    is_least: bool  # the figure is to be at least the bound; otherwise at most
    bound: float
    turns: tuple[float, ...]  # the figure in each turn; empty: not measured
    why: str = ""  # what the machine lacks to measure it

    @property
    def outcome(self) -> str:
        """ok, MISSED, tie or not measured.

        A tie is a bound between the lower and the upper quartile of the turns: the spread is larger
        than the margin.
        """
        if not self.turns:
            return "not measured"
        low, high = self.quartiles
        if low < self.bound < high:
            return "tie"
        sign = 1 if self.is_least else -1
        return "ok" if sign * statistics.median(self.turns) >= sign * self.bound else "MISSED"

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.turns) == 1:
            return self.turns[0], self.turns[0]
        low, _, high = statistics.quantiles(self.turns, n=4, method="inclusive")
        return low, high

    def as_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"name": self.name, "outcome": self.outcome}
        fields["at_least" if self.is_least else "at_most"] = self.bound
        if self.turns:
            fields |= {"value": statistics.median(self.turns), "quartiles": self.quartiles}
            fields["turns"] = self.turns
        return fields | ({"why": self.why} if self.why else {})

    def __str__(self) -> str:
        expected = f"{'at least' if self.is_least else 'at most'} {self.bound:g}"
        if not self.turns:
            return f"{self.outcome:12} {self.name}: {self.why}; expected {expected}"
        low, high = self.quartiles
        within = f" (quartiles {low:.4g}, {high:.4g})" if len(self.turns) > 1 else ""
        value = statistics.median(self.turns)
        return f"{self.outcome:12} {self.name}: {value:.4g}{within}, expected {expected}"


def at_least(name: str, figure: float | Sequence[float], bound: float) -> Goal:
    """The goal that a figure, or the median of a figure over turns, is at least `bound`."""
    return Goal(name, True, bound, _turns(figure))


def at_most(name: str, figure: float | Sequence[float], bound: float) -> Goal:
    """The goal that a figure, or the median of a figure over turns, is at most `bound`."""
    return Goal(name, False, bound, _turns(figure))


def not_measured(goal: Goal, why: str) -> Goal:
    """The goal without its figure, because the machine lacks something."""
    return replace(goal, turns=(), why=why)


def _turns(figure: float | Sequence[float]) -> tuple[float, ...]:
    return (float(figure),) if isinstance(figure, (int, float)) else tuple(figure)


def ratios(of: Sequence[float], to: Sequence[float]) -> list[float]:
    """The ratio in each turn of two subjects that took turns."""
    return [a / b for a, b in zip(of, to, strict=True)]


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    # Of the last core. Different processors may have the same name on a virtual machine.
    of = {name.strip(): value.strip() for name, _, value in (one.partition(":") for one in lines)}
    flags = of.get("flags", "").split()
    return {
        "processor": of.get("model name", platform.processor()),
        "instructions": [one for one in _INSTRUCTIONS if one in flags],
        "cores": _CORES,
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "system": platform.platform(),
        "root": os.geteuid() == 0,
        "gpu": gpu(),
    }


def gpu() -> str | None:
    """The GPU and its driver, from nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return None
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.partition("\n")[0].strip() or None


def commit() -> str:
    """The commit, with "-dirty" if a tracked file differs from it."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:  # a machine for benchmarks may have no git
        return "unknown"
    return found.stdout.strip() or "unknown"


def _settings(arguments: Sequence[str]) -> Iterator[str]:
    """The arguments without those that change neither the figures nor the work."""
    is_value = False
    for word in arguments:
        name, has_value, _ = word.partition("=")
        if is_value:
            is_value = False
        elif name in ("--out", "--scratch", "--jobs"):
            is_value = not has_value
        else:
            yield word


def write(
    out: Path,
    settings: Mapping[str, Any],
    figures: Any,
    goals: Sequence[Goal],
) -> int:
    """Writes the JSON and prints the goals.

    Returns: the exit code: 1 if a goal was missed, 2 if nothing was measured.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "command": [Path(sys.argv[0]).name, *_settings(sys.argv[1:])],
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "settings": {k: v for k, v in settings.items() if k not in ("out", "scratch")},
        "seconds": time.time() - _STARTED,
        "figures": figures,
        "goals": [goal.as_json() for goal in goals],
    }
    out.write_text(json.dumps(content, indent=1) + "\n")
    for goal in goals:
        print(goal)
    print(f"written to {out}")
    outcomes = {goal.outcome for goal in goals}
    if not figures:
        print("nothing was measured")
        return 2
    return int("MISSED" in outcomes)


class UnavailableError(Exception):
    """The machine lacks something that a benchmark needs, such as a peer or its data."""


def run(main: Callable[[], int]) -> NoReturn:
    """Ends the process with the code of `main`; with 2 and the reason if it measured nothing."""
    try:
        sys.exit(main())
    except UnavailableError as error:
        print(f"not run: {error}", file=sys.stderr)
        sys.exit(2)


def _named(path: Path) -> str:
    """The path within the project, without the folders of this machine."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


Found = tuple[dict[str, Any], Sequence[Goal]]  # the figures and the goals of a benchmark
Part = Callable[[argparse.Namespace, Path], Found]  # in a temporary folder


def parts(
    script: str, doc: str | None, names: Iterable[str]
) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The command line of a benchmark of several parts, and that of each part, which `part` names.
    Each part writes a result of its own."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    commands = parser.add_subparsers(dest="part", required=True)
    of = {name: commands.add_parser(name) for name in names}
    for name, options in of.items():
        output(options, f"{script}_{name}")
    return parser, of


def output(parser: argparse.ArgumentParser, name: str) -> None:
    """Adds the options of `timed`: the folder for temporary files, and the file of the result."""
    parser.add_argument("--scratch", type=Path, default=ROOT / "build/bench")
    out = ROOT / f"benchmarks/results/{name}.json"
    parser.add_argument("--out", type=Path, default=out, help=f"default: {_named(out)}")


def timed(
    options: argparse.Namespace,
    measure: Callable[[Path], Found],
    *,
    hidden: Collection[str] = (),
) -> int:
    """Runs `measure` in a temporary folder under options.scratch and writes the result to
    options.out, with the options as settings.

    Args:
        hidden: names of options that are not settings.
    """
    options.scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        figures, goals = measure(Path(folder).resolve())
    settings = {
        name: _named(value) if isinstance(value, Path) else value
        for name, value in vars(options).items()
        if name not in hidden
    }
    return write(options.out, settings, figures, goals)
