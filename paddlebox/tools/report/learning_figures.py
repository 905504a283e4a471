"""What a run has learned: its metrics by pass, and its calibration."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from paddlebox.tools.report import text
from paddlebox.tools.report.by_pass import NO_PASS, Part, at, by_pass
from paddlebox.tools.report.figures import Figure, Series, curves, missing
from paddlebox.tools.report.run import Line, Run

# trainer.evaluate_before_pass: the metrics of a served model that is always up to date.
_BEFORE = "before the pass, as served"


def learning_figures(run: Run) -> list[Figure]:
    return [_auc(run), _loss(run)]


def calibration_figures(run: Run) -> list[Figure]:
    return [_calibration(run), _copc(run), _bucket_error(run), *_named_metrics(run)]


def tested(run: Run) -> tuple[str, Line] | None:
    """The newest evaluation, and a name for it."""
    if run.evaluations:
        newest = run.evaluations[-1]
        return f"version {newest.get('version')}", newest
    for line in reversed(run.lines):
        if isinstance(line.get("test"), dict):
            return f"after pass {line['pass']}", line["test"]
    return None


def _of_training(run: Run) -> str:
    """The name of a training curve. With phases it is that of phase update."""
    return "update" if any("phases" in line for line in run.lines) else "training"


def _learning_note(run: Run) -> str:
    """Explains why the training curves may be better than the model."""
    said = ["Training: predicted before training on the pass. Test: data.test_files after it."]
    if _of_training(run) == "update":
        said.append("Phase update predicts instances on which phase join has just trained.")
    again = [line["pass"] for line in run.lines if "repeats_pass" in line]
    if again:
        said.append(
            f"{len(again)} passes, from pass {again[0]} on, train on files a second time: the rows "
            "already contain the clicks of these files, so only the test is meaningful."
        )
    return " ".join(said)


def _curves(run: Run, *path: str) -> list[Part]:
    """Curves of a metric in training, test and phase join, and before each pass.

    Args:
        path: the path of the metric in a line. Its last element is the name in a test.
    """
    return [
        (_of_training(run), 1, at(*path)),
        ("test", 2, at("test", path[-1])),
        ("join", 3, at("phases", "join", *path)),
        (_BEFORE, 4, at("before", path[-1])),
    ]


def _auc(run: Run) -> Figure:
    return by_pass(
        run,
        "AUC",
        _learning_note(run),
        _curves(run, "metrics", "auc"),
        text.decimal,
    )


def _loss(run: Run) -> Figure:
    return by_pass(
        run,
        "Loss",
        "Mean over the samples of a pass.",
        _curves(run, "loss"),
        text.decimal,
    )


def _copc(run: Run) -> Figure:
    return by_pass(
        run,
        "COPC",
        "Clicks divided by predicted clicks: 1 is calibrated, above 1 predictions are too low.",
        _curves(run, "metrics", "copc"),
        lambda v: text.decimal(v, 3),
    )


def _bucket_error(run: Run) -> Figure:
    return by_pass(
        run,
        "Bucket error",
        "As in PaddleBox: how far the click rates of buckets are from the predicted ones; 0 is "
        "best.",
        [
            ("training", 1, at("metrics", "bucket_error")),
            ("test", 2, at("test", "bucket_error")),
        ],
        text.decimal,
    )


def _named_metrics(run: Run) -> list[Figure]:
    """One figure for each metric that the config names, and for each task if there are several."""
    last = run.lines[-1].get("metrics", {}) if run.lines else {}
    paths = [(name,) for name, values in last.items() if isinstance(values, dict)]
    tasks = [("tasks", name) for name in last.get("tasks") or {}]
    return [_named_metric(run, path) for path in [*paths, *tasks] if path != ("tasks",)]


def _named_metric(run: Run, path: tuple[str, ...]) -> Figure:
    values: Any = run.lines[-1]["metrics"]
    for part in path:
        values = values[part]
    known = [k for k in ("wuauc", "uauc", "auc", "mae", "rmse", "rate") if k in values][:2]
    parts = [(key, tone, at("metrics", *path, key)) for tone, key in enumerate(known, 1)]
    of_task = path[0] == "tasks"
    kind, note = ("Task", "One of several.") if of_task else ("Metric", "Named in the config.")
    return by_pass(run, f"{kind} {path[-1]}", note, parts, text.decimal)


def _calibration(run: Run) -> Figure:
    title = "Predicted and actual"
    newest = tested(run)
    last: Line = run.lines[-1] if run.lines else {}
    bins = [("last pass", 1, last.get("calibration"))]
    bins += [(f"test, {newest[0]}", 2, newest[1].get("calibration"))] if newest is not None else []
    known = [(name, tone, found) for name, tone, found in bins if found]
    if not known:
        why = "metrics.jsonl has no calibration: the pass is restored"
        return missing(title, why if run.lines else NO_PASS)
    xs = sorted({row[2] for _, _, found in known for row in found})
    series = []
    for name, tone, found in known:
        rates = {mean: clicks / n for n, clicks, mean in found}
        series.append(Series(name, [rates.get(x) for x in xs], tone))
    most = max(max(xs), max(v for s in series for v in s.values if v is not None))
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
        "Click rates of groups of equal size, ordered by prediction. On the dashed line the click "
        "rate equals the prediction."
    )
    headers = ["of", "samples", "predicted", "actual", "COPC"]
    return Figure(title, note, _joined(xs, series, most), headers, rows)


def _joined(xs: Sequence[float], series: Sequence[Series], most: float) -> str:
    """Curves without gaps: a curve is interpolated where only others have points."""
    filled = [
        Series(
            s.name,
            _filled(xs, s.values),
            s.tone,
            between=frozenset(i for i, value in enumerate(s.values) if value is None),
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
    """The values, with linear interpolation between known ones."""
    known = [i for i, value in enumerate(values) if value is not None]
    out: list[float | None] = list(values)
    for before, after in itertools.pairwise(known):
        low, high = values[before] or 0.0, values[after] or 0.0
        for i in range(before + 1, after):
            part = (xs[i] - xs[before]) / ((xs[after] - xs[before]) or 1)
            out[i] = low + part * (high - low)
    return out
