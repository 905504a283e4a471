"""Figures of a run's store and saves, ranks, configuration and machine."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

from paddlebox.tools.report import text
from paddlebox.tools.report.page import TONES, Figure, Format, Series, bars, curves, missing, table
from paddlebox.tools.report.run import (
    ABSENT,
    FINISHED,
    Line,
    Run,
    changed,
    flat,
    number,
    of_rank,
    waited,
    waited_for,
)
from paddlebox.tools.report.training_figures import (
    NO_PASS,
    Part,
    at,
    by_pass,
    over_passes,
    whose,
)

_MOST_SHOWN = 16  # ranks in a figure; the table has all
Of = Callable[[Line, int], float | None]


def row_figures(run: Run) -> list[Figure]:
    tiers = by_pass(
        run,
        "Where rows came from",
        "Shares of the rows of each pass.",
        [
            ("the pass before (hbm)", 1, at("hits", "hbm")),
            ("memory (mem)", 6, at("hits", "mem")),
            ("SSD (ssd)", 5, at("hits", "ssd")),
            ("new", 8, at("hits", "new")),
        ],
        text.count,
        draw=bars,
        as_shares=True,
    )
    read = by_pass(
        run,
        "Bytes read from local disk",
        "While a pass trained.",
        [
            ("rows, mostly of the next pass", 5, at("ssd", "bytes_read")),
            ("instances that did not fit in memory", 8, at("spilled_bytes")),
        ],
        text.size,
        "nothing was read: all rows and instances fit in memory",
        bars,
    )
    return [tiers, read]


def store_figures(run: Run) -> list[Figure]:
    # The line of a pass has the rows before its commit. The store of one table has them now.
    now = None if flat(run.config).get("extra_tables") else number(run.store, "live_rows")

    def live(line: Line) -> float | None:
        before = number(line, "sizes", "live_rows")
        return before if now is None or before is None or line is not run.last else now

    most = max((live(line) or 0 for line in run.lines), default=0)
    growth = by_pass(
        run,
        "Rows",
        "Live rows of the store at the newest commit when a pass ended, and rows in memory.",
        [("live", 1, live), ("in MEM", 6, at("sizes", "mem_rows"))],
        text.count,
        "metrics.jsonl has no sizes",
        y_range=(0.0, most * 1.06) if most else None,
    )
    return [growth, _written(run), _store_now(run), _data(run)]


def _written(run: Run) -> Figure:
    title = "Bytes written by commits"
    if not run.journal:
        return missing(title, run.missing.get("store", "no version has been committed yet"))
    passes = sorted({entry["pass"] for entry in run.journal})
    sums: dict[tuple[str, int], int] = defaultdict(int)
    for entry in run.journal:
        sums[entry["kind"], entry["pass"]] += entry["bytes"]
    tones = {"pass": 1, "compaction": 2, "life": 3, "repair": 4, "init": 6}
    series = [
        Series(kind, [float(sums[kind, of_pass]) for of_pass in passes], tones.get(kind, 8))
        for kind in dict.fromkeys(entry["kind"] for entry in run.journal)
    ]
    note = "Shown at the pass before the commit."
    if any(s.name == "compaction" for s in series):
        note += " Compaction is the cost of merging segments."
    return over_passes(title, note, passes, series, text.size, bars, named=True)


def _store_now(run: Run) -> Figure:
    title, store = "The store now", run.store
    if not store:
        return missing(title, run.missing.get("store", "there is no store"))
    written, passes = sum(store["bytes_written"].values()), store["bytes_written"].get("pass", 0)
    rows = [
        ["live rows", text.count(store["live_rows"])],
        ["rows in files, with older copies", text.count(store["stored_rows"])],
        ["segments", text.count(store["segments"])],
        ["bytes in segments", text.size(store["stored_bytes"])],
        ["space ratio", text.decimal(store["space_ratio"], 2)],
        ["depth", str(store["depth"])],
        ["memory for its index", text.size(store["memory_bytes"])],
        ["disk, with kept versions", text.size(store["used_bytes"])],
        ["written since the start", text.size(written)],
        ["write amplification", text.decimal(written / passes if passes else None, 2)],
        ["life events", text.count(store["life_events"])],
    ]
    note = "Write amplification: all written bytes, divided by those that passes wrote."
    return Figure(title, note, table(["", "value"], rows))


def _data(run: Run) -> Figure:
    title = "Data"
    if not run.lines:
        return missing(title, NO_PASS)

    def total(name: str) -> float:
        return sum(number(line, name) or 0 for line in run.lines)

    lines, bad = total("lines"), total("bad_lines")
    rows = [
        ["files", text.count(len({f for line in run.lines for f in line.get("files", [])}))],
        ["lines", text.count(lines)],
        ["malformed lines", f"{text.count(bad)}  ({text.share(bad / lines if lines else None)})"],
        ["samples", text.count(total("samples"))],
        ["refused feasigns (admission)", text.count(total("refused"))],
        ["files from the parsed cache", text.count(total("files_from_cache"))],
        ["parts of passes over the budget", text.count(total("parts") - len(run.lines))],
    ]
    return Figure(title, "Over all passes.", table(["", "value"], rows))


def commit_figures(run: Run) -> list[Figure]:
    return [_commits(run), _saves(run)]


def _commits(run: Run) -> Figure:
    title = "Versions to go back to"
    if not run.store:
        return missing(title, run.missing.get("store", "there is no store"))
    names = defaultdict(list)
    for named in run.store["names"]:
        names[named["version"]].append(named["name"])
    rows = [
        [
            *(str(v["version"]), v["kind"], str(v["pass_number"])),
            *(v["created_at"].replace("+00:00", "Z"), text.count(v["live_rows"])),
            *(str(v["segments"]), text.size(v["bytes_kept_alone"]), ", ".join(names[v["version"]])),
        ]
        for v in reversed(run.store["versions"])
    ]
    headers = ["version", "made by", "pass", "at", "rows", "segments", "bytes alone", "names"]
    note = "--from VERSION goes back to a version. Bytes alone: space that removing it would free."
    if run.size > 1:
        note = f"--from YYYYMMDD/PASS goes back to a version.{whose(run)}"
    return Figure(title, note, table(headers, rows, left=4), wide=True)


def _saves(run: Run) -> Figure:
    title = "Saves for serving"
    out = flat(run.config).get("save.out")
    rows = [
        [
            *(str(save.get("name", "")), str(save.get("kind", "")), str(line["pass"])),
            text.seconds(number(save, "waited_s")),
        ]
        for line in run.lines
        if isinstance(save := line.get("save"), dict)
    ]
    if not rows:
        why = f"no save is due yet in {out}" if out else "no saves are written: save.out is empty"
        return missing(title, why)
    headers = ["name", "kind", "pass", "training waited"]
    note = f"In {text.setting(out)}; at most the last 100."
    return Figure(title, note, table(headers, rows[-100:], left=2), wide=True)


# ---- ranks


def rank_figures(run: Run) -> list[Figure]:
    """What each rank did, and which rank the others waited for."""
    slow = {line["pass"]: waited_for(line, run.size) for line in run.lines}
    counts = Counter(found[0] for found in slow.values() if found is not None)

    def behind(line: Line, rank: int) -> float | None:
        slowest = slow[line["pass"]]
        return slowest[1] if slowest is not None and slowest[0] == rank else None

    samples = _by_rank(
        run,
        "Samples by rank",
        "The files of a pass are divided among the ranks by size. A file is never split.",
        lambda line, rank: of_rank(line, rank, "samples"),
        bars,
        text.count,
    )
    waits = _by_rank(
        run,
        "Waiting for other ranks",
        "Seconds of a pass in which the steps of a rank waited for ranks of its host. The others "
        "waited for the rank that waited least. Waiting for ranks of other hosts is not shown, "
        "because it cannot be told apart from sending.",
        waited,
        curves,
        text.seconds,
    )
    waited_most = _by_rank(
        run,
        "The rank that others waited for",
        "How many seconds longer the others waited in a pass than this rank.",
        behind,
        bars,
        text.seconds,
        "no rank waited for another of its host",
    )
    return [_each_rank(run, counts), samples, _sent(run), waits, waited_most]


def _by_rank(
    run: Run,
    title: str,
    note: str,
    of: Of,
    draw: Callable[..., str],
    value: Format,
    why: str = "the passes have no figures of each rank",
) -> Figure:
    parts: list[Part] = [
        (f"rank {rank}", rank % TONES + 1, partial(lambda rank, line: of(line, rank), rank))
        for rank in range(min(run.size, _MOST_SHOWN))
    ]
    if run.size > _MOST_SHOWN:
        note += f" The first {_MOST_SHOWN} of {run.size} ranks."
    return by_pass(run, title, note, parts, value, why, draw)


def _sent(run: Run) -> Figure:
    kinds = dict.fromkeys(
        kind for line in run.lines for kind in (line.get("ranks") or {}).get("sent_bytes", {})
    )
    last = number(run.last, "ranks", "bytes_per_sample")
    return by_pass(
        run,
        "Bytes that ranks sent",
        f"Of all ranks, by content. {text.size(last)} per sample in the last pass.",
        [(kind, tone, at("ranks", "sent_bytes", kind)) for tone, kind in enumerate(kinds, 1)],
        text.size,
        draw=bars,
    )


def _each_rank(run: Run, slow: Counter[int]) -> Figure:
    """slow: in how many passes the others waited for a rank."""

    def total(of: Of, rank: int) -> float | None:
        known = [v for line in run.lines if (v := of(line, rank)) is not None]
        return sum(known) if known else None

    rows = []
    for rank in range(run.size):
        own = run.ranks.get(rank)
        rows.append(
            [
                str(rank),
                text.count(total(lambda line, r: of_rank(line, r, "samples"), rank)),
                text.size(total(lambda line, r: of_rank(line, r, "sent_bytes"), rank)),
                text.seconds(total(waited, rank)),
                f"{slow[rank]} of {len(run.lines)}" if slow else text.NONE,
                text.count(number(own.store, "live_rows") if own is not None else None),
                text.size(own.disk_bytes or None) if own is not None else text.NONE,
                str(own.environment.get("cpu", text.NONE)) if own is not None else text.NONE,
            ]
        )
    headers = ["rank", "samples", "sent", "waited", "passes waited for", "live rows", "disk"]
    note = "Over all passes; rows and disk are current. " + run.missing.get("ranks", "")
    body = table([*headers, "processor"], rows, wrap=True)
    return Figure("Each rank", note.strip(), body, wide=True)


# ---- configuration and machine


def configuration_figures(run: Run) -> list[Figure]:
    other = [
        [key, text.setting(v, key), "required" if usual is ABSENT else text.setting(usual, key)]
        for key, v, usual in changed(run.config)
    ]
    rows = [[key, text.setting(value, key)] for key, value in flat(run.config).items()]
    shown = table(["key", "value", "default"], other, left=3, wrap=True)
    every = (
        f"<details><summary>All {len(rows)} keys</summary><div class=wrap>"
        f"{table(['key', 'value'], rows, left=2)}</div></details>"
    )
    note = "docs/config.md explains each key."
    return [
        Figure("Values other than the defaults", note, shown, wide=True),
        Figure("Every value", "Of the last start.", every, wide=True),
    ]


def environment_figure(run: Run) -> Figure:
    title, machine = "Where it ran", run.environment
    if not machine:
        return missing(title, run.missing["environment"])

    def shown(values: dict[str, Any], key: str) -> str:
        return str(values.get(key, text.NONE))

    threads = machine.get("threads", {})
    rows = [
        ["started", text.moment(number(machine, "started_at"))],
        ["processor", shown(machine, "cpu")],
        ["cores", shown(machine, "cores")],
        ["memory", text.size(number(machine, "memory_bytes"))],
        ["vector path", shown(machine, "vector_path")],
        ["threads", ", ".join(f"{name} {value}" for name, value in threads.items())],
        ["kernel", shown(machine, "kernel")],
        *([name, str(value)] for name, value in machine.get("versions", {}).items()),
    ]
    if run.state == FINISHED:
        rows += [[f"{of} digest", shown(run.summary, f"{of}_digest")] for of in ("sparse", "dense")]
    body = table(["", ""], rows, left=2, wrap=True)
    return Figure(title, f"Of the last start.{whose(run)}", body, wide=True)
