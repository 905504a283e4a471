"""Trees on Criteo's lines: CatBoost and LightGBM, with settings that are chosen on later rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from report import UnavailableError

INTEGERS, TOKENS = 13, 26
NAMES = ("catboost", "lightgbm")
MOST_TREES = 3000
PATIENCE = 100  # trees without a lower logloss before the growing stops
# One setting is chosen for each peer. As many as zoo_criteo.py tries for a model.
SETTINGS: dict[str, list[dict[str, Any]]] = {
    # max_ctr_complexity 1: statistics of single categories; CatBoost's default also combines them.
    "catboost": [
        {"depth": 6, "learning_rate": 0.05, "max_ctr_complexity": 1},
        {"depth": 6, "learning_rate": 0.05, "max_ctr_complexity": 2},
        {"depth": 8, "learning_rate": 0.05, "max_ctr_complexity": 1},
        {"depth": 6, "learning_rate": 0.1, "max_ctr_complexity": 1},
    ],
    "lightgbm": [
        {"num_leaves": 31, "learning_rate": 0.03},
        {"num_leaves": 15, "learning_rate": 0.03},
        {"num_leaves": 63, "learning_rate": 0.03},
        {"num_leaves": 31, "learning_rate": 0.1},
    ],
}
FOLDS = 5  # of the rates that LightGBM sees
STRENGTH = 20.0  # of their prior, in shows


@dataclass(frozen=True)
class Rows:
    """Criteo's lines as columns. n = lines."""

    integers: np.ndarray  # (n, 13) float32, NaN where there is none
    tokens: np.ndarray  # (n, 26) of str
    labels: np.ndarray  # (n) float64

    @classmethod
    def of(cls, lines: Sequence[str]) -> Rows:
        fields = [line.rstrip("\n").split("\t") for line in lines]
        numbers = [[math.nan if x == "" else float(x) for x in row[1:14]] for row in fields]
        return cls(
            np.array(numbers, np.float32),
            np.array([row[14:40] for row in fields], object),
            np.array([float(row[0]) for row in fields]),
        )


@dataclass(frozen=True)
class Choice:
    """The setting of a peer that is best on the judging rows, and its number of trees."""

    setting: dict[str, Any]
    trees: int
    logloss: float


def check_installed() -> None:
    """Raises: UnavailableError if a library of the peers is missing."""
    try:
        import catboost  # noqa: F401
        import lightgbm  # noqa: F401
        import sklearn  # noqa: F401
    except ModuleNotFoundError as error:
        why = f"{error.name} is not installed (make bench-setup)"
        raise UnavailableError(why) from None


def _logloss(p: np.ndarray, labels: np.ndarray) -> float:
    p = np.clip(p, 1e-7, 1 - 1e-7)
    return float(-np.mean(labels * np.log(p) + (1 - labels) * np.log1p(-p)))


def choose(name: str, known: Rows, judging: Rows, settings: int) -> Choice:
    """Grow each of the first settings with seed 1, and stop early on the judging rows.

    settings: how many of them to try.
    """
    found = []
    for setting in SETTINGS[name][:settings]:
        predicted, trees = _GROW[name](setting, known, judging, judging, 1, MOST_TREES, True)
        found.append(Choice(setting, trees, _logloss(predicted, judging.labels)))
    return min(found, key=lambda choice: choice.logloss)


def grow(
    name: str, setting: dict[str, Any], known: Rows, judging: Rows, seed: int
) -> tuple[np.ndarray, int]:
    """(n) logits of the judging rows, where the growing stops early on them, and the trees."""
    predicted, trees = _GROW[name](setting, known, judging, judging, seed, MOST_TREES, True)
    return _logits(predicted), trees


def predict(name: str, choice: Choice, known: Rows, asked: Rows, seed: int) -> np.ndarray:
    """(n) logits of the asked rows, from a model of all known rows with the chosen trees."""
    predicted, _ = _GROW[name](choice.setting, known, asked, asked, seed, choice.trees, False)
    return _logits(predicted)


