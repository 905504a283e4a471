"""The operators in static programs, and those of the old IR are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

SETUP = """
import json, sys
import numpy as np
from paddlebox import ops  # before Paddle's helper is looked up
from paddlebox._native import paddle
from paddlebox.config import TableConfig
from paddlebox.store.table import Table, sorted_unique_keys
table = Table(TableConfig(embedx_dim=4, embedx_threshold=0.0), mem_budget_bytes=1 << 20)
table.begin(table.stage(sorted_unique_keys(np.arange(1, 200, dtype=np.uint64))))
paddle.enable_static()
program, startup = paddle.static.Program(), paddle.static.Program()
exe = paddle.static.Executor(paddle.CPUPlace())
random = np.random.default_rng(1)
"""

# A regression on the sum of all pulled columns of 26 slots; what is fetched is the loss of each
# step.
TRAIN = (
    SETUP
    + """
with paddle.static.program_guard(program, startup):
    slots = [paddle.static.data(f"slot{i}", [-1, 1 + i % 2], "int64") for i in range(26)]
    target = paddle.static.data("target", [-1, 1], "float32")
    rows = ops.pull_box_sparse(slots, 7)
    assert [list(r.shape)[1:] for r in rows] == [[7] if i % 2 == 0 else [2, 7] for i in range(26)]
    # Columns 0 and 1 of a gradient count shows and clicks: left out here.
    weights = [paddle.slice(r, [len(r.shape) - 1], [2], [7]) for r in rows]
    weights = [paddle.reshape(w, [-1, 5 * (1 + i % 2)]) for i, w in enumerate(weights)]
    flat = paddle.concat(weights, axis=1)
    loss = paddle.mean(paddle.square(paddle.nn.Linear(flat.shape[1], 1)(flat) - target))
    paddle.optimizer.SGD(0.1).minimize(loss)
exe.run(startup)
feed = {f"slot{i}": random.integers(1, 200, (8, 1 + i % 2)) for i in range(26)}
feed["target"] = np.ones((8, 1), np.float32)
losses = [float(exe.run(program, feed=feed, fetch_list=[loss])[0]) for _ in range(10)]
table.end()
table.commit()
print(json.dumps([losses, len(table.read_all()[0])]))
"""
)

STOCK_HELPER = (
    SETUP
    + """
from paddle.incubate.layers import _pull_box_sparse
count = int(sys.argv[1])
with paddle.static.program_guard(program, startup):
    slots = [paddle.static.data(f"slot{i}", [-1, 1], "int64") for i in range(count)]
    target = paddle.static.data("target", [-1, 1], "float32")
    rows = _pull_box_sparse(slots if count > 1 else slots[0], size=7)
    rows = rows if isinstance(rows, list) else [rows]
    flat = paddle.concat([paddle.slice(r, [1], [2], [7]) for r in rows], axis=1)
    loss = paddle.mean(paddle.square(paddle.nn.Linear(5 * count, 1)(flat) - target))
    paddle.optimizer.SGD(0.1).minimize(loss)
exe.run(startup)
feed = {f"slot{i}": random.integers(1, 200, (8, 1)) for i in range(count)}
feed["target"] = np.ones((8, 1), np.float32)
losses = [float(exe.run(program, feed=feed, fetch_list=[loss])[0]) for _ in range(10)]
print(json.dumps(losses))
"""
)


def test_26_slots_as_a_list_train(in_new_process: Callable[..., Any]) -> None:
    losses, rows = in_new_process(TRAIN)
    assert losses[-1] < 0.9 * losses[0]
    assert rows > 100  # the pushes made rows


@pytest.mark.parametrize("slots", [1, 26])
def test_paddles_own_helper_trains(in_new_process: Callable[..., Any], slots: int) -> None:
    losses = in_new_process(STOCK_HELPER, str(slots))
    assert losses[-1] < losses[0]


CVM = (
    SETUP
    + """
static = sys.argv[1] == "static"
counts = np.array([[1, 1], [1, 0]], np.float32)
if static:
    with paddle.static.program_guard(program, startup):
        ids = paddle.static.data("ids", [-1, 1], "int64")
        show_click = paddle.static.data("show_click", [-1, 2], "float32")
        out = ops.continuous_value_model(ops.pull_box_sparse(ids, 7), show_click)
        loss = paddle.mean(paddle.nn.Linear(7, 1)(out))
        paddle.optimizer.SGD(0.1).minimize(loss)
    exe.run(startup)
else:
    paddle.disable_static()
outs = []
for _ in range(3):
    if static:
        feed = {"ids": np.array([[7], [9]]), "show_click": counts}
        outs.append(exe.run(program, feed=feed, fetch_list=[out])[0])
    else:
        rows = ops.pull_box_sparse(paddle.to_tensor([[7], [9]]), 7, anchor=ops.create_anchor())
        out = ops.continuous_value_model(rows, paddle.to_tensor(counts))
        out.sum().backward()
        outs.append(out.numpy())
print(json.dumps([o[:, :2].tolist() for o in outs]))
"""
)


@pytest.mark.parametrize("kind", ["static", "dygraph"])
def test_cvm_over_a_pull_counts_shows_and_clicks(
    in_new_process: Callable[..., Any], kind: str
) -> None:
    for step, out in enumerate(in_new_process(CVM, kind)):
        log_show, log_clicks = np.log(step + 1), [np.log(step + 1), 0]
        expected = [[log_show, log_clicks[0] - log_show], [log_show, log_clicks[1] - log_show]]
        np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-6)


ERROR = (
    SETUP
    + """
with paddle.static.program_guard(program, startup):
    ids = paddle.static.data("ids", [-1, 1], "int64")
    out = ops.pull_box_sparse(ids, 7)
exe.run(startup)
try:
    with ops.raising_own_errors():
        exe.run(program, feed={"ids": np.array([[500]])}, fetch_list=[out])
except ValueError as error:
    print(json.dumps(str(error)))
"""
)


def test_a_mistake_in_a_program_is_the_same_error_as_in_dygraph(
    in_new_process: Callable[..., Any],
) -> None:
    message = in_new_process(ERROR)
    assert message.startswith("pull_box_sparse: feasign 500 is not among the keys of pass 1")


@pytest.mark.slow
def test_a_program_of_the_old_ir_is_refused(in_new_process: Callable[..., Any]) -> None:
    code = f"{SETUP}try:\n    ops.pull_box_sparse(paddle.static.data('ids', [-1, 1], 'int64'), 7)\n"
    code += "except ValueError as error:\n    print(json.dumps(str(error)))"
    message = in_new_process(code, env={"FLAGS_enable_pir_api": "0"})
    assert message.startswith("pull_box_sparse: expected dygraph or a program in PIR, found one in")


EXCEPTION = (
    SETUP
    + """
import resource
from paddlebox.errors import OutOfSpaceError
paddle.disable_static()
ids, anchor = paddle.ones([40_000_000], "int64"), ops.create_anchor()
ops.pull_box_sparse(ids[:10], 7, anchor=anchor)
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (64 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    ops.pull_box_sparse(ids, 7, anchor=anchor)
except OutOfSpaceError as error:
    after = ops.pull_box_sparse(ids[:10], 7, anchor=anchor).shape
    print(json.dumps([str(error), list(after)]))
"""
)


def test_a_cpp_exception_in_an_operator_is_an_error_and_the_process_lives(
    in_new_process: Callable[..., Any],
) -> None:
    message, shape = in_new_process(EXCEPTION)
    assert message.startswith("pull_box_sparse: out of memory")
    assert shape == [10, 7]
