"""Counterparts of PaddleBox's tests of layers over columns, sequences and jagged rows, in dygraph
and in static programs; and what its tests leave out: mistakes, unused outputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np
import pytest

from paddlebox import ops
from paddlebox._native import paddle
from paddlebox.compat import layers_sequence as layers
from tests.upstream import sequence_cases
from tests.upstream.sequence_runs import Case, exact, in_dygraph, in_program, worst

MODES = pytest.mark.parametrize("mode", ["dygraph", "pir"])
HERE = "from tests.upstream.test_sequence_layers import *\n"


@pytest.fixture(autouse=True)
def dygraph() -> None:
    paddle.disable_static()


def in_mode(mode: str, function: Callable[[], Any], in_new_process: Callable[..., Any]) -> Any:
    """What the function returns, in this process or in one of static programs."""
    if mode == "dygraph":
        return function()
    code = f"{HERE}import json\npaddle.enable_static()\nprint(json.dumps({function.__name__}()))"
    return in_new_process(code)


def worst_here(cases: list[Case]) -> float:
    return worst(cases, 3, in_dygraph if paddle.in_dynamic_mode() else in_program)


# ---- test_fusion_seqpool_cvm_concat_op: the rows of each instance, slot by slot, and their columns

LAYOUTS = {
    "two_slots": ([[2, 3, 5], [1, 5, 2]], 11),
    "one_row": ([[1]], 11),
    "three_slots_of_one_row": ([[1], [1], [1]], 11),
    "one_slot": ([[1, 3, 4, 6]], 10),
    "four_slots_of_three_columns": ([[2, 13, 4], [1, 1, 1], [5, 3, 1], [9, 10, 3]], 3),
}


def pooled_layouts() -> dict[str, float]:
    random = np.random.default_rng(0)
    result = {}
    for name, (slots, columns) in LAYOUTS.items():
        for pooling in ("SUM", "AVERAGE", "SQRT"):
            rows = [
                [random.uniform(0.1, 1, (n, columns)).astype("f4") for n in instance]
                for instance in zip(*slots, strict=True)
            ]
            case = sequence_cases.fusion_case(random, rows, pooling)
            result[f"{name} {pooling}"] = worst_here([case])
    return result


@MODES
def test_fusion_seqpool_cvm_concat_pools_each_layout(
    mode: str, in_new_process: Callable[..., Any]
) -> None:
    found = in_mode(mode, pooled_layouts, in_new_process)
    assert len(found) == 15
    assert max(found.values()) <= 1, found


def test_an_empty_slot_is_zeros_however_it_is_pooled() -> None:
    values, offsets = paddle.ones([1, 3]), tensor([0, 0, 1], "int32")
    for pooling in ("SUM", "AVERAGE", "SQRT"):
        out = layers.fusion_seqpool_cvm_concat([(values, offsets)], pooling, paddle.ones([2, 2]))
        assert out[0].tolist() == [0, 0, 0]


def test_with_sum_it_has_the_bits_of_fused_seqpool_cvm() -> None:
    random = np.random.default_rng(2)
    rows = sequence_cases.draw_rows(random, 2, 5)
    values = tensor(np.concatenate([one for of in rows for one in of]))
    lengths = [len(one) for of in rows for one in of]
    pair = (values, tensor([0, *accumulate(lengths)], "int32"))
    cvm, slots = paddle.ones([len(rows), 2]), len(rows[0])
    ours = layers.fusion_seqpool_cvm_concat(pair, "SUM", cvm, slots=slots)
    other = ops.fused_seqpool_cvm(pair, "SUM", cvm, slots=slots)
    np.testing.assert_array_equal(ours.numpy(), other.numpy())


# ---- test_fused_causal_mask: one program for ten feeds of 40 sequences


def masks_differ() -> int:
    """In how many elements the masks of ten feeds differ from numpy's."""
    random = np.random.default_rng(100)
    feeds = [random.integers(1, 24, 40) for _ in range(10)]
    offsets = [np.array([[0], *([end] for end in accumulate(one))], "int32") for one in feeds]
    if paddle.in_dynamic_mode():
        masks = [layers.fused_causal_mask(paddle.to_tensor(one)).numpy() for one in offsets]
    else:
        program = paddle.static.Program()
        with paddle.static.program_guard(program, paddle.static.Program()):
            mask = layers.fused_causal_mask(paddle.static.data("x", [-1, 1], "int32"))
        run = paddle.static.Executor(paddle.CPUPlace()).run
        masks = [run(program, feed={"x": one}, fetch_list=[mask])[0] for one in offsets]
    assert all(one.dtype == np.int64 for one in masks)
    return sum(
        int((one != sequence_cases.causal_mask(lengths)).sum())
        for one, lengths in zip(masks, feeds, strict=True)
    )


