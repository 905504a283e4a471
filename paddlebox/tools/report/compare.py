"""The page of several runs: how their settings and results differ, and a confidence interval of the
difference of AUCs from dumped predictions on the same instances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq

from paddlebox.errors import DataError
from paddlebox.tools.report import text
from paddlebox.tools.report.page import (
    TONES,
    Figure,
    Format,
    Page,
    Series,
    missing,
    table,
)
from paddlebox.tools.report.run import ABSENT, Run, differing, number
from paddlebox.tools.report.training_figures import Value, at, over_passes

BOOTSTRAPS = 400
_SENT = "ranks", "bytes_per_sample"


@dataclass(frozen=True)
class Predictions:
    """The predictions of N instances, in the order of the dump."""

    ids: np.ndarray  # (N) of str
    labels: np.ndarray  # (N) float32
    values: np.ndarray  # (N) float32


def read_dump(path: Path) -> Predictions:
    """Read a file of `paddlebox evaluate --dump`, text or Parquet. Raises: DataError that names the
    file, and the line if it is malformed."""
    try:
        if path.suffix == ".parquet":
            table = pq.read_table(path, columns=["ins_id", "label", "prediction"])
            return Predictions(
                table["ins_id"].to_numpy(),
                table["label"].to_numpy().astype(np.float32),
                table["prediction"].to_numpy().astype(np.float32),
            )
        return _read_text(path, path.read_text().splitlines())
    except DataError:
        raise
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path}: not a dump of predictions: {error}") from error


def _read_text(path: Path, lines: list[str]) -> Predictions:
    ids, labels, values = [], [], []
    for at_line, line in enumerate(lines, 1):
        name, *fields = line.split("\t")
        values_of = dict(f.split(":1:", 1) for f in fields if ":1:" in f)
        try:
            labels.append(float(values_of["label"]))
            values.append(float(values_of["prediction"]))
        except (KeyError, ValueError) as error:
            raise DataError(
                f"{path}:{at_line}: expected <ins_id>, label:1:…, prediction:1:…, found "
                f"{line[:80]!r}"
            ) from error
        ids.append(name)
    return Predictions(np.array(ids), np.array(labels, np.float32), np.array(values, np.float32))


def same_instances(first: Predictions, second: Predictions) -> str:
    """The reason why two dumps cannot be compared; "" if they can."""
    if len(first.ids) != len(second.ids):
        return f"one dump has {len(first.ids)} instances, the other {len(second.ids)}"
    if not np.array_equal(first.ids, second.ids) or not np.array_equal(first.labels, second.labels):
        return "their instances or labels differ, or have another order"
    if len(first.ids) == 0 or first.labels.min() == first.labels.max():
        return "there are no instances of both classes"
    return ""


def weighted_auc(
    order: np.ndarray, ends: np.ndarray, positive: np.ndarray, weight: np.ndarray
) -> float:
    """The AUC of instances that count `weight` times each. Ties count half.

    Args:
        order: (N) indices by rising prediction.
        ends: (G) the end of each group of equal predictions in `order`.
        positive: (N) bool.
        weight: (N) integers.
    """
    weight = weight[order].astype(np.float64)
    hit = weight * positive[order]
    starts = np.concatenate(([0], ends[:-1]))
    positives = np.add.reduceat(hit, starts)
    negatives = np.add.reduceat(weight - hit, starts)
    below = np.cumsum(negatives) - negatives
    pairs = positives.sum() * negatives.sum()
    return float((positives * (below + negatives / 2)).sum() / pairs) if pairs else -0.5


def _sorted(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(values, kind="stable")
    changes = np.flatnonzero(np.diff(values[order])) + 1
    return order, np.append(changes, len(values))


class Difference(NamedTuple):
    """The AUC of the second minus that of the first, with the bounds of 95 % of the bootstraps."""

    value: float
    low: float
    high: float
    instances: int


def auc_difference(one: Predictions, other: Predictions) -> Difference:
    """Bootstrap the difference: draw instances with replacement, the same for both, so that common
    variation cancels out (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, the
    percentile interval)."""
    rng = np.random.default_rng(seed=1)
    positive = one.labels > 0.5
    first, second = _sorted(one.values), _sorted(other.values)
    size = len(positive)

    def difference(weight: np.ndarray) -> float:
        return weighted_auc(*second, positive, weight) - weighted_auc(*first, positive, weight)

    draws = (rng.integers(0, size, size) for _ in range(BOOTSTRAPS))
    low, high = np.quantile(
        [difference(np.bincount(drawn, minlength=size)) for drawn in draws], (0.025, 0.975)
    )
    return Difference(difference(np.ones(size, np.int64)), float(low), float(high), size)


def compare_page(runs: Sequence[Run], dumps: Sequence[Predictions] = ()) -> Page:
    """Build the page. dumps: empty, or one for each run."""
    names = _names(runs)
    aucs = [_final_auc(run) for run in runs]
    return Page(
        title=" · ".join(names) if len(names) < 4 else f"{len(names)} runs",
        about="; ".join(
            f"{name}: {run.folder} ({run.state})" for name, run in zip(names, runs, strict=True)
        ),
        tiles=[
            (f"AUC, {name}", text.decimal(auc), of)
            for name, (auc, of) in zip(names, aucs, strict=True)
        ],
        sections={
            "Settings": [_settings(runs, names)],
            "Curves": _curves(runs, names),
            "Results": [_results(runs, names), _differences(names, dumps)],
        },
    )


def _names(runs: Sequence[Run]) -> list[str]:
    """The names of the folders, or their paths if two names are equal."""
    short = [run.folder.resolve().name for run in runs]
    return short if len(set(short)) == len(short) else [str(run.folder) for run in runs]


def _final_auc(run: Run) -> tuple[float | None, str]:
    for evaluation in reversed(run.evaluations):
        if (value := number(evaluation, "auc")) is not None:
            return value, f"test, version {evaluation.get('version')}"
    for line in reversed(run.lines):
        if (value := number(line, "test", "auc")) is not None:
            return value, f"test, after pass {line['pass']}"
    return number(run.last, "metrics", "auc"), "training, last pass" if run.lines else ""


def _settings(runs: Sequence[Run], names: Sequence[str]) -> Figure:
    rows = [
        [key, *("missing" if v is ABSENT else text.setting(v, key) for v in values)]
        for key, values in differing([run.config for run in runs])
    ]
    if not rows:
        return missing("Differences", "the configurations are the same, value by value")
    body = table(["key", *names], rows, left=len(names) + 1, wrap=True)
    return Figure(
        "Differences", "Keys with the same value in all runs are left out.", body, wide=True
    )


def _curves(runs: Sequence[Run], names: Sequence[str]) -> list[Figure]:
    seen, rows = "Predicted before training on the pass.", "Live rows at the newest commit when a "
    copc = "Clicks divided by predicted clicks, training."
    parts: list[tuple[str, str, Value, Format]] = [
        ("AUC, training", seen, at("metrics", "auc"), text.decimal),
        ("AUC, test", "The evaluation after each pass.", at("test", "auc"), text.decimal),
        ("Loss, training", "Mean over a pass.", at("loss"), text.decimal),
        ("COPC", copc, at("metrics", "copc"), partial(text.decimal, digits=3)),
        ("Samples per second", "Over the whole time of a pass.", at("samples_per_s"), text.count),
        ("Rows", f"{rows}pass ended.", at("sizes", "live_rows"), text.count),
    ]
    return [_curve(runs, names, *part) for part in parts]


def _curve(
    runs: Sequence[Run], names: Sequence[str], title: str, note: str, get: Value, value: Format
) -> Figure:
    passes = sorted({line["pass"] for run in runs for line in run.lines})
    series = []
    for i, (run, name) in enumerate(zip(runs, names, strict=True)):
        values = {line["pass"]: get(line) for line in run.lines}
        dashed = i >= TONES  # the colours repeat
        series.append(Series(name, [values.get(x) for x in passes], i % TONES + 1, dashed))
    if not any(v is not None for s in series for v in s.values):
        how = ": set trainer.evaluate_passes: after" if "test" in title else ""
        return missing(title, f"no run has this metric{how}")
    return over_passes(title, note, passes, series, value)


def _results(runs: Sequence[Run], names: Sequence[str]) -> Figure:
    parts: list[tuple[str, Callable[[Run], str]]] = [
        ("state", lambda r: r.state),
        ("AUC", lambda r: text.decimal(_final_auc(r)[0], 5)),
        ("of", lambda r: _final_auc(r)[1]),
        ("last loss", lambda r: text.decimal(number(r.last, "loss"), 5)),
        ("last COPC", lambda r: text.decimal(number(r.last, "metrics", "copc"), 4)),
        ("ranks", lambda r: str(r.size)),
        ("sent per sample, last pass", lambda r: text.size(number(r.last, *_SENT))),
        ("passes", lambda r: str(len(r.lines))),
        ("samples", lambda r: text.count(sum(number(x, "samples") or 0 for x in r.lines))),
        ("time in passes", lambda r: text.seconds(sum(number(x, "seconds") or 0 for x in r.lines))),
        ("live rows", lambda r: text.count(number(r.store, "live_rows"))),
        ("disk", lambda r: text.size(r.disk_bytes or None)),
        ("processor", lambda r: str(r.environment.get("cpu", text.NONE))),
        ("sparse digest", lambda r: str(r.summary.get("sparse_digest", text.NONE))[:16]),
    ]
    rows = [[name, *(get(run) for run in runs)] for name, get in parts]
    return Figure("Final figures", "", table(["", *names], rows), wide=True)


def _differences(names: Sequence[str], dumps: Sequence[Predictions]) -> Figure:
    title = "Confidence of the difference"
    if not dumps:
        why = (
            "it needs predictions of each run on the same files: run `paddlebox evaluate … "
            "--dump FILE` for each run, then `paddlebox compare … --dumps FILE FILE`"
        )
        return missing(title, why)
    rows = []
    for name, dump in zip(names[1:], dumps[1:], strict=True):
        if why := same_instances(dumps[0], dump):
            figures, sure = [""] * 4, why
        else:
            auc = auc_difference(dumps[0], dump)
            figures = [*(f"{v:+.5f}" for v in auc[:3]), text.count(auc.instances)]
            sure = "differ" if auc.low > 0 or auc.high < 0 else "may be the same"
        rows.append([f"{name} − {names[0]}", *figures, sure])
    headers = ["AUC of", "difference", "95 % from", "to", "instances", ""]
    note = "Paired bootstrap: 400 random samples of the instances, the same for both runs."
    return Figure(title, note, table(headers, rows), wide=True)
