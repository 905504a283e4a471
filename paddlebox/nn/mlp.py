"""The dense network of most CTR models, and the gate that mixes several."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from paddlebox import ops
from paddlebox.nn.functional import sum_over
from paddlebox.nn.linear import Linear, stacked

paddle = ops.paddle


class Tower(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """Linear, ReLU and dropout for each hidden width.

    Args:
        inputs: columns of the input.
        hidden: the widths; empty: the result is the input.
        dropout: the probability, in training mode, with which a result of a ReLU becomes 0.

    `width` is the last width, or inputs.
    """

    def __init__(self, inputs: int, hidden: Sequence[int], dropout: float = 0.0) -> None:
        super().__init__()
        widths = [inputs, *hidden]
        self.layers = paddle.nn.LayerList([Linear(a, b) for a, b in pairwise(widths)])
        self.dropout = dropout
        self.width = widths[-1]

    def forward(self, x: Any) -> Any:
        """x: (B, inputs) float32. Returns (B, width) float32."""
        return self._through(x)

    def _through(self, x: Any, output: Linear | None = None) -> Any:
        """Apply the layers, and an output layer after them."""
        layers = [*self.layers] if output is None else [*self.layers, output]
        if layers and layers[0].products:
            activations = ["relu"] * len(self.layers) + [None] * (output is not None)
            return stacked(layers, x, activations, self.dropout if self.training else 0.0)
        for layer in self.layers:
            x = paddle.nn.functional.relu(layer(x))
            if self.dropout > 0:
                x = paddle.nn.functional.dropout(x, self.dropout, training=self.training)
        return x if output is None else output(x)


class MLP(Tower):
    """A `Tower`, whose arguments it has, followed by one linear output."""

    def __init__(self, inputs: int, hidden: Sequence[int], dropout: float = 0.0) -> None:
        super().__init__(inputs, hidden, dropout)
        self.output = Linear(self.width, 1)

    def forward(self, x: Any) -> Any:
        """x: (B, inputs) float32. Returns (B, 1) float32."""
        return self._through(x, self.output)


class ExpertGate(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
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