def _logits(p: np.ndarray) -> np.ndarray:
    p = np.clip(p, 1e-7, 1 - 1e-7)
    return np.asarray(np.log(p) - np.log1p(-p))


def _catboost(
    setting: dict[str, Any], known: Rows, judging: Rows, asked: Rows, seed: int, trees: int,
    stops: bool,
) -> tuple[np.ndarray, int]:  # fmt: skip
    from catboost import CatBoostClassifier, Pool

    def pool(rows: Rows) -> Any:
        table = np.concatenate([rows.integers.astype(object), rows.tokens], axis=1)
        categories = list(range(INTEGERS, INTEGERS + TOKENS))
        return Pool(table, rows.labels.astype(int), cat_features=categories)

    model = CatBoostClassifier(
        iterations=trees, random_seed=seed, verbose=False, allow_writing_files=False, **setting
    )
    if stops:
        model.fit(pool(known), eval_set=pool(judging), early_stopping_rounds=PATIENCE)
    else:
        model.fit(pool(known))
    return np.asarray(model.predict_proba(pool(asked))[:, 1]), int(model.tree_count_)


def rates(column: np.ndarray, labels: np.ndarray, asked: np.ndarray, seed: int) -> Any:
    """Smoothed click rates of the tokens of one column: out of fold for the known rows, and of all
    of them for the asked rows. With the number of shows of each.

    Returns: (n, 2) of the known rows and (m, 2) of the asked ones: rate, shows.
    """
    names, of_known = np.unique(column, return_inverse=True)
    fold = np.random.default_rng(seed).integers(0, FOLDS, len(labels))
    shows = np.zeros((len(names) + 1, FOLDS))
    clicks = np.zeros_like(shows)
    np.add.at(shows, (of_known, fold), 1)
    np.add.at(clicks, (of_known, fold), labels)
    at = np.searchsorted(names, asked)
    at = np.where((at < len(names)) & (names[np.minimum(at, len(names) - 1)] == asked), at, -1)
    prior = labels.mean()

    def both(show: np.ndarray, click: np.ndarray) -> np.ndarray:
        return np.stack([(click + STRENGTH * prior) / (show + STRENGTH), show], axis=1)

    own = shows.sum(axis=1)[of_known] - shows[of_known, fold]
    of_own = clicks.sum(axis=1)[of_known] - clicks[of_known, fold]
    return both(own, of_own), both(shows.sum(axis=1)[at], clicks.sum(axis=1)[at])


def _lightgbm(
    setting: dict[str, Any], known: Rows, judging: Rows, asked: Rows, seed: int, trees: int,
    stops: bool,
) -> tuple[np.ndarray, int]:  # fmt: skip
    import lightgbm

    setting = dict(setting)
    # "rates": False leaves the click rates of the tokens out. Their numbers of shows stay.
    first = 0 if setting.pop("rates", True) else 1

    def tables(others: Rows) -> tuple[np.ndarray, np.ndarray]:
        parts: list[list[np.ndarray]] = [[known.integers], [others.integers]]
        for column in range(TOKENS):
            pair = rates(known.tokens[:, column], known.labels, others.tokens[:, column], seed)
            for part, made in zip(parts, pair, strict=True):
                part.append(made[:, first:])
        own, asked = (np.concatenate(part, axis=1) for part in parts)
        return own, asked

    table, judged = tables(judging)
    model = lightgbm.LGBMClassifier(
        n_estimators=trees, random_state=seed, verbosity=-1, min_child_samples=100, subsample=0.8,
        subsample_freq=1, colsample_bytree=0.5, n_jobs=1, **setting,
    )  # fmt: skip
    if stops:
        callbacks = [lightgbm.early_stopping(PATIENCE, verbose=False)]
        model.fit(table, known.labels, eval_set=[(judged, judging.labels)], callbacks=callbacks)
    else:
        model.fit(table, known.labels)
    rows = judged if asked is judging else tables(asked)[1]
    return np.asarray(model.predict_proba(rows)[:, 1]), int(model.best_iteration_ or trees)


_GROW = {"catboost": _catboost, "lightgbm": _lightgbm}
