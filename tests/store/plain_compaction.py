"""The plan of paddlebox/store/compaction.py the plain way: every question goes to all segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paddlebox.store.compaction import Dead, Merge, Policy

_KEYS = 2.0**64


def plan(
    segments: Sequence[Mapping[str, Any]], live_rows: int, policy: Policy, limit: int, dead: Dead
) -> list[Merge]:
    planner = _Planner(_Columns(segments), live_rows, policy, limit, dead)
    planner.plan_depth()
    planner.plan_space()
    return planner.merges


def plan_all(segments: Sequence[Mapping[str, Any]], dead: Dead) -> list[Merge]:
    """Merges everything that overlaps anything else or has dead rows, and nothing else."""
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
        if inside.sum() > 1 or columns.ids[at] in dead:
            merges.append(_merge(columns, inside, "space"))
    return merges


def _ages(columns: _Columns) -> tuple[int, int]:
    return int(columns.sequence.min()), int(columns.sequence.max())


def _merge(columns: _Columns, inside: np.ndarray, reason: str) -> Merge:
    chosen = np.flatnonzero(inside)
    return Merge(tuple(columns.ids[i] for i in chosen), int(columns.bytes[chosen].sum()), reason)


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


class _Planner:
    def __init__(
        self, columns: _Columns, live_rows: int, policy: Policy, limit: int, dead: Dead
    ) -> None:
        self.columns = columns
        self.policy = policy
        self.limit = limit
        self.merges: list[Merge] = []
        self.taken = np.zeros(len(columns.ids), bool)
        self.total = int(columns.bytes.sum())
        rows = max(1, int(columns.rows.sum()))
        rows_of = dict(zip(columns.ids, columns.rows.tolist(), strict=True))
        gone = sum(share * rows_of[id_] for id_, (_, share) in sorted(dead.items()))
        self.live_bytes = self.total * max(0.0, min(live_rows, rows) - gone) / rows
        self.dead = dead
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
        if self.total < max(1, self.policy.min_bytes):
            return
        candidates: dict[tuple[int, ...], tuple[float, float, np.ndarray]] = {}
        first = int(columns.sequence.min())
        for at, id_ in enumerate(columns.ids):
            if self.dead.get(id_, (0, 0))[0] > 0:
                size, age = float(columns.bytes[at]), int(columns.sequence[at])
                inside = columns.closed(columns.low[at], columns.high[at], age, age)
                written = max(1.0, size - self.dead[id_][0] * size)
                candidates[at, 1] = (size * self.dead[id_][0] / written, size - written, inside)
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
