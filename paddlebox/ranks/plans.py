"""What the ranks exchange for a table in a pass and in each of its steps, as planned ahead.

Between hosts, rows are fetched a step early, while the dense part of the previous step computes.
*Late* rows are the rows that the previous step changes. They are fetched after their owner has
changed them, so a rank gets the same bits as without prefetching. Only the owner knows which of its
rows the ranks change. It tells each rank ahead of the steps which rows are late.

Letters: R = ranks, K = keys of a pass on this rank, u = unique rows of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from paddlebox.ranks.row_messages import Bare
from paddlebox.store.table_exchange import BESIDE
from paddlebox.store.tiered_table import StagedPass


class Late(NamedTuple):
    """Which rows of a step are late."""

    asked: list[np.ndarray]  # (R) bool, by row that each rank needs from this one
    own: np.ndarray  # (u) bool, by row that this rank needs


class Changes:
    """The rows of this owner that the previous step changes. train: whether steps change rows."""

    def __init__(self, rows: int, train: bool) -> None:
        self._changed, self._train = np.zeros(rows, np.bool_), train
        self._before: list[np.ndarray] = []

    def late(self, asked: Sequence[np.ndarray]) -> list[np.ndarray]:
        """(R) bool, the late rows of the next step. Call it once per step, in order. asked: (R)
        int32 rows that each rank needs, -1 for none."""
        late = [self._changed[ids] & (ids >= 0) for ids in asked]
        if self._train:
            for ids in self._before:
                self._changed[ids] = False
            self._before = [ids[ids >= 0] for ids in asked]
            for ids in self._before:
                self._changed[ids] = True
        return late


def pack(late: Sequence[Sequence[np.ndarray]], rank: int) -> np.ndarray:
    """Pack the late rows of several steps for a rank, one bit per row. late: (steps, R) bool."""
    return np.packbits(np.concatenate([of_step[rank] for of_step in late]))


def unpack(found: Sequence[np.ndarray], counts: np.ndarray) -> list[np.ndarray]:
    """(steps) (u) bool: what the owners packed. found: (R) the bits of each owner. counts: (steps,
    R) int64 number of rows that this rank needs from each owner."""
    parts = [
        np.split(np.unpackbits(bits, count=int(of_owner.sum())), np.cumsum(of_owner)[:-1])
        for bits, of_owner in zip(found, counts.T, strict=True)
    ]
    return [
        np.concatenate([of_owner[step] for of_owner in parts]).astype(np.bool_)
        for step in range(len(counts))
    ]


#: Key in a feed: the `Step`. It is removed before a program gets the feed.
STEP = f"{BESIDE}step"


@dataclass(frozen=True, kw_only=True)
class ShardedPass(StagedPass):
    """A pass whose rows are staged at their owners. `row_of_key` are positions in `keys`."""

    shard: StagedPass  # the rows of this rank's range, for all ranks
    keys: np.ndarray  # (K) uint64, ascending
    asked: list[np.ndarray]  # (R) int32 rows of this rank's range, by key of each rank; -1: none
    row_at_owner: np.ndarray  # (K) int32
    bounds: np.ndarray  # (R + 1) int64, of owners

    @property
    def own(self) -> StagedPass:
        """The pass of this rank's range."""
        return self.shard


@dataclass(frozen=True)
class Step:
    """What a step exchanges."""

    stamp: int  # of the pass
    instances: int  # instances of this rank; 0: it only serves the others
    all_instances: int  # instances of all ranks
    keys: np.ndarray  # (u) uint64, in the order of owners
    places: np.ndarray  # (u) int32 positions in the keys of the pass
    counts: list[int]  # (R) number of these rows at each owner
    asked: list[np.ndarray]  # (R) int32 rows of this rank that each rank needs
    push: np.ndarray | None  # plan of all asked rows; None in an evaluation
    late: Late | None = None  # the rows to fetch late; None: no row is fetched early
    bare: Bare | None = None  # None if messages do not leave embedx out (row_messages.py)
    following: Step | None = None  # the next step, whose rows this step fetches
    all_weight: float | None = None  # of the instances of all ranks; None: they have no weights

    @property
    def share(self) -> float:
        """The factor of this rank's gradients of dense parameters. With weights, it makes the sum
        of weighted losses over B into their mean by weight; it is 0 if all weights are."""
        if self.all_weight is None:
            return self.instances / max(1, self.all_instances)
        return max(1, self.instances) / self.all_weight if self.all_weight > 0 else 0.0
