"""Are the defaults good? Trains configs that name only files and a model, on data of many kinds.

    PADDLEBOX_DATA=../shared/data python benchmarks/defaults.py

Each dataset (peers/small_data.py) is cut into five folds; four are for training and one for
evaluation. The config of a model has format, slots, files and `model.type`, and for DIN its
history. All else has its default. Fold k has seed 1 + k mod 3.

The models are compared, on the same rows and columns, with the peers of peers/of_columns.py:

  regression  scikit-learn's LogisticRegression with its defaults, but with more iterations, so that
              it converges; numbers are standardized
  LightGBM    LGBMClassifier with its defaults; missing numbers and categories are named

The better peer is the one of regression and LightGBM with the higher mean AUC, or with the lower
mean log loss. Differences are paired by fold; the standard error is that of their mean.

Goals for each dataset and each model but `lr` and `din`:

  AUC         at most 0.001 below the better peer's, allowing two standard errors, and at most 0.003
              below it in the mean; on census at most 0.001 below LightGBM's in the mean
  log loss    at most 0.2 % above the better peer's, allowing two standard errors

and for each such model: ahead of the better peer's AUC by more than 0.002 on half of the datasets.
`lr` is at most 0.002 below the regression. No default was chosen on the datasets that are held out.

The choice of values takes at most 5 % of the CPU seconds of a training. If BEFORE names keys, they
switch off what a run chooses since then: with --before, the models are also trained like that, and
training takes at most 1.5 times as long in all.

This takes some hours. With --resume DIR, the predictions of each training are kept in DIR. A later
call takes from there the peers' on the same rows, and those of the same code.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import importlib.metadata
import io
import json
import multiprocessing
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import report
from peers.of_columns import PEERS, columns_of
from peers.planted_data import Rows
from peers.small_data import DATA_SETS, DataSet
from result_tables import table

MODELS = ("lr", "deepfm", "dcn_v2", "finalmlp", "din")
FOLDS = 5
BEFORE: tuple[str, ...] = (
    *("model.dense_ranges=none", "model.click_prior=false", "trainer.epochs=1"),
    "model.hidden=[400, 400, 400]",
)  # keys with which a run chooses nothing but what it chose before
POINTS: dict[str, list[str]] = {
    "defaults": [],
    "before": list(BEFORE),
}
BELOW, BELOW_IN_THE_MEAN, ABOVE_LOG_LOSS = -0.001, -0.003, 0.002
AHEAD, AHEAD_SHARE, TIMES_BEFORE = 0.002, 0.5, 1.5
CHOOSING_SHARE = 0.05
LR_BELOW_REGRESSION = -0.002
LARGE_ROWS = 200_000  # larger datasets train on two folds only


@dataclass(frozen=True)
class Job:
    """One training, in its own process."""

    data: str
    what: str  # a model or a peer
    fold: int
    point: str = "defaults"
    seed: int = 1


def parts_of(job: Job, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows for training and for evaluation."""
    order = np.random.default_rng(7).permutation(rows)
    judged = order[job.fold :: FOLDS]
    train = np.setdiff1d(order, judged, assume_unique=True)
    np.random.default_rng(job.fold).shuffle(train)
    return train, judged


def load(job: Job, rows: Rows, folder: Path) -> Any:
    """Loads a config that names, besides threads, only what a newcomer would name."""
    from paddlebox.config import load_config

    header = [rows.header] if rows.header else []
    for name, chosen in zip(("train", "test"), parts_of(job, len(rows.lines)), strict=True):
        lines = [*header, *(rows.lines[line] for line in chosen)]
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    model: dict[str, Any] = {"type": job.what}
    slots = rows.slots
    if job.what == "din":
        of_data = next(one.history for one in DATA_SETS if one.name == job.data)
        history, item = of_data.split(": ")
        model["history"] = {history: item}
    else:  # reads no history
        slots = re.sub(r", shares: \w+", "", slots)
    (folder / "slots.yaml").write_text(slots)
    data = {
        "format": rows.format,
        "slots": str(folder / "slots.yaml"),
        "train_files": [str(folder / "train.txt")],
        "test_files": [str(folder / "test.txt")],
    }
    (folder / "config.yaml").write_text(
        json.dumps({"name": "defaults", "data": data, "model": model})
    )
    overrides = [f"seed={job.seed}", *_QUIET, *POINTS[job.point]]
    return load_config(str(folder / "config.yaml"), overrides)


