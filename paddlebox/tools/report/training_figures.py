"""Figures over the passes of a run: what it learned, how fast it trains, what its threads do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from paddlebox.tools.report import text
from paddlebox.tools.report.page import (
    MAX_POINTS,
    Figure,
    Format,
    Series,
    Span,
    bars,
    chosen,
    curves,
    gantt,
    legend,
    missing,
)
from paddlebox.tools.report.run import Line, Run, number

NO_PASS = "no pass has ended yet"
_MOST_ROWS = 400  # of the table view

Value = Callable[[Line], float | None]
#: A curve, or a part of each bar: its name, its tone, and its value in a line of metrics.jsonl.
Part = tuple[str, int, Value]

# The stages in the order of the pipeline. Each has its own tone.
STAGES = ("read", "parse", "key", "stage", "pack", "train", "commit")
_TONE = {stage: tone for tone, stage in enumerate(STAGES, 1)}
_SPAN_PASSES = 8
_CURVED_PASSES = 40  # of a run whose points inside the passes are shown
_MAX_SPANS = 2500  # of a trace, to limit the size of the page
# trainer.evaluate_passes: before: the metrics of a served model that is always up to date.
_BEFORE = "before the pass, as served"
_DECIMAL3 = partial(text.decimal, digits=3)


def at(*path: str) -> Value:
    """The number at a path of a line."""
    return lambda line: number(line, *path)


def by_pass(
    run: Run,
    title: str,
    note: str,
    parts: Sequence[Part],
    value: Format,
    why: str = "",
    draw: Callable[..., str] = curves,
    **options: Any,
) -> Figure:
    """A figure over the passes of a run, drawn as `curves` or `bars`. Curves without values, and
    parts that are 0 in all bars, are left out. why: the reason if passes have no values; "":
    NO_PASS. options: of `draw`."""
    passes = [line["pass"] for line in run.lines]
    series = [Series(name, [of(line) for line in run.lines], tone) for name, tone, of in parts]
    none = (None, 0) if draw is bars else (None,)
    shown = [s for s in series if any(v not in none for v in s.values)]
    if not shown:
        return missing(title, (run.lines and why) or NO_PASS)
    named = len(parts) > 1
    return over_passes(title, note, passes, shown, value, draw, named=named, **options)


def over_passes(
    title: str,
    note: str,
    passes: Sequence[int],
    series: Sequence[Series],
    value: Format,
    draw: Callable[..., str] = curves,
    **options: Any,
) -> Figure:
    """A figure with its table view. The values of the series are those of the passes."""
    rows = [
        [str(passes[i]), *(value(s.values[i]) for s in series)]
        for i in chosen(len(passes), _MOST_ROWS)
    ]
    headers = ["pass", *(s.name for s in series)]
    return Figure(title, note, draw(passes, series, value, **options), headers, rows)


def from_zero(run: Run, *path: str) -> tuple[float, float] | None:
    """A range of y from 0 to above the largest number at a path; None if all are 0."""
    most = max((number(line, *path) or 0 for line in run.lines), default=0)
    return (0.0, most * 1.06) if most else None


def whose(run: Run) -> str:
    """A note for figures of the first rank."""
    return " Of the first rank." if run.size > 1 else ""


def learning_figures(run: Run) -> list[Figure]:
    # With phases, the training curve is that of phase update.
    update = any("phases" in line for line in run.lines)
    notes = ["Training: predicted before training on it."]
    if update:
        notes.append("Phase update predicts instances on which phase join has just trained.")
    if _has(run, "test"):
        notes.append("Test: the evaluation after a pass.")
    if curved := _curved(run):
        notes.append(f"The fine line is the tenth of a pass before each point.{whose(run)}")
    again = [line["pass"] for line in run.lines if "repeats_pass" in line]
    if again:
        notes.append(
            f"{text.passes(len(again))}, from pass {again[0]} on, "
            f"{'trains' if len(again) == 1 else 'train'} on files a second time: the rows already "
            "contain the clicks of these files, so only the test is meaningful."
        )
    figures = []
    for title, place, path in (("AUC", 2, ("metrics", "auc")), ("Loss", 1, ("loss",))):
        parts = _parts(update, *path)
        note = " ".join(notes)
        figures.append(
            _inside(run, title, note, parts, place)
            if curved
            else by_pass(run, title, note, parts, text.decimal)
        )
    return figures


def _has(run: Run, name: str) -> bool:
    return any(name in line for line in run.lines)


def _curved(run: Run) -> bool:
    """Whether to show the points inside the passes. They do not help to read many passes."""
    return len(run.lines) <= _CURVED_PASSES and _has(run, "curve")


def _parts(update: bool, *path: str) -> list[Part]:
    """Curves of a metric in training, test and phase join, and before each pass. path: the path of
    the metric in a line. Its last element is the name in a test."""
    return [
        ("update" if update else "training", 1, at(*path)),
        ("test", 2, at("test", path[-1])),
        ("join", 3, at("phases", "join", *path)),
        (_BEFORE, 4, at("before", path[-1])),
    ]


def _inside(run: Run, title: str, note: str, parts: Sequence[Part], place: int) -> Figure:
    """A figure over samples: the points inside the passes, and `parts` at the end of each. place:
    of the value in a point of `curve`."""
    points: dict[int, tuple[int, Line, float | None]] = {}  # samples -> pass, line, value inside it
    before = 0.0
    for line in run.lines:
        samples = number(line, "samples") or 0.0
        inside = line.get("curve", [])
        for i in chosen(len(inside), MAX_POINTS // len(run.lines)):
            reached = round(before + inside[i][0] * samples)
            points[reached] = (line["pass"], {}, inside[i][place])
        before += samples
        points[round(before)] = (line["pass"], line, points.get(round(before), (0, {}, None))[2])
    xs = sorted(points)
    found = [points[x] for x in xs]
    series = [Series(name, [of(line) for _, line, _ in found], tone) for name, tone, of in parts]
    inside_pass = [value for _, _, value in found]
    # The steep begin of a run would flatten all later passes.
    kept = [v for s in series for v in s.values if v is not None]
    kept += [v for of, _, v in found if of != found[0][0] and v is not None]
    if len(run.lines) > 1 and kept:
        inside_pass = [v if v and min(kept) <= v <= max(kept) else None for v in inside_pass]
    series.insert(0, Series(f"{parts[0][0]}, inside a pass", inside_pass, 1, fine=True))
    shown = [s for s in series if any(v is not None for v in s.values)]
    if not shown:
        return missing(title, NO_PASS)
    options: dict[str, Any] = {"x_name": "samples", "x_value": text.count}
    drawn = curves(xs, shown, text.decimal, joined=True, named=True, **options)
    rows = [
        [text.count(x), str(of_pass), *(text.decimal(s.values[i]) for s in shown)]
        for i, (x, (of_pass, _, _)) in enumerate(zip(xs, found, strict=True))
    ]
    return Figure(title, note, drawn, ["samples", "pass", *(s.name for s in shown)], rows)


def calibration_figures(run: Run) -> list[Figure]:
    update = any("phases" in line for line in run.lines)
    note = "Clicks divided by predicted clicks: 1 is calibrated, above 1 predictions are too low."
    buckets = by_pass(
        run,
        "Bucket error",
        "As in PaddleBox: how far the click rates of buckets are from the predicted ones; 0 is "
        "best.",
        [("training", 1, at("metrics", "bucket_error")), ("test", 2, at("test", "bucket_error"))],
        text.decimal,
    )
    copc = by_pass(run, "COPC", note, _parts(update, "metrics", "copc"), _DECIMAL3)
    return [_calibration(run), copc, buckets, *_named_metrics(run)]


def newest_test(run: Run) -> tuple[str, Line] | None:
    """The newest evaluation, and a name for it."""
    if run.evaluations:
        newest = run.evaluations[-1]
        return f"version {newest.get('version')}", newest
    for line in reversed(run.lines):
        if isinstance(line.get("test"), dict):
            return f"after pass {line['pass']}", line["test"]
    return None


def _named_metrics(run: Run) -> list[Figure]:
    """One figure for each metric that the config names, and for each task if there are several."""
    last = run.last.get("metrics", {})
    tasks = last.get("tasks") or {}
    named: list[tuple[str, str, tuple[str, ...], Any]] = [
        *(("Metric", "Named in the config.", (name,), values) for name, values in last.items()),
        *(("Task", "One of several.", ("tasks", name), tasks[name]) for name in tasks),
    ]
    figures = []
    for kind, note, path, values in named:
        if not isinstance(values, dict) or path == ("tasks",):
            continue
        shown = ("wuauc", "uauc", "auc", "mae", "rmse", "rate", "recall", "ndcg")
        keys = [k for k in shown if k in values][:2]
        parts = [(key, tone, at("metrics", *path, key)) for tone, key in enumerate(keys, 1)]
        figures.append(by_pass(run, f"{kind} {path[-1]}", note, parts, text.decimal))
    return figures


def _calibration(run: Run) -> Figure:
    title = "Predicted and actual"
    newest = newest_test(run)
    bins: list[tuple[str, int, Any]] = [("last pass", 1, run.last.get("calibration"))]
    if newest is not None:
        bins.append((f"test, {newest[0]}", 2, newest[1].get("calibration")))
    bins = [entry for entry in bins if entry[2]]
    if not bins:
        why = "metrics.jsonl has no calibration: the pass is restored"
        return missing(title, why if run.lines else NO_PASS)
    xs = sorted({mean for _, _, groups in bins for _, _, mean in groups})
    series = []
    for name, tone, groups in bins:
        rates = {mean: clicks / n for n, clicks, mean in groups}
        series.append(Series(name, [rates.get(x) for x in xs], tone))
    most = max(max(xs), max(v for s in series for v in s.values if v is not None))
    drawn = curves(
        xs,
        series,
        _DECIMAL3,
        x_name="predicted",
        joined=True,
        diagonal=True,
        x_value=_DECIMAL3,
        y_range=(0.0, most * 1.04),
    )
    rows = []
    for name, _, groups in bins:
        for n, clicks, mean in groups:
            copc = clicks / (n * mean) if mean else None
            figures = text.decimal(mean), text.decimal(clicks / n), _DECIMAL3(copc)
            rows.append([name, text.count(n), *figures])
    note = (
        "Click rates of groups of equal size, ordered by prediction. On the dashed line the click "
        "rate equals the prediction."
    )
    return Figure(title, note, drawn, ["of", "samples", "predicted", "actual", "COPC"], rows)


def pipeline_figures(run: Run) -> list[Figure]:
    speed = by_pass(
        run,
        "Samples per second",
        "Over the whole time of a pass, from its begin to its end.",
        [("samples/s", 1, at("samples_per_s"))],
        text.count,
        "the times of the passes are not known: the run was resumed",
        y_range=from_zero(run, "samples_per_s"),
    )
    waits = by_pass(
        run,
        "What training waited for",
        "Seconds of a pass in which no batch was trained"
        + (", mean of the ranks." if run.size > 1 else "."),
        [
            ("load: instances not read yet", 1, at("wait_s", "load")),
            ("stage: rows not staged yet", 5, at("wait_s", "stage")),
            ("batch: batch not packed yet", 4, at("wait_s", "batch")),
            ("commit: the commit before", 2, at("wait_s", "commit")),
            ("compaction", 8, at("compaction_wait_s")),
        ],
        text.seconds,
        "training waited for nothing",
        bars,
    )
    return [speed, waits, _stages(run), _spans(run), _trace(run)]


def _stages(run: Run) -> Figure:
    title = "Work and waits of each stage"
    sums = {
        stage: [
            sum(number(line, "stages", stage, kind) or 0.0 for line in run.lines)
            for kind in ("work_s", "before_s", "after_s")
        ]
        for stage in STAGES
    }
    if not any(sum(parts) for parts in sums.values()):
        return missing(title, "the stages of the passes were not timed" if run.lines else NO_PASS)
    kinds = [("work", 3), ("waits for the stage before", 6), ("waits for the stage after", 8)]
    bars_of = [
        Span(stage, sum(parts[:at]), sum(parts[: at + 1]), tone, f"{stage}\n{name}\t{seconds}")
        for stage, parts in sums.items()
        for at, (name, tone) in enumerate(kinds)
        if (seconds := text.seconds(parts[at])) != "0 s"
    ]
    return Figure(
        title,
        "Thread seconds of all passes. A stage that waits for the stage after it is not the "
        "bottleneck.",
        legend([Series(name, [], tone) for name, tone in kinds])
        + gantt(STAGES, bars_of, text.seconds),
        ["stage", *(name for name, _ in kinds)],
        [[stage, *map(text.seconds, parts)] for stage, parts in sums.items()],
        wide=True,
    )


def _spans(run: Run) -> Figure:
    title = "The pipeline over time"
    known = [line for line in run.lines if isinstance(line.get("spans"), dict)]
    shown = known[-_SPAN_PASSES:]
    if len(shown) < len(known):
        title += f", last {text.passes(len(shown))}"
    if not shown:
        return missing(title, "metrics.jsonl has no spans of stages" if run.lines else NO_PASS)
    spans, rows = [], []
    for line in shown:
        for stage, (begin, end) in line["spans"].items():
            # The commit of a pass is in the line of the next pass.
            of_pass = line["pass"] - 1 if stage == "commit" else line["pass"]
            tip = f"pass {of_pass}: {stage}\nfrom first to last\t{text.seconds(end - begin)}"
            spans.append(Span(stage, begin, end, 1 if of_pass % 2 else 5, tip))
            rows.append([stage, str(of_pass), text.moment(begin), text.seconds(end - begin)])
    note = "From the first work of a stage on a pass to its last"
    if len(shown) > 1:
        note += (
            "; odd passes blue, even ones yellow. Pass n + 1 is read and staged while pass n trains"
        )
    return Figure(
        title,
        f"{note}.{whose(run)}",
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
    busy: dict[tuple[str, str], float] = defaultdict(float)
    for event in shown:
        busy[event["thread"].removeprefix("paddlebox-"), event["name"]] += event["dur"] / 1e6
    seen = {event["name"].partition(" ")[0] for event in shown}
    keys = [Series(stage, [], tone) for stage, tone in _TONE.items() if stage in seen]
    of = f"passes {last - 1} and {last}" if last > 1 else "pass 1"
    return Figure(
        title,
        f"From the trace, {of}. Faint: waiting.{whose(run)}",
        legend(keys) + gantt(sorted({span.lane for span in merged}), merged, text.seconds),
        ["thread", "what", "seconds"],
        [[thread, name, text.seconds(s)] for (thread, name), s in sorted(busy.items())],
        wide=True,
    )


def _merged(events: Sequence[dict[str, Any]]) -> list[Span]:
    """The events as spans. Events of one thread, kind and pass are merged if the gap between them
    is too small to see."""
    begin = min(e["ts"] for e in events)
    closest = (max(e["ts"] + e["dur"] for e in events) - begin) / 1000
    while len(spans := _merge_within(events, closest)) > _MAX_SPANS:
        closest *= 2
    return spans


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
    for (thread, name, of_pass), runs in groups.items():
        stage, waits, _ = name.partition(" ")
        for first, last, busy in runs:
            tip = f"{thread}\n{name}, pass {of_pass}\t{text.seconds(busy / 1e6)}"
            tone = _TONE.get(stage, 8)
            spans.append(Span(thread, first / 1e6, last / 1e6, tone, tip, bool(waits)))
    return sorted(spans, key=lambda s: not s.faint)  # work is drawn over waits
