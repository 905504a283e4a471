"""Decides which segments to merge, from their descriptors and estimates of their dead rows.

A merge takes all segments of an *age window* (a range of sequences) that overlap a *hull* (a range
of keys), so that an old row never comes above a younger one. Files are cut at aligned prefixes of
the key space (ops/store/cuts.h), so they nest: the hull of a stack of files is its widest file.

Two rules, in this order. *Depth*: a read looks into every segment over its key, so training waits
while their number is above `max_depth`. From `merge_depth` on, the planner merges the run of
neighbours in age that rewrites the fewest bytes for each segment it removes. So small young files
are merged with each other before large old ones, as in size-tiered compaction.

*Space*: while the segments take more than `space_target` times the live rows, the planner merges
the stack that frees the most bytes for each byte written, from its oldest segment upwards. Stacks
are merged at different times, so an average one holds half as much garbage as one that is merged
now: with target t, merges write 1 / (2 (t - 1)) bytes for each byte that passes write. A segment
with dead rows, which life events have deleted, may also be merged alone: this drops the dead rows
whose keys are in no older segment.

Live rows are the counted ones (`VersionRecord.live_rows`) without the dead ones.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

_KEYS = 2.0**64
_HULLS = 1024  # size of a cache, because neighbours have the same hulls


@dataclass(frozen=True)
class Policy:
    """When merges are due. Ratios are relative to the bytes of the live rows in segments."""

    space_target: float = 1.28  # merges begin above it
    space_above: float = 0.72  # training waits at this much above the target
    merge_depth: int = 13  # number of segments over a key at which they are merged
    max_depth: int = 16  # training waits above it
    min_bytes: int = 1 << 20  # smaller stores are not merged for space

    @property
    def space_ceiling(self) -> float:
        return self.space_target + self.space_above


#: Segment id -> shares of its rows: the dead rows that a merge of this segment alone would drop,
#: and the dead rows whose keys no younger segment holds.
Dead = Mapping[int, tuple[float, float]]
_NONE: Dead = {}


@dataclass(frozen=True)
class Merge:
    inputs: tuple[int, ...]  # ids of segments
    bytes: int  # of the inputs
    reason: str  # "depth", "space" or "erase"


@dataclass(frozen=True)
class StoreShape:
    bytes: int
    live_bytes: int
    depth: int  # largest number of segments over one key

    @property
    def space_ratio(self) -> float:
        """Stored bytes for each byte of live rows; 1 for an empty store."""
        return self.bytes / self.live_bytes if self.live_bytes else 1.0


def live_rows_within(segments: Sequence[Mapping[str, Any]], counted: int) -> int:
    """Limits a count of live rows to its range: at least the rows of the largest sequence, whose
    segments have no common key. Exact if no two segments overlap; otherwise filters may err."""
    columns = Overlaps(segments)
    total = int(columns.rows.sum())
    if columns.deepest() <= 1:
        return total
    _, at = np.unique(np.array(columns.sequence), return_inverse=True)
    return min(max(counted, int(np.bincount(at, columns.rows).max())), total)


def shape(segments: Sequence[Mapping[str, Any]], live_rows: int, dead: Dead = _NONE) -> StoreShape:
    """Bytes, live bytes and depth of a version's segments. The arguments are those of `plan`."""
    columns = Overlaps(segments)
    live = round(_live_bytes(columns, live_rows, dead))
    return StoreShape(int(columns.bytes.sum()), live, columns.deepest())


def _live_bytes(columns: Overlaps, live_rows: int, dead: Dead) -> float:
    total, rows = int(columns.bytes.sum()), int(columns.rows.sum())
    gone = sum(
        dead[id_][1] * n for id_, n in zip(columns.ids, columns.rows, strict=True) if id_ in dead
    )
    return total * max(0.0, min(live_rows, rows) - float(gone)) / max(1, rows)


def plan(
    segments: Sequence[Mapping[str, Any]],
    live_rows: int,
    policy: Policy,
    limit: int = 1 << 62,
    dead: Dead = _NONE,
) -> list[Merge]:
    """The merges that are due. Their key ranges are disjoint, so they can run in parallel.
    segments: descriptors (docs/formats/manifest.md) of the newest version. live_rows: keys that
    have a row, dead ones included. limit: no more merges once their inputs reach this many
    bytes."""
    columns = Overlaps(segments)
    planner = _Planner(columns, live_rows, policy, limit, dead)
    planner.plan_depth()
    planner.plan_space()
    return planner.merges


def plan_all(segments: Sequence[Mapping[str, Any]], dead: Dead = _NONE) -> list[Merge]:
    """Merges of all segments that overlap another segment or have dead rows."""
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
            if len(hull.members) > 1 or columns.ids[at] in dead:
                merges.append(_merge(columns, hull, "space"))
    return merges


def plan_erasure(
    segments: Sequence[Mapping[str, Any]], holders: Sequence[Mapping[str, Any]], *, wide: bool
) -> list[Merge]:
    """Merges that remove the deleted rows of holders, which have the same sequence and are the
    oldest segments with such rows. wide: also merge all older segments over the same keys. Without
    it, a row stays if the filter of an older segment passes its key by mistake."""
    if not wide:
        return [Merge((int(one["id"]),), int(one["bytes"]), "erase") for one in holders]
    columns = Overlaps(segments)
    merges: dict[tuple[int, ...], Merge] = {}
    for one in holders:
        low, high = int(one["min_key"]), int(one["max_key"])
        hull = columns.closed(low, high, min(columns.sequence), int(one["sequence"]))
        merge = _merge(columns, hull, "erase")
        merges[merge.inputs] = merge
    return list(merges.values())


