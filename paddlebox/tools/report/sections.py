"""The figures of one run."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from paddlebox.tools.report import text
from paddlebox.tools.report.figures import (
    Figure,
    Series,
    Span,
    bars,
    chosen,
    curves,
    gantt,
    legend,
    missing,
    split_bars,
    table,
)
from paddlebox.tools.report.page import Section, Tile
from paddlebox.tools.report.rank_figures import rank_figures
from paddlebox.tools.report.run import FINISHED, Line, Run, auc, number
from paddlebox.tools.report.settings import ABSENT, changed, flat

NO_PASS = "no pass has ended yet"
# Of each stage, by its place in the pipeline; a colour each.
STAGES = ("read", "parse", "key", "stage", "pack", "train", "commit")
_TONE = {stage: tone for tone, stage in enumerate(STAGES, 1)}
_SPAN_PASSES = 8
_MAX_SPANS = 2500  # of a trace: one page stays small


def tiles(run: Run) -> list[Tile]:
    """The headline. The AUC is of the newest evaluation, else of the last pass."""
    last: Line = run.lines[-1] if run.lines else {}
    tested = _tested(run)
    speeds = [v for v in (number(line, "samples_per_s") for line in run.lines) if v is not None]
    version = number(run.store, "version") or number(run.summary, "version")
    live = number(run.store, "live_rows")
    samples = sum(number(line, "samples") or 0 for line in run.lines)
    found = []
    if tested is not None:
        found.append(Tile("Test AUC", text.decimal(auc(tested[1], "auc")), tested[0]))
    return [
        *found,
        Tile(
            "Training AUC",
            text.decimal(auc(last, "metrics", "auc")),
            "last pass, before training on it",
        ),
        Tile(
            "COPC",
            text.decimal(number(last, "metrics", "copc"), 3),
            "clicks / predicted, last pass",
        ),
        Tile(
            "Samples/s",
            text.count(statistics.median(speeds) if speeds else None),
            "median of passes",
        ),
        Tile("Samples", text.count(samples), f"{len(run.lines)} passes"),
        Tile("Version", str(version or text.NONE), "newest commit"),
        Tile(
            "Rows",
            text.count(live),
            "live, first table" if flat(run.config).get("extra_tables") else "live",
        ),
        Tile("Disk", text.size(run.disk_bytes or None), "of the store's files"),
    ]


def _tested(run: Run) -> tuple[str, Line] | None:
    """What the newest evaluation is called, and it."""
    if run.evaluations:
        newest = run.evaluations[-1]
        return f"version {newest.get('version')}", newest
    for line in reversed(run.lines):
        if isinstance(line.get("test"), dict):
            return f"after pass {line['pass']}", line["test"]
    return None


def sections(run: Run) -> list[Section]:
    return [
        Section("Learning", [_auc(run), _loss(run)]),
        Section(
            "Calibration", [_calibration(run), _copc(run), _bucket_error(run), *_named_metrics(run)]
        ),
        Section("Rows", [_tiers(run), _bytes(run)]),
        Section("Pipeline", [_speed(run), _waits(run), _stages(run), _spans(run), _trace(run)]),
        *([Section("Ranks", rank_figures(run))] if run.size > 1 else []),
        Section("Store", [_growth(run), _written(run), _store_figures(run), _data(run)]),
        Section("Commits and saves", [_commits(run), _saves(run)]),
        Section("Configuration", [_differences(run), _configuration(run)]),
        Section("Environment", [_environment(run)]),
    ]


#: A curve: its name, its tone, and its value in a line of metrics.jsonl.
Part = tuple[str, int, Callable[[Line], float | None]]


def _over_passes(run: Run, parts: Sequence[Part]) -> tuple[list[int], list[Series]]:
    """The numbers of the passes, and a series a part."""
    numbers = [line["pass"] for line in run.lines]
    return numbers, [
        Series(name, [of(line) for line in run.lines], tone) for name, tone, of in parts
    ]


def _by_pass(
    run: Run,
    title: str,
    note: str,
    parts: Sequence[Part],
    value: Callable[[float | None], str],
    why: str = "",
    **options: Any,
) -> Figure:
    """Curves over passes; those without a value are left out."""
    numbers, series = _over_passes(run, parts)
    series = [s for s in series if any(v is not None for v in s.values)]
    if not series:
        return missing(title, why or NO_PASS)
    return Figure(
        title, note, curves(numbers, series, value, **options), *_table(numbers, series, value)
    )


def _table(
    numbers: Sequence[int], series: Sequence[Series], value: Callable[[float | None], str]
) -> tuple[list[str], list[list[str]]]:
    rows = [
        [str(numbers[at]), *(value(s.values[at]) for s in series)]
        for at in chosen(len(numbers), 400)
    ]
    return ["pass", *(s.name for s in series)], rows


# trainer.evaluate_before_pass: what serving would have got, had it been up to date.
_BEFORE = "before it, as served"


def _of_training(run: Run) -> str:
    """What a curve of training is called: with phases it is update's."""
    return "update" if any("phases" in line for line in run.lines) else "training"


