"""Attention over jagged sequences, against float64 numpy with one loop per query."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paddlebox import ops
from paddlebox._native import paddle
from tests.operators.test_mlp import bfloat16
from tests.support.marks import slow

DAY = 86400


@pytest.fixture(autouse=True)
def dygraph() -> None:
    paddle.disable_static()


def bucket(difference: int, buckets: int) -> int:
    if difference <= 0:
        return 0
    mantissa, exponent = np.frexp(np.float32(difference))  # mantissa in [0.5, 1)
    return int(min(1 + 2 * (exponent - 1) + (mantissa >= 0.75), buckets - 1))


@dataclass
class Case:
    """Random sequences and the inputs of an attention over them."""

    seed: int
    lengths: list[int]
    targets: list[int]
    form: str = "pointwise"
    heads: int = 2
    key: int = 4
    value: int = 3
    buckets: int = 8
    positions: int = 5
    causal: bool = True
    inputs: dict[str, np.ndarray] = field(init=False)

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)
        self.offsets = np.cumsum([0, *self.lengths]).astype(np.int32)
        self.target_offsets = np.cumsum([0, *self.targets]).astype(np.int32)
        events, tokens = self.offsets[-1], self.offsets[-1] + self.target_offsets[-1]
        self.sequence = np.concatenate(
            [np.repeat(np.arange(len(n)), n) for n in (self.lengths, self.targets)]
        ).astype(int)
        self.place = np.arange(tokens) - self.offsets[self.sequence]
        self.place[events:] = 1 << 30  # no event
        length = np.array(self.lengths, int)[self.sequence]
        self.seen = random.integers(0, length + 1).astype(np.int32)
        if self.causal:
            self.seen[:events] = self.place[:events]
        self.times = random.integers(0, 40 * DAY, tokens)
        self.times[:events] = np.concatenate(
            [np.sort(self.times[a:b]) for a, b in zip(self.offsets, self.offsets[1:], strict=False)]
            or [np.zeros(0, int)]
        )
        shapes = {
            "q": (tokens, self.heads * self.key),
            "k": (tokens, self.heads * self.key),
            "v": (tokens, self.heads * self.value),
            "time_bias": (self.heads, self.buckets),
            "position_bias": (self.heads, self.positions),
        }
        self.inputs = {n: random.normal(size=s).astype(np.float32) for n, s in shapes.items()}
        self.dout = random.normal(size=shapes["v"]).astype(np.float32)
        self.divisor = float(max([1, *self.lengths]))

    def run(self, dtype: str = "float32") -> dict[str, np.ndarray]:
        """The result, and the gradient of each input."""
        tensors = {n: paddle.to_tensor(a, stop_gradient=False) for n, a in self.inputs.items()}
        fixed = [paddle.to_tensor(a) for a in (self.offsets, self.seen, self.target_offsets)]
        out = self._call(tensors, fixed, dtype)
        out.backward(paddle.to_tensor(self.dout))
        return {"out": out.numpy(), **{n: t.grad.numpy() for n, t in tensors.items()}}

    def _call(self, tensors: dict[str, Any], fixed: list[Any], dtype: str) -> Any:
        return ops.jagged_attention(
            tensors["q"],
            tensors["k"],
            tensors["v"],
            *fixed,
            heads=self.heads,
            form=self.form,
            divisor=self.divisor,
            times=paddle.to_tensor(self.times),
            time_bias=tensors["time_bias"],
            position_bias=tensors["position_bias"],
            dtype=dtype,
        )

    def seen_by(self, token: int) -> list[tuple[int, int]]:
        """(token, distance) of each token that a token sees."""
        first, seen = int(self.offsets[self.sequence[token]]), int(self.seen[token])
        among = self.place[token] < seen
        return [(first + j, seen - j) for j in range(seen)] + ([] if among else [(token, 0)])

    def sees(self, token: int, other: int) -> bool:
        return other in [seen for seen, _ in self.seen_by(token)]

    def exact(
        self, rounded: Callable[[np.ndarray], np.ndarray], *, absolute: bool = False
    ) -> dict[str, np.ndarray]:
        """The same in float64.

        Args:
            rounded: of the factors of each product.
            absolute: sum the absolute values of all terms, also of those that cancel in a softmax.
        """
        of = np.abs if absolute else np.asarray
        p = {n: a.astype(np.float64) for n, a in self.inputs.items()}
        q, k, v = (rounded(self.inputs[n]).reshape(-1, self.heads, w)
                   for n, w in (("q", self.key), ("k", self.key), ("v", self.value)))  # fmt: skip
        dout = rounded(self.dout).reshape(v.shape)
        scale = self.key**-0.5 if self.form == "softmax" else 1.0
        made = {n: np.zeros(a.shape) for n, a in p.items()}
        dq, dk, dv = (np.zeros(a.shape) for a in (q, k, v))
        out = np.zeros(v.shape)
        for i in range(len(q)):
            tokens, distances = map(list, zip(*self.seen_by(i), strict=True))
            at = np.minimum(distances, self.positions - 1)
            buckets = [bucket(int(self.times[i] - self.times[j]), self.buckets) for j in tokens]
            for h in range(self.heads):
                s = scale * (k[tokens, h] @ q[i, h])
                s += p["time_bias"][h, buckets] + p["position_bias"][h, at]
                dw = v[tokens, h] @ dout[i, h]
                if self.form == "softmax":
                    w = np.exp(s - s.max())
                    w /= w.sum()
                    ds = w * (np.abs(dw) + w @ np.abs(dw) if absolute else dw - w @ dw)
                else:
                    sigmoid = 1 / (1 + np.exp(-s))
                    w = s * sigmoid / self.divisor
                    ds = dw / self.divisor * sigmoid * (1 + s * (1 - sigmoid))
                w, ds = of(w), of(ds)
                np.add.at(made["time_bias"][h], buckets, ds)
                np.add.at(made["position_bias"][h], at, ds)
                w, ds = rounded(w), rounded(scale * ds)
                out[i, h] += w @ of(v[tokens, h])
                dq[i, h] += ds @ of(k[tokens, h])
                dk[tokens, h] += np.outer(ds, of(q[i, h]))
                dv[tokens, h] += np.outer(w, of(dout[i, h]))
        for name, gradient in (("q", dq), ("k", dk), ("v", dv)):
            made[name] = gradient.reshape(made[name].shape)
        return {"out": out.reshape(self.dout.shape), **made}


def same(a: np.ndarray) -> np.ndarray:
    return a.astype(np.float64)


LENGTHS = st.lists(
    st.sampled_from([0, 1, 2, 3, 15, 16, 17, 31, 33, 64, 70]), min_size=1, max_size=5
)


@settings(max_examples=60, deadline=None)
@example(1, [0], [0], "pointwise", (1, 1, 1), 8, True)  # no token at all
@example(1, [0], [1], "softmax", (1, 1, 1), 8, True)  # a target without a history
@example(1, [1, 0, 1], [0, 2, 0], "pointwise", (2, 5, 7), 8, True)
@example(2, [100], [40], "pointwise", (1, 16, 16), 64, True)
@given(
    seed=st.integers(0, 1000),
    lengths=LENGTHS,
    targets=LENGTHS,
    form=st.sampled_from(["pointwise", "softmax"]),
    widths=st.tuples(st.integers(1, 3), st.integers(1, 20), st.integers(1, 20)),
    buckets=st.sampled_from([1, 2, 9, 64]),
    causal=st.booleans(),
)
def test_result_and_gradients_are_those_of_float64(
    seed: int,
    lengths: list[int],
    targets: list[int],
    form: str,
    widths: tuple[int, int, int],
    buckets: int,
    causal: bool,
) -> None:
    targets = (targets * len(lengths))[: len(lengths)]
    case = Case(seed, lengths, targets, form, *widths, buckets, 6, causal)
    found, absolute = case.run(), case.exact(same, absolute=True)
    for name, exact in case.exact(same).items():
        error = np.linalg.norm(found[name] - exact)
        assert error <= 2e-6 * np.linalg.norm(absolute[name]), name


@pytest.mark.parametrize("form", ["pointwise", "softmax"])
def test_result_and_gradients_are_within_1e_5_of_the_norm(form: str) -> None:
    case = Case(8, [120, 1, 60], [120, 1, 60], form, heads=2, key=16, value=16, buckets=64)
    found = case.run()
    for name, exact in case.exact(same).items():
        assert np.linalg.norm(found[name] - exact) <= 1e-5 * np.linalg.norm(exact), name


@pytest.mark.parametrize("form", ["pointwise", "softmax"])
def test_bfloat16_rounds_the_factors_of_each_product(form: str) -> None:
    case = Case(3, [40, 7], [3, 5], form, heads=2, key=16, value=16)
    found, exact = case.run("bfloat16"), case.exact(bfloat16)
    for name in exact:  # a factor near the middle of two bfloat16 may be rounded to either
        error = np.linalg.norm(found[name] - exact[name])
        assert error <= 2e-4 * np.linalg.norm(exact[name]), name
    assert np.abs(case.run()["out"] - found["out"]).max() > 1e-4


@pytest.mark.parametrize("form", ["pointwise", "softmax"])
def test_a_permutation_of_the_future_changes_no_bit_of_the_past(form: str) -> None:
    case = Case(4, [90, 3], [0, 2], form, key=16, value=16)
    before, order = case.run()["out"], np.arange(95)
    order[50:90] = 50 + np.random.default_rng(1).permutation(40)
    for name in ("q", "k", "v"):
        case.inputs[name] = case.inputs[name][order]
    after = case.run()["out"]
    np.testing.assert_array_equal(after[:50], before[:50])
    np.testing.assert_array_equal(after[90:], before[90:])
    assert not np.array_equal(after[51:90], before[51:90])


def test_targets_see_the_history_and_no_other_target() -> None:
    together = Case(5, [20], [6], "softmax", key=8, value=8)
    together.seen[20:] = 20
    found = together.run()["out"][20:]
    for number in range(6):
        alone = replace(together, targets=[1])
        keep = [*range(20), 20 + number]
        alone.inputs = {n: a[keep] if n in "qkv" else a for n, a in together.inputs.items()}
        alone.times, alone.seen = together.times[keep], together.seen[keep]
        alone.dout = together.dout[keep]
        np.testing.assert_array_equal(alone.run()["out"][20], found[number])


def test_times_whose_differences_exceed_32_bits() -> None:
    case = Case(6, [30], [4], buckets=150)
    case.times = np.sort(np.random.default_rng(2).integers(0, 1 << 60, 34))
    found, exact = case.run(), case.exact(same)
    for name in exact:
        assert np.linalg.norm(found[name] - exact[name]) <= 1e-5 * np.linalg.norm(exact[name])
    case.times[:2] = [-(1 << 63), (1 << 63) - 1]  # a difference that no int64 holds
    assert np.isfinite(case.run()["out"]).all()


THREADS = """
import json, sys
import numpy as np
from tests.operators.test_jagged_attention import Case
from paddlebox._native import paddle
paddle.disable_static()
case = Case(7, [80, 3, 0, 41, 33] * 20, [9, 3, 2, 0, 33] * 20, sys.argv[1], 2, 16, 16)
print(json.dumps({n: a.view(np.uint32).sum(dtype=np.uint64).item() for n, a in case.run().items()}))
"""


@pytest.mark.parametrize("form", [slow("pointwise"), "softmax"])
def test_bits_are_the_same_for_any_number_of_threads(
    in_new_process: Callable[..., Any], form: str
) -> None:
    found = [in_new_process(THREADS, form, env={"OMP_NUM_THREADS": n}) for n in ("1", "2", "3")]
    assert found[0] == found[1] == found[2]


NETWORK = """
import json
import numpy as np
from paddlebox import ops
from paddlebox._native import paddle
random = np.random.default_rng(1)
offsets = np.array([0, 3, 3, 8], "i4")
feed = {
    "x": random.normal(size=(3, 5, 4)).astype("f4"), "lengths": np.array([[3], [0], [5]], "f4"),
    "times": np.sort(random.integers(0, 1000, 11)),
    "asked": random.normal(size=(3, 4)).astype("f4"),
}
shapes = {"qkv": [4, 12], "time_bias": [2, 6], "position_bias": [2, 4], "out": [4, 1]}
start = {n: random.normal(0, 0.5, s).astype("f4") for n, s in shapes.items()}
def parameters():
    make = paddle.create_parameter if paddle.in_dynamic_mode() else paddle.static.create_parameter
    return {n: make(s, "float32", attr=paddle.ParamAttr(name=n,
            initializer=paddle.nn.initializer.Assign(start[n]))) for n, s in shapes.items()}
