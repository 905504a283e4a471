"""Reads a run of several ranks as one run. The folder of the first rank has the metrics of all
ranks. The folder of each rank has its own counts, times and store (docs/ranks.md)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from paddlebox.config.arguments import AnyPath, as_path
from paddlebox.tools.report.run import Line, Run, number, read_one

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
    """Read the run whose first rank has this folder.

    The counts of ranks whose folders do not exist here, because they ran on another machine, are
    left out; `missing` names these ranks.

    Raises: the errors of `read_one`.
    """
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
        store=_store(stores) if first.store else {},
        journal=[entry for run in ranks.values() for entry in run.journal],
        disk_bytes=sum(run.disk_bytes for run in ranks.values()),
        ranks=ranks,
        missing=missing,
    )


def _line(of_ranks: Sequence[Line]) -> Line:
    """Combine the lines of a pass, that of the first rank first."""
    first = of_ranks[0]
    sums = {name: _sum(line[name] for line in of_ranks if name in line) for name in _SUMS}
    means = {
        name: _scaled(_sum(line[name] for line in of_ranks if name in line), 1 / len(of_ranks))
        for name in _MEANS
    }
    return {**first, **{name: value for name, value in (sums | means).items() if name in first}}


def _store(stores: Sequence[dict[str, Any]]) -> dict[str, Any]:
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
    found = list(values)
    if found and all(isinstance(value, dict) for value in found):
        names = dict.fromkeys(name for value in found for name in value)
        return {name: _sum(v[name] for v in found if name in v) for name in names}
    if all(isinstance(value, int | float) for value in found):
        return sum(found)
    return found[0]


def _scaled(value: Any, by: float) -> Any:
    if isinstance(value, dict):
        return {name: _scaled(one, by) for name, one in value.items()}
    return value * by if isinstance(value, int | float) else value


# ---- figures of each rank in the lines of the first


def of_rank(line: Line, rank: int, *path: str) -> float | None:
    """A number of a rank in a line; None if there is none."""
    found = (line.get("ranks") or {}).get("by_rank") or []
    return number(found[rank], *path) if rank < len(found) else None


def waited(line: Line, rank: int) -> float | None:
    """Seconds of a pass in which the steps of a rank waited for other ranks of its host."""
    found = [of_rank(line, rank, "waiting_seconds", channel) for channel in IN_STEPS]
    known = [seconds for seconds in found if seconds is not None]
    return sum(known) if known else None


def waited_for(line: Line, size: int) -> tuple[int, float] | None:
    """The rank for which the others waited in a pass, and the mean of their seconds.

    It is the rank that waited least. None if a rank has no figures, or all waited equally long.
    """
    waits = [waited(line, rank) for rank in range(size)]
    known = [seconds for seconds in waits if seconds is not None]
    if len(known) < size or max(known) <= min(known):
        return None
    slow = known.index(min(known))
    return slow, (sum(known) - known[slow]) / (size - 1) - known[slow]
