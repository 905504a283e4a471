"""What the ranks exchange for a table in a pass and in each of its steps, as planned ahead.

Letters: R = ranks, K = keys of a pass on this rank, u = unique rows of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from paddlebox.ranks.prefetch import Late
from paddlebox.ranks.rows_without_embedx import Bare
from paddlebox.store.coordinator import BESIDE
from paddlebox.store.staged import StagedPass

#: Key in a feed: the `Step`. It is removed before a program gets the feed.
STEP = f"{BESIDE}step"


@dataclass(frozen=True)
class ShardedPass(StagedPass):
    """A pass whose rows are staged at their owners. `row_of_key` are positions in `keys`."""

    shard: StagedPass | None = None  # the rows of this rank's range, for all ranks
    keys: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint64))  # (K) ascending
    row_at_owner: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))  # (K)
    bounds: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # (R + 1) of owners

    @property
    def own(self) -> StagedPass:
        """The pass of this rank's range."""
        assert self.shard is not None
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
    bare: Bare | None = None  # None if messages do not leave embedx out (rows_without_embedx.py)
    following: Step | None = None  # the next step, whose rows this step fetches
    all_weight: float | None = None  # of the instances of all ranks; None: they have no weights

    @property
    def share(self) -> float:
        """The factor of this rank's gradients of dense parameters. With weights, it makes the sum
        of weighted losses over B into their mean by weight; it is 0 if all weights are."""
        if self.all_weight is None:
            return self.instances / max(1, self.all_instances)
        return max(1, self.instances) / self.all_weight if self.all_weight > 0 else 0.0
