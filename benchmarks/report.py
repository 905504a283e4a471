"""What every benchmark prints and writes: commit, machine, settings, figures, goals."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Mapping, Sequence
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
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
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
