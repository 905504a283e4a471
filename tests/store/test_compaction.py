"""Which segments are merged, over the life of a store that is simulated on its keys alone."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddlebox.store.compaction import Merge, Policy, plan, plan_all, shape
from tests.store import plain_compaction

ROW = 8900  # bytes: 200,000 rows stand for 20 million of 89
ROWS = 200_000
MIN_FILE = 2 << 20


class Store:
    """Segments as ops/store cuts and merges them, with the keys of each."""

    def __init__(self) -> None:
        self.segments: dict[int, dict[str, Any]] = {}
        self.keys: dict[int, np.ndarray] = {}
        self.next_id = 1
        self.written = 0

    def cut(self, keys: np.ndarray, sequence: int) -> None:
        size = len(keys) * ROW
        share = max((float(keys[-1]) - float(keys[0])) / 2**64, 1e-18)
        total = max(size, self.bytes)
        ranges = math.floor(math.log2(min(max(total / (2 * MIN_FILE), 1), 64)))
        bits = min(ranges, max(0, math.floor(math.log2(max(1, size / share / MIN_FILE)))))
        high = keys >> np.uint64(64 - bits) if bits else np.zeros_like(keys)
        cuts = np.flatnonzero(np.diff(high)) + 1
        for part in np.split(keys, cuts):
            self.add(part, sequence)

    def add(self, keys: np.ndarray, sequence: int) -> None:
        self.segments[self.next_id] = {
            "id": self.next_id,
            "sequence": sequence,
            "min_key": int(keys[0]),
            "max_key": int(keys[-1]),
            "rows": len(keys),
            "bytes": len(keys) * ROW,
        }
        self.keys[self.next_id] = keys
        self.next_id += 1
        self.written += len(keys) * ROW

    def merge(self, inputs: tuple[int, ...]) -> None:
        gone = [self.segments.pop(i) for i in inputs]
        low, high = min(s["min_key"] for s in gone), max(s["max_key"] for s in gone)
        ages = [s["sequence"] for s in gone]
        for other in self.segments.values():
            between = min(ages) <= other["sequence"] <= max(ages)
            assert not (between and other["min_key"] <= high and other["max_key"] >= low)
        self.cut(np.unique(np.concatenate([self.keys.pop(i) for i in inputs])), max(ages))

    @property
    def bytes(self) -> int:
        return sum(s["bytes"] for s in self.segments.values())


def uniform_keys(rows: int, seed: int = 0) -> np.ndarray:
    return np.unique(np.random.default_rng(seed).integers(0, 2**64, rows, dtype=np.uint64))


@pytest.mark.parametrize(
    ("share", "recent", "passes", "write_amplification", "space"),
    [
        (0.05, False, 40, 3.0, 1.4),
        (0.30, False, 15, 3.0, 1.7),
        (0.01, False, 60, 4.0, 1.4),
        (0.05, True, 40, 3.0, 1.4),
    ],
)
def test_writes_space_and_depth_stay_in_bounds_over_a_stores_life(
    share: float, recent: bool, passes: int, write_amplification: float, space: float
) -> None:
    rng = np.random.default_rng(1)
    keys = uniform_keys(ROWS)
    store = Store()
    store.cut(keys, 1)
    loaded = store.written
    latest: list[np.ndarray] = []
    from_passes = 0
    for number in range(passes):
        wanted = int(ROWS * share)
        if recent and latest:  # four fifths of a pass are keys of the last three
            pool = np.unique(np.concatenate(latest[-3:]))
            some = rng.choice(pool, min(len(pool), wanted * 4 // 5), replace=False)
            changed = np.unique(np.concatenate([some, rng.choice(keys, wanted // 5, False)]))
        else:
            changed = np.sort(rng.choice(keys, wanted, replace=False))
        latest.append(changed)
        store.cut(changed, number + 2)
        from_passes += len(changed) * ROW
        # With the pass just written, before anything is merged.
        assert store.bytes <= space * len(keys) * ROW
        assert shape(list(store.segments.values()), len(keys)).depth <= 16
        while merges := plan(list(store.segments.values()), len(keys), Policy()):
            for merge in merges:
                store.merge(merge.inputs)
    assert (store.written - loaded) / from_passes <= write_amplification
    assert sum(len(store.keys[i]) for i in store.segments) >= len(keys)
    assert len(np.unique(np.concatenate(list(store.keys.values())))) == len(keys)


def test_nothing_is_due_in_a_fresh_or_an_empty_store() -> None:
    assert plan([], 0, Policy()) == []
    assert plan_all([]) == []
    store = Store()
    store.cut(uniform_keys(20000), 1)
    assert len(store.segments) > 16
    assert plan(list(store.segments.values()), 20000, Policy()) == []
    assert plan_all(list(store.segments.values())) == []


def test_a_merge_of_all_leaves_no_overlap() -> None:
    store = Store()
    keys = uniform_keys(20000)
    store.cut(keys, 1)
    for number in range(3):
        store.cut(keys[number::7], number + 2)
    store.add(keys[[0, -1]], 9)  # over everything
    for merge in plan_all(list(store.segments.values())):
        store.merge(merge.inputs)
    assert shape(list(store.segments.values()), len(keys)).depth == 1
    assert store.bytes == len(keys) * ROW


def test_merges_of_one_plan_have_no_keys_in_common() -> None:
    store = Store()
    keys = uniform_keys(50000)
    store.cut(keys, 1)
    for number in range(14):
        store.cut(keys[number % 5 :: 20], number + 2)
    merges = plan(list(store.segments.values()), len(keys), Policy(space_target=1.01))
    assert len(merges) > 1
    chosen = [i for merge in merges for i in merge.inputs]
    assert len(chosen) == len(set(chosen))
    hulls = sorted(
        (
            min(store.segments[i]["min_key"] for i in merge.inputs),
            max(store.segments[i]["max_key"] for i in merge.inputs),
        )
        for merge in merges
    )
    assert all(a[1] < b[0] for a, b in itertools.pairwise(hulls))


def test_the_limit_bounds_one_plan() -> None:
    store = Store()
    keys = uniform_keys(50000)
    for number in range(4):
        store.cut(keys, number + 1)
    segments = list(store.segments.values())
    assert len(plan(segments, len(keys), Policy(), limit=1)) == 1
    assert len(plan(segments, len(keys), Policy())) > 1


def test_a_segment_with_dead_rows_is_merged_alone() -> None:
    one = {"id": 3, "sequence": 1, "min_key": 0, "max_key": 9, "rows": 100, "bytes": 9000}
    apart = one | {"id": 4, "min_key": 20, "max_key": 29}
    segments, dead = [one, apart], {3: (0.5, 0.5)}
    merge = [Merge((3,), 9000, "space")]
    assert plan_all(segments, dead) == merge
    assert plan(segments, 200, Policy(min_bytes=0), dead=dead) == merge  # 18000 for 150 rows of 90
    assert plan(segments, 200, Policy(min_bytes=0, space_target=1.4), dead=dead) == []
    assert shape(segments, 200, dead).live_bytes == 13500


def test_depth_counts_segments_over_one_key() -> None:
    segments = [
        {"id": i, "sequence": i, "min_key": low, "max_key": high, "rows": 1, "bytes": 100}
        for i, (low, high) in enumerate([(0, 10), (10, 20), (21, 30), (5, 25)])
    ]
    found = shape(segments, 2)
    assert (found.depth, found.bytes, found.live_bytes) == (3, 400, 200)
    assert found.space_ratio == 2
    assert shape([], 0).space_ratio == 1


KEYS = st.one_of(
    st.integers(0, 40), st.integers(0, 2**64 - 1), st.integers(0, 15).map(lambda part: part << 60)
)


SHARES = st.sampled_from([0.0, 0.25, 0.5, 1.0])


@st.composite
def any_segments(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Any overlaps, of narrow, wide and nested ranges, in any order."""
    sizes = st.integers(1, 10**7)
    found = []
    for number in range(draw(st.integers(0, 40))):
        low, high = sorted([draw(KEYS), draw(KEYS)])
        sequence, size = draw(st.integers(1, 9)), draw(sizes)
        ages = {"id": number + 7, "sequence": sequence, "min_key": low, "max_key": high}
        found.append(ages | {"rows": max(1, size // 90), "bytes": size})
    return found


@settings(max_examples=100, deadline=None)
@given(
    any_segments(),
    st.floats(0.1, 1.0),
    st.integers(2, 6),
    st.sampled_from([1, 10**6, 1 << 62]),
    st.dictionaries(st.integers(7, 12), st.tuples(SHARES, SHARES)),
)
def test_the_index_changes_no_decision(
    segments: list[dict[str, Any]],
    live: float,
    depth: int,
    limit: int,
    dead: dict[int, tuple[float, float]],
) -> None:
    dead = {one["id"]: dead[one["id"]] for one in segments if one["id"] in dead}
    rows = round(live * sum(one["rows"] for one in segments))
    policy = Policy(merge_depth=depth, max_depth=depth + 3, min_bytes=0)
    expected = plain_compaction.plan(segments, rows, policy, limit, dead)
    assert plan(segments, rows, policy, limit, dead) == expected
    assert plan_all(segments, dead) == plain_compaction.plan_all(segments, dead)
