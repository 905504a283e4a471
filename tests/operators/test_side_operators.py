"""pull_cache_value and lookup_input in dygraph and static programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

from paddlebox import ops
from paddlebox._native import paddle
from paddlebox.data.side_table import InputTable, ReplicaCache
from paddlebox.errors import PassError

Opened = tuple[Any, Callable[..., Any]]
OPERATORS = [(ReplicaCache, ops.pull_cache_value), (InputTable, ops.lookup_input)]


def fill(table: InputTable | ReplicaCache, rows: int) -> None:
    values = np.arange(rows * table.dim, dtype=np.float32).reshape(rows, table.dim)
    if isinstance(table, InputTable):
        table.set_values([str(i) for i in range(rows)], values)
    else:
        table.set_values(values)
    table.begin_feed_pass()
    table.begin_pass()


@pytest.fixture(params=OPERATORS, ids=["pull_cache_value", "lookup_input"])
def opened(request: pytest.FixtureRequest) -> Iterator[Opened]:
    """A side table of 5 rows of 3 values in a pass, and its operator."""
    paddle.disable_static()
    kind, operator = request.param
    table = kind("side", 3)
    fill(table, 5)
    yield table, operator
    if table.is_open:
        table.end_pass()


def int64(ids: ArrayLike) -> Any:
    return paddle.to_tensor(np.array(ids, np.int64))


@pytest.mark.parametrize(
    ("ids", "shape"), [((4, 1), (4, 3)), ((4, 2), (4, 2, 3)), ((4,), (4, 3)), ((1,), (1, 3))]
)
def test_the_shape_is_that_of_the_ids_and_size(
    opened: Opened, ids: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    _, operator = opened
    assert tuple(operator(int64(np.ones(ids)), 3).shape) == shape


def test_rows_have_no_gradient(opened: Opened) -> None:
    _, operator = opened
    out = operator(int64([[1]]), 3)
    assert out.stop_gradient
    weight = paddle.create_parameter([3, 1], "float32")
    paddle.matmul(out, weight).sum().backward()  # and is no obstacle to that of others
    np.testing.assert_array_equal(weight.grad.numpy()[:, 0], out.numpy()[0])


class TestMistakes:
    def test_size_of_another_table(self, opened: Opened) -> None:
        _, operator = opened
        for size in (2, 0, -1):
            with pytest.raises(ValueError, match=f"size is {size}, side table 'side' has 3"):
                operator(int64([[1]]), size)

    def test_wrong_dtype(self, opened: Opened) -> None:
        _, operator = opened
        for ids in (paddle.ones([1], "int32"), paddle.ones([1])):
            with pytest.raises(ValueError, match="expected int64 row numbers"):
                operator(ids, 3)

    def test_no_open_pass(self, opened: Opened) -> None:
        table, operator = opened
        table.end_pass()
        with pytest.raises(PassError, match=r"open in a pass: none \(its begin_pass is missing\)"):
            operator(int64([[1]]), 3)

    def test_another_name(self, opened: Opened) -> None:
        _, operator = opened
        with pytest.raises(PassError, match="'other'; open in a pass: 'side'"):
            operator(int64([[1]]), 3, "other")

    def test_two_tables_and_no_name(self, opened: Opened) -> None:
        table, operator = opened
        second = type(table)("second", 3)
        fill(second, 1)
        with pytest.raises(PassError, match="open in a pass: 'second', 'side'"):
            operator(int64([[1]]), 3)
        operator(int64([[0]]), 3, "second")
        second.end_pass()

    def test_the_other_kind_is_not_looked_at(self, opened: Opened) -> None:
        table, _ = opened
        other = dict(OPERATORS)[ReplicaCache if type(table) is InputTable else InputTable]
        with pytest.raises(PassError, match="open in a pass: none"):
            other(int64([[1]]), 3, "side")


def test_a_table_that_is_dropped_while_open_is_closed() -> None:
    paddle.disable_static()
    cache = ReplicaCache("gone", 3)
    fill(cache, 5)
    del cache
    with pytest.raises(PassError, match="open in a pass: none"):
        ops.pull_cache_value(int64([[1]]), 3)


PROGRAM = """
import json, sys
import numpy as np
from paddlebox import ops
from paddlebox._native import paddle
from paddlebox.data.side_table import InputTable, ReplicaCache
cache, table = ReplicaCache("c", 2), InputTable("t", 3)
cache.set_values(np.arange(8).reshape(4, 2))
table.set_values(["a", "b"], np.array([[1, 1, 1], [2, 2, 2]]))
paddle.enable_static()
program, startup = paddle.static.Program(), paddle.static.Program()
exe = paddle.static.Executor(paddle.CPUPlace())
with paddle.static.program_guard(program, startup):
    number = paddle.static.data("number", [-1, 1], "int64")
    word = paddle.static.data("word", [-1, 2], "int64")
    cached = ops.pull_cache_value(number, 2, "c")
    looked = ops.lookup_input(word, 3, "t")
    assert list(cached.shape) == [-1, 2] and list(looked.shape) == [-1, 2, 3], looked.shape
    flat = paddle.concat([cached, paddle.reshape(looked, [-1, 6])], axis=1)
    loss = paddle.mean(paddle.square(paddle.nn.Linear(8, 1)(flat) - 1.0))
    paddle.optimizer.SGD(0.005).minimize(loss)
exe.run(startup)
for side in (cache, table):
    side.begin_feed_pass()
    side.begin_pass()
words = table.rows_of(["a", "b", "-", "none", "b", "a"]).reshape(3, 2)
feed = {"number": np.array([[3], [0], [1]]), "word": words}
outs = [exe.run(program, feed=feed, fetch_list=[loss, cached, looked]) for _ in range(20)]
try:
    with ops.raising_own_errors():
        exe.run(program, feed={**feed, "number": np.array([[3], [9], [1]])}, fetch_list=[loss])
except ValueError as error:
    message = str(error)
cache.end_pass()
table.end_pass()
print(json.dumps([[float(o[0]) for o in outs], *(x.tolist() for x in outs[-1][1:]), message]))
"""


def test_a_program_trains_over_them(in_new_process: Callable[..., Any]) -> None:
    losses, cached, looked, message = in_new_process(PROGRAM)
    assert losses[-1] < losses[0]
    assert cached == [[6, 7], [0, 1], [2, 3]]
    assert looked == [[[1] * 3, [2] * 3], [[0] * 3, [0] * 3], [[2] * 3, [1] * 3]]
    assert message.startswith("pull_cache_value: side table 'c': id 9 at position 1, expected")
