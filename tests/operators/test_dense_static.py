"""The dense operators in static programs: the numbers of dygraph, trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

# One network of all operators: the same body builds it in a program and runs it in dygraph.
NETWORK = """
import json, sys
import numpy as np
from paddlebox import nn, ops
from paddlebox._native import paddle
random = np.random.default_rng(1)
feed = {
    "v0": random.uniform(0, 3, (9, 6)).astype("f4"), "o0": np.array([0, 3, 3, 7, 9], "i4"),
    "v1": random.uniform(0, 3, (5, 6)).astype("f4"), "o1": np.array([0, 1, 3, 4, 5], "i4"),
    "cvm": np.array([[1, 1], [1, 0], [1, 0], [1, 1]], "f4"),
    "mask": np.array([1, 0, 1, 1]),
    "ranks": np.array([[1, 1, 0, 2, 1, -1, -1], [2, 1, 0, 2, 1, -1, -1],
                       [1, 1, 2, -1, -1, -1, -1], [-1, -1, -1, -1, -1, -1, -1]], "i4"),
    "label": np.array([[1], [0], [0], [1]], "f4"),
}
def constant(value):
    return paddle.ParamAttr(initializer=paddle.nn.initializer.Constant(value))
def network(v0, o0, v1, o1, cvm, mask, ranks, label, norm, param, w, b):
    slots = ops.fused_seqpool_cvm([(v0, o0), (v1, o1)], "sum", cvm, need_filter=True,
                                  quant_ratio=64, grad_mask=mask)
    x = norm(paddle.concat(slots, axis=1))
    y = ops.rank_attention(x, ranks, [9 * 12, 4], constant(0.02), enable_input_bp=True,
                           rank_param=param)
    y = ops.batch_fc(paddle.reshape(y, [1, -1, 4]), [1, 4, 1], constant(0.1), [1, 1],
                     constant(0.0), act="tanh", weight=w, bias=b)
    return paddle.mean(paddle.square(paddle.reshape(y, [-1, 1]) - label))
def make_norm():
    return nn.DataNorm(12, summary_decay_rate=0.9, slot_dim=6, batch_size=4, batch_square=4)
"""

STATIC = (
    NETWORK
    + """
paddle.enable_static()
program, startup = paddle.static.Program(), paddle.static.Program()
exe = paddle.static.Executor(paddle.CPUPlace())
with paddle.static.program_guard(program, startup):
    inputs = {n: paddle.static.data(n, [-1, *a.shape[1:]], str(a.dtype)) for n, a in feed.items()}
    for n in ("v0", "v1"):
        inputs[n].stop_gradient = False
    norm = make_norm()
    loss = network(**inputs, norm=norm, param=None, w=None, b=None)
    gradients = paddle.static.gradients([loss], [inputs["v0"], inputs["v1"]])
    paddle.optimizer.SGD(0.5).minimize(loss)
exe.run(startup)
losses, sums = [], []
for _ in range(5):
    out = exe.run(program, feed=feed, fetch_list=[loss, *gradients])
    losses.append(float(out[0]))
    sums.append(exe.run(program, feed=feed, fetch_list=[norm.batch_sum])[0].tolist()[0:2])
print(json.dumps([losses, [g.tolist() for g in out[1:]], sums]))
"""
)

DYGRAPH = (
    NETWORK
    + """
inputs = {n: paddle.to_tensor(a, stop_gradient=n not in ("v0", "v1")) for n, a in feed.items()}
norm = make_norm()
param = paddle.create_parameter([108, 4], "float32", attr=constant(0.02))
w = paddle.create_parameter([1, 4, 1], "float32", attr=constant(0.1))
b = paddle.create_parameter([1, 1], "float32", attr=constant(0.0))
sgd = paddle.optimizer.SGD(0.5, parameters=[param, w, b, *norm.parameters()])
losses, sums = [], []
for step in range(10):  # the static program runs twice a step: once to fetch the sums
    loss = network(**inputs, norm=norm, param=param, w=w, b=b)
    for n in ("v0", "v1"):
        inputs[n].clear_gradient()
    loss.backward()
    sgd.step()
    sgd.clear_grad()
    if step % 2 == 0:
        losses.append(float(loss))
        gradients = [inputs[n].grad.numpy().tolist() for n in ("v0", "v1")]
    else:
        sums.append(norm.batch_sum.numpy().tolist()[0:2])
