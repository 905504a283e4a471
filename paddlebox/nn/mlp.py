"""The dense tower of most CTR models."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from paddlebox import ops

paddle = ops.paddle


class MLP(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """Linear, ReLU and dropout for each hidden width, then one linear output."""

    def __init__(self, inputs: int, hidden: Sequence[int], dropout: float = 0.0) -> None:
        super().__init__()
        widths = [inputs, *hidden]
        self.layers = paddle.nn.LayerList([paddle.nn.Linear(a, b) for a, b in pairwise(widths)])
        self.output = paddle.nn.Linear(widths[-1], 1)
        self.dropout = dropout

    def forward(self, x: Any) -> Any:
        """x: (B, inputs). Returns (B, 1)."""
        for layer in self.layers:
            x = paddle.nn.functional.relu(layer(x))
            if self.dropout > 0:
                x = paddle.nn.functional.dropout(x, self.dropout, training=self.training)
        return self.output(x)