def _merge(columns: Overlaps, hull: Hull, reason: str) -> Merge:
    return Merge(tuple(columns.ids[i] for i in hull.members.tolist()), hull.bytes, reason)


class _Planner:
    def __init__(
        self, columns: Overlaps, live_rows: int, policy: Policy, limit: int, dead: Dead
    ) -> None:
        self.columns = columns
        self.policy = policy
        self.limit = limit
        self.merges: list[Merge] = []
        self.taken = np.zeros(len(columns.ids), bool)
        self.total = int(columns.bytes.sum())
        self.live_bytes = _live_bytes(columns, live_rows, dead)
        self.dead = dead

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
                    hull = columns.closed(low, high, *ages)  # has all from i to j: each overlaps i
                    cost = float(hull.bytes) / hull.width / (j - i)
                    if (best is None or cost < best[0]) and not hull.is_taken(self.taken):
                        best = (cost, hull)
            if best is not None:
                self._take(best[1], "depth")

    def plan_space(self) -> None:
        columns = self.columns
        if self.total < max(1, self.policy.min_bytes):
            return
        candidates: dict[tuple[int, ...], tuple[float, float, Hull]] = {}
        first = min(columns.sequence)
        for at, id_ in enumerate(columns.ids):
            share, _ = self.dead.get(id_, (0.0, 0.0))
            if share > 0:
                freed = share * float(columns.bytes[at])
                written = max(1.0, float(columns.bytes[at]) - freed)
                age = columns.sequence[at]
                hull = columns.closed(columns.low[at], columns.high[at], age, age)
                candidates[at, 1] = (freed / written, freed, hull)
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


# ---- an index over the key ranges of segments, made once for each plan


class Hull:
    """Segments that overlap directly or through others, and no other one of their age window."""

    def __init__(self, members: np.ndarray, low: int, high: int, size: int) -> None:
        self.members = members  # indices, ascending
        self.low, self.high = low, high
        self.bytes = size
        self._is_taken = False

    @property
    def width(self) -> float:
        return max((float(self.high) - float(self.low)) / _KEYS, 1e-12)

    def is_taken(self, taken: np.ndarray) -> bool:
        """Whether any of its segments is taken. Caches True."""
        if not self._is_taken:
            self._is_taken = bool(taken[self.members].any())
        return self._is_taken


class Overlaps:
    """The descriptors of segments by (sequence, min_key); an index is a position in this order. A
    plan over 24,000 segments, up to twelve over one key, takes 2 s; it took 19 s when each query
    looked at all of them."""

    def __init__(self, segments: Sequence[Mapping[str, Any]]) -> None:
        ordered = sorted(segments, key=lambda s: (s["sequence"], s["min_key"]))
        self.ids = [int(s["id"]) for s in ordered]
        self.low = [int(s["min_key"]) for s in ordered]
        self.high = [int(s["max_key"]) for s in ordered]
        self.sequence = [int(s["sequence"]) for s in ordered]
        self.bytes = np.array([s["bytes"] for s in ordered], np.int64)
        self.rows = np.array([s["rows"] for s in ordered], np.int64)
        self._lows = np.array(self.low, np.uint64)
        self._highs = np.array(self.high, np.uint64)
        self._sequences = np.array(self.sequence, np.int64)
        self._by_low = np.argsort(self._lows, kind="stable")
        self._ascending = [self.low[i] for i in self._by_low.tolist()]
        self._over: dict[int, list[int]] = {}
        self.closed = lru_cache(_HULLS)(self._closed)

    def stacks(self) -> Iterator[list[int]]:
        """The segments over each key at which one begins, oldest first; keys ascend. Every largest
        stack is one of these."""
        return iter(self._stacks().values())

    def _stacks(self) -> dict[int, list[int]]:
        if not self._over:
            over: list[int] = []
            for at in self._by_low.tolist():
                low = self.low[at]
                if low not in self._over:
                    over = [i for i in over if self.high[i] >= low]
                    self._over[low] = over
                insort(over, at)
        return self._over

    def _closed(self, low: int, high: int, first: int, last: int) -> Hull:
        """The segments of the age window [first, last] that overlap [low, high], directly or
        through others. A segment must begin at low, and at least one must be in the window."""
        begin = bisect_right(self._ascending, low)
        end = bisect_right(self._ascending, high)
        near = np.concatenate([self._stacks()[low], self._by_low[begin:end]]).astype(np.intp)
        ages = self._sequences[near]
        inside = near[(ages >= first) & (ages <= last)]
        lows, highs = self._lows[inside], self._highs[inside]
        wide_low, wide_high = min(low, int(lows.min())), max(high, int(highs.max()))
        if (wide_low, wide_high) != (low, high):
            return self.closed(wide_low, wide_high, first, last)
        inside.sort()
        size = int(self.bytes[inside].sum())
        return Hull(inside, int(lows.min()), int(highs.max()), size)

    def deepest(self) -> int:
        """The largest number of segments over one key."""
        if not self.ids:
            return 0
        # +1 where a segment begins, -1 after its end; at equal keys beginnings come first.
        keys = np.concatenate([self._lows, self._highs])
        step = np.concatenate([np.ones(len(self.ids), np.int64), -np.ones(len(self.ids), np.int64)])
        order = np.lexsort((-step, keys))
        return int(np.cumsum(step[order]).max())
