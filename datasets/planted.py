"""Shared by the prepare.py of data from a planted model, whose probabilities are known."""

from __future__ import annotations

import numpy as np


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """AUC: the share of pairs of a positive and a negative row that the scores order correctly.

    Args:
        scores: (N), without ties.
        labels: (N) bool.
    """
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores, kind="stable")] = np.arange(1, len(scores) + 1)
    positives = int(labels.sum())
    pairs = positives * (len(labels) - positives)
    return float((ranks[labels].sum() - positives * (positives + 1) / 2) / max(1, pairs))