_QUIET = (  # one thread per run and one version; neither changes what is learned
    *("trainer.dense_threads=1", "data.threads=1"),
    "checkpoint.keep_versions=1",
)


def train_and_predict(job: Job, rows: Rows, folder: Path) -> dict[str, Any]:
    """p and labels (n) of the evaluation rows, and the seconds of the training and of the choice of
    its values."""
    from paddlebox.store import run_config
    from paddlebox.training import opening, run
    from paddlebox.training.runner import build_runner
    from paddlebox.training.settle import settled

    run_dir = folder / "run"
    config = load(job, rows, folder)
    spent = list[float]()

    def timed(*args: Any, **more: Any) -> Any:
        began = time.process_time()
        made = settled(*args, **more)
        spent.append(time.process_time() - began)
        return made

    began, cpu = time.perf_counter(), time.process_time()
    with mock.patch.object(run, "settled", timed):
        run.train(config, run_dir)
    seconds = {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu,
        "choosing_seconds": sum(spent),
    }
    config, slots = run_config.of_newest(run_dir)
    found = []
    with opening.open_table(config, run_dir / "store", slots=slots, read_only=True) as rows_of_run:
        runner = build_runner(config, slots)
        runner.load_dense_state(rows_of_run.load_dense())
        dataset = opening.create_dataset(config, slots, rows_of_run, test=True)
        dataset.preload(config.data.test_files)
        dataset.begin_pass()
        for feed in dataset.batches():
            found.append(np.hstack([runner.evaluate_step(feed)[1], feed["box_label"]]))
        dataset.end_pass()
        dataset.close()
    logits, labels = np.concatenate(found).astype(np.float64).T
    return {"p": 1 / (1 + np.exp(-logits)), "labels": labels, **seconds}


def judge_peer(job: Job, rows: Rows) -> dict[str, Any]:
    columns = columns_of(rows)
    known, asked = parts_of(job, len(rows.lines))
    began = time.perf_counter()
    p = PEERS[job.what](columns, known, asked)
    return {"p": p, "labels": columns.labels[asked], "seconds": time.perf_counter() - began}


class Results:
    """Runs jobs on the rows of one dataset, or takes their results from the folder of --resume."""

    def __init__(self, rows: Rows, folder: Path, options: argparse.Namespace) -> None:
        self._rows, self._folder, self._options = rows, folder, options
        text = "\n".join([rows.slots, rows.header, rows.format, *rows.lines])
        self._data = hashlib.sha256(text.encode()).hexdigest()

    def of(self, jobs: Sequence[Job]) -> dict[Job, dict[str, np.ndarray]]:
        kept = {job: self._path(job) for job in jobs}
        missing = [job for job, path in kept.items() if not path.exists()]
        for job, found in run(missing, self._rows, self._folder, self._options.jobs):
            unfinished = kept[job].with_name(f"{os.getpid()}.npz")
            np.savez(unfinished, **found)
            unfinished.rename(kept[job])
        return {job: dict(np.load(path)) for job, path in kept.items()}

    def _path(self, job: Job) -> Path:
        of = peer_version(job.what) if job.what in PEERS else (code(), *POINTS[job.point])
        key = hashlib.sha256(f"{job} {self._data} {of}".encode()).hexdigest()[:16]
        folder = self._options.resume or self._folder
        return Path(folder) / f"{job.data}-{job.what}-{job.point}-{job.fold}-{key}.npz"


@functools.cache
def peer_version(peer: str) -> str:
    name = {"regression": "scikit-learn"}.get(peer, peer)
    return f"{name} {importlib.metadata.version(name)}"


