"""The sparse part of a model as one layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paddlebox import ops
from paddlebox.nn.linear import Linear

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


class JoinedTables(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """The slots of several tables as if they were slots of the first. Vectors of another width than
    its D pass through a linear layer without bias, one for each table.

    Letters as for `PooledTables`; S = slots of all tables, in the order of the tables; D and width
    are those of the first table. ids, offsets and plan are tuples, with one of each for every
    table.
    """

    def __init__(self, tables: Sequence[TableSlots], use_cvm: bool = True) -> None:
        super().__init__()
        self.tables = PooledTables(tables, use_cvm)
        first = self.tables.parts[0]
        self.use_cvm, self.embedx_dim, self.width = use_cvm, first.embedx_dim, first.width
        self.slots = sum(table.slots for table in tables)
        self._places = [(part.slots, part.width) for part in self.tables.parts]
        self.projections = paddle.nn.LayerList(
            [
                Linear(table.embedx_dim, self.embedx_dim, bias_attr=False)
                for table in tables
                if table.embedx_dim != self.embedx_dim
            ]
        )

    def forward(
        self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any | None = None
    ) -> Any:
        """Inputs but for the tuples, and result, as for `PooledSlots`."""
        pulled = self.tables(list(zip(ids, offsets, plan, strict=True)), show_click)
        projections, joined, begin = iter(self.projections), [], 0
        for slots, width in self._places:
            end = begin + slots * width
            part = paddle.slice(pulled, [1], [begin], [end])
            part, begin = paddle.reshape(part, [-1, slots, width]), end
            if width != self.width:
                beside = self.width - self.embedx_dim
                vectors = next(projections)(paddle.slice(part, [2], [beside], [width]))
                part = paddle.concat([paddle.slice(part, [2], [0], [beside]), vectors], axis=2)
            joined.append(part)
        pooled = paddle.concat(joined, axis=1)
        if dense is None:
            return pooled
        flat = paddle.reshape(pooled, [-1, self.slots * self.width])
        return paddle.concat([flat, dense], axis=1)
