"""Which segments to merge, decided from their descriptors alone.

A merge takes all segments of an *age window* (a range of sequences) that overlap a *hull* (a range
of keys), so that nothing older ends up above something younger. Files are cut at aligned prefixes
of the key space (ops/store/cuts.h), so they nest: the hull of a stack of files is its widest file.

Two rules, tried in this order:

depth   No point of the key space may lie under more than `max_depth` segments, or reading would ask
        too many of them. When one does, the run of neighbours in age is merged that rewrites the
        fewest bytes for each segment it removes. Small young files are so merged among themselves
        before they meet the large old ones, as in size-tiered compaction.
space   While the segments take more than `space_target` times the live rows, the stack is merged,
        from its oldest segment upwards, that frees the most bytes for each byte it writes. Stacks
        come to their turn at different times, so the average stack carries half the garbage of one
        whose turn it is: the target t costs 1 / (2 (t - 1)) bytes written for each byte of a pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paddlebox.store.overlaps import Hull, Overlaps


@dataclass(frozen=True)
class Policy:
    """When merging is due. Ratios are to the bytes of the live rows as segments store them."""

    space_target: float = 1.28  # above it merging begins
    space_ceiling: float = 2.0  # above it training waits
    merge_depth: int = 13  # segments over a key from which a stack is merged
    max_depth: int = 16  # above it training waits
    min_bytes: int = 8 << 20  # a store below this is left alone: space is not worth the writes


@dataclass(frozen=True)
class Merge:
    """One merge: ids of the inputs, and what it costs."""

    inputs: tuple[int, ...]
    bytes: int  # of the inputs
    reason: str  # "depth" or "space"


@dataclass(frozen=True)
class Shape:
    """What reading a set of segments costs."""

    bytes: int
    live_bytes: int
    depth: int  # most segments over a point of the key space

    @property
    def space_ratio(self) -> float:
        """Stored bytes for each byte of live rows; 1 for an empty store."""
        return self.bytes / self.live_bytes if self.live_bytes else 1.0


def live_rows_within(segments: Sequence[Mapping[str, Any]], counted: int) -> int:
    """A count of live rows, put right where the segments know better: those of one sequence have no
    key in common, and all together no more keys than rows. Where no two overlap it is exact; before
    that the count may be off by the keys that filters took for others."""
    columns = Overlaps(segments)
    total = int(columns.rows.sum())
    if columns.deepest() <= 1:
        return total
    _, at = np.unique(np.array(columns.sequence), return_inverse=True)
    return min(max(counted, int(np.bincount(at, columns.rows).max())), total)


def shape(segments: Sequence[Mapping[str, Any]], live_rows: int) -> Shape:
    """Bytes, live bytes and depth of a version's segments."""
    columns = Overlaps(segments)
    total, rows = int(columns.bytes.sum()), int(columns.rows.sum())
    live = round(total * min(live_rows, rows) / rows) if rows else 0
    return Shape(total, live, columns.deepest())


def plan(
    segments: Sequence[Mapping[str, Any]], live_rows: int, policy: Policy, limit: int = 1 << 62
) -> list[Merge]:
    """The merges that are due, of disjoint key ranges: they may run side by side.

    Args:
        segments: descriptors (docs/formats/manifest.md) of the newest version.
        live_rows: rows that are not superseded by younger ones.
        limit: stop adding merges once their inputs reach this many bytes.
    """
    if len(segments) < 2:
        return []
    columns = Overlaps(segments)
    planner = _Planner(columns, live_rows, policy, limit)
    planner.plan_depth()
    planner.plan_space()
    return planner.merges


def plan_all(segments: Sequence[Mapping[str, Any]]) -> list[Merge]:
    """Merges everything that overlaps anything else, and nothing else."""
    if not segments:
        return []
    columns = Overlaps(segments)
    merges = []
    left = np.ones(len(columns.ids), bool)
    first, last = min(columns.sequence), max(columns.sequence)
    for at, (low, high) in enumerate(zip(columns.low, columns.high, strict=True)):
        if left[at]:
            hull = columns.closed(low, high, first, last)
            left[hull.members] = False
            if len(hull.members) > 1:
                merges.append(_merge(columns, hull, "space"))
    return merges


def _merge(columns: Overlaps, hull: Hull, reason: str) -> Merge:
    return Merge(tuple(columns.ids[i] for i in hull.members.tolist()), hull.bytes, reason)


class _Planner:
    def __init__(self, columns: Overlaps, live_rows: int, policy: Policy, limit: int) -> None:
        self.columns = columns
        self.policy = policy
        self.limit = limit
        self.merges: list[Merge] = []
        self.taken = np.zeros(len(columns.ids), bool)
        self.total = int(columns.bytes.sum())
        rows = max(1, int(columns.rows.sum()))
        self.live_bytes = self.total * min(live_rows, rows) / rows

    def _take(self, hull: Hull, reason: str) -> None:
        merge = _merge(self.columns, hull, reason)
        self.merges.append(merge)
        self.taken[hull.members] = True
        self.limit -= merge.bytes

    def plan_depth(self) -> None:
        columns = self.columns
        for stack in columns.stacks():
            if len(stack) < self.policy.merge_depth or self.taken[stack].any() or self.limit <= 0:
                continue
            best: tuple[float, Hull] | None = None
            for i in range(len(stack) - 1):
                low, high = columns.low[stack[i]], columns.high[stack[i]]
                for j in range(i + 1, len(stack)):
                    ages = columns.sequence[stack[i]], columns.sequence[stack[j]]
                    hull = columns.closed(low, high, *ages)  # all from i to j: they overlap i
                    cost = float(hull.bytes) / hull.width / (j - i)
                    if (best is None or cost < best[0]) and not hull.is_taken(self.taken):
                        best = (cost, hull)
            if best is not None:
                self._take(best[1], "depth")

    def plan_space(self) -> None:
        columns = self.columns
        if self.total < self.policy.min_bytes:
            return
        candidates: dict[tuple[int, ...], tuple[float, float, Hull]] = {}
        first = min(columns.sequence)
        for stack in columns.stacks():
            low, high = columns.low[stack[0]], columns.high[stack[0]]
            for member in stack[1:]:
                low, high = min(low, columns.low[member]), max(high, columns.high[member])
                hull = columns.closed(low, high, first, columns.sequence[member])
                written = max(1.0, self.live_bytes * hull.width)
                freed = float(hull.bytes) - written
                if freed > 0:
                    key = (int(hull.members[0]), len(hull.members))
                    candidates[key] = (freed / written, freed, hull)
        total = self.total
        for _, freed, hull in sorted(candidates.values(), key=lambda c: -c[0]):
            if total <= self.policy.space_target * self.live_bytes or self.limit <= 0:
                return
            if hull.is_taken(self.taken):
                continue
            self._take(hull, "space")
            total -= int(freed)
