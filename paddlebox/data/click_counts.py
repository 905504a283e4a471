"""The shows and clicks behind click priors (paddlebox/models/click_prior.py).

An instance must never see its own label. The rows of a training pass change while it trains, so
its batches do not read them. Instead, the instances of a part are divided into FOLDS by a hash of
the pass and of their number in it, and for an instance of fold f

    counts of a row = counts before the part + those of the instances of the part in other folds

If the pass trains instances that were trained before (a second epoch), the rows hold them already:

    counts of a row = counts before the part - those of the instances of the part in fold f

Such a pass counts no shows and clicks again. The counts are those of a moment, so the result does
not depend on batches or threads, and a resumed run computes the same. In an evaluation an instance
sees all counts, as in serving.

Letters: R = rows of the part, F = folds, K = slots with click priors, S = sparse slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paddlebox._native import core
from paddlebox.data.loader import LoadedPass

FOLDS = 5

# Bounds of a strength. Below, single clicks would be certainties. Above, shows change nothing.
_WEAKEST, _STRONGEST = 1.0, 1e6
_LOWEST_RATE = 1e-6


@dataclass(frozen=True)
class ClickCounts:
    """The counts that instances of a part see. seed: of the folds."""

    counts: np.ndarray  # (R, F, 2) float32; F = 1 in an evaluation
    slots: tuple[int, ...]  # (K) positions among the sparse slots
    seed: int

    def columns(self, loaded: LoadedPass, rows: np.ndarray, begin: int, end: int) -> np.ndarray:
        """Sums of the counts of each slot, for a batch: (end - begin, 2 K) float32, the shows and
        then the clicks. rows: (U) int32 row ids by position."""
        held, low, high, of_held = loaded.within(begin, end, rows)
        packed: np.ndarray = held.pack_click_counts(
            low, high, begin, of_held, self.seed, list(self.slots), self.counts
        )
        return packed


def seed_of(pass_number: int) -> int:
    return int(core.mix(pass_number))


def count_folds(
    loaded: LoadedPass,
    spans: Sequence[tuple[int, int]],
    row_of_position: np.ndarray,
    rows: int,
    seed: int,
    slots: Sequence[int],
) -> np.ndarray:
    """The shows and clicks that the batches of a part add to its rows, (R, FOLDS, 2) float32.

    Args:
        spans: the batches [begin, end). All of them are read.
        row_of_position: (U) int32 row ids.
        slots: positions of the sparse slots that count.
    """
    found = np.zeros((rows, FOLDS, 2), np.float32)
    for begin, end in spans:
        held, low, high, of_held = loaded.within(begin, end, row_of_position)
        held.add_click_counts(low, high, begin, of_held, seed, list(slots), found)
    return found


def seen_in_training(known: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """The counts that the instances of each fold see, (R, F, 2), in the memory of `folds`, the
    counts of the instances of the part. known: (R, 2) float32 counts of the rows with all of
    these."""
    np.subtract(known[:, None, :], folds, out=folds)
    # Decayed counts of a repeated pass may be less than what is subtracted.
    seen: np.ndarray = np.maximum(folds, 0, out=folds)
    return seen


def sums_of(counts: np.ndarray, slot_of_row: np.ndarray, slots: Sequence[int]) -> np.ndarray:
    """(5, K) float64, what `estimate` needs of the rows of each slot: the sums over its rows that
    were shown of 1, show, click, click^2 / show and show^2. counts: (R, 2) shows and clicks."""
    shown = counts[:, 0] > 0
    show = counts[shown, 0].astype(np.float64)
    click = np.minimum(counts[shown, 1], counts[shown, 0]).astype(np.float64)
    of_row, most = slot_of_row[shown], max(slots, default=0) + 1
    terms = (np.ones_like(show), show, click, click * click / show, show * show)
    return np.stack([np.bincount(of_row, term, minlength=most)[list(slots)] for term in terms])


def estimate(sums: np.ndarray) -> np.ndarray:
    """The click rate p and the strength a of each slot, (2, K) float32, from `sums_of` its rows.

    The model is beta-binomial: each row has a click rate of its own, drawn from a beta distribution
    with mean p, and a is the sum of its two parameters. a = (1 - r) / r, where r is the correlation
    of the clicks of one row. It is estimated from the variances between and within rows (the ANOVA
    estimator: Ridout, Demetrio and Firth, Biometrics 1999). A slot without rows gets NaN. If its
    rows do not differ by more than chance, a is the highest.
    """
    rows, shows, clicks, squares, shows_squared = sums
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = clicks / shows
        within = (clicks - squares) / (shows - rows)
        between = (squares - clicks * rate) / (rows - 1)
        size = (shows - shows_squared / shows) / (rows - 1)  # of a typical row
        correlation = (between - within) / (between + (size - 1) * within)
        strength = (1 - correlation) / correlation
    known = np.isfinite(strength) & (correlation > 0)
    strength = np.where(known, np.clip(strength, _WEAKEST, _STRONGEST), _STRONGEST)
    rate = np.clip(rate, _LOWEST_RATE, 1 - _LOWEST_RATE)
    priors: np.ndarray = np.where(rows > 0, np.stack([rate, strength]), np.nan).astype(np.float32)
    return priors
