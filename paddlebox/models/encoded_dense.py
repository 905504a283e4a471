"""A model that encodes its dense features first: `model.dense_scale`, `model.dense_ranges`.

Networks learn best from inputs with mean 0 and deviation 1. Ages, prices and counts are far from
that. And a network bends slowly: it needs many steps to learn a jump, a period or a few important
values of a number, which a tree finds at once. So the model gets for each feature

    (x - mean) / deviation
    clip((x - low) / (high - low), 0, 1) - 1/2    for each of its ranges [low, high]

The second line is the piecewise-linear encoding of Gorishniy et al., "On Embeddings for Numerical
Features in Tabular Deep Learning", NeurIPS 2022, in columns with mean near 0. A linear function of
it is any piecewise-linear function of x, constant beyond the first and the last edge.

The encoding is part of the model, so that training, evaluation and exports use the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paddlebox import ops

paddle = ops.paddle


def columns_of(ranges: Sequence[Sequence[float]], width: int) -> tuple[int, ...]:
    """(W) the number of columns of each encoded feature. ranges: as for `EncodedDense`."""
    if not ranges:
        return (1,) * width
    return tuple(1 + max(len(edges) - 1, 0) for edges in ranges)


class EncodedDense(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """`model` on encoded dense features. The layer adds no parameters.

    Args:
        scales: (W) the mean and deviation of each feature.
        ranges: (W) the ascending edges of the ranges of each feature; fewer than two: it has none.
            Empty: no feature has.

    The columns of a feature follow each other. Columns after the first W, such as the lengths of
    sequences, stay as they are.
    """

    def __init__(
        self,
        model: Any,
        scales: Sequence[tuple[float, float]],
        ranges: Sequence[Sequence[float]] = (),
    ) -> None:
        super().__init__()
        self.model = model
        self._width = len(scales)
        self._of, self._middle, self._factor, self._most = _columns(scales, ranges)
        if hasattr(model, "loss"):
            self.loss = model.loss

    def forward(
        self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any, *more: Any
    ) -> Any:
        """Inputs and result as for the model. dense: (B, W or more)."""
        behind = dense.shape[1] - self._width
        middle = paddle.assign(np.pad(self._middle, (0, behind)))
        factor = paddle.assign(np.pad(self._factor, (0, behind), constant_values=1))
        if len(self._of) > self._width:
            of = np.append(self._of, np.arange(self._width, self._width + behind))
            dense = paddle.gather(dense, paddle.assign(of.astype(np.int64)), axis=1)
        encoded = (dense - middle) * factor
        if len(self._of) > self._width:
            most = np.pad(self._most, (0, behind), constant_values=np.finfo(np.float32).max)
            # Not minimum and maximum, which fail in old-IR programs.
            encoded = paddle.fmin(encoded, paddle.assign(most))
            encoded = paddle.fmax(encoded, paddle.assign(-most))
        return self.model(ids, offsets, show_click, plan, encoded, *more)


def _columns(
    scales: Sequence[tuple[float, float]], ranges: Sequence[Sequence[float]]
) -> tuple[np.ndarray, ...]:
    """For each column of the result: the feature, and what to subtract, to multiply by and to clip
    to."""
    of, middle, factor, most = [], [], [], []
    for feature, (mean, deviation) in enumerate(scales):
        edges = np.array(ranges[feature] if ranges else (), np.float32)
        low, high = edges[:-1], edges[1:]
        of += [feature] * (1 + len(low))
        middle += [np.float32(mean), *(low + (high - low) / 2)]
        factor += [1 / np.float32(deviation), *(1 / (high - low))]
        most += [np.finfo(np.float32).max, *([0.5] * len(low))]
    return np.array(of, np.int64), *(np.array(one, np.float32) for one in (middle, factor, most))
