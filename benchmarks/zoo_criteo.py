"""How good are the zoo's models for single tasks, compared with trees and a logistic regression?

    PADDLEBOX_DATA=../shared/data python benchmarks/zoo_criteo.py --part middle --seeds 2
    PADDLEBOX_DATA=../shared/data python benchmarks/zoo_criteo.py --models deepfm
    PADDLEBOX_DATA=../shared/data python benchmarks/zoo_criteo.py --part middle \\
        --models finalmlp --seeds 3 --set model.click_prior=true data.shuffle=true
    PADDLEBOX_DATA=../shared/data python benchmarks/zoo_criteo.py --quick

Data: the lines of $PADDLEBOX_DATA/criteo/train.tsv.gz, which are in time order, cut 60 : 20 : 20.
`--part middle` trains on the first part and evaluates on the middle part, on which everything was
chosen. `--part last` trains on the first two parts and evaluates on the last. A model is its config
`configs/<model>_criteo.yaml`, once per seed, unchanged but for the keys of `--set`.

The models are compared with two regressions: one of 39 hashed features (peers/criteo.py), and one
that also has the 13 logarithms that the models see (finalmlp also sees crosses). Each has the C
that is best on the middle part. They are also compared with CatBoost and LightGBM (peers/trees.py),
each with the setting and the number of trees that are best on the middle part, and with as many
seeds as the models. --quick runs everything on few lines, with one seed, two models and one setting
of the trees; its figures say nothing.

The row `average of 3` of a model is the mean of the probabilities of its first three seeds.

The interval is a paired bootstrap: the evaluation rows are drawn again 1000 times, and each time
the mean of the seeds' AUCs is compared with the mean of the other's on the same rows.

Goals, with `--part last`, against each regression: the model that is best on the middle part,
finalmlp, has a mean AUC at least 0.003 above it, with the whole interval above 0. The mean AUC of
DeepFM is not below it. Against CatBoost: the best model's mean AUC and mean logloss, and those of
its average of 3, are not worse.
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
from peers import trees
from peers.criteo import FEATURES, criteo_lines

MODELS = (
    *("lr", "fm", "dnn", "wide_deep", "deepfm", "dcn", "dcn_v2", "xdeepfm", "autoint"),
    *("fibinet", "dlrm", "gatenet", "masknet", "finalmlp"),
)
# sklearn's C, the inverse strength of regularisation.
STRENGTHS = (0.02, 0.03, 0.05, 0.07, 0.1, 0.2)
DRAWS = 1000
QUICK_LINES = 4000
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
from paddlebox.training import opening, run
from paddlebox.training.runner import build_runner
run.train(config, Path(run_dir))
slots = load_slots(config.data.slots)
data = config.data.model_copy(update={"shuffle": False})  # in the order of the lines
config = config.model_copy(update={"data": data})
with opening.open_table(config, Path(run_dir, "store"), read_only=True) as table:
    runner = build_runner(config, slots)
    runner.load_dense_state(table.load_dense())
    dataset = opening.create_dataset(config, slots, table, test=True)
    dataset.preload([test])
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


def average(seeds: Sequence[np.ndarray]) -> np.ndarray:
    """The logits of the mean probability of the first three seeds."""
    p = np.mean([1 / (1 + np.exp(-logits)) for logits in seeds[:3]], axis=0)
    return np.asarray(np.log(p) - np.log1p(-p))


def interval(
    seeds: Sequence[np.ndarray], others: Sequence[np.ndarray], labels: np.ndarray
) -> tuple[float, float]:
    """95 % interval of the mean AUC over the seeds minus that of the other, over draws of the
    rows."""
    random = np.random.default_rng(1)
    ours, theirs = (
        [np.unique(logits, return_inverse=True)[1] for logits in of] for of in (seeds, others)
    )
    found = []
    for _ in range(DRAWS):
        drawn = random.integers(0, len(labels), len(labels))
        weights = np.bincount(drawn, minlength=len(labels)).astype(np.float64)
        ours_mean, theirs_mean = (
            np.mean([_weighted_auc(group, labels, weights) for group in of])
            for of in (ours, theirs)
        )
        found.append(ours_mean - theirs_mean)
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
) -> dict[str, Any]:
    """Trains a model once. Returns its logits of the evaluation rows, and their metrics."""
    run_dir = Path(tempfile.mkdtemp(prefix=f"{model}-{seed}-", dir=folder))
    files = (folder / "train.txt", folder / "test.txt")
    arguments = (f"configs/{model}_criteo.yaml", seed, *files, run_dir, *overrides)
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", WORKER, *map(str, arguments)],
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


def of_trees(
    first: list[str],
    middle: list[str],
    train: list[str],
    test: list[str],
    seeds: int,
    settings: int,
) -> dict[str, tuple[trees.Choice, list[np.ndarray]]]:
    """For each peer: what was chosen on the middle part, and the logits of `test` by seed."""
    early, judging, known, asked = (trees.Rows.of(part) for part in (first, middle, train, test))
    found = {}
    for name in trees.NAMES:
        chosen = trees.choose(name, early, judging, settings)
        logits = [trees.predict(name, chosen, known, asked, seed) for seed in range(1, seeds + 1)]
        found[name] = (chosen, logits)
    return found


def of_seeds(seeds: Sequence[np.ndarray], labels: np.ndarray) -> dict[str, Any]:
    """Mean AUC and logloss over the seeds, and those of their average."""
    mean = average(seeds)
    return {
        "auc": float(np.mean([auc_of(logits, labels) for logits in seeds])),
        "logloss": float(np.mean([logloss_of(logits, labels) for logits in seeds])),
        "average": {"auc": auc_of(mean, labels), "logloss": logloss_of(mean, labels)},
    }


def parts_of(lines: list[str], part: str) -> tuple[list[str], list[str], list[str], list[str]]:
    """The first part and the middle part, and the lines to train on and to evaluate."""
    first, second = len(lines) * 3 // 5, len(lines) * 4 // 5
    middle = part == "middle"
    train, test = (first, second) if middle else (second, len(lines))
    return lines[:first], lines[first:second], lines[:train], lines[train:test]


def goals_of(figures: dict[str, Any]) -> list[report.Goal]:
    """The goals of the last part."""
    goals = []
    for name in FEATURES:
        if BEST in figures:
            more, low, _ = figures[BEST]["less"][name]
            goals += [
                report.at_least(f"AUC of {BEST} less that of {name}", more, GOAL),
                report.at_least("lower end of its interval", low, 0.0),
            ]
        if "deepfm" in figures:
            more = figures["deepfm"]["less"][name][0]
            goals.append(report.at_least(f"AUC of deepfm less that of {name}", more, 0.0))
    if BEST in figures:
        ours, theirs = figures[BEST], figures["catboost"]
        pairs = {"": ((ours["mean"], ours["logloss"]), (theirs["auc"], theirs["logloss"]))}
        pairs[", averages of 3"] = (
            (ours["average"]["auc"], ours["average"]["logloss"]),
            (theirs["average"]["auc"], theirs["average"]["logloss"]),
        )
        for what, ((auc, loss), (their_auc, their_loss)) in pairs.items():
            goals += [
                report.at_least(f"AUC of {BEST} less that of catboost{what}", auc - their_auc, 0.0),
                report.at_most(f"logloss of {BEST} less catboost's{what}", loss - their_loss, 0.0),
            ]
    return goals


def print_peer(name: str, of: dict[str, Any], told: str) -> None:
    print(f"{name:14} {of['auc']:9.5f} {'':17}  {of['logloss']:.5f}   {told}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=("middle", "last"), default="last")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="of all configs")
    parser.add_argument("--jobs", type=int, default=1, help="parallel runs, with one thread each")
    parser.add_argument("--quick", action="store_true", help="few lines, to see that it runs")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/zoo_criteo.json"))
    options = parser.parse_args()
    trees.check_installed()
    lines, settings = criteo_lines(), len(trees.SETTINGS["catboost"])
    if options.quick:
        lines, settings = lines[:QUICK_LINES], 1
        options.seeds, options.models = 1, ("deepfm", BEST)
    first, middle, train, test = parts_of(lines, options.part)
    labels = np.array([int(line[0]) for line in test])

    print(f"{'':14} {'mean AUC':>9} {'min':>8} {'max':>8}  logloss   minus each peer")
    figures: dict[str, Any] = {}
    others: dict[str, list[np.ndarray]] = {}
    for name, (strength, of_middle, logits) in regressions(first, middle, train, test).items():
        others[name] = [logits]
        auc, loss = auc_of(logits, labels), logloss_of(logits, labels)
        figures[name] = {"C": strength, "middle": of_middle, "auc": auc, "logloss": loss}
        print_peer(name, figures[name], f"(C {strength})")
    grown = of_trees(first, middle, train, test, options.seeds, settings)
    for name, (chosen, seeds) in grown.items():
        others[name] = seeds
        figures[name] = {
            "setting": chosen.setting, "trees": chosen.trees, **of_seeds(seeds, labels)
        }  # fmt: skip
        print_peer(name, figures[name], f"({chosen.setting}, {chosen.trees} trees)")
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(options.jobs) as pool:
        folder = Path(name)
        (folder / "train.txt").write_text("".join(train))
        (folder / "test.txt").write_text("".join(test))
        started = {
            model: [
                pool.submit(run, folder, model, seed, labels, options.set)
                for seed in range(1, options.seeds + 1)
            ]
            for model in options.models
        }
        for model, futures in started.items():
            runs = [future.result() for future in futures]
            every = [one.pop("logits") for one in runs]
            aucs, own = [one["auc"] for one in runs], of_seeds(every, labels)
            less = {
                name: (
                    own["auc"] - float(np.mean([auc_of(one, labels) for one in theirs])),
                    *interval(every, theirs, labels),
                )
                for name, theirs in others.items()
            }
            figures[model] = {"runs": runs, "mean": own.pop("auc"), **own, "less": less}
            told = ", ".join(f"{d:+.5f} ({a:+.5f} to {b:+.5f})" for d, a, b in less.values())
            print(
                f"{model:14} {figures[model]['mean']:9.5f} {min(aucs):8.5f} {max(aucs):8.5f}  "
                f"{own['logloss']:.5f}  {told}",
                flush=True,
            )
    goals = goals_of(figures) if options.part == "last" and not options.quick else []
    given = {"part": options.part, "seeds": options.seeds, "models": list(options.models)}
    given |= {"set": options.set} if options.set else {}
    return report.write(options.out, given, json.loads(json.dumps(figures)), goals)


if __name__ == "__main__":
    report.run(main)
