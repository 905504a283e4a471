"""A model whose dense features are scaled first: `model.dense_scale`.

Networks learn from inputs around 0 with a spread of 1; ages, prices and counts are far from that.
Scaling is a part of the model, so that training, evaluation and exports cannot differ in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paddlebox import ops

paddle = ops.paddle


class ScaledDense(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """``model`` on dense features (x - mean) / deviation. It has no parameters of its own.

    Args:
        scales: (W) mean and deviation of each feature. What stands behind W features, as lengths of
            sequences do, is left as it is.
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
        """As that of the model. dense: (B, W or more)."""
        behind = dense.shape[1] - len(self._mean)
        mean = paddle.assign(np.pad(self._mean, (0, behind)))
        factor = paddle.assign(np.pad(self._factor, (0, behind), constant_values=1))
        return self.model(ids, offsets, show_click, plan, (dense - mean) * factor, *more)
