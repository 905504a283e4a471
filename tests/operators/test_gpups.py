"""pull_gpups_sparse: a size for each slot, all of one table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paddlebox import ops
from paddlebox._native import paddle
from paddlebox.store.table import sorted_unique_keys
from tests.support.fixtures import OpenTable


@pytest.fixture
def slots(open_table: OpenTable) -> list[Any]:
    paddle.disable_static()
    table = open_table()
    table.begin(table.stage(sorted_unique_keys(np.arange(1, 9, dtype=np.uint64))))
    return [
        paddle.to_tensor(np.array(ids, np.int64))
        for ids in ([[1], [2]], [[3, 4], [5, 0]], [[8]] * 2)
    ]


def test_slots_are_pulled_and_pushed_as_by_pull_box_sparse(slots: list[Any]) -> None:
    outs = ops.pull_gpups_sparse(slots, [7, 7, 7], anchor=ops.create_anchor())
    assert [tuple(o.shape) for o in outs] == [(2, 7), (2, 2, 7), (2, 7)]
    sum(o.sum() for o in outs).backward()
    again = ops.pull_gpups_sparse(slots, [7, 7, 7], anchor=ops.create_anchor())
    expected = ops.pull_box_sparse(slots, 7, anchor=ops.create_anchor())
    for out, other in zip(again, expected, strict=True):
        np.testing.assert_array_equal(out.numpy(), other.numpy())
    assert again[2].numpy()[:, 0].tolist() == [2, 2]  # both shows of feasign 8
    assert again[1].numpy()[1, 1].tolist() == [0] * 7  # padding


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([7, 11, 7], "slot 1 has size 11, slot 0 has 7"),
        ([11, 11, 11], "size is 11, table .* = 7 columns"),
        ([7, 7], "3 slots and 2 sizes"),
    ],
)
def test_sizes_that_are_not_the_tables_are_refused(
    slots: list[Any], sizes: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ops.pull_gpups_sparse(slots, sizes, anchor=ops.create_anchor())


def test_no_slots_are_refused() -> None:
    with pytest.raises(ValueError, match="0 slots and 0 sizes"):
        ops.pull_gpups_sparse([], [])
