"""The rows of a run, its store, its versions and its saves."""

from __future__ import annotations

from collections import defaultdict

from paddlebox.tools.report import text
from paddlebox.tools.report.by_pass import NO_PASS, at, by_pass, from_zero, over_passes
from paddlebox.tools.report.figures import Figure, Series, bars, missing, table
from paddlebox.tools.report.pipeline_figures import whose
from paddlebox.tools.report.run import Run, number
from paddlebox.tools.report.settings import flat


def row_figures(run: Run) -> list[Figure]:
    return [_tiers(run), _bytes(run)]


def store_figures(run: Run) -> list[Figure]:
    return [_growth(run), _written(run), _store_now(run), _data(run)]


def commit_figures(run: Run) -> list[Figure]:
    return [_commits(run), _saves(run)]


def _tiers(run: Run) -> Figure:
    tiers = [("hbm", 1), ("mem", 6), ("ssd", 5), ("new", 8)]
    return by_pass(
        run,
        "Where rows came from",
        "Rows of each pass: kept from the pass before, in memory, read from SSD, or new.",
        [(tier, tone, at("hits", tier)) for tier, tone in tiers],
        text.count,
        draw=bars,
        as_shares=True,
    )


def _bytes(run: Run) -> Figure:
    return by_pass(
        run,
        "Bytes read from local disk",
        "While a pass trained: rows from SSD, mostly for the next pass, and instances that did not "
        "fit in memory.",
        [("rows", 5, at("ssd", "bytes_read")), ("instances", 8, at("spilled_bytes"))],
        text.size,
        "nothing was read: all rows and instances fit in memory" if run.lines else "",
        bars,
    )


def _growth(run: Run) -> Figure:
    return by_pass(
        run,
        "Rows",
        "Live rows of the store at the newest commit when a pass ended, and rows in memory.",
        [("live", 1, at("sizes", "live_rows")), ("in MEM", 6, at("sizes", "mem_rows"))],
        text.count,
        "metrics.jsonl has no sizes" if run.lines else "",
        y_range=from_zero(run, "sizes", "live_rows"),
    )


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
        Series(kind, [float(sums[kind, number_of]) for number_of in passes], tones.get(kind, 8))
        for kind in dict.fromkeys(entry["kind"] for entry in run.journal)
    ]
    note = "Shown at the pass before the commit. Compaction is the cost of merging segments."
    return over_passes(title, note, passes, series, text.size, bars)


def _store_now(run: Run) -> Figure:
    title = "The store now"
    if not run.store:
        return missing(title, run.missing.get("store", "there is no store"))
    store = run.store
    written = store["bytes_written"]
    passes = written.get("pass", 0)
    amplification = sum(written.values()) / passes if passes else None
    rows = [
        ["live rows", text.count(store["live_rows"])],
        ["rows in files, with older copies", text.count(store["stored_rows"])],
        ["segments", text.count(store["segments"])],
        ["bytes in segments", text.size(store["stored_bytes"])],
        ["space ratio", text.decimal(store["space_ratio"], 2)],
        ["depth", str(store["depth"])],
        ["memory for its index", text.size(store["memory_bytes"])],
        ["disk, with kept versions", text.size(store["used_bytes"])],
        ["written since the start", text.size(sum(written.values()))],
        ["write amplification", text.decimal(amplification, 2)],
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


def _commits(run: Run) -> Figure:
    title = "Versions to go back to"
    if not run.store:
        return missing(title, run.missing.get("store", "there is no store"))
    names = defaultdict(list)
    for one in run.store["names"]:
        names[one["version"]].append(one["name"])
    rows = [
        [
            str(v["version"]),
            v["kind"],
            str(v["pass_number"]),
            v["created_at"].replace("+00:00", "Z"),
            text.count(v["live_rows"]),
            str(v["segments"]),
            text.size(v["bytes_kept_alone"]),
            ", ".join(names[v["version"]]),
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
    saves = [
        (line["pass"], line["save"]) for line in run.lines if isinstance(line.get("save"), dict)
    ]
    if not saves:
        why = f"no save is due yet in {out}" if out else "no saves are written: save.out is empty"
        return missing(title, why)
    rows = [
        [
            str(save.get("name", "")),
            str(save.get("kind", "")),
            str(number_of),
            text.seconds(number(save, "waited_s")),
        ]
        for number_of, save in saves[-100:]
    ]
    headers = ["name", "kind", "pass", "training waited"]
    note = f"In {text.setting(out)}; at most the last 100."
    return Figure(title, note, table(headers, rows, left=2), wide=True)
