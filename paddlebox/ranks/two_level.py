"""TwoLevelExchange: what two nodes say to each other is said once.

Rank (n, l) is the l-th of node n. For the rows that the l-th ranks of all nodes own, it speaks for
its whole node:

    request    each rank -> (n, l) of its node -> the l-th of the owner's node: rows, each once
    rows       back on the same way, inside a node as float32
    gradients  each rank -> (n, l), as float32; added up in the order of ranks -> the owner

So gradients are rounded once, by who sends them between nodes, who also keeps what that loses.
Owners add up nodes in their order. Keys, once a pass, go from each rank to each.

Letters: N = nodes, L = ranks of a node, P = 3 + D.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from paddlebox.config.ranks import RanksConfig
from paddlebox.errors import ConfigError
from paddlebox.ranks.exchange import Exchange
from paddlebox.ranks.lane import Lane
from paddlebox.ranks.nodes import ranks_per_node
from paddlebox.ranks.plans import Asked, ShardedPass, Step
from paddlebox.ranks.quantize import Residual


def exchange_of(options: RanksConfig, size: int) -> type[Exchange]:
    """How so many ranks exchange.

    Raises: ConfigError for two levels where there is one.
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
    """Of a step, on the rank that speaks for its node: where what others want is among what it asks
    for."""

    unions: list[int]  # (N) rows that it asks of the l-th owner of each node
    at: list[list[np.ndarray]]  # (L, N) places in them of what each rank of its node wants
    places: np.ndarray  # int32, of the unions one after the other among those of the pass


class TwoLevelExchange(Exchange):
    """As `Exchange`, with `ranks.two_level`."""

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

    def way_of(self, rows: list[np.ndarray], lane: Lane) -> list[np.ndarray] | None:
        """(N) of the l-th owner of each node: rows that this rank's node may ask for, ascending;
        None where nothing is kept of them."""
        if not self._feedback:
            return None
        found = self._to_mates(lane, "keys", rows)
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

    def _to_mates(self, lane: Lane, what: str, wanted: list[np.ndarray]) -> list[list[np.ndarray]]:
        """(L, N) what each rank of the node wants of the l-th owner of each node.

        Args:
            wanted: (R) int32 rows, by owner.
        """
        out = [np.empty(0, np.int32)] * self.world.size
        for at, mate in enumerate(self._mates):
            parts = [wanted[node * self._local + at] for node in self._all]
            out[mate] = np.concatenate([np.array([len(p) for p in parts], np.int32), *parts])
        found = self.all_to_all(lane, what, out)
        return [_split(found[mate], self._nodes) for mate in self._mates]

    def request(
        self, staged: ShardedPass, wanted: list[list[np.ndarray]], lane: Lane
    ) -> list[Asked]:
        steps = range(len(wanted))
        # All steps in one message: the rows of each owner, step by step.
        sizes = np.array([[len(rows) for rows in of_step] for of_step in wanted], np.int32)
        by_owner = [
            np.concatenate([sizes[:, rank], *(of_step[rank] for of_step in wanted)])
            for rank in range(self.world.size)
        ]
        found = [
            [_split(part, len(wanted)) for part in of_mate]
            for of_mate in self._to_mates(lane, "ids", by_owner)
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
        arrived = self._send_ids(lane, out)
        of_node = [_split(arrived[peer], len(wanted)) for peer in self._peers]
        return [Asked([rows[step] for rows in of_node], ways[step]) for step in steps]

    def _places(self, staged: ShardedPass, unions: list[np.ndarray]) -> np.ndarray:
        if staged.way is None:
            return np.empty(0, np.int32)
        places, first = [], 0
        for known, union in zip(staged.way, unions, strict=True):
            places.append(np.searchsorted(known, union) + first)
            first += len(known)
        return np.concatenate(places).astype(np.int32)

    # ---- each step

    def fetch(self, step: Step, lane: Lane) -> np.ndarray:
        way: Way = step.way
        rows = self._from_owners(lane, step.asked, way.unions, step.bare)
        unions = np.split(rows, np.cumsum(way.unions)[:-1])
        shares = [
            np.concatenate([unions[node][at] for node, at in enumerate(of_mate)])
            for of_mate in way.at
        ]
        counts = np.array(step.counts).reshape(self._nodes, self._local)
        found = self._inside_node(
            lane,
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

    def give(self, step: Step, lane: Lane, merged: np.ndarray) -> None:
        way: Way = step.way
        of_owner = np.split(merged, np.cumsum(step.counts)[:-1])
        shares = [
            np.concatenate([of_owner[node * self._local + at] for node in self._all])
            for at in range(self._local)
        ]
        wants = [[len(at) for at in of_mate] for of_mate in way.at]
        found = self._inside_node(
            lane,
            "gradients",
            shares,
            [np.empty((sum(n), self._columns), np.float32) for n in wants],
        )
        sums = np.zeros((sum(way.unions), self._columns), np.float32)
        of_union = np.split(sums, np.cumsum(way.unions)[:-1])
        for mate, share in enumerate(found):
            parts = np.split(share, np.cumsum(wants[mate])[:-1])
            for union, at, part in zip(of_union, way.at[mate], parts, strict=True):
                union[at] += part
        self._to_owners(step, lane, sums, way.places, way.unions)

    def _pass_on(
        self, lane: Lane, what: str, out: list[np.ndarray], into: list[np.ndarray]
    ) -> None:
        """Between nodes, with the l-th rank of each. out, into: (N)."""
        self._swap_some(lane, what, dict(zip(self._peers, out, strict=True)), self._peers, into)

    def _inside_node(
        self, lane: Lane, what: str, out: list[np.ndarray], into: list[np.ndarray]
    ) -> list[np.ndarray]:
        """(L) likewise of the ranks of the node."""
        self._swap_some(lane, what, dict(zip(self._mates, out, strict=True)), self._mates, into)
        return into

    def _swap_some(
        self,
        lane: Lane,
        what: str,
        out: dict[int, np.ndarray],
        ranks: range,
        into: list[np.ndarray],
    ) -> None:
        nothing = np.empty(0, np.uint8)
        all_out, all_into = [nothing] * self.world.size, [nothing] * self.world.size
        for rank, room in zip(ranks, into, strict=True):
            all_out[rank], all_into[rank] = np.ascontiguousarray(out[rank]), room
        self._traffic.add(what, all_out)
        lane.swap(all_out, all_into)


def _split(message: np.ndarray, parts: int) -> list[np.ndarray]:
    """Parts of a message that begins with their sizes."""
    return np.split(message[parts:], np.cumsum(message[:parts])[:-1])
