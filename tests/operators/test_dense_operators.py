"""data_norm, rank_attention and batch_fc in dygraph, against float64 numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddlebox import nn, ops
from paddlebox._native import paddle
from tests.operators import dense_model


@pytest.fixture(autouse=True)
def dygraph() -> None:
    paddle.disable_static()


def tensor(
    array: Sequence[Any] | np.ndarray, dtype: type[Any] = np.float32, grad: bool = False
) -> Any:
    return paddle.to_tensor(np.asarray(array, dtype), stop_gradient=not grad)


def close(tensor_: Any, expected: np.ndarray) -> None:
    np.testing.assert_allclose(tensor_.numpy(), expected, rtol=2e-4, atol=2e-5)


def ranks_of(random: np.random.Generator, instances: int, max_rank: int) -> np.ndarray:
    """Lines of RankOffset with every rank from none to max_rank, own and of the pairs."""
    lines = random.integers(-1, max_rank + 1, (instances, 2 * max_rank + 1))
    lines[:, 2::2] = random.integers(0, instances, (instances, max_rank))
    return lines.astype(np.int32)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    sizes=st.tuples(st.integers(1, 7), st.integers(1, 5), st.integers(1, 21), st.integers(1, 3)),
)
def test_rank_attention_and_its_gradients(seed: int, sizes: tuple[int, ...]) -> None:
    instances, inputs, outputs, max_rank = sizes
    random = np.random.default_rng(seed)
    x = random.normal(size=(instances, inputs))
    param = random.normal(size=(max_rank * max_rank * inputs, outputs))
    ranks = ranks_of(random, instances, max_rank)
    weight = random.normal(size=(instances, outputs))

    def loss(x: np.ndarray, param: np.ndarray) -> float:
        return (dense_model.rank_attention(x, ranks, param, max_rank) * weight).sum()

    for enable_input_bp in (True, False):
        xs, ps = tensor(x, grad=True), tensor(param, grad=True)
        out = ops.rank_attention(
            xs, tensor(ranks, np.int32), rank_param=ps, max_rank=max_rank,
            enable_input_bp=enable_input_bp,
        )  # fmt: skip
        close(out, dense_model.rank_attention(x, ranks, param, max_rank))
        (out * tensor(weight)).sum().backward()
        close(ps.grad, dense_model.numeric_gradient(lambda p: loss(x, p), param))
        expected = dense_model.numeric_gradient(lambda v: loss(v, param), x)
        close(xs.grad, expected if enable_input_bp else 0 * x)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 7), st.integers(1, 5), st.integers(1, 21)),
    form=st.sampled_from(["groups", "flat", "transposed"]),
)
def test_batch_fc_and_its_gradients(seed: int, sizes: tuple[int, ...], form: str) -> None:
    groups, instances, inputs, outputs = sizes
    random = np.random.default_rng(seed)
    flat = form == "flat"
    x = random.normal(size=(instances, groups * inputs) if flat else (groups, instances, inputs))
    if form == "groups":
        w, bias = (
            random.normal(size=(groups, inputs, outputs)),
            random.normal(size=(groups, outputs)),
        )
    else:
        w, bias = (random.normal(size=(n, groups * outputs)) for n in (inputs, 1))
    arguments = (0 if form == "groups" else groups, form == "transposed")
    expected = dense_model.batch_fc(x, w, bias, *arguments)
    weight = random.normal(size=expected.shape)

    given_ = [tensor(a, grad=True) for a in (x, w, bias)]
    out = ops.batch_fc(
        given_[0], weight=given_[1], bias=given_[2], batchcount=arguments[0],
        transpose_weight=arguments[1],
    )  # fmt: skip
    close(out, expected)
    (out * tensor(weight)).sum().backward()
    for i, made in enumerate(given_):

        def loss(value: np.ndarray, i: int = i) -> float:
            x_, w_, bias_ = (value if j == i else one for j, one in enumerate((x, w, bias)))
            return (dense_model.batch_fc(x_, w_, bias_, *arguments) * weight).sum()

        close(made.grad, dense_model.numeric_gradient(loss, (x, w, bias)[i]))


def test_batch_fc_applies_the_activation() -> None:
    x, w = tensor([[[1.0]], [[1.0]]]), tensor([[[1.0]], [[-1.0]]])
    out = ops.batch_fc(x, weight=w, bias=paddle.zeros([2, 1]), act="relu")
    assert out.numpy().tolist() == [[[1]], [[0]]]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    instances=st.integers(1, 6),
    slots=st.integers(1, 3),
    slot_dim=st.sampled_from([-1, 1, 4]),
    affine=st.booleans(),
)
def test_data_norm_and_its_gradients(
    seed: int, instances: int, slots: int, slot_dim: int, affine: bool
) -> None:
    random = np.random.default_rng(seed)
    columns = slots * max(slot_dim, 1)
    x = random.normal(size=(instances, columns))
    if slot_dim > 0:
        x[:, ::slot_dim] = random.integers(0, 2, (instances, slots))  # shows, some of them none
    size, total, square = random.uniform(1, 9, (3, columns))
    scale_w, bias = (
        random.normal(size=(2, columns)) if affine else np.array([[1], [0]]) * x[:1] ** 0
    )
    weight = random.normal(size=x.shape)

    def loss(x: np.ndarray, scale_w: np.ndarray, bias: np.ndarray) -> float:
        y = dense_model.data_norm(x, size, total, square, slot_dim, scale_w, bias)
        return (y * weight).sum()

    sums = [tensor(s) for s in (size, total, square)]
    xs = tensor(x, grad=True)
    extra = {"scale_w": tensor(scale_w, grad=True), "bias": tensor(bias, grad=True)}
    y = ops.data_norm(
        xs, sums=sums, slot_dim=slot_dim, epsilon=0.25, summary_decay_rate=0.75,
        **(extra if affine else {}),
    )  # fmt: skip
    close(y, dense_model.data_norm(x, size, total, square, slot_dim, scale_w, bias))
    expected = dense_model.data_norm_sums(x, size, total, square, slot_dim, 0.25, 0.75)
    for made, sum_ in zip(sums, expected, strict=True):
        close(made, sum_)

    (y * tensor(weight)).sum().backward()
    # A move of a show across 0 is no derivative: those of slots without shows are 0 by definition.
    moved = x.copy()
    counts = dense_model.shown(x, slot_dim)
    gradient = dense_model.numeric_gradient(lambda v: loss(v, scale_w, bias), moved)
    close(xs.grad, np.where(counts, gradient, 0))
    if affine:
        close(
            extra["scale_w"].grad,
            dense_model.numeric_gradient(lambda v: loss(x, v, bias), scale_w),
        )
        close(extra["bias"].grad, dense_model.numeric_gradient(lambda v: loss(x, scale_w, v), bias))


class TestDataNormLayer:
    def test_sums_follow_the_update_while_training_and_rest_in_evaluation(self) -> None:
        layer = nn.DataNorm(2, summary_decay_rate=0.5, epsilon=0.0, batch_size=1, batch_square=1)
        x = np.array([[1, 2], [3, 6]], np.float64)
        size, total, square = np.ones(2), np.zeros(2), np.ones(2)
        for _ in range(3):
            expected = dense_model.data_norm(x, size, total, square, -1, 1, 0)
            close(layer(tensor(x)), expected)
            size, total, square = dense_model.data_norm_sums(x, size, total, square, -1, 0.0, 0.5)
        layer.eval()
        close(layer(tensor(x)), dense_model.data_norm(x, size, total, square, -1, 1, 0))
        close(layer.batch_size, size)
        close(layer.batch_sum, total)
        close(layer.batch_square_sum, square)

    def test_optimizers_train_scale_and_shift_and_leave_the_sums(self) -> None:
        layer = nn.DataNorm(2, enable_scale_and_shift=True, summary_decay_rate=1.0, epsilon=0.0)
        adam = paddle.optimizer.Adam(0.1, parameters=layer.parameters())
        layer(tensor([[1, 2]])).sum().backward()
        adam.step()
        assert layer.scale_w is not None
        assert layer.bias is not None
        assert (layer.scale_w.numpy() != 1).all()
        assert (layer.bias.numpy() != 0).all()
        assert layer.batch_size.numpy().tolist() == [10001, 10001]
        assert layer.batch_sum.numpy().tolist() == [1, 2]

    def test_sums_are_saved_with_the_layer(self) -> None:
        layer, other = nn.DataNorm(2), nn.DataNorm(2)
        layer(tensor([[1, 2]]))
        other.set_state_dict(layer.state_dict())
        assert other.batch_sum.numpy().tolist() == layer.batch_sum.numpy().tolist() != [0, 0]


class TestMistakes:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"x": np.ones((2, 3))}, "X has dtype float64, expected float32"),
            ({"x": np.ones(3, "f4")}, r"X has shape \(3\), expected \(N, I\)"),
            (
                {"ranks": np.zeros((2, 6), "i4")},
                r"RankOffset has shape \(2, 6\), expected \(2, 7\)",
            ),
            ({"ranks": np.zeros((2, 7), "i8")}, "RankOffset has dtype int64, expected int32"),
            ({"ranks": np.full((2, 7), 4, "i4")}, "RankOffset: row 0, column 0 has rank 4"),
            ({"ranks": np.full((2, 7), 2, "i4")}, "RankOffset: row 0, column 2 names row 2"),
            ({"param": np.ones((26, 5), "f4")}, r"RankParam .*\(26, 5\), expected \(27, 5\)"),
        ],
    )
    def test_rank_attention(self, change: dict[str, Any], message: str) -> None:
        a = {
            "x": np.ones((2, 3), "f4"),
            "ranks": np.zeros((2, 7), "i4"),
            "param": np.ones((27, 5), "f4"),
            **change,
        }
        x, ranks, param = (paddle.to_tensor(a[n]) for n in ("x", "ranks", "param"))
        with pytest.raises(ValueError, match=message):
            ops.rank_attention(x, ranks, rank_param=param)

    @pytest.mark.parametrize(
        ("shapes", "arguments", "message"),
        [
            ([(2, 3), (2, 3, 5), (2, 5)], {}, r"Input has shape \(2, 3\) and W \(2, 3, 5\), expec"),
            (
                [(3, 4, 3), (2, 3, 5), (2, 5)],
                {},
                r"Input has shape \(3, 4, 3\), expected \(2, 4, 3",
            ),
            ([(2, 4, 3), (2, 3, 5), (2, 4)], {}, r"Bias has shape \(2, 4\), expected \(2, 5\)"),
            (
                [(4, 5), (3, 10), (1, 10)],
                {"batchcount": 2},
                r"Input has shape \(4, 5\), .*\(4, 6\)",
            ),
            ([(4, 6), (3, 11), (1, 11)], {"batchcount": 2}, r"W has shape \(3, 11\), .*\(3, 10\)"),
            ([(4, 6), (3, 10), (1, 10)], {"transpose_weight": True}, "batchcount is 0"),
        ],
    )
    def test_batch_fc(self, shapes: list[Any], arguments: dict[str, Any], message: str) -> None:
        x, weight, bias = (paddle.ones(shape) for shape in shapes)
        with pytest.raises(ValueError, match=message):
            ops.batch_fc(x, weight=weight, bias=bias, **arguments)

    @pytest.mark.parametrize(
        ("x", "arguments", "message"),
        [
            (np.ones((2, 4)), {}, "X has dtype float64, expected float32"),
            (np.ones((2, 3, 4), "f4"), {}, r"X has shape \(2, 3, 4\), expected \(N, C\)"),
            (np.ones((2, 3), "f4"), {}, r"BatchSize has shape \(4\), expected \(3\)"),
            (np.ones((2, 4), "f4"), {"slot_dim": 3}, "X has 4 columns, .* slot_dim = 3"),
            (np.ones((2, 4), "f4"), {"sync_stats": True}, "sync_stats"),
            (np.ones((2, 4), "f4"), {"scale_w": 3}, r"ScaleW has shape \(3\), expected \(4\)"),
        ],
    )
    def test_data_norm(self, x: np.ndarray, arguments: dict[str, Any], message: str) -> None:
        if "scale_w" in arguments:
            arguments = {"scale_w": paddle.ones([3])}
        with pytest.raises(ValueError, match=message):
            ops.data_norm(paddle.to_tensor(x), sums=[paddle.ones([4])] * 3, **arguments)

    def test_dygraph_calls_do_not_create_parameters_again(self) -> None:
        with pytest.raises(ValueError, match="rank_param is missing"):
            ops.rank_attention(paddle.ones([2, 3]), tensor(np.zeros((2, 7)), np.int32), [27, 5])
        with pytest.raises(ValueError, match="weight is missing"):
            ops.batch_fc(paddle.ones([2, 4, 3]), [2, 3, 5])
        with pytest.raises(ValueError, match=r"nn\.DataNorm\) is missing"):
            ops.data_norm(paddle.ones([2, 3]))