def _learning_note(run: Run) -> str:
    """What makes the curves of training better than the model is."""
    said = ["Training: predicted before training on the pass. Test: data.test_files after it."]
    if _of_training(run) == "update":
        said.append("Update predicts instances that join has just trained on.")
    again = [line["pass"] for line in run.lines if "repeats_pass" in line]
    if again:
        said.append(
            f"{len(again)} passes, from pass {again[0]} on, train files a second time: the rows "
            "know their clicks, so only the test tells."
        )
    return " ".join(said)


def _auc(run: Run) -> Figure:
    return _by_pass(
        run,
        "AUC",
        _learning_note(run),
        [
            (_of_training(run), 1, lambda x: auc(x, "metrics", "auc")),
            ("test", 2, lambda x: auc(x, "test", "auc")),
            ("join", 3, lambda x: auc(x, "phases", "join", "metrics", "auc")),
            (_BEFORE, 4, lambda x: auc(x, "before", "auc")),
        ],
        text.decimal,
    )


def _loss(run: Run) -> Figure:
    return _by_pass(
        run,
        "Loss",
        "Mean over the samples of a pass.",
        [
            (_of_training(run), 1, lambda x: number(x, "loss")),
            ("test", 2, lambda x: number(x, "test", "loss")),
            ("join", 3, lambda x: number(x, "phases", "join", "loss")),
            (_BEFORE, 4, lambda x: number(x, "before", "loss")),
        ],
        text.decimal,
    )


def _calibration(run: Run) -> Figure:
    title = "Predicted and actual"
    tested = _tested(run)
    last: Line = run.lines[-1] if run.lines else {}
    bins = [("last pass", 1, last.get("calibration"))]
    bins += [(f"test, {tested[0]}", 2, tested[1].get("calibration"))] if tested is not None else []
    known = [(name, tone, found) for name, tone, found in bins if found]
    if not known:
        why = "metrics.jsonl has no calibration: the pass is of an older paddlebox, or restored"
        return missing(title, why if run.lines else NO_PASS)
    xs = sorted({row[2] for _, _, found in known for row in found})
    series = []
    for name, tone, found in known:
        rates = {mean: clicks / n for n, clicks, mean in found}
        series.append(Series(name, [rates.get(x) for x in xs], tone))
    most = max(max(xs), max(v for s in series for v in s.values if v is not None))
    body = _joined(xs, series, most)
    rows = [
        [
            name,
            text.count(n),
            text.decimal(mean),
            text.decimal(clicks / n),
            text.decimal(clicks / (n * mean) if mean else None, 3),
        ]
        for name, _, found in known
        for n, clicks, mean in found
    ]
    note = (
        "Click rate of groups of equal size, by prediction; on the dashed line it is as predicted."
    )
    return Figure(title, note, body, ["of", "samples", "predicted", "actual", "COPC"], rows)


