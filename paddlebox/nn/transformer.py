"""A transformer layer over masked places (Vaswani et al., "Attention Is All You Need", 2017).

Letters: B = instances, L = places, E = width of a place, K = heads, A = width of a head.
"""

from __future__ import annotations

from typing import Any

from paddlebox import ops
from paddlebox.nn.functional import matmul
from paddlebox.nn.linear import Linear

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
        self.heads, self.head_dim, self.dropout = heads, head_dim, dropout

    def _headed(self, x: Any, length: int) -> Any:
        """(B, L, K * A) -> (B, K, L, A)."""
        return paddle.transpose(
            paddle.reshape(x, [-1, length, self.heads, self.head_dim]), [0, 2, 1, 3]
        )

    def _dropped(self, x: Any) -> Any:
        if self.dropout == 0:
            return x
        return paddle.nn.functional.dropout(x, self.dropout, training=self.training)

    def forward(self, x: Any, mask: Any) -> Any:
        """x: (B, L, E); mask: (B, L), with at least one 1 in each row. Returns (B, L, E)."""
        length = x.shape[1]
        query, key, value = (
            self._headed(layer(x), length) for layer in (self.query, self.key, self.value)
        )
        hidden = paddle.reshape((mask - 1.0) * 1e9, [-1, 1, 1, length])
        scores = matmul(query, key, transpose_y=True) * self.head_dim**-0.5 + hidden
        seen = matmul(paddle.nn.functional.softmax(scores, axis=-1), value)
        joined = paddle.reshape(
            paddle.transpose(seen, [0, 2, 1, 3]), [-1, length, self.heads * self.head_dim]
        )
        x = self.norms[0](x + self._dropped(self.output(joined)))
        wide = paddle.nn.functional.leaky_relu(self.widen(x))
        return self.norms[1](x + self._dropped(self.narrow(wide)))
