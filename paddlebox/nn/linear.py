"""Linear layers, whose products Paddle or `paddlebox.ops.mlp` computes.

Letters: N = inputs, M = outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paddlebox import ops

paddle = ops.paddle

_SEEDS = 2**31 - 1


class Linear(paddle.nn.Linear):  # type: ignore[misc, name-defined]  # Paddle has no types
    """`paddle.nn.Linear`, with the same parameters. Paddle names them after the class.

    `products` is the type of `paddlebox.ops.mlp`, or empty for Paddle's own operators.
    `use_products` sets it.
    """

    products = ""

    def forward(self, x: Any) -> Any:
        """x: (..., N) float32. Returns (..., M) float32, for N inputs and M outputs."""
        if not self.products:
            return super().forward(x)
        return stacked([self], x, [None])


def stacked(
    layers: Sequence[Linear], x: Any, activations: Sequence[str | None], dropout: float = 0.0
) -> Any:
    """Apply layers, one after another, in one operator. All have the `products` of the first.

    Args:
        layers: L layers.
        x: (..., N of the first layer).
        activations: (L) "relu" or None.
        dropout: as for `paddlebox.ops.mlp`. The seed is drawn from Paddle's generator, so that a
            pass that is trained again drops the same elements.

    Returns: (..., M of the last layer).
    """
    return ops.mlp(
        x,
        [layer.weight for layer in layers],
        [layer.bias for layer in layers],
        activations,
        layers[0].products,
        dropout,
        paddle.randint(0, _SEEDS, [1], "int64") if dropout > 0 else None,
    )


def use_products(model: Any, products: str) -> None:
    """Choose what computes the products of all linear layers of a model.

    Args:
        model: a layer.
        products: "float32" or "bfloat16", the type of `paddlebox.ops.mlp`; empty: Paddle. Another
            text is a ValueError of the first product.
    """
    for layer in model.sublayers(include_self=True):
        if isinstance(layer, Linear):
            layer.products = products
