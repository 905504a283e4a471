"""Tables with further counts feed the operators that read them: pulls have the columns, and the
push adds what `cvm` holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paddlebox import ops
from paddlebox._native import paddle
from paddlebox.compat.layers import fused_seqpool_cvm_tradew
from paddlebox.store.table import Table, sorted_unique_keys
from tests.support.fixtures import OpenTable

DIM = 4
# Two instances of one slot: feasigns 3 and 5; 3.
IDS, OFFSETS = np.array([3, 5, 3], np.int64), np.array([0, 2, 3], np.int32)


def begin(open_table: OpenTable, counts: tuple[str, ...]) -> Table:
    paddle.disable_static()
    table = open_table({"embedx_dim": DIM, "counts": counts})
    table.begin(table.stage(sorted_unique_keys(np.array([3, 5], np.uint64))))
    return table


def counts_of(table: Table, feasign: int) -> list[float]:
    table.end(1)
    table.commit()
    feasigns, rows = table.read_all()
    row = rows[list(feasigns).index(feasign)]
    further = len(table.config.counts)
    found: list[float] = [*row[1:3].tolist(), *row[len(row) - further :].tolist()]
    return found


def pull(counts: int, anchor: Any) -> Any:
    return ops.pull_box_sparse(paddle.to_tensor(IDS[None]), 3 + counts + DIM, anchor=anchor)


OPERATORS: dict[str, tuple[Any, dict[str, Any], int]] = {
    "conv": (ops.fused_seqpool_cvm_with_conv, {}, 1),
    "credit": (ops.fused_seqpool_cvm_with_credit, {}, 2),
    "pcoc": (ops.fused_seqpool_cvm_with_pcoc, {}, 5),
    "tradew": (fused_seqpool_cvm_tradew, {"cvm_offset": 3, "trade_num": 2}, 1),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_rows_feed_the_operator_and_its_gradient_counts(open_table: OpenTable, name: str) -> None:
    operator, arguments, n = OPERATORS[name]
    table = begin(open_table, tuple(f"count{number}" for number in range(n)))
    cvm = np.arange(2 * (2 + n), dtype=np.float32).reshape(2, 2 + n) + 1
    anchor = ops.create_anchor()
    for _ in range(2):
        rows = paddle.reshape(pull(n, anchor), [3, -1])
        values = (rows, paddle.to_tensor(OFFSETS))
        out = operator(values, "SUM", paddle.to_tensor(cvm), slots=1, **arguments)
        out.sum().backward()
    # Two steps: feasign 3 is in both instances, 5 in the first one.
    one, two = cvm
    assert counts_of(table, 3) == (2 * (one + two)).tolist()


def test_the_features_of_conv_are_those_of_the_counts(open_table: OpenTable) -> None:
    table = begin(open_table, ("conversion",))
    grad = np.zeros((2, 4 + DIM), np.float32)
    grad[:, :3] = [[9, 4, 2], [3, 1, 0]]
    ops.push_box_sparse(paddle.to_tensor(np.array([3, 5], np.int64)), paddle.to_tensor(grad))
    anchor = ops.create_anchor()
    rows = paddle.reshape(pull(1, anchor), [3, -1])
    assert rows.numpy()[:, :3].tolist() == [[9, 4, 2], [3, 1, 0], [9, 4, 2]]
    cvm = paddle.ones([2, 3])
    out = ops.fused_seqpool_cvm_with_conv(
        (rows, paddle.to_tensor(OFFSETS)), "SUM", cvm, slots=1
    ).numpy()
    expected = [[13.0, 6.0, 3 / 6], [10.0, 5.0, 3 / 5]]
    np.testing.assert_allclose(np.exp(out[:, :3]), expected, rtol=1e-5)
    del table


@pytest.mark.parametrize("static", [False, True])
def test_the_fused_pull_has_the_counts(open_table: OpenTable, static: bool) -> None:
    table = begin(open_table, ("conversion", "cart"))
    grad = np.zeros((2, 5 + DIM), np.float32)
    grad[:, :4] = [[9, 4, 2, 1], [3, 1, 0, 6]]
    ops.push_box_sparse(paddle.to_tensor(np.array([3, 5], np.int64)), paddle.to_tensor(grad))
    counts = np.array([[1, 1, 1, 0], [1, 0, 0, 2]], np.float32)
    feed: dict[str, Any] = {
        "ids": IDS,
        "offsets": OFFSETS,
        "counts": counts,
        "plan": np.zeros(1, np.int32),
    }
    if static:
        found = run_static(feed)
    else:
        out = fused([paddle.to_tensor(array) for array in feed.values()])
        out.sum().backward()
        found = out.numpy()
    assert found.shape == (2, 5 + DIM)
    expected = [[13, 6 / 13, 3 / 6, 8 / 6], [10, 5 / 10, 3 / 5, 2 / 5]]
    np.testing.assert_allclose(np.exp(found[:, :4]), expected, rtol=1e-5)
    paddle.disable_static()
    assert counts_of(table, 3) == [11, 5, 3, 3]


def fused(inputs: list[Any]) -> Any:
    ids, offsets, counts, plan = inputs
    anchor = ops.create_anchor()
    return ops.fused_pull_seqpool_cvm(ids, offsets, counts, plan, anchor, slots=1, embedx_dim=DIM)


def run_static(feed: dict[str, np.ndarray]) -> np.ndarray:
    paddle.enable_static()
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
        inputs = [
            paddle.static.data(name, [-1, *array.shape[1:]], str(array.dtype))
            for name, array in feed.items()
        ]
        out = fused(inputs)
        assert out.shape[1] == 5 + DIM
        paddle.optimizer.SGD(0.1).minimize(paddle.sum(out))
    exe = paddle.static.Executor(paddle.CPUPlace())
    with paddle.static.scope_guard(paddle.static.Scope()):
        exe.run(startup)
        (found,) = exe.run(main, feed=feed, fetch_list=[out])
    return np.asarray(found)


def test_a_size_without_the_counts_is_refused(open_table: OpenTable) -> None:
    begin(open_table, ("conversion",))
    with pytest.raises(ValueError, match=r"3 \+ embedx_dim \+ counts = 8 columns"):
        pull(0, ops.create_anchor())