def _joined(xs: Sequence[float], series: Sequence[Series], most: float) -> str:
    """Gaps of a curve filled along straight lines, for the others have points there."""
    filled = [
        Series(
            s.name,
            _filled(xs, s.values),
            s.tone,
            between=frozenset(at for at, value in enumerate(s.values) if value is None),
        )
        for s in series
    ]
    return curves(
        xs,
        filled,
        lambda v: text.decimal(v, 3),
        x_name="predicted",
        diagonal=True,
        x_value=lambda v: text.decimal(v, 3),
        y_range=(0.0, most * 1.04),
    )


def _filled(xs: Sequence[float], values: Sequence[float | None]) -> list[float | None]:
    known = [at for at, value in enumerate(values) if value is not None]
    out: list[float | None] = list(values)
    for before, after in itertools.pairwise(known):
        low, high = values[before] or 0.0, values[after] or 0.0
        for at in range(before + 1, after):
            part = (xs[at] - xs[before]) / ((xs[after] - xs[before]) or 1)
            out[at] = low + part * (high - low)
    return out


def _copc(run: Run) -> Figure:
    return _by_pass(
        run,
        "COPC",
        "Clicks over predicted clicks: 1 is calibrated, above it too little is predicted.",
        [
            (_of_training(run), 1, lambda x: number(x, "metrics", "copc")),
            ("test", 2, lambda x: number(x, "test", "copc")),
            ("join", 3, lambda x: number(x, "phases", "join", "metrics", "copc")),
            (_BEFORE, 4, lambda x: number(x, "before", "copc")),
        ],
        lambda v: text.decimal(v, 3),
    )


def _bucket_error(run: Run) -> Figure:
    return _by_pass(
        run,
        "Bucket error",
        "PaddleBox's: how far click rates of buckets are from predicted ones; 0 is best.",
        [
            ("training", 1, lambda x: number(x, "metrics", "bucket_error")),
            ("test", 2, lambda x: number(x, "test", "bucket_error")),
        ],
        text.decimal,
    )


def _named_metrics(run: Run) -> list[Figure]:
    """One figure for each metric that the config names, and for each of several tasks."""
    last = run.lines[-1].get("metrics", {}) if run.lines else {}
    paths = [(name,) for name, values in last.items() if isinstance(values, dict)]
    tasks = [("tasks", name) for name in last.get("tasks") or {}]
    return [_named_metric(run, path) for path in [*paths, *tasks] if path != ("tasks",)]


def _named_metric(run: Run, path: tuple[str, ...]) -> Figure:
    values: Any = run.lines[-1]["metrics"]
    for part in path:
        values = values[part]
    known = [k for k in ("wuauc", "uauc", "auc", "mae", "rmse", "rate") if k in values][:2]

    def of(key: str) -> Callable[[Line], float | None]:
        return lambda x: auc(x, "metrics", *path, key)

    parts = [(key, tone, of(key)) for tone, key in enumerate(known, 1)]
    of_task = path[0] == "tasks"
    kind, note = ("Task", "One of several.") if of_task else ("Metric", "As the config names it.")
    return _by_pass(run, f"{kind} {path[-1]}", note, parts, text.decimal)


def _stacked(
    run: Run,
    title: str,
    note: str,
    parts: Sequence[Part],
    value: Callable[[float | None], str],
    why: str = "",
    **options: Any,
) -> Figure:
    numbers, series = _over_passes(run, parts)
    if not any(v for s in series for v in s.values):
        return missing(title, why or NO_PASS)
    return Figure(
        title, note, bars(numbers, series, value, **options), *_table(numbers, series, value)
    )


def _tiers(run: Run) -> Figure:
    parts = [("hbm", 1), ("mem", 6), ("ssd", 5), ("new", 8)]

    def of(tier: str) -> Callable[[Line], float | None]:
        return lambda x: number(x, "hits", tier)

    return _stacked(
        run,
        "Where rows came from",
        "Of each pass's rows: kept from the pass before, in memory, read from SSD, made anew.",
        [(tier, tone, of(tier)) for tier, tone in parts],
        text.count,
        as_shares=True,
    )


