"""BST (Chen et al., "Behavior Sequence Transformer for E-commerce Recommendation in Alibaba",
DLP-KDD 2019): a transformer over the history and the item together.

    x = [e_1 .. e_L, v] + positions,   logit = MLP([other slots, dense, transformer(x)])

Position vectors are learned: one for each place of the history, the latest first, and one for the
item. The transformer computes only the places that an instance has; the MLP reads zeros for the
others.
"""

from __future__ import annotations

from typing import Any

from paddlebox import ops
from paddlebox.config.models import BstConfig
from paddlebox.models.inputs import Inputs
from paddlebox.nn import MLP, Linear
from paddlebox.nn.rows import Rows
from paddlebox.nn.sequence import Histories

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


class BST(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    def __init__(self, config: BstConfig, inputs: Inputs) -> None:
        super().__init__()
        self.sparse = inputs.pooled_slots(config.use_cvm)
        self.parts = Histories(config.history, inputs.of_one_table(), self.sparse)
        width, places = self.parts.width, self.parts.length + 1
        start = paddle.nn.initializer.Normal(0.0, 0.01)
        self.positions = self.create_parameter(
            [1, places, width], dtype="float32", default_initializer=start
        )
        self.blocks = paddle.nn.LayerList(
            [
                TransformerLayer(width, config.heads, config.head_dim, config.dropout)
                for _ in range(config.layers)
            ]
        )
        inputs_of_mlp = self.parts.others + places * width
        self.mlp = MLP(inputs_of_mlp, config.hidden, config.dropout)

    def forward(self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any) -> Any:
        """Sparse inputs as for `PooledSlots`; dense: (B, W), followed by the lengths of the
        histories. Returns logits (B, 1)."""
        pooled = self.sparse(ids, offsets, show_click, plan)
        item, history, length, others = self.parts(pooled, dense)
        latest = self.parts.length  # the position of the item
        of_history, of_item = (
            paddle.slice(self.positions, [1], [begin], [end])
            for begin, end in ((0, latest), (latest, latest + 1))
        )
        # The item comes first, so that the places of an instance are next to each other.
        x = paddle.concat([paddle.unsqueeze(item, 1) + of_item, history + of_history], axis=1)
        rows = self.parts.rows(length + 1.0, latest + 1)
        x = rows.pack(x)
        for block in self.blocks:
            x = block(x, rows)
        flat = paddle.reshape(rows.unpack(x), [-1, (latest + 1) * self.parts.width])
        asked, seen = (
            paddle.slice(flat, [1], [begin], [end])
            for begin, end in ((0, self.parts.width), (self.parts.width, flat.shape[1]))
        )
        return self.mlp(paddle.concat([others, seen, asked], axis=1))
