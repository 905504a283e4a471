"""How good are the zoo's models for single tasks, compared with a logistic regression?

    PADDLEBOX_DATA=../shared/data python benchmarks/zoo_criteo.py --part middle --seeds 2
    PADDLEBOX_DATA=../shared/data python benchmarks/zoo_criteo.py --models deepfm

Data: the lines of $PADDLEBOX_DATA/criteo/train.tsv.gz, which are in time order, cut 60 : 20 : 20.
`--part middle` trains on the first part and evaluates on the middle part, on which everything was
chosen. `--part last` trains on the first two parts and evaluates on the last. A model is its config
`configs/<model>_criteo.yaml`, unchanged, once per seed.

The models are compared with two regressions: one of 39 hashed features (quality_criteo.py), and one
that also has the 13 logarithms that the models see. Each has the C that is best on the middle part.

The interval is a paired bootstrap: the evaluation rows are drawn again 1000 times, and each time
the mean of the seeds' AUCs is compared with the regression's on the same rows.

Goals, with `--part last`, against each regression: the model that is best on the middle part,
finalmlp, has a mean AUC at least 0.003 above it, with the whole interval above 0. The mean AUC of
DeepFM is not below it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import report
from quality_criteo import FEATURES, criteo_lines

MEASURES = (*report.TRAINING, "paddlebox/config", "configs")
MODELS = (
    *("lr", "fm", "dnn", "wide_deep", "deepfm", "dcn", "dcn_v2", "xdeepfm", "autoint"),
    *("fibinet", "dlrm", "gatenet", "masknet", "finalmlp"),
)
# sklearn's C, the inverse strength of regularisation.
STRENGTHS = (0.02, 0.03, 0.05, 0.07, 0.1, 0.2)
DRAWS = 1000
GOAL = 0.003
BEST = "finalmlp"  # on the middle part

# Each run is a process: python -c WORKER CONFIG SEED TRAIN TEST RUN_DIR [OVERRIDE ...]
WORKER = """
import sys
from pathlib import Path
import numpy as np
from paddlebox.config import load_config, load_slots
from paddlebox.launch import cpu
path, seed, train, test, run_dir, *more = sys.argv[1:]
config = load_config(path, [
    f"seed={seed}", f"data.train_files=[{train}]", "trainer.dense_threads=1",
    "checkpoint.every=never", "checkpoint.keep_versions=1", *more])
cpu.apply(config.trainer.program, config.trainer.dense_threads)
from paddlebox.train import opening, run
from paddlebox.train.runner import build_runner
run.train(config, Path(run_dir))
slots = load_slots(config.data.slots)
with opening.open_table(config, Path(run_dir, "store"), read_only=True) as table:
    runner = build_runner(config, slots)
    runner.load_dense_state(table.load_dense())
    dataset = opening.create_dataset(config, slots, table)
    dataset.set_test_mode(True)
    dataset.set_filelist([test])
    dataset.load_into_memory()
    dataset.begin_pass()
    out = [(runner.evaluate_step(feed)[1], feed["box_label"]) for feed in dataset.batches()]
    dataset.end_pass()
    dataset.close()
