"""The layers of paddlebox.compat.layers in static programs: they create their
parameters, and train as in dygraph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

# One network of all layers: the same body builds it in a program and runs it in dygraph.
NETWORK = """
import json, sys
import numpy as np
from paddlebox import ops
from paddlebox._native import paddle
from paddlebox.compat import layers
random = np.random.default_rng(1)
feed = {
    "x": random.uniform(-1, 1, (4, 4)).astype("f4"),
    "mask": np.array([[True], [False], [True], [True]]),
    "ranks": np.array([[1, 1, 0, 2, 1, -1, -1], [2, 1, 0, 2, 1, -1, -1],
                       [1, 1, 2, -1, -1, -1, -1], [-1, -1, -1, -1, -1, -1, -1]], "i4"),
    "label": np.array([[1], [0], [0], [1]], "f4"),
}
start = {"batch_size": 4, "batch_sum": 1, "batch_square": 4}
def constant(value):
    return paddle.ParamAttr(initializer=paddle.nn.initializer.Constant(value))
def network(x, mask, ranks, label, sums, summary, param, w, b, w8, b8):
    y = layers.masked_data_norm(x, mask, param_attr=start, name="masked", summary_decay_rate=0.9,
                                sums=sums)
    y = layers.cross_norm_layer_hadamard(y, 1, 2, start, 0.9, name="cross", summary=summary)
    y = layers.scaled_fc(y, [7, 3], constant(0.1), [3, 1], constant(0.2), 0.5, 0.5, act="tanh",
                         weight=w, bias=b)
    z = layers.rank_attention2(y, ranks, [27, 3], constant(0.05), rank_param=param)
    y = layers.scaled_int8fc(paddle.concat([y, z], axis=1), [6, 1], constant(0.1), [1],
                             constant(0.0), weight_clip_factor=60.0, input_clip_factor=60.0,
                             int8_range=120.0, input_expand_factor=50.0,
                             weight_expand_factor=50.0, weight=w8, bias=b8)
    return paddle.mean(paddle.square(y - label))
"""

STATIC = (
    NETWORK
    + """
paddle.enable_static()
program, startup = paddle.static.Program(), paddle.static.Program()
exe = paddle.static.Executor(paddle.CPUPlace())
with paddle.static.program_guard(program, startup):
    inputs = {n: paddle.static.data(n, [-1, *a.shape[1:]], str(a.dtype)) for n, a in feed.items()}
    inputs["x"].stop_gradient = False
    loss = network(**inputs, sums=None, summary=None, param=None, w=None, b=None, w8=None, b8=None)
    gradients = paddle.static.gradients([loss], [inputs["x"]])
    paddle.optimizer.SGD(0.5).minimize(loss)
exe.run(startup)
losses = []
for _ in range(5):
    out = exe.run(program, feed=feed, fetch_list=[loss, *gradients])
    losses.append(float(out[0]))
scope = paddle.static.global_scope()
names = ["masked.batch_size", "masked.batch_sum", "masked.batch_square_sum", "cross.cross_summary"]
sums = [np.array(scope.find_var(name).get_tensor()).tolist() for name in names]
print(json.dumps([losses, out[1].tolist(), sums]))
"""
)

DYGRAPH = (
    NETWORK
    + """
def made(shape, value):
    return paddle.create_parameter(shape, "float32", attr=constant(value))
inputs = {n: paddle.to_tensor(a, stop_gradient=n != "x") for n, a in feed.items()}
sums = [paddle.full([4], float(start[n])) for n in ("batch_size", "batch_sum", "batch_square")]
summary = paddle.to_tensor(np.repeat(np.float32([4, 1, 4]), 7).reshape(3, 7))
parameters = {"param": made([27, 3], 0.05), "w": made([7, 3], 0.1), "b": made([3, 1], 0.2),
              "w8": made([6, 1], 0.1), "b8": made([1], 0.0)}
sgd = paddle.optimizer.SGD(0.5, parameters=list(parameters.values()))
losses = []
for _ in range(5):
    loss = network(**inputs, sums=sums, summary=summary, **parameters)
    inputs["x"].clear_gradient()
    loss.backward()
    sgd.step()
    sgd.clear_grad()
    losses.append(float(loss))
print(json.dumps([losses, inputs["x"].grad.numpy().tolist(),
                  [s.numpy().tolist() for s in (*sums, summary)]]))
