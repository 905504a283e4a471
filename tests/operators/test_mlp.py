"""The operator of a stack of linear layers, against float64 numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paddlebox import _native, ops
from paddlebox._native import paddle

WITH_BFLOAT16 = pytest.mark.skipif(
    _native.core.dense_library()[2]["bfloat16"] == "none", reason="the processor has no AVX512_BF16"
)
TYPES = pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=WITH_BFLOAT16)])
EPSILON = 2.0**-24  # of float32, rounded to nearest


@pytest.fixture(autouse=True)
def dygraph() -> None:
    paddle.disable_static()


def bfloat16(x: np.ndarray) -> np.ndarray:
    """x rounded to bfloat16, ties to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32).astype(np.float64)


class Stack:
    """Random input, parameters and gradient of a stack, and what the operator makes of them."""

    def __init__(self, seed: int, instances: int, widths: Sequence[int], relu: Sequence[bool]):
        random = np.random.default_rng(seed)

        def normal(*shape: int) -> np.ndarray:
            return random.normal(size=shape).astype(np.float32)

        self.x = normal(instances, widths[0])
        self.weights = [normal(a, b) / np.float32(np.sqrt(a)) for a, b in pairwise(widths)]
        self.biases = [normal(n) for n in widths[1:]]
        self.dout = normal(instances, widths[-1])
        self.relu = relu

    def run(self, dtype: str) -> tuple[np.ndarray, ...]:
        """(out, dx, dW_1, ..., dW_L, db_1, ..., db_L)."""
        arrays = [self.x, *self.weights, *self.biases]
        tensors = [paddle.to_tensor(array, stop_gradient=False) for array in arrays]
        layers = len(self.weights)
        out = ops.mlp(
            tensors[0],
            tensors[1 : 1 + layers],
            tensors[1 + layers :],
            ["relu" if relu else None for relu in self.relu],
            dtype,
        )
        out.backward(paddle.to_tensor(self.dout))
        return (out.numpy(), *(tensor.grad.numpy() for tensor in tensors))

    def positive(self) -> list[np.ndarray]:
        """Where the operator's float32 activations are positive, for each layer.

        Rounding moves a sum near 0 to either side of it, where ReLU's gradient jumps.
        """
        parameters = [paddle.to_tensor(a) for a in (*self.weights, *self.biases)]
        value, masks, layers = paddle.to_tensor(self.x), [], len(self.weights)
        for layer, relu in enumerate(self.relu):
            weight, bias = parameters[layer], parameters[layers + layer]
            value = ops.mlp(value, [weight], [bias], ["relu" if relu else None])
            masks.append(value.numpy() > 0)
        return masks

    def exact(self) -> tuple[np.ndarray, ...]:
        """The same in float64, except that ReLU's gradient is cut where `positive` is false."""
        return self._float64(lambda a: a.astype(np.float64))

    def absolute(self) -> tuple[np.ndarray, ...]:
        """The sums of the absolute values of the terms that `exact` adds."""
        return self._float64(lambda a: np.abs(a.astype(np.float64)))

    def _float64(self, of: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, ...]:
        masks = self.positive()
        values = [of(self.x)]
        for layer, relu in enumerate(self.relu):
            out = values[-1] @ of(self.weights[layer]) + of(self.biases[layer])
            values.append(np.maximum(out, 0) if relu else out)
        gradient = of(self.dout)
        weights: list[np.ndarray] = []
        biases: list[np.ndarray] = []
        for layer in reversed(range(len(self.weights))):
            gradient = gradient * masks[layer] if self.relu[layer] else gradient
            weights.insert(0, values[layer].T @ gradient)
            biases.insert(0, gradient.sum(axis=0))
            gradient = gradient @ of(self.weights[layer]).T
        return (values[-1], gradient, *weights, *biases)


