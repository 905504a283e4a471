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
        f"{machine['memory_bytes'] / GIB:.0f} GiB of memory",
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


def outcome(goal: Mapping[str, Any]) -> str:
    if "why" in goal:
        return f"{goal['outcome']}: {goal['why']}"
    return "**missed**" if goal["outcome"] == "MISSED" else str(goal["outcome"])


def goals(run: Run) -> str:
    """One line for each goal. The figure is the median; the quartiles are in parentheses."""
    rows = [(g["name"], figure(g), bound(g), outcome(g)) for g in run["goals"]]
    return table(["", "measured", "goal", "outcome"], rows)


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
        cell = f"{figure(goal)} {outcome(goal)}".strip().removesuffix(" ok")
        cells.setdefault(name["row"], {"goal": bound(goal)})[name["column"]] = cell
    head = ["", *columns, "goal"]
    found = table(head, [[row, *(of.get(c, "") for c in head[1:])] for row, of in cells.items()])
    return f"{found}\n\n{goals({'goals': others})}" if others else found


# ---- a benchmark each


def defaults(run: Run) -> str:
    models = ("lr", "deepfm", "dcn_v2", "finalmlp")
    head = ["data", "rows", "regression", "LightGBM", *models, "network minus the grid's best"]
    rows = []
    for name, of in run["figures"].items():
        if name == "seconds":
            continue
        held = ", held out" if of["held_out"] else ""
        peers = [f"{statistics.fmean(of[peer]):.4f}" for peer in ("regression", "lightgbm")]
        ours = [
            f"{statistics.fmean(of['models'][model]['auc']):.4f} "
            f"({of['models'][model]['less_regression']['mean']:+.4f})"
            for model in models
        ]
        grid = [m["less_grid"]["mean"] for m in of["models"].values() if "less_grid" in m]
        least = f"{min(grid):+.4f}" if grid else ""
        rows.append([f"`{name}`{held}", f"{of['rows']:,}", *peers, *ours, least])
    return f"{table(head, rows)}\n\n{not_reached(run)}"


def not_reached(run: Run) -> str:
    """For many goals: their number, and those that are not ok."""
    others = [goal for goal in run["goals"] if goal["outcome"] != "ok"]
    reached = f"{len(run['goals']) - len(others)} of {len(run['goals'])} goals were reached."
    return f"{reached} The others:\n\n{goals({'goals': others})}" if others else reached


def gpu(run: Run) -> str:
    """The calls at D 64 with the largest table and the most ids, for which the goals are."""
    figures = run["figures"]
    widest = [of for of in figures["measured"] if of["dim"] == 64]
    most = max((of["rows"], of["batch"]) for of in widest)
    of_ids = {of["ids"]: of for of in widest if (of["rows"], of["batch"]) == most}
    uniform, zipf = of_ids["uniform"], of_ids["zipf"]
    moving = {"pull": "pull", "pull_pooled": "pooled pull", "push": "push, without the plan"}

    def us(of: Mapping[str, Any]) -> str:
        return number(of["us"]["median"])

    def share(of: Mapping[str, Any]) -> str:
        return f"{of['of_copy']:.2f}" if "of_copy" in of else ""

    rows = [[name, us(uniform[name]), "", us(zipf[name])] for name in ("find", "plan")]
    rows += [[name, us(uniform[k]), share(uniform[k]), us(zipf[k])] for k, name in moving.items()]
    rows += [[name, us(of), share(of), ""] for name, of in figures["peers"].items()]
    head = ["call", "uniform ids: us", "share of the copy", "Zipf 1.05: us"]
    return f"{table(head, rows)}\n\n{goals(run)}"


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


