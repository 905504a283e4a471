"""DIN (Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", KDD 2018): a sum
over the history, weighted by the relevance of each place to the item.

    interest = sum_l a(v, e_l) e_l,   a(v, e) = network([v, e, v - e, v * e])
    logit = MLP([other slots, item, dense, interest])

v and e_l are embed_w and embedx of the item and of place l. As in the paper, the weights need not
add up to 1, unless the option `softmax` is set. The network computes only the places that an
instance has, and Dice takes its means over these.
"""

from __future__ import annotations

from typing import Any

from paddlebox import ops
from paddlebox.config.models import DinConfig
from paddlebox.models.inputs import Inputs
from paddlebox.nn import MLP
from paddlebox.nn.sequence import AttentionUnit, Histories

paddle = ops.paddle


class DIN(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    def __init__(self, config: DinConfig, inputs: Inputs) -> None:
        super().__init__()
        self.sparse = inputs.pooled_slots(config.use_cvm)
        self.parts = Histories(config.history, inputs.of_one_table(), self.sparse)
        width = self.parts.width
        self.attention = AttentionUnit(
            width, config.attention_hidden, config.activation, config.softmax
        )
        self.mlp = MLP(self.parts.others + width, config.hidden, config.dropout)

    def forward(self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any) -> Any:
        """Sparse inputs as for `PooledSlots`; dense: (B, W), followed by the lengths of the
        histories. Returns logits (B, 1)."""
        pooled = self.sparse(ids, offsets, show_click, plan)
        item, history, length, others = self.parts(pooled, dense)
        rows = self.parts.rows(length, self.parts.length)
        events = rows.pack(history)
        interest = rows.sum(self.attention(item, events, rows) * events)
        return self.mlp(paddle.concat([others, interest], axis=1))