@settings(max_examples=40, deadline=None)
@example(seed=0, instances=33, widths=[129, 19], relu=[False])  # 129 = 128 + a single row
@example(seed=0, instances=33, widths=[257, 1, 1], relu=[True, False])
@example(seed=0, instances=33_000, widths=[3, 2], relu=[True])  # more than four tiles of most rows
@given(
    seed=st.integers(0, 10_000),
    instances=st.sampled_from([1, 2, 31, 32, 33, 100, 257, 700, 1023, 1024, 1500]),
    widths=st.lists(st.integers(1, 300), min_size=2, max_size=5),
    relu=st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_float32_equals_float64_for_any_shape(
    seed: int, instances: int, widths: list[int], relu: list[bool]
) -> None:
    """Narrow layers may cancel, so the error is compared with the sums of absolute terms."""
    stack = Stack(seed, instances, widths, relu[: len(widths) - 1])
    results = zip(stack.run("float32"), stack.exact(), stack.absolute(), strict=True)
    for found, exact, absolute in results:
        assert found.dtype == np.float32
        assert np.linalg.norm(found - exact) <= 4 * EPSILON * np.linalg.norm(absolute)


@pytest.mark.parametrize("widths", [[429, 400, 400, 400], [200, 64, 32, 1], [100, 1024, 512, 256]])
def test_float32_equals_float64_to_1e_5_of_the_norm(widths: list[int]) -> None:
    stack = Stack(1, 1300, widths, [True, True, False])
    for found, exact in zip(stack.run("float32"), stack.exact(), strict=True):
        assert np.linalg.norm(found - exact) <= 1e-5 * np.linalg.norm(exact)


@WITH_BFLOAT16
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    instances=st.sampled_from([1, 33, 256, 1500]),
    widths=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    relu=st.booleans(),
)
def test_bfloat16_rounds_operands_and_sums_in_float32(
    seed: int, instances: int, widths: tuple[int, int], relu: bool
) -> None:
    """Each element is within n epsilon of the sum of the absolute products, n terms."""
    stack = Stack(seed, instances, widths, [relu])
    out, dx, dweight, dbias = stack.run("bfloat16")
    x, weight = bfloat16(stack.x), bfloat16(stack.weights[0])
    dout = bfloat16(stack.dout * (out > 0) if relu else stack.dout)

    def close(found: np.ndarray, a: np.ndarray, b: np.ndarray, bias: np.ndarray | float) -> None:
        exact, absolute = a @ b + bias, np.abs(a) @ np.abs(b) + np.abs(bias)
        if relu and found is out:
            exact = np.maximum(exact, 0)
        assert (np.abs(found - exact) <= (a.shape[1] + 2) * EPSILON * absolute).all()

    close(out, x, weight, stack.biases[0].astype(np.float64))
    close(dx, dout, weight.T, 0.0)
    close(dweight, x.T, dout, 0.0)
    close(dbias[None], np.ones((1, instances)), dout, 0.0)


@TYPES
def test_a_stack_has_the_bits_of_its_layers_one_after_another(dtype: str) -> None:
    stack = Stack(1, 300, [40, 30, 20], [True, False])
    tensors = [paddle.to_tensor(a) for a in (stack.x, *stack.weights, *stack.biases)]
    hidden = ops.mlp(tensors[0], [tensors[1]], [tensors[3]], ["relu"], dtype)
    out = ops.mlp(hidden, [tensors[2]], [tensors[4]], [None], dtype)
    assert out.numpy().tobytes() == stack.run(dtype)[0].tobytes()