print(json.dumps([losses, gradients, sums]))
"""
)


def test_a_network_of_all_of_them_trains_as_in_dygraph(in_new_process: Callable[..., Any]) -> None:
    losses, gradients, sums = in_new_process(STATIC)
    expected = in_new_process(DYGRAPH)
    assert losses[-1] < 0.9 * losses[0]
    np.testing.assert_allclose(losses, expected[0], rtol=1e-4)
    for found, wanted in zip(gradients, expected[1], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(sums, expected[2], rtol=1e-5)
    # Counts are the CVM input's; instance 1 is masked, and had rows 1 and 2 of the second slot.
    second = np.array(gradients[1])
    assert second[:, :2].tolist() == [[1, 1], [0, 0], [0, 0], [1, 0], [1, 1]]


FUNCTIONAL = """
import json, sys
import numpy as np
from paddlebox import ops
from paddlebox._native import paddle
paddle.enable_static()
exe = paddle.static.Executor(paddle.CPUPlace())
def build(train):
    program, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(program, startup):
        x = paddle.static.data("x", [-1, 2], "float32")
        out = ops.data_norm(x, name="norm", param_attr={"batch_size": 1, "batch_square": 1},
                            epsilon=0.0, summary_decay_rate=0.5, update_norm=train)
    return program, startup, out
train, startup, out = build(True)
evaluate, _, evaluated = build(False)
exe.run(startup)
feed = {"x": np.array([[1, 2], [3, 6]], "f4")}
results = [exe.run(p, feed=feed, fetch_list=[o])[0].tolist()
           for p, o in [(train, out), (evaluate, evaluated), (evaluate, evaluated)]]
print(json.dumps(results))
"""


def test_data_norm_makes_its_sums_and_a_program_without_update_reads_them(
    in_new_process: Callable[..., Any],
) -> None:
    first, second, third = in_new_process(FUNCTIONAL)
    x = np.array([[1, 2], [3, 6]])
    np.testing.assert_allclose(first, x)
    # size 0.5 + 1, sum 0 + mean(x), square 0.5 + mean(x^2)
    size, total, square = 1.5, x.mean(0), 0.5 + (x**2).mean(0)
    expected = (x - total / size) * np.sqrt(size / square)
    np.testing.assert_allclose(second, expected, rtol=1e-5)
    assert second == third


ERROR = """
import json, sys
import numpy as np
from paddlebox import ops
from paddlebox._native import paddle
paddle.enable_static()
exe = paddle.static.Executor(paddle.CPUPlace())
program, startup = paddle.static.Program(), paddle.static.Program()
with paddle.static.program_guard(program, startup):
    x = paddle.static.data("x", [-1, 3], "float32")
    ranks = paddle.static.data("ranks", [-1, 7], "int32")
    out = ops.rank_attention(x, ranks, [27, 2])
exe.run(startup)
try:
    with ops.raising_own_errors():
        exe.run(program, feed={"x": np.ones((2, 3), "f4"), "ranks": np.full((2, 7), 9, "i4")},
                fetch_list=[out])
except ValueError as error:
    print(json.dumps(str(error)))
"""


def test_a_mistake_in_a_program_is_the_same_error_as_in_dygraph(
    in_new_process: Callable[..., Any],
) -> None:
    message = in_new_process(ERROR)
    assert message.startswith("rank_attention: RankOffset: row 0, column 0 has rank 9, expected")


FED = """
import json, sys
import numpy as np
from paddlebox import nn, ops
from paddlebox._native import paddle
paddle.enable_static()
results = {}
for name in ("batch_fc", "rank_attention", "data_norm"):
    program, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(program, startup):
        x = paddle.static.data("x", [-1, 3], "float32")
        ranks = paddle.static.data("ranks", [-1, 7], "int32")
        if name == "batch_fc":
            out = ops.batch_fc(paddle.reshape(x, [1, -1, 3]), [1, 3, 2], None, [1, 2])
        elif name == "rank_attention":
            out = ops.rank_attention(x, ranks, [27, 2])
        else:
            out = nn.DataNorm(3, enable_scale_and_shift=True)(x)
        loss = paddle.mean(out)
        paddle.optimizer.SGD(0.1).minimize(loss)
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(startup)
    feed = {"x": np.ones((2, 3), "f4"), "ranks": np.ones((2, 7), "i4")}
    results[name] = [float(exe.run(program, feed=feed, fetch_list=[loss])[0]) for _ in range(3)]
print(json.dumps(results))
"""


def test_parameters_train_where_the_input_is_fed_and_has_no_gradient(
    in_new_process: Callable[..., Any],
) -> None:
    for losses in in_new_process(FED).values():
        assert losses[0] > losses[1] > losses[2]