def _bytes(run: Run) -> Figure:
    return _stacked(
        run,
        "Bytes read from local disk",
        "While a pass trained: rows from SSD, mostly for the pass "
        "after it, and instances that did not fit memory.",
        [
            ("rows", 5, lambda x: number(x, "ssd", "bytes_read")),
            ("instances", 8, lambda x: number(x, "spilled_bytes")),
        ],
        text.size,
        "" if not run.lines else "nothing was read: all rows and instances fit memory",
    )


def _speed(run: Run) -> Figure:
    return _by_pass(
        run,
        "Samples a second",
        "Over a pass's whole time, from its begin to its end.",
        [("samples/s", 1, lambda x: number(x, "samples_per_s"))],
        text.count,
        "the passes' times are not known: they were taken up from a commit" if run.lines else "",
        y_range=_from_zero(run, "samples_per_s"),
    )


def _waits(run: Run) -> Figure:
    waits = [
        ("load", 1, "instances not read yet"),
        ("stage", 5, "rows not up yet"),
        ("batch", 4, "batch not packed"),
        ("commit", 2, "the commit before"),
    ]

    def of(name: str) -> Callable[[Line], float | None]:
        return lambda x: number(x, "wait_s", name)

    parts = [(f"{name}: {what}", tone, of(name)) for name, tone, what in waits]
    parts.append(("compaction", 8, lambda x: number(x, "compaction_wait_s")))
    return _stacked(
        run,
        "What training stood still for",
        "Seconds of a pass in which no batch was trained"
        + (", on average of the ranks." if run.size > 1 else "."),
        parts,
        text.seconds,
        "training waited for nothing" if run.lines else "",
    )


def _stages(run: Run) -> Figure:
    title = "Work and waits of each stage"
    sums: dict[str, list[float]] = {stage: [0.0, 0.0, 0.0] for stage in STAGES}
    for line in run.lines:
        for stage in STAGES:
            for at, kind in enumerate(("work_s", "before_s", "after_s")):
                sums[stage][at] += number(line, "stages", stage, kind) or 0.0
    if not any(sum(parts) for parts in sums.values()):
        return missing(title, NO_PASS if not run.lines else "the passes' stages were not timed")
    names = [("work", 3), ("waits for what comes before", 6), ("waits for what comes after", 8)]
    return Figure(
        title,
        "Thread seconds of all passes. Who waits for what comes after is not the slow one.",
        split_bars(list(sums.items()), names, text.seconds),
        ["stage", *(name for name, _ in names)],
        [[stage, *(text.seconds(part) for part in parts)] for stage, parts in sums.items()],
        wide=True,
    )


def _spans(run: Run) -> Figure:
    title = f"The pipeline in time, last {_SPAN_PASSES} passes"
    shown = [line for line in run.lines if isinstance(line.get("spans"), dict)][-_SPAN_PASSES:]
    if not shown:
        return missing(title, NO_PASS if not run.lines else "metrics.jsonl has no spans of stages")
    spans, rows = [], []
    for line in shown:
        for stage, (begin, end) in line["spans"].items():
            # A commit is told with the pass after it.
            at = line["pass"] - 1 if stage == "commit" else line["pass"]
            tip = f"pass {at}: {stage}\nfrom first to last\t{text.seconds(end - begin)}"
            spans.append(Span(stage, begin, end, 1 if at % 2 else 5, tip))
            rows.append([stage, str(at), text.moment(begin), text.seconds(end - begin)])
    return Figure(
        title,
        "From a stage's first work on a pass to its last; odd passes blue, even ones yellow. "
        f"Pass n + 1 is read and staged while pass n trains.{_whose(run)}",
        gantt(STAGES, spans, text.seconds),
        ["stage", "pass", "began", "length"],
        rows,
        wide=True,
    )


