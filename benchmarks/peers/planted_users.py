"""Users whose clicks follow a published function of what they did before.

p(click) of an event depends only on the events before it, their clicks, and the event itself. There
is no hidden state, so the AUC of p is the best AUC that any model can have, up to sampling.

Letters: U = users, N = most events of a user, E = events of all users.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

ITEMS, CATEGORIES = 400, 8
SHORTEST = 4  # events of a user: SHORTEST to N, uniform
REPEATS = 0.3  # share of events whose item the user has seen before
GAP_S, GAP_DEVIATION = 3600.0, 1.5  # log-normal times between events
DECAY_S = 8 * 3600.0
FAR = 10  # events back, from which on a repeat is a long-range one


@dataclass(frozen=True)
class Users:
    """Events of users, one user after the other, in the order of time."""

    offsets: np.ndarray  # (U + 1)
    item: np.ndarray  # (E), and the others
    category: np.ndarray
    time: np.ndarray  # seconds
    click: np.ndarray
    p: np.ndarray


@dataclass(frozen=True)
class _Past:
    """What happened before event i, for all users at once. (U, i) each, or (U)."""

    same_category: np.ndarray
    same_item: np.ndarray
    clicked: np.ndarray
    age: np.ndarray  # seconds
    last_category: np.ndarray  # (U); -1: none
    category: np.ndarray  # (U), of the event


_MOVES = np.random.default_rng(2024).normal(0, 1.5, (CATEGORIES, CATEGORIES))


def _decay(past: _Past) -> np.ndarray:
    """3 * the sum of exp(-age / 8 h) over the clicks in the category, less that over its events
    without a click.

    The best function of the numbers of clicks and events in the category has an AUC that is 0.06
    lower.
    """
    signs = past.same_category * (2 * past.clicked - 1) * np.exp(-past.age / DECAY_S)
    return np.asarray(3.0 * signs.sum(1))


def _transition(past: _Past) -> np.ndarray:
    """-1 + M[category of the last event, category]."""
    moved = _MOVES[past.last_category, past.category]
    return np.asarray(-1.0 + np.where(past.last_category < 0, 0.0, moved))


def _repeat(past: _Past) -> np.ndarray:
    """-2 + 4 if the item was shown 10 or more events ago."""
    far = past.same_item[:, : max(0, past.same_item.shape[1] - FAR + 1)]
    return np.asarray(-2.0 + 4.0 * far.any(1))


def _match(past: _Past) -> np.ndarray:
    """-2.5 + 3 * log(1 + clicks in the category), a sum over the history, which DIN has, too."""
    clicks = (past.same_category * past.clicked).sum(1)
    return np.asarray(-2.5 + 3.0 * np.log1p(clicks))


FORMS: dict[str, Callable[[_Past], np.ndarray]] = {
    "decay": _decay,
    "transition": _transition,
    "repeat": _repeat,
    "match": _match,
}


def plant(form: str, users: int, most: int, seed: int) -> Users:
    """Draw users of a form.

    Args:
        users: U.
        most: N.
    """
    random = np.random.default_rng(seed)
    lengths = random.integers(SHORTEST, most + 1, users)
    item = random.integers(0, ITEMS, (users, most))
    repeats = random.random((users, most)) < REPEATS
    for i in range(1, most):
        earlier = item[np.arange(users), random.integers(0, i, users)]
        item[:, i] = np.where(repeats[:, i], earlier, item[:, i])
    category = item % CATEGORIES
    gaps = np.exp(random.normal(np.log(GAP_S), GAP_DEVIATION, (users, most)))
    time = 1_700_000_000 + np.cumsum(gaps, axis=1).astype(np.int64)
    click, p = np.zeros((users, most)), np.zeros((users, most))
    for i in range(most):
        past = _Past(
            same_category=category[:, :i] == category[:, i : i + 1],
            same_item=item[:, :i] == item[:, i : i + 1],
            clicked=click[:, :i],
            age=(time[:, i : i + 1] - time[:, :i]).astype(float),
            last_category=category[:, i - 1] if i else np.full(users, -1),
            category=category[:, i],
        )
        p[:, i] = 1 / (1 + np.exp(-FORMS[form](past)))
        click[:, i] = random.random(users) < p[:, i]
    there = np.arange(most) < lengths[:, None]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return Users(offsets, *(a[there] for a in (item, category, time, click, p)))


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    order = np.argsort(scores, kind="stable")
    ranked, ordered = labels[order] > 0, scores[order]
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    group = np.cumsum(first) - 1
    counts = np.bincount(group)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[group]
    positives = ranked.sum()
    above = ranks[ranked].sum() - positives * (positives + 1) / 2
    return float(above / (positives * (len(ranked) - positives)))
