"""fused_seqpool_cvm and its relatives in dygraph, against float64 numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddlebox import ops
from paddlebox._native import paddle
from paddlebox.store.table import sorted_unique_keys
from tests.operators import dense_model
from tests.support.fixtures import OpenTable

DIM = 3  # weights of a row
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "show_click": ops.fused_seqpool_cvm,
    "conv": ops.fused_seqpool_cvm_with_conv,
    "credit": ops.fused_seqpool_cvm_with_credit,
    "pcoc": ops.fused_seqpool_cvm_with_pcoc,
    "diff_thres": ops.fused_seqpool_cvm_with_diff_thres,
}


@pytest.fixture(autouse=True)
def dygraph() -> None:
    paddle.disable_static()


def tensor(
    array: Sequence[Any] | np.ndarray, dtype: type[Any] = np.float32, grad: bool = False
) -> Any:
    return paddle.to_tensor(np.asarray(array, dtype), stop_gradient=not grad)


def pack(rows: list[list[np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """rows[b][s] -> values (nnz, D), offsets (B * S + 1)."""
    flat = [instance for slots in rows for instance in slots]
    return np.concatenate(flat), np.cumsum([0, *map(len, flat)])


def as_slots(rows: list[list[np.ndarray]]) -> list[tuple[np.ndarray, np.ndarray]]:
    """rows[b][s] -> for each slot values (nnz_s, D), offsets (B + 1)."""
    return [pack([[instance] for instance in slot]) for slot in zip(*rows, strict=True)]


def random_rows(
    random: np.random.Generator, instances: int, slots: int, columns: int, counts: int
) -> list[list[np.ndarray]]:
    def one() -> np.ndarray:
        n = int(random.integers(0, 4))
        whole = random.integers(0, 6, (n, counts))
        return np.concatenate([whole, random.normal(size=(n, columns - counts))], 1).astype("f4")

    return [[one() for _ in range(slots)] for _ in range(instances)]


FILTER: dict[str, st.SearchStrategy[Any]] = {
    "need_filter": st.booleans(),
    "show_coeff": st.just(0.25),
    "clk_coeff": st.just(1.0),
    "threshold": st.sampled_from([0.5, 1.1]),
}
COMMON = {"pad_value": st.sampled_from([0.0, 0.5]), "use_cvm": st.booleans()}


def arguments_of(form: str) -> st.SearchStrategy[dict[str, Any]]:
    """Draws the arguments of a form's function."""
    if form == "show_click":
        own: dict[str, st.SearchStrategy[Any]] = {
            **FILTER,
            "cvm_offset": st.sampled_from([2, 3]),
            "quant_ratio": st.sampled_from([0, 16]),
            "clk_filter": st.booleans(),
            "embed_threshold_filter": st.booleans(),
            "embed_threshold": st.just(1.0),
            "embed_thres_size": st.sampled_from([0, 1, 2]),
            "embedx_concate_size": st.sampled_from([1, 2, 3]),
            "embedx_concate_filter": st.booleans(),
            "fix_ctr_to_click": st.booleans(),
        }
    elif form == "diff_thres":
        own = {
            **FILTER,
            "cvm_offset": st.just(2),
            "quant_ratio": st.sampled_from([0, 16]),
            "clk_filter": st.booleans(),
            "xbox_diff_thres_filter": st.booleans(),
            "threshold_vec": st.just([0.3, 1.4]),
        }
    elif form == "conv":
        own = {
            **FILTER,
            "cvm_offset": st.just(3),
            "show_filter": st.booleans(),
            "embedx_concate_size": st.sampled_from([1, 2]),
        }
    elif form == "credit":
        own = {"cvm_offset": st.just(4), "show_filter": st.booleans()}
    else:
        own = {
            **FILTER,
            "cvm_offset": st.sampled_from([5, 7]),
            "max_cvm_offset": st.just(7),
            "quant_ratio": st.sampled_from([0, 16]),
        }
    return st.fixed_dictionaries({**COMMON, **own})