@functools.cache
def code() -> str:
    """A digest of the package, whatever its commit."""
    digest = hashlib.sha256()
    for path in sorted((report.ROOT / "paddlebox").rglob("*")):
        if path.suffix in (".py", ".so"):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def run(jobs: Sequence[Job], rows: Rows, folder: Path, workers: int) -> Iterator[tuple[Job, Any]]:
    """Yields each job with its result. Jobs run in forks of this process, which has imported Paddle
    and has not started threads."""
    if any(job.what in MODELS for job in jobs):
        _import_paddle()
    context = multiprocessing.get_context("fork")
    waiting = list(jobs)
    running: list[tuple[Any, Job, Path]] = []
    while waiting or running:
        while waiting and len(running) < workers:
            job = waiting.pop(0)
            own = Path(tempfile.mkdtemp(dir=folder))
            process = context.Process(target=_child, args=(job, rows, own))
            process.start()
            running.append((process, job, own))
        for entry in list(running):
            process, job, own = entry
            process.join(0.05)
            if process.is_alive():
                continue
            running.remove(entry)
            if not (own / "out.npz").is_file():
                sys.exit(f"{job} failed:\n{(own / 'log').read_text()[-3000:]}")
            with np.load(own / "out.npz") as found:
                yield job, dict(found)
            shutil.rmtree(own)


def _child(job: Job, rows: Rows, own: Path) -> None:
    log = open(own / "log", "w")  # noqa: SIM115  # open until the process ends
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    try:
        found = judge_peer(job, rows) if job.what in PEERS else train_and_predict(job, rows, own)
        np.savez(own / "unfinished.npz", **found)
        (own / "unfinished.npz").rename(own / "out.npz")
    except BaseException:
        traceback.print_exc(file=log)
        raise


def _import_paddle() -> None:
    from paddlebox.config.trainer import Program
    from paddlebox.launch import cpu

    if "paddle" not in sys.modules:
        os.environ["KMP_AFFINITY"] = "disabled"  # otherwise all processes share one core
        cpu.apply(Program.PIR, 1)
        with contextlib.redirect_stderr(io.StringIO()):
            import paddlebox._native  # noqa: F401


def auc_of(found: dict[str, np.ndarray]) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(found["labels"], found["p"]))


def log_loss_of(found: dict[str, np.ndarray]) -> float:
    p = np.clip(found["p"], 1e-7, 1 - 1e-7)
    return float(-np.mean(np.where(found["labels"] > 0, np.log(p), np.log1p(-p))))


def figures_of(results: Sequence[dict[str, np.ndarray]]) -> dict[str, Any]:
    """The figures of a model or peer, each with a value for each fold."""
    figures = {
        "auc": [auc_of(one) for one in results],
        "log_loss": [log_loss_of(one) for one in results],
        "copc": [float(one["labels"].sum() / one["p"].sum()) for one in results],
    }
    for name in ("seconds", "cpu_seconds", "choosing_seconds"):
        if name in results[0]:
            figures[name] = [float(one[name]) for one in results]
    return figures