np.save(Path(run_dir, "out.npy"), np.concatenate([np.hstack(pair) for pair in out]))
"""


def auc_of(logits: np.ndarray, labels: np.ndarray) -> float:
    return _weighted_auc(np.unique(logits, return_inverse=True)[1], labels, np.ones(len(labels)))


def _weighted_auc(group: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> float:
    """AUC with weighted instances. group: the rank of their logits; ties count half."""
    clicks = np.bincount(group, weights * labels)
    others = np.bincount(group, weights * (1 - labels))
    below = np.cumsum(others) - others
    return float((clicks * (below + others / 2)).sum() / (clicks.sum() * others.sum()))


def logloss_of(logits: np.ndarray, labels: np.ndarray) -> float:
    return float(np.mean(np.logaddexp(0, logits) - labels * logits))


def interval(seeds: list[np.ndarray], other: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """95 % interval of the mean AUC over the seeds minus the other AUC, over draws of the rows."""
    random = np.random.default_rng(1)
    ours = [np.unique(logits, return_inverse=True)[1] for logits in seeds]
    theirs = np.unique(other, return_inverse=True)[1]
    found = []
    for _ in range(DRAWS):
        drawn = random.integers(0, len(labels), len(labels))
        weights = np.bincount(drawn, minlength=len(labels)).astype(np.float64)
        mean = np.mean([_weighted_auc(group, labels, weights) for group in ours])
        found.append(mean - _weighted_auc(theirs, labels, weights))
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)


def regressions(
    first: list[str], middle: list[str], train: list[str], test: list[str]
) -> dict[str, tuple[float, float, np.ndarray]]:
    """For each set of features: the C that is best on the middle part, on which the models were
    tuned as well; the AUC there; and the logits of `test` with this C."""
    from sklearn.linear_model import LogisticRegression

    def logits(strength: float, known: Any, asked: Any) -> Any:
        model = LogisticRegression(C=strength, solver="liblinear").fit(*known)
        return model.decision_function(asked[0])

    found = {}
    for name, features_of in FEATURES.items():
        early, late = features_of(first), features_of(middle)
        tried = {c: auc_of(logits(c, early, late), late[1]) for c in STRENGTHS}
        chosen = max(tried, key=lambda c: tried[c])
        asked = logits(chosen, features_of(train), features_of(test))
        found[name] = (chosen, tried[chosen], asked)
    return found


def run(
    folder: Path,
    model: str,
    seed: int,
    labels: np.ndarray,
    overrides: Sequence[str] = (),
    worker: str = WORKER,
) -> dict[str, Any]:
    """Trains a model once. Returns its logits of the evaluation rows, and their metrics."""
    run_dir = Path(tempfile.mkdtemp(prefix=f"{model}-{seed}-", dir=folder))
    files = (folder / "train.txt", folder / "test.txt")
    arguments = (f"configs/{model}_criteo.yaml", seed, *files, run_dir, *overrides)
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", worker, *map(str, arguments)],
        cwd=report.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{model}, seed {seed}, failed:\n{done.stderr}")
    logits, found = np.load(run_dir / "out.npy").T.astype(np.float64)
    if not np.array_equal(found, labels):
        sys.exit(f"{model}, seed {seed}: the predictions are not in the order of the lines")
    return {
        "model": model,
        "seed": seed,
        "auc": auc_of(logits, labels),
        "logloss": logloss_of(logits, labels),
        "seconds": time.perf_counter() - started,
        "logits": logits,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=("middle", "last"), default="last")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="parallel runs, with one thread each")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/zoo_criteo.json"))
    options = parser.parse_args()
    try:
        import sklearn  # noqa: F401
    except ModuleNotFoundError:
        why = "scikit-learn is not installed (make bench-setup)"
        raise report.UnavailableError(why) from None
    lines = criteo_lines()
    first, second = len(lines) * 3 // 5, len(lines) * 4 // 5
    middle = options.part == "middle"
    train = lines[:first] if middle else lines[:second]
    test = lines[first:second] if middle else lines[second:]
    labels = np.array([int(line[0]) for line in test])

    peers = regressions(lines[:first], lines[first:second], train, test)
    print(f"{'':14} {'mean AUC':>9} {'min':>8} {'max':>8}  logloss   minus each regression")
    figures: dict[str, Any] = {}
    for name, (strength, of_middle, logits) in peers.items():
        auc, loss = auc_of(logits, labels), logloss_of(logits, labels)
        figures[name] = {"C": strength, "middle": of_middle, "auc": auc, "logloss": loss}
        print(f"{name:14} {auc:9.5f} {'':17}  {loss:.5f}   (C {strength})", flush=True)
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(options.jobs) as pool:
        folder = Path(name)
        (folder / "train.txt").write_text("".join(train))
        (folder / "test.txt").write_text("".join(test))
        started = {
            model: [
                pool.submit(run, folder, model, seed, labels)
                for seed in range(1, options.seeds + 1)
            ]
            for model in options.models
        }
        for model, futures in started.items():
            runs = [future.result() for future in futures]
            every = [one.pop("logits") for one in runs]
            aucs = [one["auc"] for one in runs]
            mean = float(np.mean(aucs))
            loss = float(np.mean([one["logloss"] for one in runs]))
            less = {
                name: (mean - auc_of(logits, labels), *interval(every, logits, labels))
                for name, (_, _, logits) in peers.items()
            }
            figures[model] = {"runs": runs, "mean": mean, "less": less, "logloss": loss}
            told = ", ".join(f"{d:+.5f} ({a:+.5f} to {b:+.5f})" for d, a, b in less.values())
            print(
                f"{model:14} {mean:9.5f} {min(aucs):8.5f} {max(aucs):8.5f}  {loss:.5f}  {told}",
                flush=True,
            )
    goals = []
    for name in [] if middle else peers:
        if BEST in figures:
            more, low, _ = figures[BEST]["less"][name]
            goals += [
                report.at_least(f"AUC of {BEST} less that of {name}", more, GOAL),
                report.at_least("lower end of its interval", low, 0.0),
            ]
        if "deepfm" in figures:
            more = figures["deepfm"]["less"][name][0]
            goals.append(report.at_least(f"AUC of deepfm less that of {name}", more, 0.0))
    settings = {"part": options.part, "seeds": options.seeds, "models": list(options.models)}
    return report.write(options.out, settings, json.loads(json.dumps(figures)), goals)


if __name__ == "__main__":
    report.run(main)
