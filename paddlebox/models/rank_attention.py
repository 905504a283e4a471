"""DNN with rank attention, as in PaddleBox's join networks: an instance also reads the slots of the
other instances on its page, through a matrix for each pair of ranks.

    a_i = sum_k X_k P[rank_i, rank_k]     logit_i = MLP([X_i, a_i])

The sum is over all instances k on i's page that have a rank, i included.
"""

from __future__ import annotations

from typing import Any

from paddlebox import ops
from paddlebox.config.models import RankAttentionConfig
from paddlebox.models.inputs import Inputs
from paddlebox.nn import MLP, flat

paddle = ops.paddle

MAX_RANK = 3  # max_rank of the rank_offset that the feed creates


class RankAttention(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    def __init__(self, config: RankAttentionConfig, inputs: Inputs) -> None:
        super().__init__()
        self.sparse = inputs.pooled_slots(config.use_cvm)
        self.dense_width = inputs.dense_width
        self.width = inputs.width(self.sparse.width)  # N
        self.enable_input_bp = config.enable_input_bp
        one = paddle.nn.initializer.XavierUniform(self.width, config.output_dim)
        self.pairs = self.create_parameter(
            [MAX_RANK * MAX_RANK * self.width, config.output_dim], default_initializer=one
        )
        self.mlp = MLP(self.width + config.output_dim, config.hidden, config.dropout)

    def forward(
        self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any, rank_offset: Any
    ) -> Any:
        """Sparse inputs as for `PooledSlots`; dense: (B, W); rank_offset: (B, 2 MAX_RANK + 1)
        int32, as for `ops.rank_attention`. Returns logits (B, 1)."""
        if self.dense_width:
            x = self.sparse(ids, offsets, show_click, plan, dense)
        else:
            x = flat(self.sparse(ids, offsets, show_click, plan), None)
        attended = ops.rank_attention(
            x,
            rank_offset,
            rank_param=self.pairs,
            max_rank=MAX_RANK,
            enable_input_bp=self.enable_input_bp,
        )
        return self.mlp(paddle.concat([x, attended], axis=1))
