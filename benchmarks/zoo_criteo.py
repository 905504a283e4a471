"""How good are the zoo's models for single tasks, beside logistic regression on the same features?

    PADDLEBOX_DATA=../shared/data python benchmarks/zoo_criteo.py --part middle --seeds 2
    PADDLEBOX_DATA=../shared/data python benchmarks/zoo_criteo.py --models deepfm

Data: the lines of $PADDLEBOX_DATA/criteo/train.tsv.gz, which are in time order, cut 60 : 20 : 20.
`--part middle` trains on the first part and judges on the middle one: everything was chosen there.
`--part last` trains on the first two and judges on the last. A model is its config,
`configs/<model>_criteo.yaml`, as it stands, once a seed. The regression is that of
quality_criteo.py: 39 hashed features, its C chosen on the last fifth of what trains.

The interval is a paired bootstrap: the judging rows are drawn again 1000 times, and each time the
mean of the seeds' AUCs is compared with the regression's on the same rows.

Goals, with `--part last`: the best model's mean AUC is 0.003 above the regression's, with the whole
interval above 0; DeepFM's is not below it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import report
from quality_criteo import STRENGTHS, criteo_lines, features

MODELS = (
    *("lr", "fm", "dnn", "wide_deep", "deepfm", "dcn", "dcn_v2", "xdeepfm", "autoint"),
    *("fibinet", "dlrm", "gatenet", "masknet", "finalmlp"),
)
DRAWS = 1000
GOAL = 0.003

# A process of its own for each run: python -c WORKER CONFIG SEED TRAIN TEST RUN_DIR
WORKER = """
import sys
from pathlib import Path
import numpy as np
from paddlebox.config import load_config, load_slots
from paddlebox.launch import cpu
path, seed, train, test, run_dir = sys.argv[1:]
config = load_config(path, [
    f"seed={seed}", f"data.train_files=[{train}]", "trainer.dense_threads=1",
    "checkpoint.every=never", "checkpoint.keep_versions=1"])
cpu.apply(config.trainer.program, config.trainer.dense_threads)
from paddlebox.train import opening, session
from paddlebox.train.program import build_runner
session.train(config, Path(run_dir))
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
    """AUC of instances that count weights times. group: the rank of their logits; equal ones count
    one half."""
    clicks = np.bincount(group, weights * labels)
    others = np.bincount(group, weights * (1 - labels))
    below = np.cumsum(others) - others
    return float((clicks * (below + others / 2)).sum() / (clicks.sum() * others.sum()))


def logloss_of(logits: np.ndarray, labels: np.ndarray) -> float:
    return float(np.mean(np.logaddexp(0, logits) - labels * logits))


def interval(seeds: list[np.ndarray], other: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """95 % of the mean over seeds of AUC less the other's, over draws of the rows."""
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


def regression(train: list[str], test: list[str]) -> tuple[float, np.ndarray]:
    """The C that is best on the last fifth of what trains, and logits of test with it."""
    from sklearn.linear_model import LogisticRegression

    def logits(strength: float, known: Any, asked: Any) -> Any:
        model = LogisticRegression(C=strength, solver="liblinear").fit(*known)
        return model.decision_function(asked[0])

    cut = len(train) * 4 // 5
    early, late = features(train[:cut]), features(train[cut:])
    chosen = max(STRENGTHS, key=lambda c: auc_of(logits(c, early, late), late[1]))
    return chosen, logits(chosen, features(train), features(test))


def run(folder: Path, model: str, seed: int, labels: np.ndarray) -> dict[str, Any]:
    """One training run: its logits of the judging rows and what they are worth."""
    run_dir = folder / f"{model}-{seed}"
    files = (folder / "train.txt", folder / "test.txt")
    arguments = (f"configs/{model}_criteo.yaml", seed, *files, run_dir)
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=("middle", "last"), default="last")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side, one thread each")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/zoo_criteo.json"))
    options = parser.parse_args()
    try:
        import sklearn  # noqa: F401
    except ModuleNotFoundError:
        print("skipped: scikit-learn is not installed (pip install 'paddlebox[bench]')")
        return 0
    lines = criteo_lines()
    if lines is None:
        return 0
    first, second = len(lines) * 3 // 5, len(lines) * 4 // 5
    middle = options.part == "middle"
    train = lines[:first] if middle else lines[:second]
    test = lines[first:second] if middle else lines[second:]
    labels = np.array([int(line[0]) for line in test])

    strength, peer = regression(train, test)
    peer_auc = auc_of(peer, labels)
    print(f"{'':12} {'mean AUC':>9} {'least':>8} {'most':>8}  logloss   less the regression's")
    print(f"{'regression':12} {peer_auc:9.5f} {'':17}  {logloss_of(peer, labels):.5f}")
    figures: dict[str, Any] = {"regression": {"C": strength, "auc": peer_auc}}
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
            low, high = interval([one.pop("logits") for one in runs], peer, labels)
            aucs = [one["auc"] for one in runs]
            mean = float(np.mean(aucs))
            loss = float(np.mean([one["logloss"] for one in runs]))
            figures[model] = {"runs": runs, "mean": mean, "less": mean - peer_auc,
                              "interval": [low, high], "logloss": loss}  # fmt: skip
            print(
                f"{model:12} {mean:9.5f} {min(aucs):8.5f} {max(aucs):8.5f}  {loss:.5f}  "
                f"{mean - peer_auc:+.5f} ({low:+.5f} to {high:+.5f})",
                flush=True,
            )
    goals = []
    if not middle:
        best = max(options.models, key=lambda model: float(figures[model]["mean"]))
        less, low = figures[best]["less"], figures[best]["interval"][0]
        goals = [
            report.Goal(
                f"AUC of {best}, the best, less the regression's", less, GOAL, less >= GOAL
            ),
            report.Goal("lower end of its interval", low, 0.0, low > 0),
        ]
        if "deepfm" in figures:
            less = figures["deepfm"]["less"]
            goals.append(report.Goal("AUC of deepfm less the regression's", less, 0.0, less >= 0))
    settings = {"part": options.part, "seeds": options.seeds, "models": list(options.models)}
    return report.write(options.out, settings, json.loads(json.dumps(figures)), goals)


if __name__ == "__main__":
    sys.exit(main())
