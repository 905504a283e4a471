"""The page of several runs: the differences of their settings and of their results."""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Callable, Sequence
from pathlib import Path

from paddlebox.errors import ConfigError
from paddlebox.tools.report import text
from paddlebox.tools.report.by_pass import Value, at, over_passes
from paddlebox.tools.report.cli import guarded
from paddlebox.tools.report.figures import TONES, Figure, Format, Series, curves, missing, table
from paddlebox.tools.report.page import Page, Section, Tile, write_page
from paddlebox.tools.report.predictions import (
    Predictions,
    auc_difference,
    read_dump,
    same_instances,
)
from paddlebox.tools.report.ranks import read_run
from paddlebox.tools.report.run import Line, Run, number
from paddlebox.tools.report.settings import ABSENT, differing


def compare_main(argv: Sequence[str] | None = None) -> int:
    """Run tools/compare.py. Returns the exit code: 0, or 2 if a run or dump cannot be read."""
    parser = argparse.ArgumentParser(
        description="Writes one page that shows several runs side by side."
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN_DIR")
    parser.add_argument("--out", type=Path, default=Path("compare.html"), metavar="FILE")
    parser.add_argument(
        "--dumps",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="predictions of each run on the same files, in the order of the runs "
        "(tools/evaluate.py --dump): adds a confidence interval of the difference of AUCs",
    )
    arguments = parser.parse_args(argv)

    def write() -> int:
        if len(arguments.runs) < 2:
            raise ConfigError("compare: expected at least two run dirs, found one")
        if arguments.dumps and len(arguments.dumps) != len(arguments.runs):
            raise ConfigError(
                f"--dumps: expected one for each of the {len(arguments.runs)} runs, in the same "
                f"order, found {len(arguments.dumps)}"
            )
        dumps = [read_dump(path) for path in arguments.dumps]
        runs = [read_run(folder) for folder in arguments.runs]
        write_page(compare_page(runs, dumps), arguments.out)
        print(arguments.out)
        return 0

    return guarded(write)


def compare_page(runs: Sequence[Run], dumps: Sequence[Predictions] = ()) -> Page:
    """Build the page. dumps: empty, or one for each run."""
    names = _names(runs)
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return Page(
        title=" · ".join(names) if len(names) < 4 else f"{len(names)} runs",
        about="; ".join(
            f"{name}: {run.folder} ({run.state})" for name, run in zip(names, runs, strict=True)
        ),
        tiles=[
            Tile(f"AUC, {name}", text.decimal(_final_auc(run)[0]), _final_auc(run)[1])
            for name, run in zip(names, runs, strict=True)
        ],
        sections=[
            Section("Settings", [_settings(runs, names)]),
            Section("Curves", _curves(runs, names)),
            Section("Results", [_results(runs, names), _differences(names, dumps)]),
        ],
        footer=f"Written {now}.",
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
    return (
        (number(run.lines[-1], "metrics", "auc"), "training, last pass")
        if run.lines
        else (None, "")
    )


def _settings(runs: Sequence[Run], names: Sequence[str]) -> Figure:
    rows = [
        [key, *("missing" if v is ABSENT else text.setting(v, key) for v in values)]
        for key, values in differing([run.config for run in runs])
    ]
    if not rows:
        return missing("Differences", "the configurations are the same, value by value")
    body = f"<div class=wrap>{table(['key', *names], rows, left=len(names) + 1)}</div>"
    return Figure(
        "Differences", "Keys with the same value in all runs are left out.", body, wide=True
    )


def _curves(runs: Sequence[Run], names: Sequence[str]) -> list[Figure]:
    parts: list[tuple[str, str, Value, Format]] = [
        (
            "AUC, training",
            "Predicted before training on the pass.",
            at("metrics", "auc"),
            text.decimal,
        ),
        (
            "AUC, test",
            "data.test_files after each pass.",
            at("test", "auc"),
            text.decimal,
        ),
        ("Loss, training", "Mean over a pass.", at("loss"), text.decimal),
        (
            "COPC",
            "Clicks divided by predicted clicks, training.",
            at("metrics", "copc"),
            lambda v: text.decimal(v, 3),
        ),
        (
            "Samples per second",
            "Over the whole time of a pass.",
            at("samples_per_s"),
            text.count,
        ),
        (
            "Rows",
            "Live rows at the newest commit when a pass ended.",
            at("sizes", "live_rows"),
            text.count,
        ),
    ]
    return [_curve(runs, names, *part) for part in parts]


def _curve(
    runs: Sequence[Run],
    names: Sequence[str],
    title: str,
    note: str,
    get: Value,
    value: Format,
) -> Figure:
    passes = sorted({line["pass"] for run in runs for line in run.lines})
    series = []
    for i, (run, name) in enumerate(zip(runs, names, strict=True)):
        values = {line["pass"]: get(line) for line in run.lines}
        dashed = i >= TONES  # the colours repeat
        series.append(Series(name, [values.get(x) for x in passes], i % TONES + 1, dashed))
    if not any(v is not None for s in series for v in s.values):
        return missing(
            title,
            "no run has this metric: set trainer.evaluate_after_pass"
            if "test" in title
            else "no run has this metric",
        )
    return over_passes(title, note, passes, series, value, curves)


def _results(runs: Sequence[Run], names: Sequence[str]) -> Figure:
    parts: list[tuple[str, Callable[[Run], str]]] = [
        ("state", lambda r: r.state),
        ("AUC", lambda r: text.decimal(_final_auc(r)[0], 5)),
        ("of", lambda r: _final_auc(r)[1]),
        ("last loss", lambda r: text.decimal(number(_last(r), "loss"), 5)),
        ("last COPC", lambda r: text.decimal(number(_last(r), "metrics", "copc"), 4)),
        ("ranks", lambda r: str(r.size)),
        ("sent per sample, last pass", _sent_a_sample),
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


def _sent_a_sample(run: Run) -> str:
    return text.size(number(_last(run), "ranks", "bytes_per_sample"))


def _last(run: Run) -> Line:
    return run.lines[-1] if run.lines else {}


def _differences(names: Sequence[str], dumps: Sequence[Predictions]) -> Figure:
    title = "Confidence of the difference"
    if not dumps:
        why = (
            "it needs predictions of each run on the same files: run tools/evaluate.py … --dump "
            "FILE for each run, then tools/compare.py … --dumps FILE FILE"
        )
        return missing(title, why)
    rows = []
    for name, dump in zip(names[1:], dumps[1:], strict=True):
        if why := same_instances(dumps[0], dump):
            rows.append([f"{name} − {names[0]}", "", "", "", "", why])
            continue
        found = auc_difference(dumps[0], dump)
        sure = "differ" if found.low > 0 or found.high < 0 else "may be the same"
        rows.append(
            [
                f"{name} − {names[0]}",
                f"{found.value:+.5f}",
                f"{found.low:+.5f}",
                f"{found.high:+.5f}",
                text.count(found.instances),
                sure,
            ]
        )
    headers = ["AUC of", "difference", "95 % from", "to", "instances", ""]
    note = "Paired bootstrap: 400 random samples of the instances, the same for both runs."
    return Figure(title, note, table(headers, rows), wide=True)
