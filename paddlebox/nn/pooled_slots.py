"""The sparse part of a model as one layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paddlebox import ops

paddle = ops.paddle


class PooledSlots(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """Pulls, sum-pools and CVM-transforms all sparse slots of a batch.

    Letters: B = instances, S = slots, D = embedx_dim, n = counts of the table besides show and
    click (`table.counts`), W = dense width, width = 3 + n + D with use_cvm, else 1 + D.

    Args:
        slots: S.
        embedx_dim: D.
        use_cvm: whether the result has the logarithms of the counts.
        table: name of the table; empty for the only open one.
        counts: n.
    """

    def __init__(
        self, slots: int, embedx_dim: int, use_cvm: bool = True, table: str = "", counts: int = 0
    ) -> None:
        super().__init__()
        self.slots, self.embedx_dim, self.use_cvm, self.table = slots, embedx_dim, use_cvm, table
        self.width = embedx_dim + (3 + counts if use_cvm else 1)
        zero = paddle.nn.initializer.Constant(0.0)
        self.anchor = self.create_parameter([1], dtype="float32", default_initializer=zero)

    def forward(
        self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any | None = None
    ) -> Any:
        """Inputs as for `paddlebox.ops.fused_pull_seqpool_cvm`.

        Returns: float32 (B, S, width). With dense (B, S * width + W): for each instance its slots
            followed by its dense features.

        Raises: as `paddlebox.ops.fused_pull_seqpool_cvm`.
        """
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


@dataclass(frozen=True)
class TableSlots:
    """The sparse slots that a model reads from one table.

    Args:
        slots: S, their number.
        embedx_dim: D.
        table: name of the table.
        counts: n, the counts of the table besides show and click.
    """

    slots: int
    embedx_dim: int
    table: str
    counts: int = 0


class PooledTables(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """The results of `PooledSlots` for several tables, concatenated in the order of the tables.

    Letters as for `PooledSlots`; T = tables; `width` = the sum of S * width over the tables.
    """

    def __init__(self, tables: Sequence[TableSlots], use_cvm: bool = True) -> None:
        super().__init__()
        self.parts = paddle.nn.LayerList(
            [PooledSlots(t.slots, t.embedx_dim, use_cvm, t.table, t.counts) for t in tables]
        )
        self.width = sum(part.slots * part.width for part in self.parts)

    def forward(
        self, batches: Sequence[tuple[Any, Any, Any]], show_click: Any, dense: Any | None = None
    ) -> Any:
        """batches: ids, offsets and plan of each of the T tables. Returns float32 (B, width); with
        dense (B, width + W)."""
        last = len(self.parts) - 1
        pooled = []
        for number, (part, (ids, offsets, plan)) in enumerate(
            zip(self.parts, batches, strict=True)
        ):
            # The last kernel appends the dense features while it writes, at no extra cost.
            behind = dense if number == last else None
            out = part(ids, offsets, show_click, plan, behind)
            if behind is None:
                out = paddle.reshape(out, [-1, part.slots * part.width])
            pooled.append(out)
        return pooled[0] if last == 0 else paddle.concat(pooled, axis=1)