def objectives(run: Run) -> str:
    figures = run["figures"]
    sampled = [
        [f"{data}, {label}", f"{of['auc']:.4f}", f"{of['copc']:.3f}", number(of["rows_per_s"])]
        for data, part in (("generated rows", "negatives"), ("Criteo", "criteo"))
        for label, name in (("all negatives", "all"), ("a tenth of the negatives", "sampled"))
        if (of := figures[part].get(name))
    ]
    losses = [
        [f"`{loss}`", *(f"{statistics.fmean(of[name] for of in runs):.4f}" for name in _OF_PAGES)]
        for loss, runs in figures.get("pages", {}).items()
    ]
    late = [
        [way.replace("_", " "), *(f"{of[name]:.4f}" for name in ("auc", "copc"))]
        for way, of in figures.get("late", {}).items()
    ]
    parts = [table(["trained", "AUC", "COPC", "input rows/s"], sampled)]
    parts += [table(["loss", "AUC inside pages", "AUC", "COPC"], losses)] if losses else []
    parts += [table(["conversions", "AUC", "COPC"], late)] if late else []
    return "\n\n".join([*parts, not_reached(run)])


_OF_PAGES = ("page_auc", "auc", "copc")  # means over the seeds


def partial_recovery(run: Run) -> str:
    figures = {
        "instances trained again": "again",
        "lost to the dead rank's rows": "lost",
        "seconds of the pass": "pass_seconds",
        "seconds of the job": "seconds",
    }
    rows = [
        [
            str(of["ranks"]),
            of["mode"],
            *(number(of[f]) for f in figures.values()),
            f"{of['auc'][-1]:.4f}",
        ]
        for of in run["figures"]["mean"]
    ]
    return f"{table(['ranks', '', *figures, 'AUC at the end'], rows)}\n\n{goals(run)}"


def ranks_modes(run: Run) -> str:
    rows = [
        [
            mode,
            f"{of['auc_less_that_of_peer']:+.4f}",
            f"{number(of['of_steps'])} ({of['of_steps_share']:.3f})",
            number(of["left"]),
            number(of["dense"]),
            f"{number(of['between_nodes'])} ({of['between_nodes_share']:.3f})",
        ]
        for mode, of in run["figures"].items()
    ]
    head = ["", "AUC", "ids, rows, gradients", "left", "dense", "between nodes"]
    return f"{table(head, rows)}\n\n{goals(run)}"


def serving(run: Run) -> str:
    names = {"own": "export file", "peer": "peer"}
    rows = [
        [
            f"batch {batch}, {name}",
            *(number(of[who][what]) for what in ("p50_us", "p99_us")),
            number(of[who]["requests_per_s"]["median"]),
        ]
        for batch, of in run["figures"].items()
        if batch.isdecimal()
        for who, name in names.items()
    ]
    return f"{table(['', 'p50, µs', 'p99, µs', 'requests/s'], rows)}\n\n{goals(run)}"


def serving_http(run: Run) -> str:
    rows = [
        [
            f"batch {batch}",
            *(number(of[who]["p50_us"]) for who in ("http", "process")),
            number(of["clients"]["requests_per_s"]),
        ]
        for batch, of in run["figures"].items()
    ]
    head = ["", "p50 over HTTP, µs", "p50 without HTTP, µs", "requests/s of several clients"]
    return f"{table(head, rows)}\n\n{goals(run)}"


def ranks_bytes(run: Run) -> str:
    head = ["", *next(iter(run["figures"].values()))]
    rows = [[case, *map(number, of.values())] for case, of in run["figures"].items()]
    return table(head, rows)


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


def ranks_parity(run: Run) -> str:
    rows = [
        [
            ranks,
            *(_median_and_range(of[name]) for name in ("stored", "commit_times", "pass_times")),
            f"{max(seconds for seconds, _, _ in of['rebuilt']):.0f} s",
        ]
        for ranks, of in run["figures"].items()
    ]
    head = ["ranks", "bytes of parity for each byte of the newest version", "commit, times"]
    head += ["pass, times", "longest start that rebuilds a rank"]
    return f"{table(head, rows)}\n\n{goals(run)}"


def _median_and_range(of: Mapping[str, float]) -> str:
    return f"{of['median']:.2f} ({of['min']:.2f} to {of['max']:.2f})"


