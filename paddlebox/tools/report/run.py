"""Reads a run dir, during the run or afterwards, and changes nothing in it.

A run of several ranks is read as one. The folder of the first rank has the metrics of all ranks.
The folder of each rank has its own counts, times and store (docs/ranks.md)."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from paddlebox.config.arguments import AnyPath, as_path
from paddlebox.config.check import sections_of, tag_of
from paddlebox.config.schema import Config
from paddlebox.errors import PaddleBoxError, StoreError
from paddlebox.store.files import used_bytes
from paddlebox.store.rank_stores import ranks_of
from paddlebox.tools.upkeep import report
from paddlebox.tools.upkeep.report import newest, reading

FINISHED, TRAINING, STOPPED = "finished", "training", "stopped"

Line = dict[str, Any]


@dataclass
class Run:
    """The content of a run dir. `missing` has the reason for each part that was not found."""

    folder: Path
    config: dict[str, Any]
    lines: list[Line]  # the lines of metrics.jsonl
    state: str
    summary: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
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
    def last(self) -> Line:
        return self.lines[-1] if self.lines else {}

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
    for name in ("summary", "environment"):
        content = _json(folder / f"{name}.json")
        setattr(run, name, content if isinstance(content, dict) else {})
    if not run.environment:
        run.missing["environment"] = "environment.json is missing"
    tests = map(_json, folder.glob("evaluate-*[0-9].json"))  # not of phase join
    run.evaluations = [test for test in tests if isinstance(test, dict)]
    run.evaluations.sort(key=lambda test: test.get("version", 0))
    store = folder / "store"
    if is_locked(store / "LOCK"):
        run.state = TRAINING
    elif run.summary and "stopped_by" not in run.summary:
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
        with contextlib.suppress(ValueError):  # the last line may be incomplete
            line = json.loads(text)
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
    return any("FLOCK" in line and f":{inode} " in line for line in locks)


def _read_store(run: Run, store: Path) -> None:
    try:
        run.store = report.stat(store)
        with reading(store) as manifest:
            run.journal = manifest.journal()
            run.size = ranks_of(newest(manifest))
        run.disk_bytes = used_bytes(str(store))
    except (PaddleBoxError, OSError) as error:
        run.missing["store"] = f"the store cannot be read: {error}"


TRACE = "trace.json"


def _read_trace(run: Run) -> None:
    trace = _json(run.folder / TRACE)
    if not isinstance(trace, dict):
        run.missing["trace"] = f"no {TRACE} in the run dir: train with --trace RUN_DIR/{TRACE}"
        return
    events = trace.get("traceEvents", [])
    threads = {e.get("tid"): e["args"]["name"] for e in events if e.get("ph") == "M"}
    run.trace = [
        {**e, "thread": threads.get(e["tid"], str(e["tid"]))} for e in events if e.get("ph") == "X"
    ]


def number(line: Line, *path: str) -> float | None:
    """The finite number at a path of a line; None if there is none."""
    value: Any = line
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


# Keys of a line that are about the rank that wrote it. Counts are summed. Waits are averaged,
# because the training thread of each rank waits at the same time.
_SUMS = (
    *("hits", "tables", "rows_pulled", "rows_pushed", "stages", "ssd", "spilled_bytes", "lines"),
    *("bad_lines", "refused", "unique_feasigns", "files_from_cache", "life", "sizes"),
)
_MEANS = ("wait_s", "compaction_wait_s")
_STORE_SUMS = (
    *("live_rows", "stored_rows", "segments", "stored_bytes", "memory_bytes", "used_bytes"),
    "bytes_written",
)
#: Channels in which a step waits for other ranks. Transfers in the others run in the background.
IN_STEPS = ("step", "dense")


def read_run(folder: AnyPath) -> Run:
    """Read the run whose first rank has this folder. The counts of ranks whose folders do not exist
    here, because they ran on another machine, are left out; `missing` names these ranks. Raises:
    StoreError."""
    folder = as_path(folder, "folder")
    first = read_one(folder)
    if first.size == 1:
        return first
    ranks = {0: first}
    for rank in range(1, first.size):
        own = folder / "ranks" / str(rank)
        if (own / "config.json").is_file():
            ranks[rank] = read_one(own)
    return as_one(ranks)


def as_one(ranks: dict[int, Run]) -> Run:
    """Combine the runs of ranks. ranks: those whose folders exist, including the first."""
    first = ranks[0]
    unseen = [str(rank) for rank in range(first.size) if rank not in ranks]
    missing = dict(first.missing)
    if unseen:
        missing["ranks"] = (
            f"the folders of ranks {', '.join(unseen)} do not exist here: rows, bytes and stages "
            "do not include them"
        )
    lines = {rank: {line["pass"]: line for line in run.lines} for rank, run in ranks.items()}
    stores = [run.store for run in ranks.values() if run.store]
    return replace(
        first,
        lines=[
            _line([of[line["pass"]] for of in lines.values() if line["pass"] in of])
            for line in first.lines
        ],
        store=_store_of(stores) if first.store else {},
        journal=[entry for run in ranks.values() for entry in run.journal],
        disk_bytes=sum(run.disk_bytes for run in ranks.values()),
        ranks=ranks,
        missing=missing,
    )


def _line(of_ranks: Sequence[Line]) -> Line:
    """Combine the lines of a pass, that of the first rank first."""
    line = dict(of_ranks[0])
    for name in (*_SUMS, *_MEANS):
        if name in line:
            total = _sum(of_rank[name] for of_rank in of_ranks if name in of_rank)
            line[name] = _scaled(total, 1 / len(of_ranks)) if name in _MEANS else total
    return line


def _store_of(stores: Sequence[dict[str, Any]]) -> dict[str, Any]:
    sums = {name: _sum(store[name] for store in stores) for name in _STORE_SUMS}
    live = sum(store["live_rows"] for store in stores)
    return {
        **stores[0],
        **sums,
        "depth": max(store["depth"] for store in stores),
        "space_ratio": sum(s["space_ratio"] * s["live_rows"] for s in stores) / max(1, live),
    }


def _sum(values: Iterable[Any]) -> Any:
    """The sum of numbers, or of dicts of numbers by name. For other values, the first one."""
    known = list(values)
    if known and all(isinstance(value, dict) for value in known):
        names = dict.fromkeys(chain(*known))
        return {name: _sum(v[name] for v in known if name in v) for name in names}
    return sum(known) if all(isinstance(value, int | float) for value in known) else known[0]


def _scaled(value: Any, by: float) -> Any:
    if isinstance(value, dict):
        return {name: _scaled(part, by) for name, part in value.items()}
    return value * by if isinstance(value, int | float) else value


# ---- figures of each rank in the lines of the first


def of_rank(line: Line, rank: int, *path: str) -> float | None:
    """A number of a rank in a line; None if there is none."""
    ranks = (line.get("ranks") or {}).get("by_rank") or []
    return number(ranks[rank], *path) if rank < len(ranks) else None


def waited(line: Line, rank: int) -> float | None:
    """Seconds of a pass in which the steps of a rank waited for other ranks of its host."""
    waits = [of_rank(line, rank, "waiting_seconds", channel) for channel in IN_STEPS]
    known = [seconds for seconds in waits if seconds is not None]
    return sum(known) if known else None


def waited_for(line: Line, size: int) -> tuple[int, float] | None:
    """The rank for which the others waited in a pass, and the mean of their seconds. It is the rank
    that waited least. None if a rank has no figures, or all waited equally long."""
    waits = [waited(line, rank) for rank in range(size)]
    known = [seconds for seconds in waits if seconds is not None]
    if len(known) < size or max(known) <= min(known):
        return None
    slow = known.index(min(known))
    return slow, (sum(known) - known[slow]) / (size - 1) - known[slow]


ABSENT = object()


def _section(model: type[BaseModel] | None, name: str, value: Any) -> type[BaseModel] | None:
    """The schema of a key whose value is a section; None for other values. If there are several
    schemas, the one that `type` chooses."""
    if model is None or name not in model.model_fields or not isinstance(value, Mapping):
        return None
    schemas = sections_of(model.model_fields[name].annotation)
    tagged = [s for s in schemas if len(schemas) > 1 and tag_of(s) == value.get("type")]
    return next(iter(tagged or schemas), None)


def flat(
    values: Mapping[str, Any], model: type[BaseModel] | None = Config, prefix: str = ""
) -> dict[str, Any]:
    """Dotted key -> value. The schema decides what is a section; other dicts are values."""
    keys: dict[str, Any] = {}
    for name, value in values.items():
        section = _section(model, name, value)
        if section is not None:
            keys |= flat(value, section, f"{prefix}{name}.")
        else:
            keys[prefix + name] = value
    return keys


def defaults(
    values: Mapping[str, Any], model: type[BaseModel] = Config, prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """(dotted key, default as in JSON) for every key of a config that has a default."""
    for name, of in model.model_fields.items():
        section = _section(model, name, values.get(name))
        if section is not None:
            yield from defaults(values[name], section, f"{prefix}{name}.")
        elif not of.is_required():
            default = to_jsonable_python(of.get_default(call_default_factory=True))
            yield prefix + name, default


def changed(config: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(key, value, default) for keys with another value; the default is ABSENT if there is none."""
    usual = dict(defaults(config))
    return [
        (key, value, usual.get(key, ABSENT))
        for key, value in flat(config).items()
        if key not in usual or usual[key] != value
    ]


def differing(configs: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Any]]]:
    """(key, the value in each config) for keys that differ; ABSENT if a config lacks the key."""
    flats = [flat(config) for config in configs]
    rows = [(key, [f.get(key, ABSENT) for f in flats]) for key in dict.fromkeys(chain(*flats))]
    return [(key, values) for key, values in rows if any(v != values[0] for v in values)]
