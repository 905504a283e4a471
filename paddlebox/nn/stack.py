"""Hidden layers without an output: experts, shared bottoms, towers before their last step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from paddlebox import ops

paddle = ops.paddle


class Stack(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """Linear, ReLU and dropout for each width."""

    def __init__(self, inputs: int, widths: Sequence[int], dropout: float = 0.0) -> None:
        super().__init__()
        every = [inputs, *widths]
        self.layers = paddle.nn.LayerList([paddle.nn.Linear(a, b) for a, b in pairwise(every)])
        self.dropout, self.width = dropout, every[-1]

    def forward(self, x: Any) -> Any:
        """x: (B, inputs). Returns (B, width)."""
        for layer in self.layers:
            x = paddle.nn.functional.relu(layer(x))
            if self.dropout > 0:
                x = paddle.nn.functional.dropout(x, self.dropout, training=self.training)
        return x