def network(x, lengths, times, asked, p):
    offsets = ops.jagged_offsets(lengths, 5)
    events = ops.jagged_pack(x, offsets, reversed=True)
    mlp = lambda x, w: ops.mlp(x, [w], [None], [None])
    qkv = mlp(paddle.concat([events, asked], axis=0), p["qkv"])
    q, k, v = (paddle.slice(qkv, [1], [4 * i], [4 * i + 4]) for i in range(3))
    one_each = ops.jagged_offsets(paddle.ones_like(lengths), 1)
    seen = paddle.concat([ops.jagged_places(offsets),
                          paddle.cast(paddle.reshape(lengths, [-1]), "int32")], axis=0)
    y = ops.jagged_attention(q, k, v, offsets, seen, one_each, heads=2, divisor=5.0, times=times,
                             time_bias=p["time_bias"], position_bias=p["position_bias"])
    targets = paddle.slice(y, [0], [-3], [1 << 30])
    scores = mlp(events * ops.jagged_repeat(asked + targets, offsets), p["out"])
    pooled = ops.jagged_sum(events * ops.jagged_softmax(scores, offsets), offsets)
    back = paddle.mean(ops.jagged_unpack(events, offsets, 5), axis=1)
    return paddle.mean(paddle.square(mlp(pooled + back + targets, p["out"]) - 1.0))
