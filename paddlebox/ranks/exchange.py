"""RowExchange: fetches rows from their owners and sends gradients to them, directly between ranks.

An owner adds up the merged gradients in the order of ranks, and applies its rule once.

Letters: R = ranks, u = unique rows of a batch, P = 3 + n + D + E columns of a row, n of them counts
besides show and click, E of them in the expand part. If late lines are trained, gradients have
one column more: the weights of late lines, after the counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from paddlebox import _native
from paddlebox.config import Rule
from paddlebox.ranks.channel import Channel
from paddlebox.ranks.messages import pack_ids, unpack_ids
from paddlebox.ranks.plans import ShardedPass, Step
from paddlebox.ranks.row_messages import (
    Bare,
    BareMessages,
    Residual,
    RowFormat,
    sum_of_left,
    with_bits,
    without_bits,
)
from paddlebox.store.tiered_table import TieredTable

if TYPE_CHECKING:
    from paddlebox.ranks.shared_tables import SharedTables

core = _native.core


class RowExchange:
    """The exchange of one table. table: of this rank's range.

    Methods with the argument `channel` are collective and use that channel.
    """

    def __init__(self, table: TieredTable, tables: SharedTables) -> None:
        self.world, self.options = tables.world, tables.options
        self._native, self._traffic = table.native, tables.traffic
        self._config, self._late = table.config, table.options.late_lines
        config, options = self._config, self.options
        self._thin = 3 + len(config.counts)  # columns of a bare row
        self._columns = self._thin + config.embedx_dim + config.expand_dim  # P
        self._row_format = RowFormat(options.rows, self._columns)
        self._gradient_format = RowFormat(options.gradients, self._columns + self._late)
        self._feedback = self._gradient_format.quantized
        self._between_nodes = tables.between_nodes
        # Within a host, sending whole float32 rows takes less time than finding bare rows.
        # If values are rounded or gradients are late, the embedx of bare rows is always left out.
        # If embedx gradients of a bare row were sent, they would leave rounding errors.
        #: Whether messages leave the embedx of bare rows out (row_messages.py).
        self.leaves_out = (
            self._between_nodes
            or self._row_format.quantized
            or self._gradient_format.quantized
            or options.staleness > 0
        )
        self._stamp = 0  # of the open pass
        self._residual: Residual | None = None  # of the open training pass

    def all_to_all(self, channel: Channel, what: str, out: list[np.ndarray]) -> list[np.ndarray]:
        """`Channel.exchange`, counted under the name `what`."""
        self._traffic.add(what, out)
        return channel.exchange(out)

    # ---- once a pass

    def begin(self, staged: ShardedPass) -> None:
        self._stamp, self._residual = staged.stamp, None
        if staged.train and self._feedback:
            self._residual = Residual(self._gradient_format, staged.row_at_owner, staged.bounds)

    def forget(self) -> None:
        self._residual = None

    def end(self, channel: Channel) -> None:
        """Send the owners the rounding errors of the pass."""
        residual, self._residual = self._residual, None
        # Not sent if a rule has momentum, as Adam has: each of its steps moves a row by the
        # momentum, which is far larger than a rounding error.
        if residual is not None and not any(rule.has_momentum for rule, _ in self._rules):
            self._flush(residual, channel)

    @property
    def _rules(self) -> list[tuple[Rule, int]]:
        """The rules of embed_w, embedx and expand, with their numbers of columns."""
        config = self._config
        found = [
            (config.embed.rule, 1),
            (config.embedx.rule, config.embedx_dim),
            (config.embedx.rule, config.expand_dim),
        ]
        return [(rule, columns) for rule, columns in found if columns]

    def _flush(self, residual: Residual, channel: Channel) -> None:
        rows, left = residual.left()
        form = self._gradient_format
        ids = self.all_to_all(channel, "left", rows)
        packed = [form.pack(np.insert(part, 1, 0.0, axis=1)).reshape(-1) for part in left]
        values = [
            np.delete(form.unpack(flat.reshape(-1, form.record_bytes)), 1, axis=1)  # no click
            for flat in self.all_to_all(channel, "left", packed)
        ]
        scaled = [
            self._config.show_scale and rule.divides_by_shows
            for rule, columns in self._rules
            for _ in range(columns)
        ]
        found, gradients = sum_of_left(ids, values, scaled)
        if len(found):
            offsets = np.arange(len(found) + 1, dtype=np.int32)
            plan = core.Table.build_plan(found, offsets, self._stamp)
            core.push_planned(self._native, plan, gradients, False)

    # ---- each batch

    def request(
        self, wanted: list[list[np.ndarray]], instances: np.ndarray, channel: Channel
    ) -> tuple[list[list[np.ndarray]], list[np.ndarray]]:
        """Exchange the row ids of some steps, and the numbers of instances.

        Args:
            wanted: (steps, R) the int32 row ids that this rank needs from each owner.
            instances: (steps) int32, of this rank.

        Returns: (steps, R) the row ids of this rank that each rank needs, and (R, steps) instances.
        """
        steps = len(wanted)
        counts = np.array([[len(rows) for rows in of_step] for of_step in wanted], np.int32)
        out = [
            np.concatenate([instances, counts[:, rank], *(of_step[rank] for of_step in wanted)])
            for rank in range(self.world.size)
        ]
        found = self._send_ids(channel, out)
        of_rank = [
            np.split(message[2 * steps :], np.cumsum(message[steps : 2 * steps])[:-1])
            for message in found
        ]
        asked = [[parts[step] for parts in of_rank] for step in range(steps)]
        return asked, [message[:steps] for message in found]

    def _send_ids(self, channel: Channel, out: list[np.ndarray]) -> list[np.ndarray]:
        """`all_to_all` for int32 counts and row ids."""
        if not self._between_nodes:
            return self.all_to_all(channel, "ids", out)
        packed = self.all_to_all(channel, "ids", [pack_ids(ids) for ids in out])
        return [unpack_ids(ids) for ids in packed]

    # ---- each step

    def fetch(self, step: Step, channel: Channel) -> np.ndarray:
        """(u, P) float32 rows of a batch from their owners."""
        return self._from_owners(channel, step.asked, step.counts, step.bare)

    def fetch_some(
        self, step: Step, channel: Channel, asked: list[np.ndarray], own: np.ndarray
    ) -> np.ndarray:
        """asked: (R) bool, by row of `step.asked`: the rows to send. own: (u) bool: the rows to
        fetch."""
        ids = [of_rank[chosen] for of_rank, chosen in zip(step.asked, asked, strict=True)]
        of_owner = np.split(own, np.cumsum(step.counts)[:-1])
        counts = [int(np.count_nonzero(chosen)) for chosen in of_owner]
        bare = None if step.bare is None else Bare()
        mine = self._from_owners(channel, ids, counts, bare)
        if step.bare is not None and bare is not None:
            step.bare.asked[np.concatenate(asked)], step.bare.own[own] = bare.asked, bare.own
        return mine

    def _from_owners(
        self, channel: Channel, asked: list[np.ndarray], counts: list[int], bare: Bare | None
    ) -> np.ndarray:
        """(sum of counts, P) float32 rows. asked: (R) int32 rows of this rank to send to each rank.
        counts: (R) number of rows from each owner. bare: is filled in; None: send whole rows."""
        ids, form = np.concatenate(asked), self._row_format
        sizes = [len(of_rank) for of_rank in asked]
        rows = np.empty((len(ids), self._columns), np.float32)
        core.pull_into(self._native, ids, rows)
        if bare is None:
            mine = form.empty(sum(counts))
            out = np.split(form.pack(rows), np.cumsum(sizes)[:-1])
            self._swap(channel, "rows", out, np.split(mine, np.cumsum(counts)[:-1]))
            return form.unpack(mine)
        bare.asked = core.have_embedx(self._native, ids) == 0
        sending = BareMessages(form, self._thin, bare.asked, sizes)
        out = sending.pack(form.pack(rows[~bare.asked]), rows[bare.asked, : self._thin])
        out = with_bits(bare.asked, sizes, out)
        bare.own, into = without_bits(self.all_to_all(channel, "rows", out), counts)
        return BareMessages(form, self._thin, bare.own, counts).unpack(into)

    def give(self, step: Step, channel: Channel, merged: np.ndarray) -> None:
        """Send (u, columns of gradients) merged gradients to the owners, which apply them."""
        places, counts = step.places, step.counts
        sizes, form, bare = [len(ids) for ids in step.asked], self._gradient_format, step.bare
        thin = self._thin + self._late  # columns of the gradient of a bare row
        if bare is None:
            out = np.split(self._pack_gradients(merged, places), np.cumsum(counts)[:-1])
            records = form.empty(sum(sizes))
            self._swap(channel, "gradients", out, np.split(records, np.cumsum(sizes)[:-1]))
            gradients = form.unpack(records)
        else:
            whole = self._pack_gradients(merged, places, ~bare.own)
            sending = BareMessages(form, thin, bare.own, counts)
            coming = BareMessages(form, thin, bare.asked, sizes)
            into = coming.room()
            self._swap(channel, "gradients", sending.pack(whole, merged[bare.own, :thin]), into)
            gradients = coming.unpack(into)
        core.push_planned(self._native, step.push, gradients, self._late)

    def _pack_gradients(
        self, gradients: np.ndarray, places: np.ndarray, which: Any = slice(None)
    ) -> np.ndarray:
        if self._residual is not None:
            return self._residual.pack(gradients[which], places[which])
        return self._gradient_format.pack(gradients[which])

    def _swap(
        self, channel: Channel, what: str, out: list[np.ndarray], into: list[np.ndarray]
    ) -> None:
        self._traffic.add(what, out)
        channel.swap(out, into)