@TYPES
@pytest.mark.parametrize("instances", [24, 3000])
def test_rows_of_any_rank_and_layers_without_bias(instances: int, dtype: str) -> None:
    """They have the bits of a matrix and of a bias of zeros."""
    stack = Stack(1, instances, [40, 30, 20], [True, False])
    stack.biases[1][:] = 0
    expected = stack.run(dtype)
    arrays = [stack.x.reshape(4, instances // 4, 40), *stack.weights, stack.biases[0]]
    x, *parameters = (paddle.to_tensor(array, stop_gradient=False) for array in arrays)
    out = ops.mlp(x, parameters[:2], [parameters[2], None], ["relu", None], dtype)
    out.backward(paddle.to_tensor(stack.dout.reshape(out.shape)))
    assert out.shape == [4, instances // 4, 20]
    found = (out.numpy(), *(tensor.grad.numpy() for tensor in (x, *parameters)))
    for one, other in zip(found, expected[:5], strict=True):
        assert one.tobytes() == other.tobytes()


def dropped(stack: Stack, rate: float, seed: int, dtype: str = "float32") -> tuple[Any, ...]:
    """(out, dx, dW, db) of a stack of one layer."""
    arrays = [stack.x, *stack.weights, *stack.biases]
    x, weight, bias = (paddle.to_tensor(array, stop_gradient=False) for array in arrays)
    seeds = paddle.full([1], seed, "int64")
    out = ops.mlp(x, [weight], [bias], ["relu"], dtype, rate, seeds)
    out.backward(paddle.to_tensor(stack.dout))
    return (out.numpy(), *(tensor.grad.numpy() for tensor in (x, weight, bias)))


def exactly(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_keeps_its_share_and_divides_by_it(rate: float) -> None:
    stack = Stack(2, 700, [60, 400], [True])
    whole, _, _, _ = stack.run("float32")
    out, dx, dweight, dbias = dropped(stack, rate, 5)
    positive, kept = whole > 0, out > 0
    assert not out[~positive].any()
    share, count = kept[positive].mean(), positive.sum()
    assert abs(share - (1 - rate)) < 5 * np.sqrt(rate * (1 - rate) / count)
    np.testing.assert_allclose(out[kept], whole[kept] / (1 - rate), rtol=1e-6)
    # Neither rows nor columns, nor neighbours, are dropped together.
    for axis in (0, 1):
        of = positive.sum(axis)
        surprise = (kept.sum(axis) - (1 - rate) * of) / np.sqrt(rate * (1 - rate) * of)
        assert 0.8 < surprise[of > 20].std() < 1.2
    both = positive[:, 1:] & positive[:, :-1]
    together = (kept[:, 1:] == kept[:, :-1])[both].mean()
    assert abs(together - (rate**2 + (1 - rate) ** 2)) < 5 / np.sqrt(both.sum())
    gradient = (stack.dout * kept / np.float32(1 - rate)).astype(np.float64)
    exactly(dx, gradient @ stack.weights[0].T)
    exactly(dweight, stack.x.T @ gradient)
    exactly(dbias, gradient.sum(0))


@TYPES
@pytest.mark.parametrize("instances", [40, 1500])
def test_gradients_pass_the_elements_that_dropout_keeps(instances: int, dtype: str) -> None:
    stack = Stack(4, instances, [20, 30, 3], [True, False])
    arrays = [stack.x, *stack.weights, *stack.biases]
    tensors = [paddle.to_tensor(array, stop_gradient=False) for array in arrays]
    x, first, second, bias, last = tensors
    seed = paddle.full([1], 9, "int64")
    out = ops.mlp(x, [first, second], [bias, last], ["relu", None], dtype, 0.4, seed)
    out.backward(paddle.to_tensor(stack.dout))
    hidden = ops.mlp(x, [first], [bias], ["relu"], dtype, 0.4, seed).numpy()
    mask = (hidden > 0) / 0.6
    gradient = stack.dout @ stack.weights[1].T * mask
    expected = (
        hidden @ stack.weights[1] + stack.biases[1], gradient @ stack.weights[0].T,
        stack.x.T @ gradient, hidden.T @ stack.dout, gradient.sum(0), stack.dout.sum(0),
    )  # fmt: skip
    most = 1e-5 if dtype == "float32" else 0.02
    found = (out, *(tensor.grad for tensor in tensors))
    for one, other in zip(found, expected, strict=True):
        assert np.linalg.norm(one.numpy() - other) <= most * np.linalg.norm(other)


@WITH_BFLOAT16
def test_dropout_in_bfloat16_drops_the_same_elements() -> None:
    stack = Stack(2, 300, [60, 40], [True])
    narrow, wide = (dropped(stack, 0.3, 5, dtype) for dtype in ("bfloat16", "float32"))
    sure = np.abs(wide[0]) > 0.1
    assert ((narrow[0] > 0) == (wide[0] > 0))[sure].all()
    for found, expected in zip(narrow, wide, strict=True):
        assert np.linalg.norm(found - expected) < 0.05 * np.linalg.norm(expected)


def test_dropout_depends_on_the_seed_and_the_layer_alone() -> None:
    stack = Stack(3, 300, [20, 30], [True])
    first, again, other = (dropped(stack, 0.5, seed)[0] for seed in (1, 1, 2))
    assert first.tobytes() == again.tobytes()
    agree = ((first > 0) == (other > 0))[stack.run("float32")[0] > 0].mean()
    assert 0.45 < agree < 0.55
    # The second layer of a stack of two equal ones: x W_1 is x, since it is positive.
    x = paddle.to_tensor(np.abs(stack.x))
    identity, zeros = paddle.eye(20), paddle.zeros([20])
    seed = paddle.full([1], 1, "int64")
    one = ops.mlp(x, [identity], [zeros], ["relu"], dropout=0.5, seed=seed).numpy()
    two = ops.mlp(x, [identity] * 2, [zeros] * 2, [None, "relu"], dropout=0.5, seed=seed).numpy()
    assert 0.45 < ((one > 0) == (two > 0)).mean() < 0.55


@pytest.mark.parametrize("shape", [(0, 4, 3), (4, 0, 3)])
def test_no_rows_of_a_layer_without_bias(shape: tuple[int, ...]) -> None:
    x, weight = paddle.zeros(shape), paddle.ones([3, 2])
    x.stop_gradient = weight.stop_gradient = False
    out = ops.mlp(x, [weight], [None], [None])
    out.sum().backward()
    assert out.shape == [*shape[:2], 2]
    assert not weight.grad.numpy().any()


def test_a_batch_of_none_has_gradients_of_zero() -> None:
    out, dx, dweight, dbias = Stack(1, 0, [3, 2], [True]).run("float32")
    assert out.shape == (0, 2)
    assert dx.shape == (0, 3)
    assert not dweight.any()
    assert not dbias.any()


@TYPES
@pytest.mark.parametrize("last", [5, 1])
def test_subnormal_numbers_count_as_zero_within_the_operator_alone(dtype: str, last: int) -> None:
    stack = Stack(1, 100, [7, 9, last], [False, False])
    stack.biases = [np.zeros_like(bias) for bias in stack.biases]
    tiny, dout = np.float32(1e-40), stack.dout
    stack.x, stack.dout = stack.x * tiny, dout * tiny
    assert all(0 < np.abs(array).max() < 1.2e-38 for array in (stack.x, stack.dout))
    out, *gradients = stack.run(dtype)
    assert not out.any()
    weights = gradients[1:3]
    assert not any(gradient.any() for gradient in [gradients[0], *weights])
    stack.dout = dout  # the weights' gradients are products with x
    first = stack.run(dtype)[2]
    assert not first.any()
    assert tiny * np.float32(1) == tiny


DIGESTS = """
import hashlib, json, sys
import numpy as np
from paddlebox import _native, ops
from paddlebox._native import paddle
random = np.random.default_rng(3)
widths, types = [429, 130, 64, 1], ["float32"]
if _native.core.dense_library()[2]["bfloat16"] != "none":
    types.append("bfloat16")
def tensor(*shape):
    return paddle.to_tensor(random.normal(size=shape).astype("f4"), stop_gradient=False)
digests = []
for dtype in types:
    for instances in (1500, 37):
        x = tensor(instances, widths[0])
        weights = [tensor(a, b) for a, b in zip(widths, widths[1:])]
        biases = [tensor(n) for n in widths[1:]]
        seed = paddle.full([1], 7, "int64")
        out = ops.mlp(x, weights, biases, ["relu", "relu", None], dtype, 0.3, seed)
        out.sum().backward()
        arrays = [out, *(t.grad for t in (x, *weights, *biases))]
        digests.append([hashlib.sha256(a.numpy().tobytes()).hexdigest() for a in arrays])
print(json.dumps(digests))
"""


def test_bits_do_not_depend_on_the_number_of_threads(in_new_process: Callable[..., Any]) -> None:
    digests = [in_new_process(DIGESTS, env={"OMP_NUM_THREADS": n}) for n in ("1", "2", "4")]
    assert digests[0] == digests[1] == digests[2]


TRAINED = """
import json, sys
import numpy as np
from paddlebox import ops
from paddlebox._native import paddle
if sys.argv[1:] != ["dygraph"]:
    paddle.enable_static()
random = np.random.default_rng(0)
x, y = random.normal(size=(300, 8)).astype("f4"), None
y = x[:, :1] * x[:, 1:2]
start = [random.normal(size=shape).astype("f4") * 0.5 for shape in ((8, 16), (16, 1))]
def parameters():
    attrs = [paddle.ParamAttr(initializer=paddle.nn.initializer.Assign(w)) for w in start]
    create = paddle.create_parameter if paddle.in_dynamic_mode() else paddle.static.create_parameter
    zero = paddle.ParamAttr(initializer=paddle.nn.initializer.Constant(0.0))
    return ([create(list(w.shape), "float32", attr=a) for w, a in zip(start, attrs)],
            [create([w.shape[1]], "float32", attr=zero) for w in start])
def loss_of(x, y, weights, biases):
    seed = paddle.full([1], 7, "int64")
    out = ops.mlp(x, weights, biases, ["relu", None], dropout=0.2, seed=seed)
    return paddle.mean(paddle.square(out - y))
losses = []
if paddle.in_dynamic_mode():
    weights, biases = parameters()
    adam = paddle.optimizer.Adam(0.01, parameters=[*weights, *biases])
    for _ in range(40):
        loss = loss_of(paddle.to_tensor(x), paddle.to_tensor(y), weights, biases)
        loss.backward()
        adam.step()
        adam.clear_grad()
        losses.append(float(loss))
else:
    program, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(program, startup):
        feed = {"x": x, "y": y}
        inputs = [paddle.static.data(n, [-1, a.shape[1]], "float32") for n, a in feed.items()]
        loss = loss_of(*inputs, *parameters())
        paddle.optimizer.Adam(0.01).minimize(loss)
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(startup)
    losses = [float(exe.run(program, feed=feed, fetch_list=[loss])[0]) for _ in range(40)]
print(json.dumps(losses))
"""


def test_it_trains_in_static_programs_as_in_dygraph(in_new_process: Callable[..., Any]) -> None:
    losses = in_new_process(TRAINED)
    assert losses[-1] < 0.7 * losses[0]
    np.testing.assert_allclose(losses, in_new_process(TRAINED, "dygraph"), rtol=1e-5)


def refused(match: str, **changes: Any) -> None:
    arguments: dict[str, Any] = {
        "input": paddle.zeros([5, 4]),
        "weights": [paddle.zeros([4, 3])],
        "biases": [paddle.zeros([3])],
        "activations": ["relu"],
    }
    with pytest.raises(ValueError, match=match):
        ops.mlp(**(arguments | changes))


def test_mistakes_name_what_is_wrong() -> None:
    zeros = paddle.zeros
    refused(r"the weight of layer 1 has shape \(5, 3\), expected \(4, 3\)", weights=[zeros([5, 3])])
    refused(r"the bias of layer 1 has shape \(4\), expected \(3\)", biases=[zeros([4])])
    refused("X has dtype float64, expected float32", input=zeros([5, 4], "float64"))
    refused(r"X has shape \(5\), expected \(\.\.\., N\)", input=zeros([5]))
    refused("3 inputs, expected X, a weight for each of 2 layers, and 1", activations=[None, None])
    refused("2 inputs, expected X, a weight for each of 1 layers, and 0", biases=[])
    refused("activation 'tanh', expected 'relu' or None", activations=["tanh"])
    refused("no Seed, expected one for dropout", dropout=0.5)
    refused("Seed has dtype float32, expected int64", dropout=0.5, seed=zeros([1]))
    refused(r"Seed has shape \(2\), expected \(1\)", dropout=0.5, seed=zeros([2], "int64"))
    refused("dropout is 1, expected 0 <= dropout < 1", dropout=1.0, seed=zeros([1], "int64"))
    refused("dtype 'float16', expected 'float32' or 'bfloat16'", dtype="float16")


@pytest.mark.slow
def test_bfloat16_is_refused_where_the_processor_lacks_it(
    in_new_process: Callable[..., Any],
) -> None:
    code = """
import json
from paddlebox import ops
from paddlebox._native import paddle
try:
    ops.mlp(paddle.zeros([2, 2]), [paddle.zeros([2, 2])], [paddle.zeros([2])], [None], "bfloat16")
except ValueError as error:
    out = ops.mlp(paddle.ones([2, 2]), [paddle.ones([2, 2])], [paddle.ones([2])], [None])
    print(json.dumps([str(error), out.numpy().tolist()]))
"""
    for isa in ("AVX2", "AVX512_CORE"):
        error, float32 = in_new_process(code, env={"ONEDNN_MAX_CPU_ISA": isa})
        assert "bfloat16 needs AVX512_BF16 or AMX in the processor, found oneDNN 3" in error
        assert float32 == [[3, 3], [3, 3]]
