#!/usr/bin/env python3
"""What AUC do the training rows of prepare.py permit?

    python datasets/synthetic/limit.py --rows-per-pass 150000 600000

The best possible AUC, that of the true probabilities, needs the planted weights. A learner has to
estimate them from rows. This script knows all but the weights: their distributions, the slots that
interact, and how often each feasign is expected in the training rows. It draws the estimate of each
weight, its posterior mean, as if all other weights were known. So the AUC is an upper limit: a
learner can do better only by chance. README.md has the figures.

Weights are taken as normal. The number of occurrences has a Poisson distribution, and each carries
the mean information of a label, the mean of p (1 - p). The test rows are the first ones of test.txt
with the default sizes of prepare.py, whatever the size of the training set.

Letters: n = test rows, m = weights.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from synthetic.prepare import (
    PAIRS,
    RANK,
    SLOTS,
    Floats,
    Ints,
    Vocabulary,
    draw_positions,
    make_rows,
)

Flags = npt.NDArray[np.bool_]

FIRST, DAY = 900_000, 5  # of the rows of test.txt with the default sizes
DRAWS = 3


class Weights:
    """m weights, and the sums of them that n rows have in their logits."""

    def __init__(
        self, values: Floats, deviations: Floats, shares: Floats, fresh: Flags, of: Ints, row: Ints
    ) -> None:
        self.values, self._deviations = values, deviations
        self._shares, self._fresh = shares, fresh  # of rows with the weight; whether of one pass
        self._of, self._row = of, row  # each use of a weight: which one, in which row

    def summed(self, values: Floats, rows: int) -> Floats:
        sums: Floats = np.bincount(self._row, values[self._of], minlength=rows).astype(np.float64)
        return sums

    def estimated(
        self, passes: int, rows_per_pass: int, information: float, random: np.random.Generator
    ) -> Floats:
        """Posterior means after a training set."""
        seen = self._shares * rows_per_pass * np.where(self._fresh, 1, passes)
        precision = random.poisson(seen) * information
        noise = np.sqrt(precision) * random.standard_normal(len(seen))
        means: Floats = (precision * self.values + noise) / (precision + self._deviations**-2.0)
        return means


def shares_of(vocabulary: Vocabulary, positions: Ints) -> Floats:
    """The share of rows whose first feasign is at each position; of one pass for a fresh one."""
    law = vocabulary.law
    share: Floats = np.diff(vocabulary.cumulative, prepend=0.0)[positions % law.vocabulary]
    return share * np.where(positions < law.vocabulary, 1.0 - law.fresh, law.fresh)


def of_slot(vocabulary: Vocabulary, row: Ints, positions: Ints) -> Weights:
    law = vocabulary.law
    at, of = np.unique(positions, return_inverse=True)
    deviations = law.weight * vocabulary.tail(at)
    shares = shares_of(vocabulary, at) * (1 + law.max_ids) / 2
    return Weights(vocabulary.weights(at), deviations, shares, at >= law.vocabulary, of, row)


def of_pair(left: Vocabulary, at: Ints, right: Vocabulary, to: Ints, scale: float) -> Weights:
    """The effects of pairs of first feasigns, each of which is a weight of its own here."""
    (a, b), of = np.unique(np.stack([at, to]), axis=1, return_inverse=True)
    pair = f"{left.law.name} x {right.law.name}"
    values = scale * (left.vectors(a, pair) * right.vectors(b, pair)).sum(axis=1)
    deviations = scale * np.sqrt(RANK) * left.tail(a) * right.tail(b)
    shares = shares_of(left, a) * shares_of(right, b)
    fresh = (a >= left.law.vocabulary) | (b >= right.law.vocabulary)
    return Weights(values, deviations, shares, fresh, of.reshape(-1), np.arange(len(at)))


def expected_auc(logit: Floats, probability: Floats) -> float:
    """AUC of distinct logits, where clicks have these probabilities."""
    order = np.argsort(logit)
    clicks, others = probability[order], 1.0 - probability[order]
    below = np.cumsum(others) - others / 2
    return float((clicks * below).sum() / (clicks.sum() * others.sum()))


class Limits:
    """The limits for training sets, measured with n test rows."""

    def __init__(self, seed: int, rows: int) -> None:
        vocabularies = {law.name: Vocabulary(law, seed) for law in SLOTS}
        row, first = np.arange(FIRST, FIRST + rows, dtype=np.uint64), {}
        self._slots = []
        for name, one in vocabularies.items():
            length, owner, positions = draw_positions(one, seed, row, DAY)
            self._slots.append(of_slot(one, owner, positions))
            first[name] = one, positions[np.cumsum(length) - length]
        self._pairs = [of_pair(*first[a], *first[b], scale) for a, b, scale in PAIRS]
        self._seed, self._rows = seed, rows
        self._p = make_rows(list(vocabularies.values()), seed, FIRST, rows, DAY).probability
        self._logit = np.log(self._p / (1.0 - self._p))
        self.best = expected_auc(self._logit, self._p)

    def of(self, passes: int, rows_per_pass: int) -> Floats:
        """The AUC without interactions, with each pair estimated, and with known interactions."""
        random = np.random.default_rng(self._seed)
        information = float((self._p * (1.0 - self._p)).mean())
        training = passes, rows_per_pass, information, random
        found = []
        for _ in range(DRAWS):
            wrong = [
                sum(one.summed(one.estimated(*training) - one.values, self._rows) for one in group)
                for group in (self._slots, self._pairs)
            ]
            known = self._logit + wrong[0]
            none = known - sum(one.summed(one.values, self._rows) for one in self._pairs)
            found.append([expected_auc(x, self._p) for x in (none, known + wrong[1], known)])
        means: Floats = np.mean(np.array(found), axis=0)
        return means


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Print the AUC that training rows permit.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--passes", type=int, default=6)
    parser.add_argument("--rows-per-pass", type=int, nargs="+", default=[150_000])
    parser.add_argument("--test-rows", type=int, default=10_000)
    options = parser.parse_args(arguments)
    limits = Limits(options.seed, options.test_rows)
    print(f"best possible: AUC {limits.best:.4f}")
    for rows in options.rows_per_pass:
        none, each, known = limits.of(options.passes, rows)
        print(
            f"{options.passes * rows:,} rows: {none:.4f} without interactions, {each:.4f} with "
            f"each pair learned by itself, {known:.4f} with known interactions"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
