"""The sparse part of a model as one layer."""

from __future__ import annotations

from typing import Any

from paddlebox import ops

paddle = ops.paddle


class PooledSlots(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """Pulls, sum-pools and CVM-transforms all sparse slots of a batch.

    Letters: B = instances, S = slots, D = embedx_dim, width = 3 + D with use_cvm, else 1 + D.
    """

    def __init__(self, slots: int, embedx_dim: int, use_cvm: bool = True, table: str = "") -> None:
        super().__init__()
        self.slots, self.embedx_dim, self.use_cvm, self.table = slots, embedx_dim, use_cvm, table
        self.width = embedx_dim + (3 if use_cvm else 1)
        zero = paddle.nn.initializer.Constant(0.0)
        self.anchor = self.create_parameter([1], dtype="float32", default_initializer=zero)

    def forward(
        self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any | None = None
    ) -> Any:
        """Inputs as `paddlebox.ops.fused_pull_seqpool_cvm`. Returns float32 (B, S, width); with
        dense (B, S * width + W), the slots and then the dense features of each instance."""
        pooled = ops.fused_pull_seqpool_cvm(
            ids,
            offsets,
            show_click,
            plan,
            self.anchor,
            slots=self.slots,
            embedx_dim=self.embedx_dim,
            use_cvm=self.use_cvm,
            table=self.table,
            dense=dense,
        )
        if dense is not None:
            return pooled
        return paddle.reshape(pooled, [-1, self.slots, self.width])
