"""Chooses the slots whose click rates predict the labels of the first rows of a run, before it
trains. The rates are those of click priors (paddlebox/data/click_counts.py).

Letters: N = instances, S = sparse slots, n = values of a slot in all instances.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paddlebox.data.click_counts import FOLDS, estimate, sums_of

_ERRORS = 2.0  # standard errors
_FEWEST = 100  # instances; with fewer, errors are not known
_RARE = 200  # the values of a slot are rare if they have fewer instances each, on average
_LOWEST = 1e-6  # rate
# Of exact values. Seldom values are many, and a few of them would look good by chance.
_ERRORS_OF_VALUES, _ROWS_OF_VALUE = 3.0, 8
_STRENGTH = 30.0  # instances of the rate of a range that count for each of its values


class FirstRows(NamedTuple):
    """Instances in the order of their files."""

    labels: np.ndarray  # (N) float32, of the first task
    feasigns: np.ndarray  # (values of all slots) uint64, instance by instance, slot by slot
    offsets: np.ndarray  # (N * S + 1) where the values of each slot of each instance begin

    def values_of(self, slots: Sequence[int]) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each slot, given by its position: (n) uint64 values and (n) their instances."""
        count = len(self.labels)
        lengths = np.diff(self.offsets)
        of_slot = np.repeat(np.tile(np.arange(len(lengths) // count), count), lengths)
        instances = np.repeat(np.repeat(np.arange(count), len(lengths) // count), lengths)
        order = np.argsort(of_slot, kind="stable")
        bounds = np.searchsorted(of_slot[order], [[slot, slot + 1] for slot in slots])
        chosen = [order[begin:end] for begin, end in bounds.tolist()]
        return [(self.feasigns[one], instances[one]) for one in chosen]


def slots_that_gain(first: FirstRows, slots: Sequence[int]) -> list[int]:
    """Those slots whose out-of-fold rates have a lower log loss than the rate of all instances, by
    more than two standard errors of the difference. None, if no such slot has rare values: the
    embeddings of frequent values learn the rates by themselves. slots: positions of sparse slots.
    """
    labels = first.labels.astype(np.float64)
    if len(labels) < _FEWEST:
        return []
    base = _log_losses(np.full(len(labels), labels.mean()), labels)
    found, rare = list[int](), False
    for slot, (values, instances) in zip(slots, first.values_of(slots), strict=True):
        gain = base - _log_losses(_rates(values, instances, labels), labels)
        if gain.mean() > _ERRORS * gain.std() / np.sqrt(len(gain)):
            found.append(slot)
            rare |= len(values) < _RARE * len(np.unique(values))
    return found if rare else []


def exact_values_gain(values: np.ndarray, edges: Sequence[float], labels: np.ndarray) -> bool:
    """Whether the exact values of a number say more of the labels than its ranges. The out-of-fold
    rates of the values, smoothed towards that of their range, must have a lower log loss than the
    rates of the ranges, by more than three standard errors of the difference. No, if there are no
    ranges, or a value has fewer than 8 instances on average.

    values, labels: (N). edges: of the ranges.
    """
    count = len(labels)
    if not len(edges) or count < max(_FEWEST, _ROWS_OF_VALUE * len(np.unique(values))):
        return False
    instances, labels = np.arange(count), labels.astype(np.float64)
    ranges = np.searchsorted(np.asarray(edges, values.dtype), values, side="right")
    of_ranges = _rates(ranges, instances, labels)
    show, click, _ = _seen(values, instances, labels)
    of_values = (click + _STRENGTH * of_ranges) / (show + _STRENGTH)
    gain = _log_losses(of_ranges, labels) - _log_losses(of_values, labels)
    return bool(gain.mean() > _ERRORS_OF_VALUES * gain.std() / np.sqrt(count))


def _rates(values: np.ndarray, instances: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(N) the click rate of the values of each instance, smoothed as in models/click_prior.py, from
    the instances of other folds. values, instances: (n)."""
    show, click, known = _seen(values, instances, labels)
    of_slot = np.zeros(len(known), np.intp)
    rate, strength = estimate(sums_of(known, of_slot, [0])).astype(np.float64)[:, 0]
    found: np.ndarray = (click + rate * strength) / (show + strength)
    return found


def _seen(
    values: np.ndarray, instances: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(N) the shows and (N) the clicks of the values of each instance in other folds, and those of
    each distinct value in all folds, (distinct, 2)."""
    distinct, row = np.unique(values, return_inverse=True)
    fold = instances % FOLDS
    cell, size = row * FOLDS + fold, len(distinct) * FOLDS
    counts = np.stack([np.bincount(cell, w, size) for w in (np.ones(len(row)), labels[instances])])
    counts = counts.reshape(2, len(distinct), FOLDS)
    known = counts.sum(axis=2)
    seen = (known[:, :, None] - counts)[:, row, fold]
    show, click = (np.bincount(instances, of, len(labels)) for of in seen)
    return show, click, known.T


def _log_losses(rates: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(N) the log loss of each instance, in nats."""
    rates = np.clip(rates, _LOWEST, 1 - _LOWEST)
    losses: np.ndarray = -labels * np.log(rates) - (1 - labels) * np.log1p(-rates)
    return losses