def _trace(run: Run) -> Figure:
    title = "What each thread did"
    if not run.trace:
        return missing(title, run.missing.get("trace", "the trace is empty"))
    last = max(event["args"]["pass"] for event in run.trace)
    shown = [e for e in run.trace if e["args"]["pass"] >= last - 1]
    merged = _merged(shown)
    lanes = sorted({span.lane for span in merged})
    busy: dict[tuple[str, str], float] = defaultdict(float)
    for event in shown:
        busy[event["thread"].removeprefix("paddlebox-"), event["name"]] += event["dur"] / 1e6
    keys = [(stage, _TONE[stage], False) for stage in STAGES]
    return Figure(
        title,
        f"From the trace, passes {max(1, last - 1)} and {last}. Faint: waiting.{_whose(run)}",
        legend(keys) + gantt(lanes, merged, text.seconds),
        ["thread", "what", "seconds"],
        [[thread, name, text.seconds(s)] for (thread, name), s in sorted(busy.items())],
        wide=True,
    )


def _whose(run: Run) -> str:
    return " Of the first rank." if run.size > 1 else ""


def _merged(events: Sequence[dict[str, Any]]) -> list[Span]:
    """Events of a thread, of one kind and pass, that lie closer than can be seen become one."""
    begin = min(e["ts"] for e in events)
    whole = max(e["ts"] + e["dur"] for e in events) - begin
    closest = whole / 1000
    while True:
        spans = _merge_within(events, closest)
        if len(spans) <= _MAX_SPANS:
            return spans
        closest *= 2


def _merge_within(events: Sequence[dict[str, Any]], closest: float) -> list[Span]:
    groups: dict[tuple[str, str, int], list[list[float]]] = defaultdict(list)
    for event in sorted(events, key=lambda e: e["ts"]):
        thread = event["thread"].removeprefix("paddlebox-")
        runs = groups[thread, event["name"], event["args"]["pass"]]
        first, last = event["ts"], event["ts"] + event["dur"]
        if runs and first - runs[-1][1] <= closest:
            runs[-1][1] = max(runs[-1][1], last)
            runs[-1][2] += event["dur"]
        else:
            runs.append([first, last, event["dur"]])
    spans = []
    for (thread, name, number_of), runs in groups.items():
        stage = name.split(" ")[0]
        for first, last, busy in runs:
            tip = f"{thread}\n{name}, pass {number_of}\t{text.seconds(busy / 1e6)}"
            waits = " " in name
            spans.append(Span(thread, first / 1e6, last / 1e6, _TONE.get(stage, 8), tip, waits))
    return sorted(spans, key=lambda s: not s.faint)  # work is drawn over waits


def _growth(run: Run) -> Figure:
    return _by_pass(
        run,
        "Rows",
        "That live in the store, at the newest commit when a pass ended; and those held in memory.",
        [
            ("live", 1, lambda x: number(x, "sizes", "live_rows")),
            ("in MEM", 6, lambda x: number(x, "sizes", "mem_rows")),
        ],
        text.count,
        "metrics.jsonl has no sizes" if run.lines else "",
        y_range=_from_zero(run, "sizes", "live_rows"),
    )


def _from_zero(run: Run, *path: str) -> tuple[float, float] | None:
    most = max((number(line, *path) or 0 for line in run.lines), default=0)
    return (0.0, most * 1.06) if most else None


def _written(run: Run) -> Figure:
    title = "Bytes written by commits"
    if not run.journal:
        return missing(title, run.missing.get("store", "no version has been committed yet"))
    kinds: dict[str, list[float]] = defaultdict(list)
    passes = sorted({entry["pass"] for entry in run.journal})
    sums: dict[tuple[str, int], int] = defaultdict(int)
    for entry in run.journal:
        sums[entry["kind"], entry["pass"]] += entry["bytes"]
    tones = {"pass": 1, "compaction": 2, "life": 3, "repair": 4, "init": 6}
    for kind in dict.fromkeys(entry["kind"] for entry in run.journal):
        kinds[kind] = [float(sums[kind, number_of]) for number_of in passes]
    series = [Series(kind, values, tones.get(kind, 8)) for kind, values in kinds.items()]
    headers, rows = _table(passes, series, text.size)
    note = "By the pass after which they came. Compaction is what merging costs."
    return Figure(title, note, bars(passes, series, text.size), headers, rows)


