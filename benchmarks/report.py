"""What every benchmark prints and writes: commit, machine, settings, figures, goals."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Goal:
    """A bound that a figure must keep."""

    name: str
    value: float
    bound: float
    ok: bool


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def machine() -> dict[str, Any]:
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
    }


def commit() -> str:
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


def write(out: Path, settings: Mapping[str, Any], figures: Any, goals: Sequence[Goal]) -> int:
    """Writes the JSON, prints the goals; returns the exit code: 1 if a goal was missed."""
    out.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "commit": commit(),
        "machine": machine(),
        "settings": dict(settings),
        "figures": figures,
        "goals": [asdict(goal) for goal in goals],
    }
    out.write_text(json.dumps(content, indent=1) + "\n")
    for goal in goals:
        outcome = "ok" if goal.ok else "MISSED"
        print(f"{outcome:6} {goal.name}: {goal.value:.4f} (bound {goal.bound:.4f})")
    print(f"written to {out}")
    return 0 if all(goal.ok for goal in goals) else 1


def timed(
    options: argparse.Namespace,
    measure: Callable[[Path], tuple[dict[str, Any], Sequence[Goal]]],
    *,
    hidden: Collection[str] = (),
) -> int:
    """Measures in a new folder under options.scratch, which goes away; `write`s what comes of it to
    options.out, with the seconds it took and the options as settings.

    Args:
        hidden: options that are no settings.
    """
    options.scratch.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        figures, goals = measure(Path(folder).resolve())
    figures["seconds"] = time.perf_counter() - started
    settings = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in vars(options).items()
        if name not in {"out", *hidden}
    }
    return write(options.out, settings, figures, goals)
