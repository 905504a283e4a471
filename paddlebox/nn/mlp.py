"""The dense network of most CTR models."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from paddlebox import ops

paddle = ops.paddle


class Tower(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """Linear, ReLU and dropout for each hidden width. `width` is the width of the result."""

    def __init__(self, inputs: int, hidden: Sequence[int], dropout: float = 0.0) -> None:
        super().__init__()
        widths = [inputs, *hidden]
        self.layers = paddle.nn.LayerList([paddle.nn.Linear(a, b) for a, b in pairwise(widths)])
        self.dropout = dropout
        self.width = widths[-1]

    def forward(self, x: Any) -> Any:
        """x: (B, inputs). Returns (B, width)."""
        for layer in self.layers:
            x = paddle.nn.functional.relu(layer(x))
            if self.dropout > 0:
                x = paddle.nn.functional.dropout(x, self.dropout, training=self.training)
        return x


class MLP(Tower):
    """A tower followed by one linear output."""

    def __init__(self, inputs: int, hidden: Sequence[int], dropout: float = 0.0) -> None:
        super().__init__(inputs, hidden, dropout)
        self.output = paddle.nn.Linear(self.width, 1)

    def forward(self, x: Any) -> Any:
        """x: (B, inputs). Returns (B, 1)."""
        return self.output(super().forward(x))
