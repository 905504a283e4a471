"""The gate that mixes experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paddlebox import ops
from paddlebox.nn.functional import sum_over
from paddlebox.nn.linear import Linear

paddle = ops.paddle


class Gate(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """sum_e softmax(G x)_e f_e; G has no bias, as in the papers of MMoE and PLE.

    Letters: B = instances, N = inputs of the gate, E = experts, H = width of an expert's output.
    """

    def __init__(self, inputs: int, experts: int) -> None:
        super().__init__()
        self.select = Linear(inputs, experts, bias_attr=False)
        self.experts = experts

    def forward(self, x: Any, experts: Sequence[Any]) -> Any:
        """x: (B, N); experts: E tensors (B, H). Returns (B, H)."""
        weights = paddle.nn.functional.softmax(self.select(x), axis=-1)
        weights = paddle.reshape(weights, [-1, self.experts, 1])
        return sum_over(paddle.stack(list(experts), axis=1) * weights, 1)
