"""Experts that gates mix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paddlebox import ops
from paddlebox.nn.functional import sum_over

paddle = ops.paddle


class Gate(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """sum_e softmax(G x)_e f_e, with no bias in G, as MMoE and PLE have it.

    Letters: B = instances, N = inputs of the gate, E = experts, H = their width.
    """

    def __init__(self, inputs: int, experts: int) -> None:
        super().__init__()
        self.select = paddle.nn.Linear(inputs, experts, bias_attr=False)
        self.experts = experts

    def forward(self, x: Any, experts: Sequence[Any]) -> Any:
        """x: (B, N); experts: (E) of (B, H). Returns (B, H)."""
        weights = paddle.nn.functional.softmax(self.select(x), axis=-1)
        weights = paddle.reshape(weights, [-1, self.experts, 1])
        return sum_over(paddle.stack(list(experts), axis=1) * weights, 1)
