"""A model that scales its dense features first: `model.dense_scale`.

Networks learn best from inputs with mean 0 and deviation 1. Ages, prices and counts are far from
that. The scaling is part of the model, so that training, evaluation and exports use the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paddlebox import ops

paddle = ops.paddle


class ScaledDense(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """`model` on dense features (x - mean) / deviation. The layer adds no parameters.

    Args:
        scales: (W) the mean and deviation of each feature. Columns after the first W, such as the
            lengths of sequences, are not scaled.
    """

    def __init__(self, model: Any, scales: Sequence[tuple[float, float]]) -> None:
        super().__init__()
        self.model = model
        mean, deviation = np.array(scales, np.float32).T
        self._mean, self._factor = mean, (1 / deviation).astype(np.float32)
        if hasattr(model, "loss"):
            self.loss = model.loss

    def forward(
        self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any, *more: Any
    ) -> Any:
        """Inputs and result as for the model. dense: (B, W or more)."""
        behind = dense.shape[1] - len(self._mean)
        mean = paddle.assign(np.pad(self._mean, (0, behind)))
        factor = paddle.assign(np.pad(self._factor, (0, behind), constant_values=1))
        return self.model(ids, offsets, show_click, plan, (dense - mean) * factor, *more)
