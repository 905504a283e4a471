"""How fast a run trains, and what its threads do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from paddlebox.tools.report import text
from paddlebox.tools.report.by_pass import NO_PASS, at, by_pass, from_zero
from paddlebox.tools.report.figures import Figure, Span, bars, gantt, legend, missing, split_bars
from paddlebox.tools.report.run import Run, number

# The stages in the order of the pipeline. Each has its own tone.
STAGES = ("read", "parse", "key", "stage", "pack", "train", "commit")
_TONE = {stage: tone for tone, stage in enumerate(STAGES, 1)}
_SPAN_PASSES = 8
_MAX_SPANS = 2500  # of a trace, to limit the size of the page


def pipeline_figures(run: Run) -> list[Figure]:
    return [_speed(run), _waits(run), _stages(run), _spans(run), _trace(run)]


def whose(run: Run) -> str:
    """A note for figures of the first rank."""
    return " Of the first rank." if run.size > 1 else ""


def _speed(run: Run) -> Figure:
    return by_pass(
        run,
        "Samples per second",
        "Over the whole time of a pass, from its begin to its end.",
        [("samples/s", 1, at("samples_per_s"))],
        text.count,
        "the times of the passes are not known: the run was resumed" if run.lines else "",
        y_range=from_zero(run, "samples_per_s"),
    )


def _waits(run: Run) -> Figure:
    waits = [
        ("load", 1, "instances not read yet"),
        ("stage", 5, "rows not staged yet"),
        ("batch", 4, "batch not packed yet"),
        ("commit", 2, "the commit before"),
    ]
    parts = [(f"{name}: {what}", tone, at("wait_s", name)) for name, tone, what in waits]
    return by_pass(
        run,
        "What training waited for",
        "Seconds of a pass in which no batch was trained"
        + (", mean of the ranks." if run.size > 1 else "."),
        [*parts, ("compaction", 8, at("compaction_wait_s"))],
        text.seconds,
        "training waited for nothing" if run.lines else "",
        bars,
    )


def _stages(run: Run) -> Figure:
    title = "Work and waits of each stage"
    sums: dict[str, list[float]] = {stage: [0.0, 0.0, 0.0] for stage in STAGES}
    for line in run.lines:
        for stage in STAGES:
            for i, kind in enumerate(("work_s", "before_s", "after_s")):
                sums[stage][i] += number(line, "stages", stage, kind) or 0.0
    if not any(sum(parts) for parts in sums.values()):
        return missing(title, "the stages of the passes were not timed" if run.lines else NO_PASS)
    names = [("work", 3), ("waits for the stage before", 6), ("waits for the stage after", 8)]
    return Figure(
        title,
        "Thread seconds of all passes. A stage that waits for the stage after it is not the "
        "bottleneck.",
        split_bars(list(sums.items()), names, text.seconds),
        ["stage", *(name for name, _ in names)],
        [[stage, *(text.seconds(part) for part in parts)] for stage, parts in sums.items()],
        wide=True,
    )


def _spans(run: Run) -> Figure:
    title = f"The pipeline over time, last {_SPAN_PASSES} passes"
    shown = [line for line in run.lines if isinstance(line.get("spans"), dict)][-_SPAN_PASSES:]
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
    return Figure(
        title,
        "From the first work of a stage on a pass to its last; odd passes blue, even ones yellow. "
        f"Pass n + 1 is read and staged while pass n trains.{whose(run)}",
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
        f"From the trace, passes {max(1, last - 1)} and {last}. Faint: waiting.{whose(run)}",
        legend(keys) + gantt(lanes, merged, text.seconds),
        ["thread", "what", "seconds"],
        [[thread, name, text.seconds(s)] for (thread, name), s in sorted(busy.items())],
        wide=True,
    )


def _merged(events: Sequence[dict[str, Any]]) -> list[Span]:
    """The events as spans. Events of one thread, kind and pass are merged if the gap between them
    is too small to see."""
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
