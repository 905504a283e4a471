"""TwoLevelExchange: merges the traffic of a node, so that two nodes exchange each row once.

Rank (n, l) is the l-th rank of node n. For all rows that the l-th ranks of the nodes own, it
represents its node:

    request    each rank -> (n, l) of its node -> the owner, an l-th rank; each row once
    rows       back the same way; within a node as float32
    gradients  each rank -> (n, l), as float32; added up in the order of ranks -> the owner

So gradients are rounded once, by the rank that sends them between nodes. That rank also keeps the
rounding errors. Owners add up the gradients in the order of nodes. The keys of a pass are sent
directly.

Letters: R = ranks, N = nodes, L = ranks of a node, P = 3 + n + D columns of a row
(exchange.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from paddlebox.config.ranks import RanksConfig
from paddlebox.errors import ConfigError
from paddlebox.ranks.channel import Channel
from paddlebox.ranks.exchange import Exchange
from paddlebox.ranks.nodes import ranks_per_node
from paddlebox.ranks.plans import Asked, ShardedPass, Step
from paddlebox.ranks.quantize import Residual


def exchange_of(options: RanksConfig, size: int) -> type[Exchange]:
    """The class that exchanges between `size` ranks.

    Raises:
        ConfigError: `ranks.two_level` is set, but there is one node, or one rank per node.
    """
    if not options.two_level:
        return Exchange
    per_node = ranks_per_node(size, options.per_node)
    if per_node in (1, size):
        raise ConfigError(
            f"ranks.two_level: {size} ranks, {per_node} on a node: expected several nodes of "
            "several ranks; leave it out, or set ranks.per_node"
        )
    return TwoLevelExchange


@dataclass(frozen=True)
class Way:
    """The part of a step for which this rank represents its node.

    A union is the set of rows that the ranks of this node need from the l-th rank of one node.
    """

    unions: list[int]  # (N) size of the union for each owner
    at: list[list[np.ndarray]]  # (L, N) positions in the unions of the rows that each rank needs
    places: np.ndarray  # int32 positions of the rows of all unions in the residual


class TwoLevelExchange(Exchange):
    """The exchange with `ranks.two_level`. The arguments are those of `Exchange`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        world = self.world
        self._local = ranks_per_node(world.size, self.options.per_node)  # L
        self._nodes = world.size // self._local  # N
        self._node, self._at = divmod(world.rank, self._local)
        first = self._node * self._local
        self._mates = range(first, first + self._local)
        self._peers = range(self._at, world.size, self._local)  # the l-th of each node

    # ---- once a pass

    def way_of(self, rows: list[np.ndarray], channel: Channel) -> list[np.ndarray] | None:
        """(N) the rows that this rank's node may need from the l-th owner of each node, ascending.

        None without error feedback, because nothing else uses these rows.
        """
        if not self._feedback:
            return None
        found = self._to_mates(channel, "keys", rows)
        return [np.unique(np.concatenate([of_mate[n] for of_mate in found])) for n in self._all]

    @property
    def _all(self) -> range:
        return range(self._nodes)

    def _new_residual(self, staged: ShardedPass) -> Residual:
        bounds = np.zeros(self.world.size + 1, np.int64)
        for node, rank in enumerate(self._peers):
            bounds[rank + 1] = len(staged.way[node])
        return Residual(self._gradient_format, np.concatenate(staged.way), np.cumsum(bounds))

    # ---- each batch

    def _to_mates(
        self, channel: Channel, what: str, wanted: list[np.ndarray]
    ) -> list[list[np.ndarray]]:
        """(L, N) the rows that each rank of the node needs from the l-th owner of each node.

        Args:
            channel: the channel.
            what: name under which the bytes are counted.
            wanted: (R) int32 rows that this rank needs, by owner.
        """
        out = [np.empty(0, np.int32)] * self.world.size
        for at, mate in enumerate(self._mates):
            parts = [wanted[node * self._local + at] for node in self._all]
            out[mate] = np.concatenate([np.array([len(p) for p in parts], np.int32), *parts])
        found = self.all_to_all(channel, what, out)
        return [_split(found[mate], self._nodes) for mate in self._mates]

    def request(
        self,
        staged: ShardedPass,
        wanted: list[list[np.ndarray]],
        instances: np.ndarray,
        channel: Channel,
    ) -> tuple[list[Asked], list[np.ndarray]]:
        steps = range(len(wanted))
        # One message for all steps: the rows at each owner, step by step.
        sizes = np.array([[len(rows) for rows in of_step] for of_step in wanted], np.int32)
        by_owner = [
            np.concatenate([sizes[:, rank], *(of_step[rank] for of_step in wanted)])
            for rank in range(self.world.size)
        ]
        found = [
            [_split(part, len(wanted)) for part in of_mate]
            for of_mate in self._to_mates(channel, "ids", by_owner)
        ]  # (L, N, steps)
        ways, unions = [], []  # by step
        for step in steps:
            asked, at = [], []
            for node in self._all:
                parts = [of_mate[node][step] for of_mate in found]
                union, inverse = np.unique(np.concatenate(parts), return_inverse=True)
                asked.append(union.astype(np.int32))
                cuts = np.cumsum([len(part) for part in parts])[:-1]
                at.append(np.split(inverse.reshape(-1), cuts))
            unions.append(asked)
            ways.append(
                Way(
                    [len(union) for union in asked],
                    [[of_node[mate] for of_node in at] for mate in range(self._local)],
                    self._places(staged, asked),
                )
            )
        out = [np.empty(0, np.int32)] * self.world.size
        for node, peer in enumerate(self._peers):
            parts = [unions[step][node] for step in steps]
            out[peer] = np.concatenate([np.array([len(p) for p in parts], np.int32), *parts])
        arrived = self._send_ids(channel, out)
        of_node = [_split(arrived[peer], len(wanted)) for peer in self._peers]
        of_steps = [Asked([rows[step] for rows in of_node], ways[step]) for step in steps]
        return of_steps, channel.exchange([instances] * self.world.size)

    def _places(self, staged: ShardedPass, unions: list[np.ndarray]) -> np.ndarray:
        if staged.way is None:
            return np.empty(0, np.int32)
        places, first = [], 0
        for known, union in zip(staged.way, unions, strict=True):
            places.append(np.searchsorted(known, union) + first)
            first += len(known)
        return np.concatenate(places).astype(np.int32)

    # ---- each step

    def fetch(self, step: Step, channel: Channel) -> np.ndarray:
        way: Way = step.way
        rows = self._from_owners(channel, step.asked, way.unions, step.bare)
        unions = np.split(rows, np.cumsum(way.unions)[:-1])
        shares = [
            np.concatenate([unions[node][at] for node, at in enumerate(of_mate)])
            for of_mate in way.at
        ]
        counts = np.array(step.counts).reshape(self._nodes, self._local)
        found = self._inside_node(
            channel,
            "rows",
            shares,
            [np.empty((int(n), self._columns), np.float32) for n in counts.sum(axis=0)],
        )
        mine = np.empty((len(step.keys), self._columns), np.float32)
        ends = np.cumsum(step.counts).reshape(self._nodes, self._local)
        for at, share in enumerate(found):
            parts = np.split(share, np.cumsum(counts[:, at])[:-1])
            for node, part in enumerate(parts):
                mine[ends[node, at] - len(part) : ends[node, at]] = part
        return mine

    def give(self, step: Step, channel: Channel, merged: np.ndarray) -> None:
        way: Way = step.way
        of_owner = np.split(merged, np.cumsum(step.counts)[:-1])
        shares = [
            np.concatenate([of_owner[node * self._local + at] for node in self._all])
            for at in range(self._local)
        ]
        wants = [[len(at) for at in of_mate] for of_mate in way.at]
        found = self._inside_node(
            channel,
            "gradients",
            shares,
            [np.empty((sum(n), self._gradient_columns), np.float32) for n in wants],
        )
        sums = np.zeros((sum(way.unions), self._gradient_columns), np.float32)
        of_union = np.split(sums, np.cumsum(way.unions)[:-1])
        for mate, share in enumerate(found):
            parts = np.split(share, np.cumsum(wants[mate])[:-1])
            for union, at, part in zip(of_union, way.at[mate], parts, strict=True):
                union[at] += part
        self._to_owners(step, channel, sums, way.places, way.unions)

    def _pass_on(
        self, channel: Channel, what: str, out: list[np.ndarray], into: list[np.ndarray]
    ) -> None:
        """Exchange between nodes, with the l-th rank of each. out, into: (N)."""
        self._swap_some(channel, what, dict(zip(self._peers, out, strict=True)), self._peers, into)

    def _pass_any(self, channel: Channel, what: str, out: list[np.ndarray]) -> list[np.ndarray]:
        """`_pass_on` for messages of sizes that their receivers do not know. out: (N)."""
        all_out = [np.empty(0, np.uint8)] * self.world.size
        for peer, message in zip(self._peers, out, strict=True):
            all_out[peer] = message
        found = self.all_to_all(channel, what, all_out)
        return [found[peer] for peer in self._peers]

    def _inside_node(
        self, channel: Channel, what: str, out: list[np.ndarray], into: list[np.ndarray]
    ) -> list[np.ndarray]:
        """Exchange within the node. out, into: (L). Returns `into`."""
        of_mates = dict(zip(self._mates, out, strict=True))
        self._swap_some(channel, what, of_mates, self._mates, into, self._local)
        return into

    def _swap_some(
        self,
        channel: Channel,
        what: str,
        out: dict[int, np.ndarray],
        ranks: range,
        into: list[np.ndarray],
        within: int = 0,
    ) -> None:
        nothing = np.empty(0, np.uint8)
        all_out, all_into = [nothing] * self.world.size, [nothing] * self.world.size
        for rank, room in zip(ranks, into, strict=True):
            all_out[rank], all_into[rank] = np.ascontiguousarray(out[rank]), room
        self._traffic.add(what, all_out)
        channel.swap(all_out, all_into, within)


def _split(message: np.ndarray, parts: int) -> list[np.ndarray]:
    """Split a message that begins with the sizes of its parts."""
    return np.split(message[parts:], np.cumsum(message[:parts])[:-1])
