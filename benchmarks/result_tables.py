"""The tables of the docs, made of what a benchmark wrote."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Run = Mapping[str, Any]  # the JSON of a benchmark

GIB = 1 << 30


def block(name: str, run: Run) -> str:
    """What stands between the markers of a run: how it was measured, and its tables."""
    return f"{measured_by(run)}\n\n{TABLES.get(name, goals)(run)}"


def measured_by(run: Run) -> str:
    machine = run["machine"]
    widest = machine.get("instructions", [])[-1:]
    on = [
        " with ".join([f"{machine['cores']} cores of {machine['processor']}", *widest]),
        f"{machine['memory_bytes'] / GIB:.0f} GiB",
        *([machine["gpu"]] if machine["gpu"] else []),
    ]
    command = " ".join(["python", f"benchmarks/{run['command'][0]}", *run["command"][1:]])
    return (
        f"`{command}`, {run['date'][:10]}, commit {run['commit']}, "
        f"{run['seconds'] / 60:.0f} min\non {', '.join(on)}:"
    )


# ---- parts of tables


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [
        "|" + "|".join(f" {cell} " if cell else " " for cell in row) + "|" for row in (head, *rows)
    ]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def figure(goal: Mapping[str, Any]) -> str:
    """The median of a goal's turns, with the quartiles."""
    if "value" not in goal:
        return ""
    low, high = map(number, goal["quartiles"])
    value = number(goal["value"])
    return value if low == high else f"{value} ({low} to {high})"


def bound(goal: Mapping[str, Any]) -> str:
    return f"≥ {goal['at_least']:g}" if "at_least" in goal else f"≤ {goal['at_most']:g}"


def measured(goal: Mapping[str, Any]) -> str:
    """The figure of a goal, and its outcome unless it was reached."""
    if "why" in goal:
        return f"{goal['outcome']}: {goal['why']}"
    outcome = "**missed**" if goal["outcome"] == "MISSED" else str(goal["outcome"])
    return f"{figure(goal)} {outcome}".strip().removesuffix(" ok")


def goals(run: Run) -> str:
    """One line for each goal. The figure is the median; the quartiles are in parentheses."""
    rows = [(goal["name"], measured(goal), bound(goal)) for goal in run["goals"]]
    return table(["", "measured", "goal"], rows)


def grid(run: Run, pattern: str) -> str:
    """The goals as a grid. The groups `row` and `column` of the pattern are parts of their names;
    goals with other names follow one by one."""
    cells: dict[str, dict[str, str]] = {}
    columns: dict[str, None] = {}
    others = []
    for goal in run["goals"]:
        name = re.fullmatch(pattern, goal["name"])
        if name is None:
            others.append(goal)
            continue
        columns[name["column"]] = None
        cells.setdefault(name["row"], {"goal": bound(goal)})[name["column"]] = measured(goal)
    head = ["", *columns, "goal"]
    found = table(head, [[row, *(of.get(c, "") for c in head[1:])] for row, of in cells.items()])
    return f"{found}\n\n{goals({'goals': others})}" if others else found


# ---- a benchmark each


def not_reached(run: Run) -> str:
    """For many goals: their number, and those that are not ok."""
    others = [goal for goal in run["goals"] if goal["outcome"] != "ok"]
    reached = f"{len(run['goals']) - len(others)} of {len(run['goals'])} goals were reached."
    return f"{reached} The others:\n\n{goals({'goals': others})}" if others else reached


def mem_tier(run: Run) -> str:
    rates: dict[str, dict[str, str]] = {}
    for name, of in run["figures"]["keys_a_second"].items():
        count, subject, what = name.split(", ")
        if what == "find":
            count = f"{int(count.removesuffix(' keys')):,} keys"
            rates.setdefault(subject, {})[count] = f"{of['median'] / 1e6:.0f}"
    columns = list(rates["paddlebox"])
    rows = [[name, *(of.get(column, "") for column in columns)] for name, of in rates.items()]
    return table(["M finds a second", *columns], rows)


