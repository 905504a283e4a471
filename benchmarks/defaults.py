"""Are the defaults good? Trains configs that name only files and a model, on data of many kinds.

    PADDLEBOX_DATA=../shared/data python benchmarks/defaults.py

Each dataset (peers/small_data.py) is cut into five folds; four are for training and one for
evaluation. The config of a model has format, slots, files and `model.type`, and for DIN its
history. All else has its default. Fold k has seed 1 + k mod 3.

The models are compared, on the same rows and features, with

  regression  scikit-learn's LogisticRegression with its defaults, but with more iterations, so that
              it converges
  LightGBM    LGBMClassifier with its defaults; shown, but not a goal
  grid        the best point of the grid below: chosen by the AUC on the last fifth of the first
              fold's training rows, then trained on every fold

The standard error of a difference is that of its mean over the folds.

Goals for each dataset: DeepFM, DCN v2 and FinalMLP are at most 0.002 below the regression, allowing
two standard errors, and at most 0.003 below the best of the grid. `lr` is at most 0.002 below the
regression. A missed goal is printed with its figures. No default was chosen on the datasets that
are held out.

This takes some hours. With --resume DIR, the result of each training is kept in DIR, and a later
call takes from there what was measured with the same code.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import multiprocessing
import os
import re
import shutil
import statistics
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import report
from peers.small_data import DATA_SETS, DataSet, Rows

MODELS = ("lr", "deepfm", "dcn_v2", "finalmlp", "din")
NETWORKS = ("deepfm", "dcn_v2", "finalmlp")
FOLDS = 5
GRID: dict[str, list[str]] = {
    "defaults": [],
    "batch_size 128": ["data.batch_size=128"],
    "batch_size 512": ["data.batch_size=512"],
    "embed rate 0.03": ["table.embed.learning_rate=0.03"],
    "embed rate 0.3": ["table.embed.learning_rate=0.3"],
    "dense rate 3e-4": ["optimizer.learning_rate=3e-4"],
    "hidden 128-64": ["model.hidden=[128, 64]"],
    "use_cvm": ["model.use_cvm=true"],
}
BELOW_REGRESSION, BELOW_GRID = -0.002, -0.003
LARGE_ROWS = 200_000  # larger datasets train on two folds only, and not on the grid


@dataclass(frozen=True)
class Job:
    """One run, in its own process."""

    data: str
    what: str  # a model, or "peers"
    fold: int
    point: str = "defaults"  # point of the grid
    early: bool = False  # trains on four fifths of the training rows and evaluates on the rest
    seed: int = 1


def write_folds(folder: Path, rows: Rows) -> None:
    """Writes FOLDER/<fold>/{train,test,fit,valid}.<suffix> and slots.yaml."""
    order = np.random.default_rng(7).permutation(len(rows.lines))
    header = [rows.header] if rows.header else []
    for fold in range(FOLDS):
        judged = order[fold::FOLDS]
        train = np.setdiff1d(order, judged, assume_unique=True)
        np.random.default_rng(fold).shuffle(train)
        cut = len(train) * 4 // 5
        at = folder / str(fold)
        at.mkdir(parents=True)
        parts = {"train": train, "test": judged, "fit": train[:cut], "valid": train[cut:]}
        for name, chosen in parts.items():
            lines = [*header, *(rows.lines[line] for line in chosen)]
            (at / f"{name}.txt").write_text("\n".join(lines) + "\n")
        (at / "slots.yaml").write_text(rows.slots)
        apart = re.sub(r", shares: \w+", "", rows.slots)
        (at / "apart.yaml").write_text(apart)  # for models that read no history
        (at / "format").write_text(rows.format)


def load(job: Job, at: Path) -> Any:
    """Loads a config that names, besides threads, only what a newcomer would name."""
    from paddlebox.config import load_config

    train, test = ("fit", "valid") if job.early else ("train", "test")
    history = next(one.history for one in DATA_SETS if one.name == job.data)
    model: dict[str, Any] = {"type": job.what}
    if job.what == "din":
        name, item = history.split(": ")
        model["history"] = {name: item}
    data = {
        "format": (at / "format").read_text(),
        "slots": str(at / ("slots.yaml" if job.what == "din" else "apart.yaml")),
        "train_files": [str(at / f"{train}.txt")],
        "test_files": [str(at / f"{test}.txt")],
    }
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump({"name": "defaults", "data": data, "model": model}, file)
        file.flush()
        return load_config(file.name, [f"seed={job.seed}", *_QUIET, *GRID[job.point]])


_QUIET = (  # one thread per run and one version; neither changes what is learned
    *("trainer.dense_threads=1", "data.threads=1"),
    "checkpoint.keep_versions=1",
)


def train_and_predict(job: Job, at: Path, out: Path) -> None:
    """Writes logits (n) and labels (n) of the evaluation rows."""
    from paddlebox.store import run_config
    from paddlebox.training import opening, run
    from paddlebox.training.runner import build_runner

    run_dir = Path(tempfile.mkdtemp(dir=out.parent)) / "run"
    config = load(job, at)
    run.train(config, run_dir)
    config, slots = run_config.of_newest(run_dir)
    found = []
    with opening.open_table(config, run_dir / "store", slots=slots, read_only=True) as table:
        runner = build_runner(config, slots)
        runner.load_dense_state(table.load_dense())
        dataset = opening.create_dataset(config, slots, table, test=True)
        dataset.preload(config.data.test_files)
        dataset.begin_pass()
        for feed in dataset.batches():
            found.append(np.hstack([runner.evaluate_step(feed)[1], feed["box_label"]]))
        dataset.end_pass()
        dataset.close()
    shutil.rmtree(run_dir.parent)
    logits, labels = np.concatenate(found).astype(np.float64).T
    np.savez(out, logits=logits, labels=labels)


def judge_peers(job: Job, at: Path, out: Path) -> None:
    """Writes the AUCs of `peers`, which get the rows with the same features as the models."""
    from paddlebox.config import KeySpace, load_slots
    from paddlebox.training import opening

    config = load(Job(job.data, "lr", job.fold), at)
    data = {"key_space": KeySpace.PER_SLOT, "batch_size": 1 << 16}
    config = config.model_copy(update={"data": config.data.model_copy(update=data)})
    slots = load_slots(at / "apart.yaml")
    parts: list[tuple[np.ndarray, ...]] = []
    with opening.open_table(config, Path(tempfile.mkdtemp(dir=out.parent)) / "store") as table:
        dataset = opening.create_dataset(config, slots, table)
        dataset.preload([*config.data.train_files, *config.data.test_files])
        dataset.begin_pass()
        for feed in dataset.batches():
            names = ("box_ids", "box_offsets", "box_dense", "box_label")
            ids, offsets, dense, label = (np.array(feed[name]) for name in names)
            lengths = np.diff(offsets).reshape(len(label), -1)
            parts.append((ids, lengths[:, : len(slots.sparse)], dense, label[:, 0]))
        lines = (at / "test.txt").read_text().count("\n") - (config.data.format == "csv")
        ids, lengths, dense, labels = (
            np.concatenate(column) for column in zip(*parts, strict=True)
        )
        of_peers = peers(ids, lengths, dense, labels, lines)
        np.savez(out, regression=of_peers["regression"], lightgbm=of_peers["lightgbm"])
        os._exit(0)  # the pass is not trained


def results_of(jobs: Sequence[Job], folder: Path, options: argparse.Namespace) -> dict[Job, Any]:
    """The result of each job, from the folder of --resume if it is there."""
    if options.resume is None:
        return dict(run(jobs, folder, options.jobs))
    code = report.commit()
    options.resume.mkdir(parents=True, exist_ok=True)
    kept = {
        job: options.resume / f"{hashlib.sha256(f'{job} {code}'.encode()).hexdigest()[:32]}.npz"
        for job in jobs
    }
    for job, found in run([job for job in jobs if not kept[job].exists()], folder, options.jobs):
        unfinished = kept[job].with_name("unfinished.npz")
        np.savez(unfinished, **found)
        unfinished.rename(kept[job])
    return {job: np.load(path) for job, path in kept.items()}


def run(jobs: Sequence[Job], folder: Path, workers: int) -> Iterator[tuple[Job, Any]]:
    """Yields each job with its result. Jobs run in forks of this process, which has imported Paddle
    and has not started threads."""
    _import_paddle()
    context = multiprocessing.get_context("fork")
    waiting = list(jobs)
    running: list[tuple[Any, Job, Path]] = []
    while waiting or running:
        while waiting and len(running) < workers:
            job = waiting.pop(0)
            out = Path(tempfile.mkdtemp(dir=folder)) / "out.npz"
            process = context.Process(target=_child, args=(job, folder / job.data, out))
            process.start()
            running.append((process, job, out))
        for entry in list(running):
            process, job, out = entry
            process.join(0.05)
            if process.is_alive():
                continue
            running.remove(entry)
            if not out.is_file():
                sys.exit(f"{job} failed:\n{(out.parent / 'log').read_text()[-3000:]}")
            with np.load(out) as found:
                yield job, dict(found)
            shutil.rmtree(out.parent)


def _child(job: Job, data: Path, out: Path) -> None:
    log = open(out.parent / "log", "w")  # noqa: SIM115  # open until the process ends
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    try:
        work = judge_peers if job.what == "peers" else train_and_predict
        work(job, data / str(job.fold), out)
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


def auc_of(scores: np.ndarray, labels: np.ndarray) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(labels, scores))


def peers(
    ids: np.ndarray, lengths: np.ndarray, dense: np.ndarray, labels: np.ndarray, judged: int
) -> dict[str, float]:
    """AUC of the regression and of LightGBM on the last `judged` rows.

    Letters: n = rows, S = slots, W = dense features.

    Args:
        ids: the ids of all slots, one row after the other. The same value in two slots has two ids.
        lengths: (n, S) number of ids of each slot.
        dense: (n, W).
        labels: (n).
        judged: number of rows, at the end, for evaluation.
    """
    import lightgbm
    from scipy.sparse import csr_matrix, hstack
    from sklearn.linear_model import LogisticRegression

    n = len(labels)
    starts = np.concatenate([[0], np.cumsum(lengths.sum(axis=1))])
    width = int(ids.max()) + 1 if len(ids) else 1
    ones = csr_matrix((np.ones(len(ids), np.float32), ids.astype(np.int64), starts), (n, width))
    matrix = hstack([ones, csr_matrix(dense)]).tocsr()
    known, asked = slice(0, n - judged), slice(n - judged, n)
    regression = LogisticRegression(max_iter=300).fit(matrix[known], labels[known])

    # Trees get the first value of each slot as a category, the number of its values, and the
    # dense features.
    bounds = starts[:-1, None] + np.concatenate(
        [np.zeros((n, 1), np.int64), np.cumsum(lengths, axis=1)[:, :-1]], axis=1
    )
    padded = np.append(ids, 0)
    columns = []
    for slot in range(lengths.shape[1]):
        first = np.where(lengths[:, slot] > 0, padded[np.minimum(bounds[:, slot], len(ids))], -1)
        columns.append(np.unique(first, return_inverse=True)[1])
    several = [lengths[:, slot] for slot in range(lengths.shape[1]) if lengths[:, slot].max() > 1]
    table = np.column_stack([*columns, *several, dense]).astype(np.float64)
    trees = lightgbm.LGBMClassifier(n_jobs=1, verbosity=-1).fit(
        table[known], labels[known], categorical_feature=list(range(len(columns)))
    )
    return {
        "regression": auc_of(regression.decision_function(matrix[asked]), labels[asked]),
        "lightgbm": auc_of(trees.predict_proba(table[asked])[:, 1], labels[asked]),
    }


def measure(data: DataSet, folder: Path, options: argparse.Namespace) -> dict[str, Any] | None:
    """All figures of one dataset; None if its rows are missing."""
    rows = data.make()
    if rows is None:
        return None
    write_folds(folder / data.name, rows)
    large = len(rows.lines) > LARGE_ROWS
    folds = range(2 if large else FOLDS)
    models = [one for one in options.models if one != "din" or data.history]
    figures: dict[str, Any] = {"rows": len(rows.lines), "held_out": data.held_out, "models": {}}

    jobs = [Job(data.name, "peers", fold) for fold in folds]
    jobs += [
        Job(data.name, model, fold, seed=1 + (fold + shift) % 3)
        for model in models
        for fold in folds
        for shift in range(options.seeds)
    ]
    if not large:
        jobs += [
            Job(data.name, model, 0, point, early=True)
            for model in models
            if model in NETWORKS
            for point in GRID
        ]
    aucs: dict[Job, float] = {}
    beside: dict[str, dict[int, float]] = {"regression": {}, "lightgbm": {}}
    for job, found in results_of(jobs, folder, options).items():
        if job.what == "peers":
            for name, auc in found.items():
                beside[name][job.fold] = float(auc)
        else:
            aucs[job] = auc_of(found["logits"], found["labels"])
    for name, of_fold in beside.items():
        figures[name] = [of_fold[fold] for fold in folds]

    best: dict[str, str] = {}
    for model in models:
        early = {job.point: auc for job, auc in aucs.items() if job.early and job.what == model}
        if early:
            best[model] = max(early, key=early.__getitem__)
    more = [
        Job(data.name, model, fold, point, seed=1 + fold % 3)
        for model, point in best.items()
        if point != "defaults"
        for fold in folds
    ]
    for job, found in results_of(more, folder, options).items():
        aucs[job] = auc_of(found["logits"], found["labels"])

    def of_folds(model: str, point: str) -> list[float]:
        return [
            statistics.fmean(
                auc
                for job, auc in aucs.items()
                if (job.what, job.fold, job.point, job.early) == (model, fold, point, False)
            )
            for fold in folds
        ]

    for model in models:
        own = of_folds(model, "defaults")
        entry: dict[str, Any] = {"auc": own, "less_regression": mean(own, figures["regression"])}
        if model in best:
            entry["grid"] = {
                job.point: auc for job, auc in aucs.items() if job.early and job.what == model
            }
            entry["grid_best"] = best[model]
            entry["less_grid"] = mean(own, of_folds(model, best[model]))
        figures["models"][model] = entry
    shutil.rmtree(folder / data.name)
    return figures


def mean(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """The mean of the differences, and its standard error."""
    less = [a - b for a, b in zip(ours, theirs, strict=True)]
    return {"mean": statistics.fmean(less), "error": statistics.stdev(less) / len(less) ** 0.5}


def goals_of(name: str, figures: dict[str, Any]) -> Iterator[report.Goal]:
    for model, entry in figures["models"].items():
        less = entry["less_regression"]
        if model in NETWORKS:
            value = less["mean"] + 2 * less["error"]
            what = f"{name}, {model}: AUC less the regression's, and two errors"
            yield report.at_least(what, value, BELOW_REGRESSION)
        elif model == "lr":
            value = less["mean"]
            yield report.at_least(f"{name}, lr: AUC less the regression's", value, BELOW_REGRESSION)
        if "less_grid" in entry:
            value = entry["less_grid"]["mean"]
            what = f"{name}, {model}: AUC less that of {entry['grid_best']}"
            yield report.at_least(what, value, BELOW_GRID)


def not_measured(name: str, models: Sequence[str]) -> list[report.Goal]:
    """The goals of data whose file is missing."""
    entry = {"less_regression": {"mean": 0.0, "error": 0.0}}
    found = goals_of(name, {"models": dict.fromkeys(models, entry)})
    return [report.not_measured(goal, "its file is not in $PADDLEBOX_DATA") for goal in found]


def show(name: str, figures: dict[str, Any]) -> None:
    held = ", held out" if figures["held_out"] else ""
    print(f"{name}, {figures['rows']} rows{held}", flush=True)
    for peer in ("regression", "lightgbm"):
        print(f"  {peer:12} {statistics.fmean(figures[peer]):.4f}")
    for model, entry in figures["models"].items():
        less = entry["less_regression"]
        text = f"less regression {less['mean']:+.4f} ({less['error']:.4f})"
        if "less_grid" in entry:
            text += f", less grid's best {entry['less_grid']['mean']:+.4f} ({entry['grid_best']})"
        print(f"  {model:12} {statistics.fmean(entry['auc']):.4f}  {text}", flush=True)


def main() -> int:
    names = [one.name for one in DATA_SETS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", choices=names, default=names)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--seeds", type=int, default=1, help="runs per fold")
    parser.add_argument("--jobs", type=int, default=2, help="parallel runs, with one thread each")
    parser.add_argument("--resume", type=Path, help="folder that keeps results between calls")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/defaults.json"))
    options = parser.parse_args()
    try:
        import lightgbm  # noqa: F401
        import sklearn  # noqa: F401
    except ModuleNotFoundError as error:
        why = f"{error.name} is not installed (make bench-setup)"
        raise report.UnavailableError(why) from None
    figures: dict[str, Any] = {}
    goals: list[report.Goal] = []
    with tempfile.TemporaryDirectory() as scratch:
        for data in DATA_SETS:
            if data.name not in options.data:
                continue
            found = measure(data, Path(scratch), options)
            if found is None:
                goals += not_measured(data.name, options.models)
                continue
            figures[data.name] = found
            goals += goals_of(data.name, found)
            show(data.name, found)
    settings = {"seeds": options.seeds, "models": list(options.models), "data": list(options.data)}
    return report.write(options.out, settings, figures, goals)


if __name__ == "__main__":
    report.run(main)
