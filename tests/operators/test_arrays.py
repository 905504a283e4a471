"""The pooled kernels and the MEM tier on numpy arrays, past Paddle."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from paddlebox import ops
from paddlebox._native import core, paddle
from paddlebox.errors import PassError
from paddlebox.store.table import Table, sorted_unique_keys
from tests.support.fixtures import OpenTable

DIM, WIDTH, SLOTS = 4, 7, 2
NUMBERS = itertools.count()  # open tables have different names
# B = 2: slots [r0 r1][r2] and [][r0]; -1 is padding.
IDS = np.array([0, 1, 2, -1, 0], np.int32)
OFFSETS = np.array([0, 2, 4, 4, 5], np.int32)
SHOW_CLICK = np.array([[1, 0], [1, 1]], np.float32)
GRAD = np.linspace(-1, 1, 2 * SLOTS * WIDTH, dtype=np.float32).reshape(2 * SLOTS, WIDTH)


def begin(open_table: OpenTable) -> tuple[Table, int]:
    table = open_table({"name": f"table{next(NUMBERS)}"})
    staged = table.stage(sorted_unique_keys(np.arange(1, 4, dtype=np.uint64)))
    table.begin(staged)
    return table, staged.stamp


def arrays_step(table: Table, plan: np.ndarray) -> np.ndarray:
    out = np.full((2 * SLOTS, WIDTH), np.nan, np.float32)
    table.first.native.push_pooled(IDS, OFFSETS, SLOTS, True, SHOW_CLICK, plan, GRAD)
    table.first.native.pull_pooled(IDS, OFFSETS, SLOTS, True, out)
    return out


def finish(table: Table) -> str:
    table.end()
    table.commit()
    return table.digest()


def test_arrays_give_what_the_operator_gives(open_table: OpenTable) -> None:
    paddle.disable_static()
    table, stamp = begin(open_table)
    plan = core.Table.build_plan(IDS, OFFSETS, stamp)
    ids, offsets, show_click, words = map(paddle.to_tensor, (IDS, OFFSETS, SHOW_CLICK, plan))

    def pull() -> Any:
        return ops.fused_pull_seqpool_cvm(
            *(ids, offsets, show_click, words, ops.create_anchor()),
            slots=SLOTS,
            embedx_dim=DIM,
            table=table.first.name,
        )

    for _ in range(3):
        pull().backward(paddle.to_tensor(GRAD.reshape(2, -1)))
    expected, expected_digest = pull().numpy(), finish(table)
    for make_plan in (True, False):
        table, stamp = begin(open_table)
        plan = core.Table.build_plan(IDS, OFFSETS, stamp) if make_plan else np.zeros(0, np.int32)
        out = [arrays_step(table, plan) for _ in range(3)][-1]
        assert np.array_equal(out.reshape(2, -1), expected)
        assert finish(table) == expected_digest


def test_pulled_show_is_the_log_of_what_was_pushed(open_table: OpenTable) -> None:
    table, stamp = begin(open_table)
    out = arrays_step(table, core.Table.build_plan(IDS, OFFSETS, stamp))
    # r0 occurs in both instances, r1 and r2 in the first: the slots sum shows of 2 + 1, 1, none, 2.
    assert np.allclose(out[:, 0], np.log([4, 2, 1, 3]))
    table.first.native.abandon()


def test_plan_has_the_layout_of_its_header() -> None:
    plan = core.Table.build_plan(IDS, OFFSETS, 9)
    assert plan[:3].tolist() == [9, 3, 4]  # stamp, unique rows, occurrences
    assert plan[3:6].tolist() == [0, 1, 2]
    assert plan[6:10].tolist() == [0, 2, 3, 4]
    first = -(2**31)  # marks a row's first occurrence
    assert plan[10:].tolist() == [first, 3, first, first + 1]


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        (OFFSETS[:-1], r"Offsets has shape \(4\), expected \(5\)"),
        (np.array([0, 2, 1, 4, 5], np.int32), "ascend"),
    ],
)
def test_wrong_offsets_are_a_value_error(
    open_table: OpenTable, offsets: np.ndarray, message: str
) -> None:
    table, _ = begin(open_table)
    with pytest.raises(ValueError, match=message):
        table.first.native.pull_pooled(
            IDS, offsets, SLOTS, True, np.zeros((2 * SLOTS, WIDTH), np.float32)
        )
    table.first.native.abandon()


def test_arrays_of_a_wrong_size_are_a_value_error(open_table: OpenTable) -> None:
    table, _ = begin(open_table)
    with pytest.raises(ValueError, match=r"out: found 3 values, expected B \* 14"):
        table.first.native.pull_pooled(IDS, OFFSETS, SLOTS, True, np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="grad: found 3 values, expected 28"):
        empty = np.zeros(0, np.int32)
        three = np.zeros(3, np.float32)
        table.first.native.push_pooled(IDS, OFFSETS, SLOTS, True, SHOW_CLICK, empty, three)
    with pytest.raises(ValueError, match="offsets: expected ascending values from 0 to 5"):
        core.Table.build_plan(IDS, OFFSETS[:0], 1)
    table.first.native.abandon()


def test_a_pull_without_a_pass_is_a_pass_error(open_table: OpenTable) -> None:
    table = open_table()
    with pytest.raises(PassError, match="begin_pass is missing"):
        table.first.native.pull_pooled(
            IDS, OFFSETS, SLOTS, True, np.zeros((2 * SLOTS, WIDTH), np.float32)
        )


def test_mem_tier_finds_what_came_in_until_it_is_taken() -> None:
    tier = core.MemTier(8, 2 << 20)
    keys = sorted_unique_keys(np.arange(1, 5001, dtype=np.uint64))
    rows = np.arange(5000 * 8, dtype=np.uint32).astype(np.uint8).reshape(5000, 8)
    tier.insert(keys[::2].copy(), rows[::2].copy())
    found = np.full(5000, 7, np.uint8)
    tier.find(keys, found)
    assert found.tolist() == [1, 0] * 2500
    read, here = np.zeros_like(rows), np.zeros(5000, np.uint8)
    tier.read(keys, read, here)
    assert np.array_equal(here, found)
    assert np.array_equal(read[::2], rows[::2])
    tier.take(keys[:100], read[:100], np.zeros(100, np.uint8))
    tier.find(keys, found)
    assert found.tolist() == [0] * 100 + [1, 0] * 2450
    assert tier.rows == 2450
    with pytest.raises(ValueError, match="not ascending at 1 of 2"):
        tier.insert(keys[[1, 0]], rows[:2])
