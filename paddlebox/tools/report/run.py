"""Reads a run dir, during the run or afterwards. It changes nothing in it."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paddlebox.errors import PaddleBoxError, StoreError
from paddlebox.store.files import used_bytes
from paddlebox.store.rank_stores import ranks_of
from paddlebox.tools.upkeep import report
from paddlebox.tools.upkeep.store_files import newest, reading

FINISHED, TRAINING, STOPPED = "finished", "training", "stopped"

Line = dict[str, Any]


@dataclass
class Run:
    """The content of a run dir. `missing` has the reason for each part that was not found."""

    folder: Path
    config: dict[str, Any]
    lines: list[Line]  # the lines of metrics.jsonl
    state: str
    slots: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    init: dict[str, Any] = field(default_factory=dict)
    evaluations: list[dict[str, Any]] = field(default_factory=list)  # by version
    store: dict[str, Any] = field(default_factory=dict)  # upkeep.report.stat
    journal: list[dict[str, Any]] = field(default_factory=list)
    disk_bytes: int = 0
    size: int = 1  # number of ranks that trained it
    #: With several ranks: the runs of those whose folders exist here, this one first.
    ranks: dict[int, Run] = field(default_factory=dict)
    trace: list[dict[str, Any]] = field(default_factory=list)  # the complete events
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.config.get("name") or self.folder.name)


def read_one(folder: Path) -> Run:
    """Read the folder of one rank. Raises: StoreError if it is not a run dir."""
    config = _json(folder / "config.json")
    if not isinstance(config, dict):
        raise StoreError(
            f"{folder}: has no config.json that can be read; expected the --run-dir of a "
            "training run"
        )
    run = Run(folder, config, _lines(folder / "metrics.jsonl"), STOPPED)
    for name in ("slots", "summary", "environment", "init"):
        found = _json(folder / f"{name}.json")
        setattr(run, name, found if isinstance(found, dict) else {})
    if not run.environment:
        run.missing["environment"] = "environment.json is missing"
    found = [_json(path) for path in folder.glob("evaluate-*[0-9].json")]  # not of phase join
    run.evaluations = sorted(
        (one for one in found if isinstance(one, dict)), key=lambda one: one.get("version", 0)
    )
    store = folder / "store"
    if is_locked(store / "LOCK"):
        run.state = TRAINING
    elif run.summary:
        run.state = FINISHED
    _read_store(run, store)
    _read_trace(run)
    return run


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def _lines(path: Path) -> list[Line]:
    try:
        texts = path.read_text(errors="replace").splitlines()
    except OSError:
        return []
    lines = []
    for text in texts:
        try:
            line = json.loads(text)
        except ValueError:  # the last line may be incomplete
            continue
        if isinstance(line, dict) and isinstance(line.get("pass"), int):
            lines.append(line)
    return lines


def is_locked(path: Path) -> bool:
    """Whether a process of this machine holds the lock. It only reads /proc/locks, because taking
    the lock could make a trainer that starts at that moment fail."""
    try:
        inode = os.stat(path).st_ino
        locks = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return False
    words = [line.split() for line in locks]
    return any("FLOCK" in w and any(x.endswith(f":{inode}") for x in w) for w in words)


def _read_store(run: Run, store: Path) -> None:
    try:
        run.store = report.stat(store)
        with reading(store) as manifest:
            run.journal = manifest.journal()
            run.size = ranks_of(newest(manifest))
        run.disk_bytes = used_bytes(str(store))
    except (PaddleBoxError, OSError) as error:
        run.missing["store"] = f"the store cannot be read: {error}"


def _read_trace(run: Run) -> None:
    named = (run.config.get("trainer") or {}).get("trace") or ""
    if not named:
        run.missing["trace"] = "no trace was written: train with --trace FILE"
        return
    for path in (Path(named), run.folder / Path(named).name):
        found = _json(path)
        if isinstance(found, dict):
            events = found.get("traceEvents", [])
            threads = {e.get("tid"): e["args"]["name"] for e in events if e.get("ph") == "M"}
            run.trace = [
                {**e, "thread": threads.get(e["tid"], str(e["tid"]))}
                for e in events
                if e.get("ph") == "X"
            ]
            return
    run.missing["trace"] = f"the trace {named} cannot be read; it is written when the run ends"


def number(line: Line, *path: str) -> float | None:
    """The finite number at a path of a line; None if there is none."""
    value: Any = line
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value
