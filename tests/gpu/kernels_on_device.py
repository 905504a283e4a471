"""Prints, for each function below, the largest difference of its result and gradients between the
CPU and the device of the stock Paddle wheel, as JSON."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from paddlebox import ops
from paddlebox._native import paddle
from paddlebox.config import HbmPlace
from paddlebox.store.options import check_place

F = paddle.nn.functional


def data_norm(x: Any, scale: Any, bias: Any) -> Any:
    """The result and the new sums. Slots whose first column ReLU makes 0 are empty."""
    sums = [paddle.full([6], value) for value in (100.0, 3.0, 90.0)]
    y = ops.data_norm(F.relu(x), sums=sums, scale_w=scale, bias=bias, slot_dim=3)
    return paddle.concat([y, *(one.reshape([1, 6]) * 0.01 for one in sums)])


def rank_attention(x: Any, param: Any) -> Any:
    ranks = [[1, 1, 0, -1, -1, 3, 1], [3, 1, 0, -1, -1, 3, 1], [-1] * 7]
    of = paddle.to_tensor(np.array(ranks, np.int32))
    return ops.rank_attention(x, of, rank_param=param, enable_input_bp=True)


def mlp(x: Any, a: Any, c: Any, b: Any, d: Any) -> Any:
    """Three layers, of which the second has no bias, and the last no ReLU; with dropout."""
    seed = paddle.to_tensor(np.array([7], np.int64))
    return ops.mlp(x, [a, c, a], [b, None, d], ["relu", "relu", None], "float32", 0.4, seed)


def offsets() -> Any:
    return ops.jagged_offsets(paddle.to_tensor([2.0, 0.0, 3.0]), 3)


def repacked(x: Any, y: Any) -> Any:
    rows = ops.jagged_pack(x, offsets(), reversed=True) * ops.jagged_repeat(y, offsets())
    return ops.jagged_unpack(ops.jagged_softmax(rows, offsets()), offsets(), 3, reversed=True)


def attention(form: str) -> Callable[..., Any]:
    """Of two sequences with 3 and 2 events and 1 target each."""

    def of(q: Any, k: Any, v: Any, time_bias: Any, position_bias: Any) -> Any:
        events, targets, seen = (
            paddle.to_tensor(np.array(one, np.int32))
            for one in ([0, 3, 5], [0, 1, 2], [0, 1, 2, 1, 1, 3, 0])
        )
        return ops.jagged_attention(
            *(q, k, v, events, seen, targets),
            heads=2,
            form=form,
            divisor=3.0,
            times=paddle.to_tensor(np.array([1, 2, 9, 4, 70, 90, 80])),
            time_bias=time_bias,
            position_bias=position_bias,
        )

    return of


ATTENDED: list[tuple[int, ...]] = [(7, 6), (7, 6), (7, 4), (2, 8), (2, 3)]

CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "add a column": (lambda x, y: x + y, [(4, 5), (4, 1)]),
    "subtract a column": (lambda x, y: x - y, [(4, 5), (4, 1)]),
    "subtract from a row": (lambda x, y: x - y, [(5,), (3, 4, 5)]),
    "multiply in the middle": (lambda x, y: x * y, [(3, 4, 5), (3, 1, 5)]),
    "divide by a column": (lambda x, y: x / (y * y + 1.0), [(4, 5), (4, 1)]),
    "both broadcast": (lambda x, y: x * y, [(4, 1), (1, 5)]),
    "relu": (F.relu, [(4, 5)]),
    "leaky relu": (lambda x: F.leaky_relu(x, 0.1), [(4, 5)]),
    "sigmoid": (F.sigmoid, [(4, 5)]),
    "log sigmoid": (F.log_sigmoid, [(4, 5)]),
    "tanh": (paddle.tanh, [(4, 5)]),
    "exp and log": (lambda x: paddle.log(paddle.exp(x) + 1.0), [(4, 5)]),
    "sqrt and square": (lambda x: paddle.sqrt(paddle.square(x) + 1.0), [(4, 5)]),
    "mean of all": (lambda x: x.mean(), [(70, 90)]),
    "mean over two axes": (lambda x: x.mean(axis=[0, 2]), [(70, 3, 4)]),
    "sum in the middle": (lambda x: x.sum(axis=1, keepdim=True), [(3, 200, 4)]),
    "matmul": (paddle.matmul, [(4, 5), (5, 9)]),
    "matmul of the transposed left": (
        lambda x, y: paddle.matmul(x, y, transpose_x=True),
        [(5, 4), (5, 9)],
    ),
    "matmul of the transposed right": (
        lambda x, y: paddle.matmul(x, y, transpose_y=True),
        [(4, 5), (9, 5)],
    ),
    "matmul of both": (
        lambda x, y: paddle.matmul(x, y, transpose_x=True, transpose_y=True),
        [(5, 4), (9, 5)],
    ),
    "matmul by one matrix": (paddle.matmul, [(2, 3, 4, 5), (5, 9)]),
    "matmul of batches": (paddle.matmul, [(2, 3, 4, 5), (2, 3, 5, 9)]),
    "matmul of one on the left": (paddle.matmul, [(4, 5), (3, 5, 9)]),
    "einsum": (lambda x, y: paddle.einsum("bfd,fde->bfe", x, y), [(4, 3, 5), (3, 5, 2)]),
    "concat": (lambda x, y: paddle.concat([x, y], axis=1), [(4, 5, 2), (4, 1, 2)]),
    "split": (lambda x: paddle.split(x, [2, 3], axis=1)[1], [(4, 5)]),
    "stack": (lambda x, y: paddle.stack([x, y], axis=1), [(4, 5), (4, 5)]),
    "slice": (lambda x: paddle.slice(x, [0, 1], [1, -3], [3, 5]), [(4, 5, 2)]),
    "transpose": (lambda x: paddle.transpose(x, [2, 0, 1]), [(3, 4, 5)]),
    "tile": (lambda x: paddle.tile(x, [2, 3, 1]), [(4, 5)]),
    "gather": (lambda x: paddle.gather(x, paddle.to_tensor([2, -3, 2]), axis=1), [(4, 3, 2)]),
    "gather one row": (lambda x: paddle.gather(x, paddle.to_tensor(-1), axis=0), [(4, 3, 2)]),
    "fmin and fmax": (
        lambda x, y: (
            x + y + paddle.fmin(x.detach(), y.detach()) * paddle.fmax(x.detach(), y.detach())
        ),
        [(4, 5), (5,)],
    ),
    # Each element is 0 or twice as large, so the product is 0, and so is its gradient.
    "dropout": (lambda x: (out := F.dropout(x, 0.5)) * (out - 2.0 * x), [(40, 5)]),
    "dropout in an evaluation": (lambda x: F.dropout(x, 0.5, training=False), [(4, 5)]),
    "unsqueeze and reshape": (lambda x: x.unsqueeze(1).reshape([2, -1]), [(4, 5)]),
    "softmax of nothing": (lambda x: F.softmax(x, axis=1), [(4, 0)]),
    "softmax": (lambda x: F.softmax(x, axis=1), [(4, 5, 2)]),
    "layer norm": (lambda x, y, z: F.layer_norm(x, [5], y, z), [(4, 3, 5), (5,), (5,)]),
    "data norm": (data_norm, [(70, 6), (6,), (6,)]),
    "batch fc": (
        lambda x, w, b: ops.batch_fc(x, weight=w, bias=b),
        [(2, 5, 3), (2, 3, 9), (2, 9)],
    ),
    "batch fc of columns": (
        lambda x, w, b: ops.batch_fc(x, weight=w, bias=b, batchcount=2),
        [(5, 6), (3, 18), (1, 18)],
    ),
    "batch fc of groups": (
        lambda x, w, b: ops.batch_fc(x, weight=w, bias=b, batchcount=2, transpose_weight=True),
        [(2, 5, 3), (3, 18), (1, 18)],
    ),
    "mlp": (mlp, [(5, 3, 4), (4, 5), (5, 4), (5,), (5,)]),
    "one layer": (lambda x, w: ops.mlp(x, [w], [None], [None]), [(4, 5), (5, 9)]),
    "mlp of nothing": (lambda x, w, b: ops.mlp(x, [w], [b], ["relu"]), [(0, 5), (5, 9), (9,)]),
    "rank attention": (rank_attention, [(3, 4), (36, 2)]),
    "rows of sequences": (repacked, [(3, 3, 2), (3, 2)]),
    "sums of sequences": (
        lambda x: ops.jagged_sum(ops.jagged_pack(x, offsets()), offsets()),
        [(3, 3, 2)],
    ),
    "pointwise attention": (attention("pointwise"), ATTENDED),
    "softmax attention": (attention("softmax"), ATTENDED),
    "whole numbers": (lambda x: x * paddle.cast(offsets() * 2 - 1, "float32"), [(4,)]),
    "log loss": (
        lambda x: F.binary_cross_entropy_with_logits(x, paddle.ones_like(x)),
        [(40, 1)],
    ),
}


def add_products() -> None:
    """Products of matrices with one row, one column or one sum, read in both orders."""
    for rows, summed, columns in itertools.product((1, 3), repeat=3):
        for left, right in itertools.product((False, True), repeat=2):
            x = (summed, rows) if left else (rows, summed)
            y = (columns, summed) if right else (summed, columns)
            multiply = functools.partial(paddle.matmul, transpose_x=left, transpose_y=right)
            CASES[f"matmul of {x} and {y}, {left}, {right}"] = multiply, [x, y]
            CASES[f"matmul of two {x} and {y}, {left}, {right}"] = multiply, [(2, *x), y]


def computed(function: Callable[..., Any], inputs: list[np.ndarray]) -> list[np.ndarray]:
    """The result, and the gradients of the sum of its products with 1, 2, 3..."""
    tensors = [paddle.to_tensor(array, stop_gradient=False) for array in inputs]
    out = function(*tensors)
    factors = np.linspace(0.1, 1, int(out.size), dtype=np.float32).reshape(out.shape)
    (out * paddle.to_tensor(factors)).sum().backward()
    return [np.array(tensor.numpy()) for tensor in (out, *(one.grad for one in tensors))]


def differences() -> dict[str, list[float]]:
    found = {}
    for name, (function, shapes) in CASES.items():
        random = np.random.default_rng(3)
        inputs = [random.normal(size=shape).astype(np.float32) for shape in shapes]
        results = []
        for device in ("cpu", "paddlebox_gpu"):
            paddle.set_device(device)
            results.append(computed(function, inputs))
        pairs = zip(*results, strict=True)
        found[name] = [float(np.abs(host - own).max(initial=0)) for host, own in pairs]
    return found


check_place(HbmPlace.GPU)
add_products()
paddle.set_flags({"FLAGS_enable_api_kernel_fallback": False, "FLAGS_use_stride_kernel": False})
print(json.dumps(differences()))