@MODES
def test_fused_causal_mask_of_many_feeds(mode: str, in_new_process: Callable[..., Any]) -> None:
    assert in_mode(mode, masks_differ, in_new_process) == 0


def test_a_sequence_attends_to_itself_and_what_came_before() -> None:
    mask = layers.fused_causal_mask(tensor([0, 2, 3], "int64"))
    assert mask.tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    assert layers.fused_causal_mask(tensor([0], "int64")).shape == [0, 0]


# ---- test_partial_concat_op, test_partial_sum_op, test_shuffle_batch_op


def partial_cases() -> float:
    """As there: up to 200 columns, from any column on, the last five, and the last one."""
    random = np.random.default_rng(4)
    cases = []
    for make in (sequence_cases.partial_concat, sequence_cases.partial_sum):
        cases += [make(random, dtype) for dtype in ("float32", "float64", "int32", "int64")]
    for start, length, count in ((7, -1, 3), (-5, -1, 3), (10, 20, 2), (-1, -1, 1), (150, 1, 2)):
        x = {f"x{i}": sequence_cases.floats(random, 9, 151) for i in range(count)}
        end = 151 if length < 0 else start + length
        parts = [one[:, start:end].astype(np.float64) for one in x.values()]

        def concat(given: dict[str, Any], at: int = start, n: int = length) -> list[Any]:
            return [layers.partial_concat(list(given.values()), at, n)]

        def add(given: dict[str, Any], at: int = start, n: int = length) -> list[Any]:
            return [layers.partial_sum(list(given.values()), at, n)]

        cases.append(Case(x, concat, [exact(np.concatenate(parts, axis=1))]))
        cases.append(Case(x, add, [(np.sum(parts, axis=0), np.sum(np.abs(parts), axis=0))]))
    return worst_here(cases)


@MODES
def test_partial_concat_and_partial_sum_are_those_of_the_columns(
    mode: str, in_new_process: Callable[..., Any]
) -> None:
    assert in_mode(mode, partial_cases, in_new_process) <= 1


def test_paddles_own_partial_kernels_agree_where_they_may_be_called() -> None:
    random = np.random.default_rng(5)
    arrays = [sequence_cases.floats(random, 4, 9) for _ in range(3)]
    for ours, theirs in (
        (layers.partial_concat, paddle.incubate.layers.partial_concat),
        (layers.partial_sum, paddle.incubate.layers.partial_sum),
    ):
        results = []
        for function in (ours, theirs):
            given = [tensor(one, grad=True) for one in arrays]
            out = function(given, 2, 5)
            (out * out).sum().backward()
            results.append([out.numpy(), *(one.grad.numpy() for one in given)])
        for mine, other in zip(*results, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-6)


