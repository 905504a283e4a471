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

_KEYS = 2.0**64


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


class _Columns:
    """The descriptors as arrays, ascending by (sequence, min_key)."""

    def __init__(self, segments: Sequence[Mapping[str, Any]]) -> None:
        ordered = sorted(segments, key=lambda s: (s["sequence"], s["min_key"]))
        self.ids = [int(s["id"]) for s in ordered]
        self.low = np.array([s["min_key"] for s in ordered], np.uint64)
        self.high = np.array([s["max_key"] for s in ordered], np.uint64)
        self.sequence = np.array([s["sequence"] for s in ordered], np.int64)
        self.bytes = np.array([s["bytes"] for s in ordered], np.int64)
        self.rows = np.array([s["rows"] for s in ordered], np.int64)

    def over(self, key: np.uint64) -> np.ndarray:
        """Indices of the segments over a key, oldest first."""
        return np.flatnonzero((self.low <= key) & (self.high >= key))

    def closed(self, low: np.uint64, high: np.uint64, first: int, last: int) -> np.ndarray:
        """Which segments of the age window [first, last] overlap [low, high], directly or through
        one that does: a mask."""
        window = (self.sequence >= first) & (self.sequence <= last)
        while True:
            inside = window & (self.low <= high) & (self.high >= low)
            wider_low, wider_high = self.low[inside].min(), self.high[inside].max()
            if wider_low >= low and wider_high <= high:
                return inside
            low, high = min(low, wider_low), max(high, wider_high)

    def deepest(self) -> int:
        """Most segments over a point of the key space."""
        if not self.ids:
            return 0
        # +1 where a segment begins, -1 just after it ends; beginnings first at equal keys.
        keys = np.concatenate([self.low, self.high])
        step = np.concatenate([np.ones(len(self.ids), np.int64), -np.ones(len(self.ids), np.int64)])
        order = np.lexsort((-step, keys))
        return int(np.cumsum(step[order]).max())


def live_rows_within(segments: Sequence[Mapping[str, Any]], counted: int) -> int:
    """A count of live rows, put right where the segments know better: those of one sequence have no
    key in common, and all together no more keys than rows. Where no two overlap it is exact; before
    that the count may be off by the keys that filters took for others."""
    columns = _Columns(segments)
    total = int(columns.rows.sum())
    if columns.deepest() <= 1:
        return total
    _, at = np.unique(columns.sequence, return_inverse=True)
    return min(max(counted, int(np.bincount(at, columns.rows).max())), total)


def shape(segments: Sequence[Mapping[str, Any]], live_rows: int) -> Shape:
    """Bytes, live bytes and depth of a version's segments."""
    columns = _Columns(segments)
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
    columns = _Columns(segments)
    planner = _Planner(columns, live_rows, policy, limit)
    planner.plan_depth()
    planner.plan_space()
    return planner.merges


def plan_all(segments: Sequence[Mapping[str, Any]]) -> list[Merge]:
    """Merges everything that overlaps anything else, and nothing else."""
    if not segments:
        return []
    columns = _Columns(segments)
    merges = []
    left = np.ones(len(columns.ids), bool)
    first, last = _ages(columns)
    while left.any():
        at = int(np.flatnonzero(left)[0])
        inside = columns.closed(columns.low[at], columns.high[at], first, last)
        left &= ~inside
        if inside.sum() > 1:
            merges.append(_merge(columns, inside, "space"))
    return merges


def _ages(columns: _Columns) -> tuple[int, int]:
    return int(columns.sequence.min()), int(columns.sequence.max())


def _merge(columns: _Columns, inside: np.ndarray, reason: str) -> Merge:
    chosen = np.flatnonzero(inside)
    return Merge(
        tuple(columns.ids[i] for i in chosen), int(columns.bytes[chosen].sum()), reason
    )


class _Planner:
    def __init__(self, columns: _Columns, live_rows: int, policy: Policy, limit: int) -> None:
        self.columns = columns
        self.policy = policy
        self.limit = limit
        self.merges: list[Merge] = []
        self.taken = np.zeros(len(columns.ids), bool)
        self.total = int(columns.bytes.sum())
        rows = max(1, int(columns.rows.sum()))
        self.live_bytes = self.total * min(live_rows, rows) / rows
        # One probe for each stack of files that can differ: where some file begins.
        self.probes = np.unique(columns.low)

    def _take(self, inside: np.ndarray, reason: str) -> None:
        merge = _merge(self.columns, inside, reason)
        self.merges.append(merge)
        self.taken |= inside
        self.limit -= merge.bytes

    def plan_depth(self) -> None:
        columns = self.columns
        for probe in self.probes:
            stack = columns.over(probe)
            if len(stack) < self.policy.merge_depth or self.taken[stack].any() or self.limit <= 0:
                continue
            best: tuple[float, np.ndarray] | None = None
            for i in range(len(stack) - 1):
                for j in range(i + 1, len(stack)):
                    inside = columns.closed(
                        columns.low[stack[i]],
                        columns.high[stack[i]],
                        int(columns.sequence[stack[i]]),
                        int(columns.sequence[stack[j]]),
                    )
                    inside = self._with(inside, stack[i : j + 1])
                    width = self._width(inside)
                    cost = float(columns.bytes[inside].sum()) / width / (j - i)
                    if (best is None or cost < best[0]) and not (inside & self.taken).any():
                        best = (cost, inside)
            if best is not None:
                self._take(best[1], "depth")

    def _with(self, inside: np.ndarray, members: np.ndarray) -> np.ndarray:
        """The closure again, around all members of a window and not its first alone."""
        columns = self.columns
        if inside[members].all():
            return inside
        return columns.closed(
            columns.low[members].min(),
            columns.high[members].max(),
            int(columns.sequence[members].min()),
            int(columns.sequence[members].max()),
        )

    def _width(self, inside: np.ndarray) -> float:
        low, high = self.columns.low[inside].min(), self.columns.high[inside].max()
        return max((float(high) - float(low)) / _KEYS, 1e-12)

    def plan_space(self) -> None:
        columns = self.columns
        if self.total < self.policy.min_bytes:
            return
        candidates: dict[tuple[int, ...], tuple[float, float, np.ndarray]] = {}
        first = int(columns.sequence.min())
        for probe in self.probes:
            stack = columns.over(probe)
            low, high = columns.low[stack[0]], columns.high[stack[0]]
            for member in stack[1:]:
                low, high = min(low, columns.low[member]), max(high, columns.high[member])
                inside = columns.closed(low, high, first, int(columns.sequence[member]))
                written = max(1.0, self.live_bytes * self._width(inside))
                freed = float(columns.bytes[inside].sum()) - written
                if freed > 0:
                    key = (int(inside.argmax()), int(inside.sum()))
                    candidates[key] = (freed / written, freed, inside)
        total = self.total
        for _, freed, inside in sorted(candidates.values(), key=lambda c: -c[0]):
            if total <= self.policy.space_target * self.live_bytes or self.limit <= 0:
                return
            if (inside & self.taken).any():
                continue
            self._take(inside, "space")
            total -= int(freed)