def _store_figures(run: Run) -> Figure:
    title = "The store now"
    if not run.store:
        return missing(title, run.missing.get("store", "there is no store"))
    store = run.store
    written = store["bytes_written"]
    passes = written.get("pass", 0)
    amplification = sum(written.values()) / passes if passes else None
    rows = [
        ["live rows", text.count(store["live_rows"])],
        ["rows in files, older copies too", text.count(store["stored_rows"])],
        ["segments", text.count(store["segments"])],
        ["bytes in segments", text.size(store["stored_bytes"])],
        ["space ratio", text.decimal(store["space_ratio"], 2)],
        ["depth", str(store["depth"])],
        ["memory for its index", text.size(store["memory_bytes"])],
        ["disk, with kept versions", text.size(store["used_bytes"])],
        ["written since it began", text.size(sum(written.values()))],
        ["write amplification", text.decimal(amplification, 2)],
        ["life events", text.count(store["life_events"])],
    ]
    note = "Write amplification: all bytes written for each byte that passes wrote."
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
    title = "Versions that can be gone back to"
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
    note = "--from VERSION goes back to one. Bytes alone: what would be freed if it went."
    if run.size > 1:
        note = f"--from YYYYMMDD/PASS goes back to one.{_whose(run)}"
    return Figure(title, note, table(headers, rows, left=4), wide=True)


def _saves(run: Run) -> Figure:
    title = "Saves for serving"
    out = flat(run.config).get("save.out")
    saves = [
        (line["pass"], line["save"]) for line in run.lines if isinstance(line.get("save"), dict)
    ]
    if not saves:
        why = f"none is due yet below {out}" if out else "the config writes none: save.out is empty"
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
    return Figure(
        title,
        f"Below {text.setting(out)}; at most the last 100.",
        table(headers, rows, left=2),
        wide=True,
    )


def _differences(run: Run) -> Figure:
    rows = [
        [
            key,
            text.setting(value, key),
            "required" if usual is ABSENT else text.setting(usual, key),
        ]
        for key, value, usual in changed(run.config)
    ]
    body = f"<div class=wrap>{table(['key', 'value', 'default'], rows, left=3)}</div>"
    return Figure(
        "Other than the defaults", "docs/config.md tells what a key does.", body, wide=True
    )


def _configuration(run: Run) -> Figure:
    rows = [[key, text.setting(value, key)] for key, value in flat(run.config).items()]
    body = (
        f"<details><summary>All {len(rows)} keys</summary><div class=wrap>"
        f"{table(['key', 'value'], rows, left=2)}</div></details>"
    )
    return Figure("Every value", "Of the last start.", body, wide=True)


def _environment(run: Run) -> Figure:
    title = "Where it ran"
    if not run.environment:
        return missing(title, run.missing["environment"])
    found = run.environment
    threads, versions = found.get("threads", {}), found.get("versions", {})
    rows = [
        ["started", text.moment(number(found, "started_at"))],
        ["processor", str(found.get("cpu", text.NONE))],
        ["cores", str(found.get("cores", text.NONE))],
        ["memory", text.size(number(found, "memory_bytes"))],
        ["vector path", str(found.get("vector_path", text.NONE))],
        ["threads", ", ".join(f"{name} {value}" for name, value in threads.items())],
        ["kernel", str(found.get("kernel", text.NONE))],
        *([name, str(value)] for name, value in versions.items()),
    ]
    if run.state == FINISHED:
        rows.append(["sparse digest", str(run.summary.get("sparse_digest", text.NONE))])
        rows.append(["dense digest", str(run.summary.get("dense_digest", text.NONE))])
    body = f"<div class=wrap>{table(['', ''], rows, left=2)}</div>"
    return Figure(title, f"Of the last start.{_whose(run)}", body, wide=True)