"""
)


def test_a_network_of_all_of_them_trains_as_in_dygraph(in_new_process: Callable[..., Any]) -> None:
    losses, gradient, sums = in_new_process(STATIC)
    expected = in_new_process(DYGRAPH)
    assert losses[-1] < 0.9 * losses[0]
    np.testing.assert_allclose(losses, expected[0], rtol=1e-5)
    np.testing.assert_allclose(gradient, expected[1], rtol=1e-4, atol=1e-6)
    for found, wanted in zip(sums, expected[2], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert gradient[1] == [0, 0, 0, 0]  # not selected by the mask


SHARED = """
import json, sys
import numpy as np
from paddlebox._native import paddle
from paddlebox.compat import layers
paddle.enable_static()
exe = paddle.static.Executor(paddle.CPUPlace())
def build(train):
    program, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(program, startup):
        x = paddle.static.data("x", [-1, 2], "float32")
        mask = paddle.static.data("mask", [-1], "bool")
        start = {"batch_size": 1, "batch_square": 1}
        y = layers.masked_data_norm(x, mask, param_attr=start, epsilon=0.0, update_norm=train,
                                    summary_decay_rate=0.5)
        z = layers.cross_norm_layer_hadamard(x, 1, 1, start, 0.5, 0.0, "norm", update_norm=train)
    return program, startup, [y, z]
train, startup, out = build(True)
evaluate, _, evaluated = build(False)
exe.run(startup)
feed = {"x": np.array([[1, 2], [3, 6]], "f4"), "mask": np.array([True, True])}
results = [[a.tolist() for a in exe.run(p, feed=feed, fetch_list=o)]
           for p, o in [(train, out), (evaluate, evaluated), (evaluate, evaluated)]]
print(json.dumps(results))
"""


def test_a_program_without_update_reads_the_sums_of_the_training_program(
    in_new_process: Callable[..., Any],
) -> None:
    first, second, third = in_new_process(SHARED)
    x = np.array([[1, 2], [3, 6]])
    crossed = np.column_stack([x, x.prod(1), x.prod(1)])
    for values, before, after in zip((x, crossed), first, second, strict=True):
        np.testing.assert_allclose(before, values)
        # size 0.5 + 1, sum 0 + mean(x), square 0.5 + mean(x^2)
        size, total, square = 1.5, values.mean(0), 0.5 + (values**2).mean(0)
        expected = (values - total / size) * np.sqrt(size / square)
        np.testing.assert_allclose(after, expected, rtol=1e-5)
    assert second == third


FED = """
import json, sys
import numpy as np
from paddlebox._native import paddle
from paddlebox.compat import layers
paddle.enable_static()
results = {}
for name in ("scaled_fc", "scaled_int8fc", "rank_attention2", "masked_data_norm"):
    program, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(program, startup):
        x = paddle.static.data("x", [-1, 3], "float32")
        ranks = paddle.static.data("ranks", [-1, 7], "int32")
        mask = paddle.static.data("mask", [-1], "bool")
        if name == "rank_attention2":
            out = layers.rank_attention2(x, ranks, [27, 2], None)
        elif name == "masked_data_norm":
            out = layers.masked_data_norm(x, mask, name="norm", enable_scale_and_shift=True)
        else:
            out = getattr(layers, name)(x, [3, 2], None, [2, 1], None)
        loss = paddle.mean(out)
        paddle.optimizer.SGD(0.1).minimize(loss)
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(startup)
    feed = {"x": np.ones((2, 3), "f4"), "ranks": np.ones((2, 7), "i4"), "mask": np.ones(2, bool)}
    results[name] = [float(exe.run(program, feed=feed, fetch_list=[loss])[0]) for _ in range(3)]
print(json.dumps(results))
"""


def test_parameters_train_where_the_input_is_fed_and_has_no_gradient(
    in_new_process: Callable[..., Any],
) -> None:
    for losses in in_new_process(FED).values():
        assert losses[0] > losses[1] > losses[2]


ERRORS = """
import json, sys
import numpy as np
from paddlebox import ops
from paddlebox._native import paddle
from paddlebox.compat import layers
paddle.enable_static()
exe = paddle.static.Executor(paddle.CPUPlace())
messages = []
for name in ("masked_data_norm", "data_norm", "scaled_fc"):
    program, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(program, startup):
        x = paddle.static.data("x", [-1, 3], "int32")
        mask = paddle.static.data("mask", [-1], "bool")
        if name == "data_norm":
            out = ops.data_norm(x, param_attr={}, enable_scale_and_shift=True)
        elif name == "masked_data_norm":
            out = layers.masked_data_norm(x, mask)
        else:
            out = layers.scaled_fc(x, [3, 2], None, [2], None)
    exe.run(startup)
    try:
        with ops.raising_own_errors():
            exe.run(program, feed={"x": np.ones((2, 3), "i4"), "mask": np.ones(2, bool)},
                    fetch_list=[out])
    except ValueError as error:
        messages.append(str(error))
print(json.dumps(messages))
"""


def test_a_mistake_in_a_program_is_the_same_error_as_in_dygraph(
    in_new_process: Callable[..., Any],
) -> None:
    messages = in_new_process(ERRORS)
    assert [message.partition(":")[0] for message in messages] == [
        "masked_data_norm",
        "data_norm",
        "scaled_fc",
    ]
    assert all("has dtype int32, expected float32" in message for message in messages)
