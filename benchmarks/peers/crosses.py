"""Ranks pairs of Criteo's features by what their crosses add to the features themselves."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from peers.trees import FOLDS, INTEGERS, STRENGTH, TOKENS, Rows

NAMES = [f"I{k}" for k in range(1, INTEGERS + 1)] + [f"C{k}" for k in range(1, TOKENS + 1)]
_TREES = 300


def buckets(integers: np.ndarray) -> np.ndarray:
    """The buckets of datasets/criteo/slots.yaml; -9 where there is no integer."""
    found = np.where(integers > 2, np.floor(np.log(np.maximum(integers, 1.0)) ** 2), integers)
    return np.asarray(np.where(np.isnan(integers), -9, found)).astype(np.int64)


def codes(rows: Rows) -> list[np.ndarray]:
    """For each of the 39 features: (n) its value as a number from 0."""
    columns = [*buckets(rows.integers).T, *rows.tokens.astype(str).T]
    return [np.unique(column, return_inverse=True)[1] for column in columns]


def empty(rows: Rows) -> list[np.ndarray]:
    """For each of the 39 features: (n) whether its slot has no feasign. The buckets always have."""
    without = [np.zeros(len(rows.labels), bool)] * INTEGERS
    return [*without, *(rows.tokens == "").T]


def errors_of(code: np.ndarray, error: np.ndarray, p: np.ndarray, fold: np.ndarray) -> Any:
    """The smoothed mean error of the value of each row, from the rows of the other folds.

    code, error, p, fold: (n). Returns: (n), one Newton step of the log odds of p.
    """
    at, size = code * FOLDS + fold, (int(code.max()) + 1) * FOLDS
    errors = np.bincount(at, error, minlength=size).reshape(-1, FOLDS)
    weights = np.bincount(at, p * (1 - p), minlength=size).reshape(-1, FOLDS)
    others = errors.sum(axis=1)[code] - errors[code, fold]
    prior = STRENGTH * float(np.mean(p * (1 - p)))
    return others / (weights.sum(axis=1)[code] - weights[code, fold] + prior)


def _predictions(table: np.ndarray, labels: np.ndarray, fold: np.ndarray, seed: int) -> np.ndarray:
    """(n) probabilities of LightGBM, each from the rows of the other folds."""
    import lightgbm

    p = np.empty(len(labels))
    for one in range(FOLDS):
        model = lightgbm.LGBMClassifier(
            n_estimators=_TREES, learning_rate=0.03, num_leaves=15, random_state=seed,
            min_child_samples=100, subsample=0.8, subsample_freq=1, colsample_bytree=0.5,
            verbosity=-1, n_jobs=1,
        )  # fmt: skip
        model.fit(table[fold != one], labels[fold != one])
        p[fold == one] = model.predict_proba(table[fold == one])[:, 1]
    return p


def _scores(rows: Rows, seed: int) -> dict[tuple[str, str], float]:
    labels = rows.labels
    fold = np.random.default_rng(seed).integers(0, FOLDS, len(labels))
    of_feature, none = codes(rows), empty(rows)
    mean = np.full(len(labels), labels.mean())
    known = [errors_of(code, labels - mean, mean, fold) for code in of_feature]
    p = _predictions(np.column_stack([*known, rows.integers]), labels, fold, seed)
    found = {}
    for left, right in itertools.combinations(range(len(NAMES)), 2):
        both = of_feature[left] * (int(of_feature[right].max()) + 1) + of_feature[right]
        step = errors_of(np.unique(both, return_inverse=True)[1], labels - p, p, fold)
        step[none[left] | none[right]] = 0.0
        slope = float(step @ (labels - p))
        curvature = float((step * step) @ (p * (1 - p)))
        found[NAMES[left], NAMES[right]] = float(np.sign(slope) * slope**2 / (2 * curvature))
    return found


def rank(rows: Rows, draws: int) -> list[tuple[float, str, str]]:
    """All pairs of features, the best first: mean score over some draws of the folds, name, name.

    The score is the gain in log likelihood when the log odds of LightGBM, which knows the single
    features, are corrected by the mean error of the pair of values. As in a cross slot, there is no
    pair if one side is empty.
    """
    scores = [_scores(rows, seed) for seed in range(1, draws + 1)]
    means = {pair: float(np.mean([one[pair] for one in scores])) for pair in scores[0]}
    return sorted(((mean, *pair) for pair, mean in means.items()), reverse=True)
