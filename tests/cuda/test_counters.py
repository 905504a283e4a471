"""What the device is asked to count, and how long it is at calls."""

from __future__ import annotations

import numpy as np

from tests.cuda.hbm_cases import filled, random_push, same_bits
from tests.cuda.hbm_library import Library, Reference, config

SHOW, CLICK, DELTA_SCORE = 1, 2, 3


def test_pushes_of_slots_that_are_not_counted_only_learn(
    library: Library, reference: Reference
) -> None:
    case = filled(library, reference, config(8), 60)
    ids, offsets = np.arange(60, dtype=np.int32), np.arange(61, dtype=np.int32)
    push = random_push(np.random.default_rng(4), 8, 60, 1)
    plan = reference.plan(ids, offsets)
    slots = case.rows[:, 0].view(np.uint32) & 0xFFFF
    counted = np.ones(65536, np.float32)
    counted[[1, 3]] = 0
    before = case.rows.copy()
    reference.push(case.device.config, case.table.keys, case.rows, plan, push)
    not_counted = np.isin(slots, (1, 3))
    assert 0 < not_counted.sum() < 60
    case.table.count(counted)
    case.table.push(case.device.put(plan), len(plan), push)
    expected = case.rows.copy()
    for word in (SHOW, CLICK, DELTA_SCORE):
        expected[not_counted, word] = before[not_counted, word]
    same_bits(case.table.rows(), expected)
    case.table.put_rows(before)
    case.table.count(None)
    case.table.push(case.device.put(plan), len(plan), push)
    same_bits(case.table.rows(), case.rows)


def test_times_are_of_the_calls_since_they_were_asked_last(
    library: Library, reference: Reference
) -> None:
    case = filled(library, reference, config(8), 1000)
    case.device.take_times()
    ids = np.arange(1000, dtype=np.int32)
    for _ in range(3):
        case.table.pull(ids)
    times = case.device.take_times()
    assert times.pull_ns > 0
    assert times.push_ns == times.plan_ns == 0
    offsets = np.arange(1001, dtype=np.int32)
    plan = case.device.plan(ids, offsets)
    case.table.push(plan, 4 + 3 * 1000, random_push(np.random.default_rng(1), 8, 1000, 1))
    times = case.device.take_times()
    assert times.pull_ns == 0
    assert min(times.push_ns, times.plan_ns) > 0
