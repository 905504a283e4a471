"""Does DeepFM learn as much as the data allows? Compares it with logistic regressions.

    PADDLEBOX_DATA=../shared/data python benchmarks/quality_criteo.py

Data: the lines of $PADDLEBOX_DATA/criteo/train.tsv.gz, which are in time order. The first 80 % are
for training and the last 20 % for evaluation. All models see the same 39 sparse features (13
bucketed integers, 26 tokens). DeepFM also sees the logarithms of the integers, and so does the
second of two regressions. A regression's C is chosen on the last fifth of the training lines, never
on the evaluation lines. DeepFM is `configs/deepfm_criteo.yaml` unchanged, trained and evaluated by
the tools, once per seed.

Goal: the median AUC of DeepFM over the seeds is at most 0.002 below that of each regression.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import report

MEASURES = (*report.TRAINING, "paddlebox/config", "configs/deepfm_criteo.yaml")
CONFIG = "configs/deepfm_criteo.yaml"
BUCKETS = 1 << 20
STRENGTHS = (0.02, 0.05, 0.1, 0.2)  # sklearn's C, the inverse strength of regularisation
GOAL_GAP = -0.002


def features(lines: list[str]) -> tuple[Any, np.ndarray]:
    """The 39 sparse features that ops/feed/text/criteo.cc makes, hashed into 2^20 columns, and the
    labels."""
    import zlib

    from scipy.sparse import csr_matrix

    indices: list[int] = []
    starts = [0]
    labels = np.empty(len(lines), np.int64)
    for row, line in enumerate(lines):
        columns = line.rstrip("\n").split("\t")
        labels[row] = int(columns[0])
        for column, token in enumerate(columns[1:], 1):
            if column > 13 and not token:
                continue
            if column <= 13 and token:
                value = int(token)
                token = str(math.floor(math.log(value) ** 2) if value > 2 else value)
            indices.append(zlib.crc32(f"{column}={token}".encode()) % BUCKETS)
        starts.append(len(indices))
    matrix = csr_matrix(
        (np.ones(len(indices), np.float32), indices, starts), shape=(len(lines), BUCKETS)
    )
    matrix.sum_duplicates()
    return matrix, labels


def with_logarithms(lines: list[str]) -> tuple[Any, np.ndarray]:
    """The 39 hashed features, followed by the 13 logarithms that the models also see."""
    from scipy.sparse import csr_matrix, hstack

    matrix, labels = features(lines)
    integers = [line.rstrip("\n").split("\t")[1:14] for line in lines]
    logarithms = [[math.log1p(max(float(one or 0), 0)) for one in row] for row in integers]
    return hstack([matrix, csr_matrix(np.array(logarithms, np.float32))]).tocsr(), labels


Features = Callable[[list[str]], tuple[Any, np.ndarray]]
# What the regressions see.
FEATURES: dict[str, Features] = {"regression": features, "with logs": with_logarithms}


def regression(train: list[str], test: list[str], features_of: Features) -> dict[str, float]:
    """C, AUC and logloss of the best regression."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss, roc_auc_score

    def fit(strength: float, matrix: Any, labels: np.ndarray) -> Any:
        return LogisticRegression(C=strength, solver="liblinear").fit(matrix, labels)

    def auc(model: Any, matrix: Any, labels: np.ndarray) -> float:
        return float(roc_auc_score(labels, model.predict_proba(matrix)[:, 1]))

    cut = len(train) * 4 // 5
    early, late = features_of(train[:cut]), features_of(train[cut:])
    chosen = max(STRENGTHS, key=lambda strength: auc(fit(strength, *early), *late))
    matrix, labels = features_of(test)
    model = fit(chosen, *features_of(train))
    return {
        "C": chosen,
        "auc": auc(model, matrix, labels),
        "logloss": float(log_loss(labels, model.predict_proba(matrix)[:, 1])),
    }


def deepfm(
    folder: Path, seed: int, overrides: list[str], run: str = "run", train: str = "train.txt"
) -> dict[str, float]:
    """Figures of one training run on folder/train (a name or pattern)."""
    run_dir = folder / f"{run}-{seed}"
    files = [f"data.train_files=[{folder}/{train}]", f"data.test_files=[{folder}/test.txt]"]
    arguments = ["-c", CONFIG, "--run-dir", str(run_dir), "-o", f"seed={seed}", *files, *overrides]
    started = time.perf_counter()
    outputs = {}
    for tool in ("train", "evaluate"):
        done = subprocess.run(
            [sys.executable, f"tools/{tool}.py", *arguments],
            cwd=report.ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"tools/{tool}.py failed:\n{done.stderr}")
        outputs[tool] = done.stdout
    result = json.loads(outputs["evaluate"].splitlines()[-1])
    return {
        "seed": seed,
        "auc": result["auc"],
        "logloss": result["logloss"],
        "copc": result["copc"],
        "seconds": time.perf_counter() - started,
    }


def criteo_lines() -> list[str]:
    """The lines in time order. Raises: UnavailableError if the data is missing."""
    source = Path(os.environ.get("PADDLEBOX_DATA", "../shared/data")) / "criteo" / "train.tsv.gz"
    if not source.is_file():
        raise report.UnavailableError(
            f"{source} does not exist; set PADDLEBOX_DATA to the folder of real data"
        )
    with gzip.open(source, "rt") as file:
        return file.readlines()


def criteo_split() -> tuple[list[str], list[str]]:
    """The lines for training and those for evaluation. Raises as `criteo_lines` does."""
    lines = criteo_lines()
    cut = len(lines) * 4 // 5
    return lines[:cut], lines[cut:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/quality_criteo.json"))
    parser.add_argument("-o", dest="overrides", nargs="+", default=[], help="as in tools/train.py")
    options = parser.parse_args()
    try:
        import sklearn  # noqa: F401
    except ModuleNotFoundError:
        why = "scikit-learn is not installed (make bench-setup)"
        raise report.UnavailableError(why) from None
    train, test = criteo_split()

    peers = {name: regression(train, test, of) for name, of in FEATURES.items()}
    for name, peer in peers.items():
        print(
            f"{name:20} C {peer['C']:<5} AUC {peer['auc']:.4f}  logloss {peer['logloss']:.4f}",
            flush=True,
        )
    runs = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.txt").write_text("".join(train))
        (folder / "test.txt").write_text("".join(test))
        for seed in range(1, options.seeds + 1):
            run = deepfm(folder, seed, options.overrides)
            runs.append(run)
            print(
                f"DeepFM seed {seed}        AUC {run['auc']:.4f}  logloss {run['logloss']:.4f}  "
                f"{run['seconds']:.1f} s"
            )
    auc = report.spread([run["auc"] for run in runs])
    print(f"DeepFM median        AUC {auc['median']:.4f} ({auc['min']:.4f} to {auc['max']:.4f})")
    return report.write(
        options.out,
        {"config": CONFIG, "seeds": options.seeds, "overrides": options.overrides},
        {"regressions": peers, "deepfm": runs, "auc": auc},
        [
            report.at_least(
                f"AUC of DeepFM less that of {name}",
                [run["auc"] - peer["auc"] for run in runs],
                GOAL_GAP,
            )
            for name, peer in peers.items()
        ],
    )


if __name__ == "__main__":
    report.run(main)