def zoo_claims(run: Run) -> str:
    rows = []
    for config, of in run["figures"].items():
        if config == "seconds":
            continue
        seeds = of["found"]
        if len(of["claimed"]) < len(seeds[0]):
            seeds = [[statistics.fmean(tasks)] for tasks in seeds]
        for claim, found in zip(of["claimed"], zip(*seeds, strict=True), strict=True):
            means = [claim, (statistics.fmean(found), min(found), max(found))]
            cells = [f"{mean:.4f} ({low:.4f} to {high:.4f})" for mean, low, high in means]
            rows.append([f"`{config}`", *cells])
    return f"{table(['config', 'claimed', 'found'], rows)}\n\n{not_reached(run)}"


def zoo_criteo(run: Run) -> str:
    models = {name: of for name, of in run["figures"].items() if "runs" in of}
    peers = [name for name in run["figures"] if name not in models]
    averaged = any("average" in of for of in run["figures"].values())

    def average(of: Mapping[str, Any]) -> list[str]:
        pair = of.get("average")
        cell = f"{pair['auc']:.4f} / {pair['logloss']:.4f}" if pair else ""
        return [cell] if averaged else []

    rows = [
        [
            name,
            *(f"{run['figures'][name][what]:.4f}" for what in ("auc", "logloss")),
            *average(run["figures"][name]),
            *([""] * len(peers)),
        ]
        for name in peers
    ]
    for name, of in sorted(models.items(), key=lambda item: -item[1]["mean"]):
        aucs = [one["auc"] for one in of["runs"]]
        less = [f"{d:+.4f} ({low:+.4f} to {high:+.4f})" for d, low, high in of["less"].values()]
        auc = f"{of['mean']:.4f} ({min(aucs):.4f} to {max(aucs):.4f})"
        rows.append([f"`{name}`", auc, f"{of['logloss']:.4f}", *average(of), *less])
    mean = ["average of 3"] if averaged else []
    head = ["", "AUC", "logloss", *mean, *(f"minus the AUC of `{peer}` (95 %)" for peer in peers)]
    judged = [_judged_by_interval(goal, models) for goal in run["goals"]]
    return f"{table(head, rows)}\n\n{goals({'goals': judged})}"


def _judged_by_interval(
    goal: Mapping[str, Any], models: Mapping[str, Mapping[str, Any]]
) -> Mapping[str, Any]:
    """The goal of a difference of AUC, as a tie if the bound is inside its 95 % interval."""
    named = re.fullmatch("AUC of (.+) less that of ([^,]+)", goal["name"])
    if named is None:
        return goal
    _, low, high = models[named[1]]["less"][named[2]]
    if not low < goal["at_least"] < high:
        return goal
    return {**goal, "outcome": "tie: its interval contains the goal"}


def conformance(run: Run) -> str:
    kinds = ("logits", "loss", "gradients", "steps", "float32")
    rows = []
    for of in run["figures"].values():
        errors = dict(of["errors"])
        if "gradients, float32" in errors:
            errors["gradients"] = errors["gradients, float32"]
        cells = [f"{errors[kind]:.1g}" if kind in errors else "" for kind in kinds]
        said = f"`{of['model']}`" + (f", {of['settings']}" if of["settings"] else "")
        rows.append([said, of["peer"], of["differs"], *cells, f"{errors['start']:.1f}"])
    names = ("logits", "loss", "gradients", "three steps", "float32", "initial values")
    return f"{table(['model', 'compared with', 'differs', *names], rows)}\n\n{not_reached(run)}"


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
    "conformance": conformance,
    "defaults": defaults,
    "gpu": gpu,
    "hot_path": hot_path,
    "kills": kills,
    "many_ranks": many_ranks,
    "mem_tier": mem_tier,
    "objectives": objectives,
    "out_of_memory": out_of_memory,
    "partial_recovery": partial_recovery,
    "ranks_auc": ranks_auc,
    "ranks_bytes": ranks_bytes,
    "ranks_modes": ranks_modes,
    "ranks_parity": ranks_parity,
    "ranks_rates": ranks_rates,
    "sequences": sequences,
    "serving_export": serving,
    "serving_http": serving_http,
    "two_nodes": two_nodes,
    "zoo_claims": zoo_claims,
    "zoo_criteo": zoo_criteo,
}
