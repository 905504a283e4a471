"""What the ranks of a table exchange in a pass, and in each of its steps, as it is known ahead.

Letters: R = ranks, K = keys of a pass on this rank, u = unique rows of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paddlebox.ranks.prefetch import Late
from paddlebox.ranks.rows_without_embedx import Bare
from paddlebox.store.one_rank import BESIDE
from paddlebox.store.staged import StagedPass

Feed = dict[str, Any]
#: Of a feed: how the step is exchanged. Taken out before a program sees the feed.
STEP = f"{BESIDE}step"


@dataclass(frozen=True)
class ShardedPass(StagedPass):
    """A pass whose rows are up at their owners; `row_of_key` are places among this rank's keys."""

    shard: StagedPass | None = None  # of this rank's own range, for all ranks
    keys: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint64))  # (K) ascending
    row_at_owner: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))  # (K)
    bounds: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # (R + 1) of owners
    way: Any = None  # what a subclass of `Exchange` needs to know beside it

    @property
    def own(self) -> StagedPass:
        """The pass of this rank's own range."""
        assert self.shard is not None
        return self.shard


@dataclass(frozen=True)
class Asked:
    """What a step asks this rank for."""

    rows: list[np.ndarray]  # int32, by who asks
    way: Any = None  # what a subclass of `Exchange` needs to know beside it


@dataclass(frozen=True)
class Step:
    """What a batch exchanges."""

    stamp: int
    instances: int  # of this rank; 0: it only serves the others
    all_instances: int  # of all ranks
    keys: np.ndarray  # (u) uint64
    places: np.ndarray  # (u) int32 of the pass's keys
    counts: list[int]  # (R) of the u rows, which are in the order of owners
    asked: list[np.ndarray]  # (R) int32 rows of this rank that each rank needs
    push: np.ndarray | None  # plan of all asked rows; None in an evaluation
    way: Any = None  # of `Asked`
    late: Late | None = None  # where the other rows travel early: between hosts
    bare: Bare | None = None  # where rows without an embedx travel without one
    following: Step | None = None  # whose rows this one fetches; not in asynchronous training