"""

STATIC = (
    NETWORK
    + """
paddle.enable_static()
program, startup = paddle.static.Program(), paddle.static.Program()
exe = paddle.static.Executor(paddle.CPUPlace())
with paddle.static.program_guard(program, startup):
    inputs = {n: paddle.static.data(n, [-1, *a.shape[1:]], str(a.dtype)) for n, a in feed.items()}
    for n in ("x", "asked"):
        inputs[n].stop_gradient = False
    loss = network(**inputs, p=parameters())
    gradients = paddle.static.gradients([loss], [inputs["x"], inputs["asked"]])
    paddle.optimizer.SGD(0.1).minimize(loss)
exe.run(startup)
losses = []
for _ in range(4):
    out = exe.run(program, feed=feed, fetch_list=[loss, *gradients])
    losses.append(float(out[0]))
print(json.dumps([losses, [g.tolist() for g in out[1:]]]))
"""
)

DYGRAPH = (
    NETWORK
    + """
inputs = {n: paddle.to_tensor(a, stop_gradient=n not in ("x", "asked")) for n, a in feed.items()}
p = parameters()
sgd = paddle.optimizer.SGD(0.1, parameters=[*p.values()])
losses = []
for _ in range(4):
    for n in ("x", "asked"):
        inputs[n].clear_gradient()
    loss = network(**inputs, p=p)
    loss.backward()
    sgd.step()
    sgd.clear_grad()
    losses.append(float(loss))