def two_nodes(run: Run) -> str:
    rows = [
        [link, number(of["samples_per_s"]), number(of["bytes_between_nodes_a_sample"])]
        for link, of in run["figures"].items()
        if link != "one machine"
    ]
    return f"{table(['link', 'samples/s', 'bytes a sample'], rows)}\n\n{not_reached(run)}"


def many_ranks(run: Run) -> str:
    figures = dict(run["figures"])
    exchange = figures.pop("exchange", None)
    names = ("waits", "requests", "most_messages", "messages", "sent_bytes")
    rows = [
        [
            case,
            *(number(of[name]) for name in names),
            f"{of['over_least']:.4f}",
            f"{of['share']:.2f}",
        ]
        for case, of in figures.items()
    ]
    head = ["", "waits a step", "requests", "messages of an exchange", "messages a step"]
    head += ["bytes a step", "bytes of the least", "share of ideal"]
    parts = [table(head, rows)]
    if exchange is not None:
        in_ms = {name: [1e3 * s for s in of] for name, of in exchange["seconds"].items()}
        times = [
            [name, number(statistics.median(ms)), *map(number, (min(ms), max(ms)))]
            for name, ms in in_ms.items()
        ]
        parts.append(table(["16 ranks", "ms", "least", "most"], times))
    return "\n\n".join([*parts, not_reached(run)])


def sequences(run: Run) -> str:
    rows = [
        [form, f"{of['bound']:.4f}", *(f"{of[model]['auc']:.4f}" for model in ("hstu", "din"))]
        + [f"{of[model]['seconds']:.0f} s" for model in ("hstu", "din")]
        for form, of in run["figures"].get("quality", {}).items()
    ]
    head = ["form", "best possible AUC", "HSTU", "DIN", "training of HSTU", "of DIN"]
    speed = run["figures"].get("speed", {})
    rates = [
        [name, f"{statistics.median(of['rate']):,.0f}", f"{of['step_bytes'] / 1e6:,.0f} MB"]
        for name, of in speed.items()
    ]
    parts = [table(head, rows)] if rows else []
    parts += [table(["", "events/s", "memory of a step"], rates)] if rates else []
    served = run["figures"].get("serving", {})
    ways = [
        [label, *(f"{served[way][p]:.2f} ms" for p in ("p50_ms", "p99_ms"))]
        for way, label in (("whole", "whole history"), ("incremental", "one new event"))
        if served
    ]
    parts += [table(["request", "p50", "p99"], ways)] if ways else []
    seeds = run["figures"].get("movielens", {})
    if seeds:
        low, high = seeds["interval"]
        parts.append(
            f"MovieLens, {len(seeds['hstu'])} seeds: mean AUC {statistics.mean(seeds['hstu']):.4f} "
            f"of HSTU and {statistics.mean(seeds['din']):.4f} of DIN. The 95 % interval of the\n"
            f"mean difference is {low:.4f} to {high:.4f}."
        )
    return "\n\n".join([*parts, not_reached(run)])


def hot_path(run: Run) -> str:
    return grid(run, r"(?P<column>.*?): (?P<row>.*)").replace(" 1 threads", " 1 thread")


def out_of_memory(run: Run) -> str:
    return grid(run, r"(?P<column>.*?): (?P<row>.*)")


def ranks_rates(run: Run) -> str:
    return grid(run, r"(?P<column>[0-9]+ ranks), (?P<row>.*)")


def ranks_auc(run: Run) -> str:
    return grid(run, r"(?P<column>[0-9]+ ranks) beside one: (?P<row>.*)")


def kills(run: Run) -> str:
    rows = [
        [name, *(str(of[what]) for what in ("kills", "ended")), str(len(of["wrong"]))]
        for name, of in run["figures"].items()
    ]
    return table(["", "kills", "ended", "wrong"], rows)


# Without one of its own, a run has the table of its goals.
TABLES: dict[str, Callable[[Run], str]] = {
    "hot_path": hot_path,
    "kills": kills,
    "many_ranks": many_ranks,
    "mem_tier": mem_tier,
    "out_of_memory": out_of_memory,
    "ranks_auc": ranks_auc,
    "ranks_rates": ranks_rates,
    "sequences": sequences,
    "two_nodes": two_nodes,
}
