"""`offset` and `slot_idx` of PaddleBox's pull: what is read, and what is pushed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paddlebox import ops
from paddlebox._native import paddle
from paddlebox.compat.layers import pull_box_sparse
from paddlebox.config import TableConfig
from paddlebox.store.table import Table, sorted_unique_keys

DIM = 4
COLUMNS = 3 + DIM
IDS = np.array([[5], [9], [5]], np.int64)


def table_after(push: Callable[[Any], None]) -> np.ndarray:
    """The rows of 5 and 9 after two pushes, of which the first creates their embedx."""
    paddle.disable_static()
    with Table(TableConfig(embedx_dim=DIM, embedx_threshold=0.0)) as table:
        table.begin(table.stage(sorted_unique_keys(np.array([5, 9], np.uint64))))
        for _ in range(2):
            push(ops.create_anchor())
        rows = ops.pull_box_sparse(
            paddle.to_tensor(IDS[:2]), COLUMNS, anchor=ops.create_anchor()
        ).numpy()
        table.end()
    return np.asarray(rows)


def pushed(offset: int, slot_idx: int, ids: np.ndarray = IDS) -> np.ndarray:
    """The rows after pushes of `pull_box_sparse`, whose result has the gradient 1, 2, 3..."""

    def push(anchor: Any) -> None:
        found = pull_box_sparse(
            paddle.to_tensor(ids), COLUMNS - offset, offset=offset, slot_idx=slot_idx, anchor=anchor
        )
        assert found.shape == [
            *(ids.shape[:-1] if ids.shape[-1] == 1 else ids.shape),
            COLUMNS - offset,
        ]
        weights = paddle.arange(1, COLUMNS - offset + 1, dtype="float32")
        (found * weights).sum().backward()

    return table_after(push)


def plain(offset: int, batch: int) -> np.ndarray:
    """The same by `push_box_sparse`, which scales by the first dimension of the ids."""
    grad = np.ones((3, COLUMNS), np.float32)
    grad[:, offset:] = np.arange(1, COLUMNS - offset + 1)
    shape = [batch, -1]  # [3, 1] or [1, 3]

    def push(anchor: Any) -> None:
        del anchor
        ids = paddle.to_tensor(IDS.reshape(shape))
        ops.push_box_sparse(ids, paddle.to_tensor(grad if batch == 3 else grad[None]))

    return table_after(push)


@pytest.mark.parametrize("offset", [0, 1, 2, 3])
@pytest.mark.parametrize("slot_idx", [-1, 0])
def test_columns_that_are_skipped_are_pushed_as_ones(offset: int, slot_idx: int) -> None:
    assert np.array_equal(pushed(offset, slot_idx), plain(offset, batch=3))


@pytest.mark.parametrize("offset", [0, 2])
def test_a_slot_index_above_all_slots_leaves_the_gradient_unscaled(offset: int) -> None:
    assert np.array_equal(pushed(offset, slot_idx=2), plain(offset, batch=1))
    assert not np.array_equal(pushed(offset, slot_idx=2), plain(offset, batch=3))


def test_one_column_is_left_for_each_id_of_a_slot() -> None:
    ids = np.array([[5, 9, 0], [9, 5, 5]], np.int64)
    assert pushed(1, -1, ids).shape == (2, COLUMNS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dtype": "float64"}, "dtype 'float64'"),
        ({"offset": -1}, "offset -1"),
        ({"size": COLUMNS}, "size is 8"),
    ],
)
def test_mistakes_are_named(arguments: dict[str, Any], message: str) -> None:
    def push(anchor: Any) -> None:
        given = {"size": COLUMNS - 1, "offset": 1, **arguments}
        with pytest.raises(ValueError, match=message):
            pull_box_sparse(paddle.to_tensor(IDS), **given, anchor=anchor)

    table_after(push)


STATIC = """
import json
import numpy as np
from paddlebox import ops
from paddlebox._native import paddle
from paddlebox.compat.layers import pull_box_sparse
from paddlebox.config import TableConfig
from paddlebox.store.table import Table, sorted_unique_keys
table = Table(TableConfig(embedx_dim=4, embedx_threshold=0.0), mem_budget_bytes=1 << 20)
table.begin(table.stage(sorted_unique_keys(np.array([5, 9], np.uint64))))
paddle.enable_static()
program, startup = paddle.static.Program(), paddle.static.Program()
with paddle.static.program_guard(program, startup):
    slots = [paddle.static.data(name, [-1, 1], "int64") for name in ("a", "b")]
    found = [*pull_box_sparse(slots, 6, offset=1), pull_box_sparse(slots[0], 6, "float32", 1, 9)]
    loss = paddle.mean(paddle.concat(found, axis=0))
    paddle.optimizer.SGD(0.1).minimize(loss)
exe = paddle.static.Executor(paddle.CPUPlace())
exe.run(startup)
feed = {"a": np.array([[5], [9]]), "b": np.array([[9], [9]])}
shapes = [list(np.shape(rows)) for rows in exe.run(program, feed=feed, fetch_list=found)]
reading = paddle.static.Program()
with paddle.static.program_guard(reading, startup):
    rows = ops.pull_box_sparse(paddle.static.data("a", [-1, 1], "int64"), 7)
exe.run(startup)
shows = exe.run(reading, feed={"a": feed["a"]}, fetch_list=[rows])[0][:, 0].tolist()
print(json.dumps([shapes, shows]))
"""


@pytest.mark.parametrize("pir", ["1", "0"], ids=["pir", "old_ir"])
def test_static_programs_count_a_show_for_each_occurrence(
    in_new_process: Callable[..., Any], pir: str
) -> None:
    shapes, shows = in_new_process(STATIC, env={"FLAGS_enable_pir_api": pir})
    assert shapes == [[2, 6]] * 3
    # Slot a is pulled twice: 5 occurs twice, and 9 four times.
    assert shows == [2.0, 4.0]