@pytest.mark.parametrize("form", FUNCTIONS)
@settings(max_examples=60, deadline=None)
@given(data=st.data(), seed=st.integers(0, 10_000), instances=st.integers(1, 4))
def test_forward_and_gradient_are_those_of_the_formulas(
    form: str, data: st.DataObject, seed: int, instances: int
) -> None:
    c = data.draw(arguments_of(form))
    if c.get("embedx_concate_size", 1) > 1 and "embed_thres_size" in c:
        c["embed_thres_size"] = 0
    model = "show_click" if form == "diff_thres" else form
    counts = c.get("max_cvm_offset", c["cvm_offset"])
    random = np.random.default_rng(seed)
    rows = random_rows(random, instances, 2, counts + DIM, counts)
    cvm = random.integers(0, 2, (instances, c["cvm_offset"])).astype("f4")
    mask = random.integers(0, 2, instances) if form == "show_click" and seed % 2 else None
    extra = {} if mask is None else {"grad_mask": tensor(mask, np.int64)}

    expected = dense_model.seqpool(model, rows, c)
    gradient = random.normal(size=expected.shape).astype("f4")
    expected_grad = dense_model.seqpool_gradient(model, rows, c, cvm, mask, gradient)

    values, offsets = pack(rows)
    values = tensor(values, grad=True)
    packed = (values, tensor(offsets, np.int32))
    out = FUNCTIONS[form](packed, "sum", tensor(cvm), slots=2, **c, **extra)
    np.testing.assert_allclose(out.numpy().reshape(expected.shape), expected, rtol=1e-5, atol=1e-5)
    out.backward(tensor(gradient.reshape(instances, -1)))
    np.testing.assert_array_equal(
        values.grad.numpy(), np.concatenate([g for b in expected_grad for g in b]).astype("f4")
    )

    # A list of slots is the same operator: the same bits, in PaddleBox's form.
    pairs = [(tensor(v, grad=True), tensor(o, np.int32)) for v, o in as_slots(rows)]
    outs = FUNCTIONS[form](pairs, "SUM", tensor(cvm), **c, **extra)
    np.testing.assert_array_equal(paddle.concat(outs, axis=1).numpy(), out.numpy())
    paddle.concat(outs, axis=1).backward(tensor(gradient.reshape(instances, -1)))
    for s, (v, _) in enumerate(pairs):
        np.testing.assert_array_equal(
            v.grad.numpy(), np.concatenate([b[s] for b in expected_grad]).astype("f4")
        )


@pytest.mark.parametrize("form", FUNCTIONS)
def test_gradient_of_the_weights_is_the_derivative(form: str) -> None:
    """The weights' columns, that is, and without filter, rounding, or rows past the last place."""
    random = np.random.default_rng(3)
    counts = {"show_click": 2, "diff_thres": 2, "conv": 3, "credit": 4, "pcoc": 7}[form]
    c = {"pad_value": 0.0, "use_cvm": True, "cvm_offset": counts, "max_cvm_offset": 7}
    rows = random_rows(random, 3, 2, counts + DIM, counts)
    values, offsets = pack(rows)
    model = "show_click" if form == "diff_thres" else form
    weight = random.normal(size=dense_model.seqpool(model, rows, c).shape)

    def loss(weights: np.ndarray) -> float:
        moved = np.concatenate([values[:, :counts], weights], 1)
        flat = np.split(moved, offsets[1:-1])
        return (dense_model.seqpool(model, [flat[:2], flat[2:4], flat[4:]], c) * weight).sum()

    expected = dense_model.numeric_gradient(loss, values[:, counts:].astype(np.float64))
    given_values = tensor(values, grad=True)
    out = FUNCTIONS[form](
        (given_values, tensor(offsets, np.int32)), "SUM", paddle.ones([3, counts]), slots=2
    )
    (out * tensor(weight.reshape(3, -1))).sum().backward()
    np.testing.assert_allclose(
        given_values.grad.numpy()[:, counts:], expected, rtol=1e-5, atol=1e-6
    )


def test_counts_of_the_rows_gradient_are_the_cvm_input_and_not_a_derivative() -> None:
    values = tensor([[3, 1, 0.5], [2, 0, 0.25], [5, 5, 1]], grad=True)
    cvm = tensor([[1, 1], [1, 0]])
    out = ops.fused_seqpool_cvm((values, tensor([0, 2, 3], np.int32)), "SUM", cvm, slots=1)
    (out * 7).sum().backward()
    assert values.grad.numpy().tolist() == [[1, 1, 7], [1, 1, 7], [1, 0, 7]]


def test_an_instance_that_is_masked_sends_nothing() -> None:
    values = tensor([[3, 1, 0.5], [5, 5, 1]], grad=True)
    out = ops.fused_seqpool_cvm(
        (values, tensor([0, 1, 2], np.int32)),
        "SUM",
        paddle.ones([2, 2]),
        slots=1,
        grad_mask=tensor([0, 1], np.int64),
    )
    out.sum().backward()
    assert values.grad.numpy().tolist() == [[0, 0, 0], [1, 1, 1]]


def test_over_pulled_rows_it_trains_as_the_fused_pull_does(open_table: OpenTable) -> None:
    """Jagged ids go in as (1, nnz): the push then scales by 1, so the gradient is that of a sum."""
    random = np.random.default_rng(5)
    keys = np.arange(1, 9, dtype=np.uint64)
    ids = random.integers(1, 9, 11)
    offsets = tensor([0, 2, 5, 5, 8, 10, 11], np.int32)  # B = 3, S = 2
    cvm = tensor([[1, 1], [1, 0], [1, 1]])
    gradients = random.normal(size=(4, 3, 2 * 7)).astype("f4")
    rows = {}
    for fused in (True, False):
        table = open_table({"name": f"fused{fused}"})
        table.begin(table.stage(sorted_unique_keys(keys)))
        anchor = ops.create_anchor()
        for gradient in gradients:
            if fused:
                out = ops.fused_pull_seqpool_cvm(
                    tensor(ids, np.int64), offsets, cvm, tensor([0], np.int32), anchor, slots=2,
                    embedx_dim=4, table=table.config.name,
                )  # fmt: skip
                out.backward(tensor(gradient))
            else:
                pulled = ops.pull_box_sparse(tensor([ids], np.int64), 7, anchor=anchor)
                packed = (paddle.reshape(pulled, [-1, 7]), offsets)
                out = ops.fused_seqpool_cvm(packed, "SUM", cvm, slots=2)
                out.backward(tensor(gradient * 3))  # times B: of a mean to of a sum
        everything = tensor(keys, np.int64)
        rows[fused] = ops.pull_box_sparse(everything, 7, anchor=anchor).numpy()
        table.first.native.abandon()
        table.close()
    assert (rows[True][:, 0] == 4 * np.bincount(ids, minlength=9)[1:]).all()  # shows
    np.testing.assert_allclose(rows[False], rows[True], rtol=1e-5, atol=1e-6)