def mean(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """The mean of the differences on the folds that both have, and its standard error."""
    less = [a - b for a, b in zip(ours, theirs, strict=False)]
    return {"mean": statistics.fmean(less), "error": statistics.stdev(less) / len(less) ** 0.5}


def beside(ours: dict[str, Any], peers: dict[str, Any]) -> dict[str, Any]:
    """The figures of a model with the better peer and the differences from it."""
    by_auc = max(peers, key=lambda name: statistics.fmean(peers[name]["auc"]))
    by_loss = min(peers, key=lambda name: statistics.fmean(peers[name]["log_loss"]))
    relative = [a / b for a, b in zip(ours["log_loss"], peers[by_loss]["log_loss"], strict=True)]
    found = ours | {
        "better": by_auc,
        "less_better": mean(ours["auc"], peers[by_auc]["auc"]),
        "better_by_log_loss": by_loss,
        "log_loss_above": mean(relative, [1.0] * len(relative)),
    }
    return found | {f"less_{name}": mean(ours["auc"], of["auc"]) for name, of in peers.items()}


def measure(data: DataSet, folder: Path, options: argparse.Namespace) -> dict[str, Any] | None:
    """All figures of one dataset; None if its rows are missing."""
    rows = data.make()
    if rows is None:
        return None
    results = Results(rows, folder, options)
    large = len(rows.lines) > LARGE_ROWS
    folds = range(2 if large else options.folds)
    models = [one for one in options.models if one != "din" or data.history]
    points = ["defaults", *(["before"] if options.before else [])]
    ours = {
        (model, point): [Job(data.name, model, fold, point, seed=1 + fold % 3) for fold in folds]
        for model in models
        for point in points
    }
    of_peers = {peer: [Job(data.name, peer, fold) for fold in folds] for peer in PEERS}
    jobs = [job for part in (*of_peers.values(), *ours.values()) for job in part]
    found = results.of(jobs)
    peers = {peer: figures_of([found[job] for job in part]) for peer, part in of_peers.items()}
    figures: dict[str, Any] = {
        "rows": len(rows.lines),
        "held_out": data.held_out,
        "positives": float(np.mean(found[jobs[0]]["labels"])),
        "peers": peers,
        "models": {},
    }
    for model in models:
        own = figures_of([found[job] for job in ours[model, "defaults"]])
        entry = figures["models"][model] = beside(own, peers)
        if options.before:
            entry["before"] = figures_of([found[job] for job in ours[model, "before"]])
    return figures


def goals_of_model(name: str, model: str, entry: dict[str, Any]) -> Iterator[report.Goal]:
    """The goals of a model on one dataset."""
    less = entry["less_better"]
    if model == "lr":
        value = entry["less_regression"]["mean"]
        yield report.at_least(f"{name}, lr: AUC less the regression's", value, LR_BELOW_REGRESSION)
    elif model != "din":
        what = f"{name}, {model}: AUC less the {entry['better']}'s"
        yield report.at_least(f"{what}, and two errors", less["mean"] + 2 * less["error"], BELOW)
        yield report.at_least(what, less["mean"], BELOW_IN_THE_MEAN)
        above = entry["log_loss_above"]
        yield report.at_most(
            f"{name}, {model}: log loss over the {entry['better_by_log_loss']}'s, less two errors",
            above["mean"] - 2 * above["error"],
            ABOVE_LOG_LOSS,
        )
        if name == "census":
            value = entry["less_lightgbm"]["mean"]
            yield report.at_least(f"{name}, {model}: AUC less LightGBM's", value, BELOW)


def goals_of_all(figures: dict[str, Any], models: Sequence[str]) -> Iterator[report.Goal]:
    """The goals of a model over the datasets."""
    for model in models:
        entries = [of["models"][model] for of in figures.values() if model in of["models"]]
        if not entries or model in ("lr", "din"):
            continue
        choosing, cpu = (
            sum(sum(one[name]) for one in entries) for name in ("choosing_seconds", "cpu_seconds")
        )
        yield report.at_most(
            f"{model}: share of the choices in the CPU seconds of a training",
            choosing / cpu,
            CHOOSING_SHARE,
        )
        share = statistics.fmean(one["less_better"]["mean"] > AHEAD for one in entries)
        what = f"{model}: share of the datasets with an AUC more than {AHEAD} above the better peer"
        yield report.at_least(what, share, AHEAD_SHARE)
        if "before" in entries[0]:
            seconds, before = (
                sum(sum(one["seconds"]) for one in part)
                for part in (entries, [one["before"] for one in entries])
            )
            yield report.at_most(
                f"{model}: seconds over those before", seconds / before, TIMES_BEFORE
            )


def not_measured(name: str, models: Sequence[str]) -> list[report.Goal]:
    """The goals of data that is missing."""
    none = {"mean": 0.0, "error": 0.0}
    entry = {"better": "better peer", "better_by_log_loss": "better peer", "less_better": none}
    entry |= {"less_regression": none, "less_lightgbm": none, "log_loss_above": none}
    why = "neither in $PADDLEBOX_DATA nor installed"
    goals = [goal for model in models for goal in goals_of_model(name, model, entry)]
    return [report.not_measured(goal, why) for goal in goals]


def shown(figures: dict[str, Any], model: str) -> str:
    """A table of the datasets with the better peer and a model."""
    head = ["data", "rows", "better peer", model, "difference", "error", "log loss"]
    lines = []
    for name, of in figures.items():
        entry = of["models"].get(model)
        if entry is None:
            continue
        better, less, above = entry["better"], entry["less_better"], entry["log_loss_above"]
        theirs = statistics.fmean(of["peers"][better]["auc"])
        lines.append(
            [
                f"`{name}`" + (", held out" if of["held_out"] else ""),
                f"{of['rows']:,}",
                f"{theirs:.4f} {better}",
                f"{statistics.fmean(entry['auc']):.4f}",
                f"{less['mean']:+.4f}",
                f"{less['error']:.4f}",
                f"{above['mean']:+.2%}",
            ]
        )
    return table(head, lines)


def show(name: str, figures: dict[str, Any]) -> None:
    held = ", held out" if figures["held_out"] else ""
    positives = f"{figures['positives']:.1%} positive"
    print(f"{name}, {figures['rows']} rows, {positives}{held}", flush=True)
    for what, entry in (figures["peers"] | figures["models"]).items():
        text = f"  {what:12}" + "".join(
            f" {label} {statistics.fmean(entry[key]):.{digits}f}"
            for label, key, digits in (
                *(("AUC", "auc", 4), ("log loss", "log_loss", 4)),
                *(("COPC", "copc", 3), ("seconds", "seconds", 1)),
            )
        )
        if "before" in entry:
            text += f" (before {statistics.fmean(entry['before']['seconds']):.1f})"
        if "less_better" in entry:
            less = entry["less_better"]
            text += f", less {entry['better']} {less['mean']:+.4f} ({less['error']:.4f})"
        print(text, flush=True)


def main() -> int:
    names = [one.name for one in DATA_SETS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", choices=names, default=names)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["lr", "deepfm"])
    parser.add_argument("--peers", action="store_true", help="run the peers alone")
    parser.add_argument("--folds", type=int, choices=range(2, FOLDS + 1), default=FOLDS)
    parser.add_argument("--before", action="store_true", help="also train with the keys of BEFORE")
    parser.add_argument("--jobs", type=int, default=2, help="parallel runs, with one thread each")
    parser.add_argument("--resume", type=Path, help="folder that keeps results between calls")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/defaults.json"))
    options = parser.parse_args()
    options.models = [] if options.peers else options.models
    if options.resume:
        options.resume.mkdir(parents=True, exist_ok=True)
    try:
        for peer in PEERS:
            peer_version(peer)
    except importlib.metadata.PackageNotFoundError as error:
        why = f"{error.name} is not installed (make bench-setup)"
        raise report.UnavailableError(why) from None
    figures: dict[str, Any] = {}
    goals: list[report.Goal] = []
    with tempfile.TemporaryDirectory() as scratch:
        for data in DATA_SETS:
            if data.name not in options.data:
                continue
            folder = Path(scratch) / data.name
            folder.mkdir()
            found = measure(data, folder, options)
            if found is None:
                goals += not_measured(data.name, options.models)
                continue
            figures[data.name] = found
            for model, entry in found["models"].items():
                goals += goals_of_model(data.name, model, entry)
            show(data.name, found)
    goals += goals_of_all(figures, options.models)
    for model in options.models:
        print(shown(figures, model), end="\n\n")
    settings = {"folds": options.folds, "models": options.models, "data": list(options.data)}
    return report.write(options.out, settings, figures, goals)


if __name__ == "__main__":
    report.run(main)
