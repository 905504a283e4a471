"""A transformer layer over the rows of sequences (Vaswani et al., "Attention Is All You Need",
2017).

Letters: T = rows, E = width of a row, K = heads, A = width of a head.
"""

from __future__ import annotations

from typing import Any

from paddlebox import ops
from paddlebox.nn.linear import Linear
from paddlebox.nn.rows import Rows

paddle = ops.paddle


class TransformerLayer(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """y = norm(x + dropout(attention(x))), out = norm(y + dropout(W2 leaky_relu(W1 y)))

    attention(x) = O [softmax(Q_k x (K_k x)^T / sqrt(A)) V_k x for each head k]. The output of W1 is
    four times as wide as x.
    """

    def __init__(self, width: int, heads: int, head_dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.query, self.key, self.value = (Linear(width, heads * head_dim) for _ in range(3))
        self.output = Linear(heads * head_dim, width)
        self.widen, self.narrow = Linear(width, 4 * width), Linear(4 * width, width)
        self.norms = paddle.nn.LayerList([paddle.nn.LayerNorm(width) for _ in range(2)])
        self.heads, self.dropout = heads, dropout

    def _dropped(self, x: Any) -> Any:
        if self.dropout == 0:
            return x
        return paddle.nn.functional.dropout(x, self.dropout, training=self.training)

    def forward(self, x: Any, rows: Rows) -> Any:
        """x: (T, E), the places of sequences as rows. Returns (T, E)."""
        query, key, value = (layer(x) for layer in (self.query, self.key, self.value))
        seen = rows.attention(
            query, key, value, heads=self.heads, dtype=self.query.products or "float32"
        )
        x = self.norms[0](x + self._dropped(self.output(seen)))
        wide = paddle.nn.functional.leaky_relu(self.widen(x))
        return self.norms[1](x + self._dropped(self.narrow(wide)))
