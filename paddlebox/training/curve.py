"""The learning curve inside a pass: points of the loss and the AUC while it trains."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from paddlebox.config import Phase
from paddlebox.training.batch_loop import Watcher
from paddlebox.training.hooks import Hook
from paddlebox.training.metrics import PassMetrics
from paddlebox.training.pass_line import Line
from paddlebox.training.plan import PlannedPass

# A run of any length has about 1,500 points in its first 100 passes, and a few in each later one.
_MOST_POINTS, _FEWEST_POINTS, _SHARED_POINTS = 50, 4, 400
# Predictions are counted by the upper 14 bits of their float32, 32 buckets for each power of two:
# on 135,000 samples, the AUC differs by less than 2e-4 from that of a million buckets.
_SHIFT = 18
_BUCKETS = (0x3F800000 >> _SHIFT) + 1
_BATCHES_TOGETHER = 64

#: A point: samples of this rank so far in the pass, loss, and AUC or None.
Point = tuple[int, float, float | None]


def points_of(number: int) -> int:
    """How many points the pass of this number gets."""
    return max(_FEWEST_POINTS, min(_MOST_POINTS, _SHARED_POINTS // number))


def auc_of(sums: np.ndarray) -> float | None:
    """The AUC of sums of negatives and positives by ascending prediction, (2, buckets). None if one
    class is missing."""
    negatives, positives = sums
    pairs = negatives.sum() * positives.sum()
    above = positives.sum() - np.cumsum(positives)
    return float((negatives * (above + positives / 2)).sum() / pairs) if pairs > 0 else None


class Points:
    """A watcher that finds points. The loss and the AUC of a point are those of the samples since
    one tenth of the pass before it.

    Args:
        count: the number of points. samples: of the pass on this rank.
        found: called with each point.
    """

    def __init__(self, count: int, samples: int, found: Callable[[Point], None]) -> None:
        self.samples = 0  # so far
        self._count, self._whole, self._found = count, samples, found
        self._recent: list[tuple[np.ndarray, ...]] = []  # columns that are not summed yet
        self._sums = np.zeros((2, _BUCKETS))  # since the last point: negatives, positives
        self._before = 0  # samples at the last point
        self._loss = 0.0  # sum over the samples since the last point
        # Samples, sum of losses, and sums of each interval between two points.
        self._intervals = deque[tuple[int, float, np.ndarray]](maxlen=max(1, count // 10))

    def __call__(self, batches: int, samples: int, loss: float, metrics: PassMetrics) -> None:
        new = samples - self.samples
        if not new:  # the batch has only context
            return
        self._loss += loss * new
        before, self.samples = self.samples, samples
        if metrics.last:
            predictions, *others = metrics.last
            self._recent.append((predictions, *(column.copy() for column in others)))
        if samples * self._count // self._whole > before * self._count // self._whole:
            self._sum_up()
            self._add()
        elif len(self._recent) >= _BATCHES_TOGETHER:
            self._sum_up()

    def _sum_up(self) -> None:
        if not self._recent:
            return
        predictions, labels, *weights = map(np.concatenate, zip(*self._recent, strict=True))
        self._recent.clear()
        bucket = predictions.view(np.int32) >> _SHIFT
        positive = labels * weights[0] if weights else labels
        whole = weights[0] if weights else np.ones_like(labels)
        for sums, counted in zip(self._sums, (whole - positive, positive), strict=True):
            sums += np.bincount(bucket, counted, _BUCKETS)

    def _add(self) -> None:
        self._intervals.append((self.samples - self._before, self._loss, self._sums))
        self._before, self._loss, self._sums = self.samples, 0.0, np.zeros_like(self._sums)
        samples, losses, sums = zip(*self._intervals, strict=True)
        self._found((self.samples, sum(losses) / sum(samples), auc_of(np.sum(sums, axis=0))))


class Curve(Hook):
    """Adds `curve` to the line of a pass: [share of the pass, loss, AUC] of each point. With
    phases, it is that of update."""

    on_every_rank = False

    def __init__(self) -> None:
        #: Called with each point while the pass trains.
        self.on_point: Callable[[Point], None] = lambda _: None
        self._points: list[Point] = []
        self._watch: Points | None = None

    def watcher(self, planned: PlannedPass, samples: int, phase: Phase) -> Watcher | None:
        if phase is not Phase.UPDATE:
            return None
        self._points = []
        self._watch = Points(points_of(planned.number), max(1, samples), self._found)
        return self._watch

    def _found(self, point: Point) -> None:
        self._points.append(point)
        self.on_point(point)

    def after_pass(self, line: Line, planned: PlannedPass) -> None:
        if not self._points or self._watch is None:  # no samples
            return
        whole = self._watch.samples
        line["curve"] = [
            [round(samples / whole, 4), float(f"{loss:.5g}"), auc and round(auc, 5)]
            for samples, loss, auc in self._points
        ]