print(json.dumps([losses, [inputs[n].grad.numpy().tolist() for n in ("x", "asked")]]))
"""
)


def test_a_network_of_all_of_them_trains_as_in_dygraph(in_new_process: Callable[..., Any]) -> None:
    losses, gradients = in_new_process(STATIC)
    expected, expected_gradients = in_new_process(DYGRAPH)
    assert losses[-1] < 0.9 * losses[0]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for found, wanted in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offsets": [0, 4, 3]}, "Offsets: expected ascending values, found 4 before 3"),
        ({"offsets": [1, 2, 5]}, "Offsets: expected 0 as the first value, found 1"),
        (
            {"offsets": [0, 3, 4], "seen": [0] * 6},
            "4 events and 2 targets by the offsets, but Q has 7 tokens",
        ),
        ({"offsets": [0, 2, 4]}, "4 events and 2 targets by the offsets, but Q has 7 tokens"),
        ({"seen": [0, 1, 2, 0, 1, 4, 0]}, "Seen of token 5 is 4, expected 0 to 3, the events of "),
        ({"seen": [0, 1, 2, 0, 1, 2, -1]}, "Seen of token 6 is -1, expected 0 to 2"),
        ({"seen": [0, 1, 2]}, r"Seen has shape \(3\), expected \(7\)"),
        ({"target_offsets": [0, 2]}, r"TargetOffsets has shape \(2\), expected \(3\)"),
    ],
)
def test_a_mistake_is_named(change: dict[str, list[int]], message: str) -> None:
    case = Case(1, [3, 2], [1, 1])
    for name, values in change.items():
        setattr(case, name, np.array(values, np.int32))
    with pytest.raises(ValueError, match=message):
        case.run()


def test_a_mistake_in_an_argument_is_named() -> None:
    case = Case(1, [3, 2], [1, 1])
    with pytest.raises(ValueError, match="form mean, expected pointwise or softmax"):
        replace(case, form="mean").run()
    with pytest.raises(ValueError, match="heads is 4, expected a divisor of 8 and 6"):
        q, v = paddle.zeros([7, 8]), paddle.zeros([7, 6])
        fixed = [paddle.to_tensor(a) for a in (case.offsets, case.seen, case.target_offsets)]
        ops.jagged_attention(q, q, v, *fixed, heads=4)
    for heads, form in ((0, "softmax"), (16, "softmax"), (-1, "pointwise"), (3, "pointwise")):
        with pytest.raises(ValueError, match=f"heads is {heads}, expected a divisor of 8, the"):
            ops.jagged_attention(q, q, q, *fixed, heads=heads, form=form)
    with pytest.raises(ValueError, match="expected times and time_bias, or neither"):
        ops.jagged_attention(q, q, v, *fixed, heads=2, times=paddle.zeros([7], "int64"))
    with pytest.raises(ValueError, match="dtype 'float16', expected 'float32' or 'bfloat16'"):
        case.run("float16")


@pytest.mark.parametrize("form", ["pointwise", "softmax"])
def test_a_nan_is_not_lost(form: str) -> None:
    case = Case(1, [40], [2], form)
    case.inputs["k"][20] = np.nan
    found = np.isnan(case.run()["out"]).all(axis=1)
    np.testing.assert_array_equal(found, [case.sees(i, 20) for i in range(42)])


def test_mistakes_in_rows_are_named() -> None:
    lengths = paddle.to_tensor([[1.0, 2.0, 0.0], [0.0, 1.0, 1.0]])
    with pytest.raises(ValueError, match=r"Lengths has shape \(2, 3\), expected \(B\) or \(B, 1\)"):
        ops.jagged_offsets(lengths, 4)
    lengths, rows = paddle.to_tensor([1.0, 2.0]), paddle.zeros([3, 2])
    offsets = ops.jagged_offsets(lengths, 2)
    with pytest.raises(ValueError, match="places is -1, expected 0 or more"):
        ops.jagged_offsets(lengths, -1)
    with pytest.raises(ValueError, match="places is -1, expected 0 or more"):
        ops.jagged_unpack(rows, offsets, -1)


@pytest.mark.parametrize("columns", [1, 100])
def test_offsets_that_change_before_the_backward_are_refused(columns: int) -> None:
    """They would lead to places beyond the arrays."""
    x = paddle.ones([2, 2, columns])
    rows, of_each = paddle.ones([4, columns]), paddle.ones([2, columns])
    for call, source, changed, message in (
        (ops.jagged_pack, x, [0, 0, 4], "sequence 1 has 4 rows, expected at most 2 places"),
        (ops.jagged_repeat, of_each, [0, 1, 2, 4], r"X has shape \(2, \d+\), expected \(3, "),
        (ops.jagged_sum, rows, [0, 4], r"Out@GRAD has shape \(2, \d+\), expected \(1, "),
    ):
        offsets = paddle.to_tensor([0, 2, 4], dtype="int32")
        source.stop_gradient = False
        y = call(source, offsets)
        offsets.get_tensor().set(np.array(changed, np.int32), paddle.CPUPlace())
        with pytest.raises(ValueError, match=message), ops.raising_own_errors():
            y.sum().backward()