def shuffled() -> list[bool]:
    """Whether Paddle's shuffle_batch permutes the rows, and its gradient takes them back."""
    random = np.random.default_rng(6)
    result = []
    for shape in ((10, 10, 5), (4, 30)):
        x = random.normal(size=shape).astype("f4")
        gradient = random.normal(size=shape).astype("f4")
        case = Case(
            {"x": x},
            lambda given: [paddle.incubate.layers.shuffle_batch(given["x"], 3)],
            [exact(x)],
            ["x"],
        )
        run = in_dygraph if paddle.in_dynamic_mode() else in_program
        out, of_x = (one.reshape(-1, shape[-1]) for one in run(case, [gradient]))
        places = {row.tobytes(): i for i, row in enumerate(x.reshape(-1, shape[-1]))}
        order = [places[row.tobytes()] for row in out]
        back = gradient.reshape(-1, shape[-1])
        result.append(
            sorted(order) == list(range(len(order))) and bool((of_x[order] == back).all())
        )
    return result


@MODES
def test_paddles_shuffle_batch_permutes_the_rows(
    mode: str, in_new_process: Callable[..., Any]
) -> None:
    assert in_mode(mode, shuffled, in_new_process) == [True, True]


# ---- What PaddleBox's tests leave out


def used_alone() -> list[bool]:
    """Whether the gradient is right if the loss uses one output of fused_seq_tensor only, and the
    sequences want no gradient."""
    random = np.random.default_rng(7)
    result = []
    for output in (0, 2, 3):
        whole = sequence_cases.fused_seq_tensor(random)
        place = [0, 2, 3].index(output)

        def call(given: dict[str, Any], whole: Case = whole, output: int = output) -> list[Any]:
            return [whole.call(given)[output]]

        def gradients(given: Any, whole: Case = whole, place: int = place) -> Any:
            shapes = [value.shape for value, _ in (whole.outputs[i] for i in (0, 2, 3))]
            every = [np.zeros(shape) for shape in shapes]
            every[place] = given[0]
            assert whole.gradients is not None
            return whole.gradients(every)[1:]

        one = Case(whole.inputs, call, [whole.outputs[output]], ["ad"], gradients)
        result.append(worst_here([one]) <= 1)
    return result


@MODES
def test_outputs_that_a_loss_does_not_use_have_zero_gradients(
    mode: str, in_new_process: Callable[..., Any]
) -> None:
    assert in_mode(mode, used_alone, in_new_process) == [True, True, True]


def test_views_are_read_through_their_strides() -> None:
    x = tensor(np.arange(12).reshape(3, 4), grad=True)
    out = layers.fused_concat([x.T, x.T], 1, 2)
    assert out.tolist() == [[4, 8, 4, 8], [5, 9, 5, 9], [6, 10, 6, 10], [7, 11, 7, 11]]
    (out * tensor([1.0, 2, 3, 4])).sum().backward()
    assert x.grad.tolist() == [[0] * 4, [4] * 4, [6] * 4]


def test_names_and_defaults_of_arguments_are_paddleboxs() -> None:
    def of(function: Any) -> dict[str, Any]:
        return {
            name: argument.default
            for name, argument in inspect.signature(function).parameters.items()
            if argument.kind is not inspect.Parameter.KEYWORD_ONLY
        }

    none = inspect.Parameter.empty
    assert of(layers.fused_concat) == {"input": none, "start_index": 0, "length": -1, "axis": 1}
    assert of(layers.partial_concat) == {"input": none, "start_index": 0, "length": -1}
    assert of(layers.partial_sum) == of(layers.partial_concat)
    assert of(layers.fused_seqpool_concat) == {"input": none, "offsets": None, "dims": None}
    assert [*of(layers.fused_seq_tensor)] == [
        *("input", "batch_count", "max_length", "slot_num", "ad_slot_num", "fea_emb_dim"),
        "ad_slot_offset",
    ]
    assert [*of(layers.fused_causal_mask)] == ["seq_info"]
    assert of(layers.fused_seqpool_cvm_tradew) == {
        **dict.fromkeys(("input", "pool_type", "cvm"), none),
        "pad_value": 0.0,
        "use_cvm": True,
        "cvm_offset": 2,
        "trade_id": -1,
        "trade_num": 2,
    }


def tensor(values: Any, dtype: str = "float32", grad: bool = False) -> Any:
    return paddle.to_tensor(np.asarray(values, dtype), stop_gradient=not grad)