GOOD = {
    "values": np.ones((3, 4), np.float32),
    "offsets": np.array([0, 1, 2, 3, 3], np.int32),
    "cvm": np.ones((2, 2), np.float32),
    "slots": 2,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": np.ones((3, 4))}, "Values has dtype float64, expected float32"),
        (
            {"values": np.ones((3, 2, 2), "f4")},
            r"Values has shape \(3, 2, 2\), expected \(nnz, D\)",
        ),
        ({"values": np.ones((3, 2), "f4")}, "Values of 2 columns: expected"),
        ({"values": np.ones((4, 4), "f4")}, r"Offsets: expected .* to 4 .*last 3"),
        ({"offsets": np.zeros(5, np.int64)}, "Offsets has dtype int64, expected int32"),
        ({"offsets": np.zeros(4, "i4")}, r"Offsets has shape \(4\), expected \(5\)"),
        ({"offsets": np.array([0, 2, 1, 3, 3], "i4")}, "Offsets: .*not ascending"),
        ({"cvm": np.ones((2, 3), "f4")}, r"Cvm has shape \(2, 3\), expected \(2, 2\)"),
        ({"cvm": np.ones((2, 2))}, "Cvm has dtype float64"),
        ({"grad_mask": np.ones(3, np.int64)}, r"GradMask has shape \(3\), expected \(2\)"),
        ({"grad_mask": np.ones(2, "f4")}, "GradMask has dtype float32, expected int64"),
        ({"cvm_offset": 1}, "cvm_offset = 1"),
        ({"embedx_concate_size": 0}, "embedx_concate_size = 0"),
        ({"embedx_concate_size": 2, "embed_thres_size": 1}, "embed_thres_size = 1 with"),
        ({"pool_type": "MAX"}, "pool_type is 'MAX', expected 'SUM'"),
        ({"slots": None}, "one pair and the number of slots"),
    ],
)
def test_a_mistake_is_named_with_what_was_expected(change: dict[str, Any], message: str) -> None:
    a = {**GOOD, "pool_type": "SUM", **change}
    pair = (paddle.to_tensor(a.pop("values")), paddle.to_tensor(a.pop("offsets")))
    if "grad_mask" in a:
        a["grad_mask"] = paddle.to_tensor(a["grad_mask"])
    with pytest.raises(ValueError, match=message):
        ops.fused_seqpool_cvm(pair, a.pop("pool_type"), paddle.to_tensor(a.pop("cvm")), **a)


def test_mistakes_in_a_list_of_slots_are_named() -> None:
    def slot(columns: int, offsets: list[int]) -> tuple[Any, Any]:
        return tensor(np.ones((offsets[-1], columns))), tensor(offsets, np.int32)

    cvm = paddle.ones([1, 2])
    with pytest.raises(ValueError, match=r"\[3, 4\] columns"):
        ops.fused_seqpool_cvm([slot(3, [0, 1]), slot(4, [0, 1])], "SUM", cvm)
    with pytest.raises(ValueError, match="Offsets of slot 1 go from 1 to 2"):
        ops.fused_seqpool_cvm([slot(3, [0, 1]), slot(3, [1, 2])], "SUM", cvm)
    with pytest.raises(ValueError, match="a pair"):
        ops.fused_seqpool_cvm([tensor(np.ones((1, 3)))], "SUM", cvm)


def test_a_threshold_for_each_slot_is_one_for_each() -> None:
    rows = (tensor(np.ones((2, 3))), tensor([0, 1, 2], np.int32))
    with pytest.raises(ValueError, match="threshold_vec has 3 values, expected one per slot: 2"):
        ops.fused_seqpool_cvm_with_diff_thres(
            rows, "SUM", paddle.ones([1, 2]), need_filter=True, xbox_diff_thres_filter=True,
            threshold_vec=[1, 2, 3], slots=2,
        )  # fmt: skip
    with pytest.raises(ValueError, match="threshold_vec is empty"):
        ops.fused_seqpool_cvm_with_diff_thres(
            rows, "SUM", paddle.ones([1, 2]), need_filter=True, xbox_diff_thres_filter=True, slots=2
        )
