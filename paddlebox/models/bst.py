"""BST (Chen et al., "Behavior Sequence Transformer for E-commerce Recommendation in Alibaba",
DLP-KDD 2019): a transformer over the history and the item together.

    x = [e_1 .. e_L, v] + positions,   logit = MLP([other slots, dense, transformer(x)])

Position vectors are learned: one for each place of the history, the latest first, and one for the
item. Attention ignores the places that an instance does not have, and the MLP reads zeros for them.
"""

from __future__ import annotations

from typing import Any

from paddlebox import ops
from paddlebox.config.task_models import BstConfig
from paddlebox.models.inputs import Inputs
from paddlebox.nn import MLP
from paddlebox.nn.sequence import Histories
from paddlebox.nn.transformer import TransformerLayer

paddle = ops.paddle


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
        item, history, mask, others = self.parts(pooled, dense)
        places, width = self.parts.length + 1, self.parts.width
        x = paddle.concat([history, paddle.unsqueeze(item, 1)], axis=1) + self.positions
        there = paddle.slice(mask, [1], [0], [1])
        seen = paddle.concat([mask, paddle.ones_like(there)], axis=1)
        for block in self.blocks:
            x = block(x, seen)
        x = x * paddle.reshape(seen, [-1, places, 1])
        return self.mlp(paddle.concat([others, paddle.reshape(x, [-1, places * width])], axis=1))