def matrices(*shapes: tuple[int, ...]) -> list[Any]:
    return [paddle.ones(list(shape)) for shape in shapes]


def tradew(**changed: Any) -> Any:
    a = {"values": np.ones((3, 5), "f4"), "offsets": np.array([0, 1, 3], "i4"),
         "cvm": np.ones((2, 2), "f4"), "pool_type": "SUM", "slots": 1, **changed}  # fmt: skip
    pair = (paddle.to_tensor(a.pop("values")), paddle.to_tensor(a.pop("offsets")))
    return layers.fused_seqpool_cvm_tradew(
        pair, a.pop("pool_type"), paddle.to_tensor(a.pop("cvm")), **a
    )


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "concat_axis": (lambda: layers.fused_concat(matrices((2, 3)), axis=0), "axis is 0, expected 1"),
    "concat_widths": (
        lambda: layers.fused_concat(matrices((2, 3), (2, 4))),
        r"fused_concat: expected .* the same number of columns in each, .*\[\[2, 3\], \[2, 4\]\]",
    ),
    "concat_nothing": (lambda: layers.fused_concat([]), "expected at least one matrix"),
    "concat_rank": (lambda: layers.fused_concat(matrices((2, 3, 1))), "expected at least one"),
    "concat_rows": (
        lambda: layers.fused_concat(matrices((2, 3), (4, 3))),
        r"fused_concat: input 1 has shape \(4, 3\), expected \(2, 3\)",
    ),
    "concat_types": (
        lambda: layers.fused_concat([paddle.ones([2, 3]), paddle.ones([2, 3], "float64")]),
        "input 1 has dtype float64, expected float32",
    ),
    "concat_columns": (
        lambda: layers.fused_concat(matrices((2, 3)), 2, 2),
        "2 columns from 2 on of input 0, which has 3 columns",
    ),
    "partial_start": (
        lambda: layers.partial_concat(matrices((2, 3)), 3),
        "partial_concat: start_index = 3, length = -1, expected .* a matrix of 3 columns",
    ),
    "partial_before": (lambda: layers.partial_sum(matrices((2, 3)), -4, 1), "start_index = -4"),
    "partial_length": (lambda: layers.partial_sum(matrices((2, 3)), 0, 0), "length = 0"),
    "partial_end": (lambda: layers.partial_sum(matrices((2, 3)), -1, 2), "length = 2"),
    "pair_lists": (
        lambda: layers.fused_seqpool_concat([matrices((2, 3)), []]),
        r"two lists of the same length, found lists of \[1, 0\] matrices",
    ),
    "pair_columns": (
        lambda: layers.fused_seqpool_concat([matrices((2, 3)), matrices((2, 4))], [1, 2], [1, 3]),
        "3 columns from 2 on of input 1, which has 4 columns",
    ),
    "tensor_inputs": (
        lambda: layers.fused_seq_tensor(matrices((1, 2)), 1, 1, 2, 1, 1, 0),
        "1 inputs, expected the sequences and the ad",
    ),
    "tensor_columns": (
        lambda: layers.fused_seq_tensor(matrices((1, 5), (1, 1)), 1, 2, 2, 1, 1, 0),
        r"Input has 5 columns and ADInput 1, expected .* = 1 \* 2 \* 2 \* 1 and",
    ),
    "tensor_rows": (
        lambda: layers.fused_seq_tensor(matrices((1, 2), (2, 1)), 1, 1, 2, 1, 1, 0),
        r"ADInput has shape \(2, 1\), expected \(1, 1\)",
    ),
    "tensor_slots": (
        lambda: layers.fused_seq_tensor(matrices((1, 2), (1, 2)), 1, 1, 2, 2, 1, 0),
        "ad_slot_num = 2, slot_num = 2: expected .* more slots",
    ),
    "tensor_offset": (
        lambda: layers.fused_seq_tensor(matrices((1, 4), (1, 1)), 1, 1, 4, 1, 1, 2),
        "ad_slot_offset is 2, expected 0 or slot_num - ad_slot_num = 3",
    ),
    "mask_type": (
        lambda: layers.fused_causal_mask(paddle.ones([3])),
        "SeqInfo has dtype float32, expected int64",
    ),
    "mask_shape": (
        lambda: layers.fused_causal_mask(paddle.zeros([2, 2], "int32")),
        r"SeqInfo has shape \(2, 2\), expected \(Q \+ 1\)",
    ),
    "mask_order": (
        lambda: layers.fused_causal_mask(tensor([0, 3, 2], "int32")),
        "expected 3 ascending values from 0 to at most 1048576, found first 0, last 2",
    ),
    "mask_size": (lambda: layers.fused_causal_mask(tensor([0, 2**40], "int64")), "at most 1048576"),
    "pool_type": (lambda: tradew(pool_type="AVERAGE"), "pool_type is 'AVERAGE', expected 'SUM'"),
    "trade_id": (lambda: tradew(trade_id=2), "trade_id is 2, expected less than trade_num = 2"),
    "trade_num": (lambda: tradew(trade_num=3), "Values of 5 columns with cvm_offset = 2 and trade"),
    "cvm_shape": (
        lambda: tradew(cvm=np.ones((2, 3), "f4")),
        r"Cvm has shape \(2, 3\), expected \(2, 2\)",
    ),
    "values_type": (lambda: tradew(values=np.ones((3, 5))), "Values has dtype float64"),
    "values_shape": (lambda: tradew(values=np.ones((3, 1, 5), "f4")), r"expected \(nnz, D\)"),
    "offsets_type": (lambda: tradew(offsets=np.array([0, 1, 3])), "Offsets has dtype int64"),
    "offsets_shape": (
        lambda: tradew(offsets=np.array([0, 3], "i4")),
        r"Offsets has shape \(2\), expected \(3\)",
    ),
    "offsets_end": (lambda: tradew(offsets=np.array([0, 1, 4], "i4")), "Offsets: expected .* to 3"),
    "no_slots": (lambda: tradew(slots=None), "fused_seqpool_cvm_tradew: .*the number of slots"),
    "pooling": (
        lambda: layers.fusion_seqpool_cvm_concat(
            (paddle.ones([1, 3]), tensor([0, 1], "int32")), "MAX", paddle.ones([1, 2]), slots=1
        ),
        "pool_type is 'MAX', expected SUM, AVERAGE or SQRT",
    ),
    "pooled_axis": (
        lambda: layers.fusion_seqpool_cvm_concat([], "SUM", None, axis=0),
        "axis is 0, expected 1",
    ),
    "no_pairs": (
        lambda: layers.fusion_seqpool_cvm_concat(matrices((1, 3)), "SUM", paddle.ones([1, 2])),
        "fusion_seqpool_cvm_concat: expected a pair",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_with_what_was_expected(name: str) -> None:
    call, message = MISTAKES[name]
    with pytest.raises(ValueError, match=message):
        call()


def test_an_empty_batch_is_an_empty_result() -> None:
    def shapes(outputs: list[Any]) -> list[list[int]]:
        return [list(one.shape) for one in outputs]

    empty = paddle.zeros([0, 3])
    offsets, cvm = paddle.zeros([1], "int32"), paddle.zeros([0, 2])
    assert shapes([layers.fused_concat([empty, empty], 1)]) == [[0, 4]]
    assert shapes([layers.partial_sum([empty, empty], 1)]) == [[0, 2]]
    assert shapes(layers.fused_seqpool_concat([[empty], [empty]])) == [[0, 6]]
    whole = layers.fused_seq_tensor(matrices((0, 4), (0, 1)), 1, 2, 2, 1, 1, 0)
    assert shapes(list(whole)) == [[0, 2, 4], [0, 2], [0, 2, 1], [0, 2, 1]]
    pooled = layers.fusion_seqpool_cvm_concat((empty, offsets), "SQRT", cvm, slots=2)
    assert shapes([pooled]) == [[0, 6]]
