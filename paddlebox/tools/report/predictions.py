"""Dumped predictions of two runs on the same instances, and a confidence interval of the difference
of their AUCs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from paddlebox.errors import DataError

BOOTSTRAPS = 400


@dataclass(frozen=True)
class Predictions:
    """The predictions of N instances, in the order of the dump."""

    ids: np.ndarray  # (N) of str
    labels: np.ndarray  # (N) float32
    values: np.ndarray  # (N) float32


def read_dump(path: Path) -> Predictions:
    """Read a file of `tools/evaluate.py --dump`, text or Parquet.

    Raises: DataError that names the file, and the line if it is malformed.
    """
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
    for number, line in enumerate(lines, 1):
        name, *fields = line.split("\t")
        found = dict(f.split(":1:", 1) for f in fields if ":1:" in f)
        try:
            labels.append(float(found["label"]))
            values.append(float(found["prediction"]))
        except (KeyError, ValueError) as error:
            raise DataError(
                f"{path}:{number}: expected <ins_id>, label:1:…, prediction:1:…, found "
                f"{line[:80]!r}"
            ) from error
        ids.append(name)
    return Predictions(np.array(ids), np.array(labels, np.float32), np.array(values, np.float32))


def same_instances(one: Predictions, other: Predictions) -> str:
    """The reason why two dumps cannot be compared; "" if they can."""
    if len(one.ids) != len(other.ids):
        return f"one dump has {len(one.ids)} instances, the other {len(other.ids)}"
    if not np.array_equal(one.ids, other.ids) or not np.array_equal(one.labels, other.labels):
        return "their instances or labels differ, or have another order"
    if len(one.ids) == 0 or one.labels.min() == one.labels.max():
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


@dataclass(frozen=True)
class Difference:
    """The AUC of the second minus that of the first, with the bounds of 95 % of the bootstraps."""

    auc: tuple[float, float]
    low: float
    high: float
    instances: int

    @property
    def value(self) -> float:
        return self.auc[1] - self.auc[0]


def auc_difference(
    one: Predictions, other: Predictions, *, bootstraps: int = BOOTSTRAPS, seed: int = 1
) -> Difference:
    """Bootstrap the difference: draw instances with replacement, the same for both, so that common
    variation cancels out (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, the
    percentile interval)."""
    rng = np.random.default_rng(seed)
    positive = one.labels > 0.5
    first, second = _sorted(one.values), _sorted(other.values)
    size = len(positive)
    ones = np.ones(size, np.int64)
    aucs = weighted_auc(*first, positive, ones), weighted_auc(*second, positive, ones)
    drawn = []
    for _ in range(bootstraps):
        weight = np.bincount(rng.integers(0, size, size), minlength=size)
        drawn.append(
            weighted_auc(*second, positive, weight) - weighted_auc(*first, positive, weight)
        )
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Difference(aucs, float(low), float(high), size)
