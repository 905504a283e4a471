"""pull_box_extended_sparse: rows with two embeddings, in dygraph and in both kinds of program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox import ops
from paddlebox._native import paddle
from paddlebox.errors import PassError
from paddlebox.store.table import Table, sorted_unique_keys
from tests.support.fixtures import OpenTable

DIM, EXPAND = 4, 2
SIZE = 3 + DIM
LEARNING_RATE, G0 = 0.05, 3.0


def begin(open_table: OpenTable, fields: dict[str, Any] | None = None) -> Table:
    paddle.disable_static()
    table = open_table({"expand_dim": EXPAND, **(fields or {})})
    table.begin(table.stage(sorted_unique_keys(np.arange(1, 9, dtype=np.uint64))))
    return table


def pull(ids: list[list[list[int]]], **arguments: Any) -> tuple[list[Any], list[Any]]:
    slots = [paddle.to_tensor(np.array(slot, np.int64)) for slot in ids]
    return ops.pull_box_extended_sparse(
        slots, SIZE, EXPAND, anchor=ops.create_anchor(), **arguments
    )


def push(ids: list[list[int]], out_grad: np.ndarray, expand_grad: np.ndarray) -> None:
    """One step in which each pulled column gets the gradient that is given."""
    (out,), (expand,) = pull([ids])
    paddle.autograd.backward(
        [out, expand], [paddle.to_tensor(out_grad), paddle.to_tensor(expand_grad)]
    )


def rows_of(table: Table, feasign: int) -> np.ndarray:
    feasigns, rows = table.read_all()
    return rows[list(feasigns).index(feasign)]


def test_expand_is_made_with_embedx_and_moves_by_a_gradient_of_its_own(
    open_table: OpenTable,
) -> None:
    table = begin(open_table, {"embedx": {"rule": "naive", "learning_rate": 0.5}})
    ones = np.ones((2, SIZE), np.float32)
    gradient = np.array([[1, 2], [0, 0]], np.float32)
    ids = [[3], [5]]
    push(ids, ones, gradient)  # makes both parts, and only that
    (first,), (made,) = pull([ids])
    assert np.abs(made.numpy()).max() <= 1e-4
    assert len(np.unique(made.numpy())) == 4  # each initial weight is another
    push(ids, ones, gradient)
    (second,), (moved,) = pull([ids])
    # The sum loss of two instances, over one show each in the push: naive ignores the shows.
    np.testing.assert_allclose(moved.numpy(), made.numpy() - 0.5 * 2 * gradient, rtol=1e-6)
    assert (second.numpy() < first.numpy())[:, 2:].all()  # embed_w and embedx have moved as well
    table.end()
    table.commit()


def test_a_row_without_a_gradient_for_expand_keeps_its_bits_under_adam(
    open_table: OpenTable,
) -> None:
    table = begin(open_table, {"embedx": {"rule": "adam"}})
    ones = np.ones((1, SIZE), np.float32)
    push([[3]], ones, np.ones((1, EXPAND), np.float32))
    push([[3]], ones, np.ones((1, EXPAND), np.float32))
    before = pull([[[3]]])[1][0].numpy()
    push([[3]], ones, np.zeros((1, EXPAND), np.float32))  # Adam alone would go on by its momentum
    np.testing.assert_array_equal(pull([[[3]]])[1][0].numpy(), before)
    table.end()
    table.commit()


def test_a_plain_pull_and_push_leave_expand_as_it_is(open_table: OpenTable) -> None:
    table = begin(open_table)
    push([[3]], np.ones((1, SIZE), np.float32), np.ones((1, EXPAND), np.float32))
    made = pull([[[3]]])[1][0].numpy()
    out = ops.pull_box_sparse(
        paddle.to_tensor([[3]], dtype="int64"), SIZE, anchor=ops.create_anchor()
    )
    out.sum().backward()
    np.testing.assert_array_equal(pull([[[3]]])[1][0].numpy(), made)
    table.end()
    table.commit()


def test_masks_choose_which_slots_each_result_has(open_table: OpenTable) -> None:
    table = begin(open_table)
    slots = [[[1]], [[2]], [[3]]]
    out, expand = pull(slots, mask=[1, 2, 3])
    assert [tuple(part.shape) for part in out] == [(1, SIZE)] * 2
    assert [tuple(part.shape) for part in expand] == [(1, EXPAND)] * 2
    _, wide = pull(slots, mask=[2, 2, 2], expand_only=False)
    assert [tuple(part.shape) for part in wide] == [(1, SIZE + EXPAND)] * 3
    table.end()
    table.commit()


def test_rows_with_expand_survive_the_store_and_16_bits(
    open_table: OpenTable, tmp_path: Path
) -> None:
    kept = {}
    for precision in ("float32", "float16"):
        folder = tmp_path / precision
        table = begin_in(open_table, folder, precision)
        for _ in range(3):
            push([[3]], np.ones((1, SIZE), np.float32), np.ones((1, EXPAND), np.float32))
        table.end()
        table.commit()
        row = rows_of(table, 3)
        table.close()
        again = open_table(
            {"expand_dim": EXPAND, "row_precision": precision}, folder=folder, read_only=True
        )
        np.testing.assert_array_equal(rows_of(again, 3), row)
        again.close()
        kept[precision] = row[-EXPAND - 1 :]
    # Expand stays in 32 bits.
    np.testing.assert_array_equal(kept["float32"], kept["float16"])


def begin_in(open_table: OpenTable, folder: Path, precision: str) -> Table:
    paddle.disable_static()
    table = open_table({"expand_dim": EXPAND, "row_precision": precision}, folder=folder)
    table.begin(table.stage(sorted_unique_keys(np.arange(1, 9, dtype=np.uint64))))
    return table


def test_gradients_that_are_not_finite_change_nothing_of_expand_and_are_counted(
    open_table: OpenTable,
) -> None:
    table = begin(open_table, {"on_bad_grad": "skip"})
    ones = np.ones((1, SIZE), np.float32)
    push([[3]], ones, np.ones((1, EXPAND), np.float32))
    made = pull([[[3]]])[1][0].numpy()
    push([[3]], ones, np.array([[np.nan, 1]], np.float32))
    np.testing.assert_array_equal(pull([[[3]]])[1][0].numpy(), made)
    assert sum(table.counters()["bad_grads"].values()) == 1
    table.end()
    table.commit()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mask": [4]}, "mask \\[4\\], expected 1, 2 or 3 for each of 1 slots"),
        ({"mask": [1, 1]}, "for each of 1 slots"),
        ({"offset": 2}, "offset 2"),
        ({"dtype": "float16"}, "'float16'"),
    ],
)
def test_wrong_arguments_are_named(
    open_table: OpenTable, arguments: dict[str, Any], message: str
) -> None:
    begin(open_table)
    with pytest.raises(ValueError, match=message):
        pull([[[1]]], **arguments)


def test_sizes_and_tables_that_do_not_fit_are_errors(open_table: OpenTable) -> None:
    begin(open_table)
    slot = [paddle.to_tensor([[1]], dtype="int64")]
    with pytest.raises(ValueError, match=r"3 \+ embedx_dim \+ expand_dim = 9 columns"):
        ops.pull_box_extended_sparse(slot, SIZE, 5, anchor=ops.create_anchor())


def test_a_table_without_expand_says_what_to_set(open_table: OpenTable) -> None:
    paddle.disable_static()
    table = open_table()
    table.begin(table.stage(sorted_unique_keys(np.arange(1, 9, dtype=np.uint64))))
    slot = [paddle.to_tensor([[1]], dtype="int64")]
    with pytest.raises(PassError, match=r"set table\.expand_dim"):
        ops.pull_box_extended_sparse(slot, SIZE, 0, anchor=ops.create_anchor())


PROGRAM = """
import json
import numpy as np
from paddlebox import ops
from paddlebox._native import paddle
from paddlebox.config import TableConfig
from paddlebox.store.table import Table, sorted_unique_keys
config = TableConfig(embedx_dim=4, embedx_threshold=0.0, expand_dim=2)
table = Table(config, mem_budget_bytes=1 << 20)
table.begin(table.stage(sorted_unique_keys(np.arange(1, 50, dtype=np.uint64))))
paddle.enable_static()
program, startup = paddle.static.Program(), paddle.static.Program()
exe = paddle.static.Executor(paddle.CPUPlace())
with paddle.static.program_guard(program, startup):
    slots = [paddle.static.data(f"slot{i}", [-1, 1], "int64") for i in range(3)]
    target = paddle.static.data("target", [-1, 1], "float32")
    out, expand = ops.pull_box_extended_sparse(slots, 7, 2, mask=[3, 1, 2])
    parts = [paddle.slice(r, [1], [2], [7]) for r in out] + list(expand)
    flat = paddle.concat(parts, axis=1)
    loss = paddle.mean(paddle.square(paddle.nn.Linear(flat.shape[1], 1)(flat) - target))
    paddle.optimizer.SGD(0.1).minimize(loss)
exe.run(startup)
random = np.random.default_rng(1)
feed = {f"slot{i}": random.integers(1, 50, (16, 1)) for i in range(3)}
feed["target"] = np.ones((16, 1), np.float32)
losses = [float(exe.run(program, feed=feed, fetch_list=[loss])[0]) for _ in range(10)]
table.end()
table.commit()
feasigns, rows = table.read_all()
moved = {int(f) for f, row in zip(feasigns, rows) if np.abs(row[-3:-1]).max() > 2e-4}
slots = [set(feed[f"slot{i}"].ravel().tolist()) for i in range(3)]
print(json.dumps([losses, sorted(moved), sorted(slots[0] | slots[2])]))
"""


def test_a_program_trains_expand_of_the_slots_that_ask_for_it(
    in_new_process: Callable[..., Any],
) -> None:
    losses, moved, asked = in_new_process(PROGRAM)
    assert losses[-1] < losses[0]
    assert moved
    assert set(moved) <= set(asked)
