"""Prints, for each function below, the largest difference of its result and gradients between the
CPU, or numpy, and the device of the stock Paddle wheel, as JSON."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
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


def attention(form: str, dtype: str = "float32") -> Callable[..., Any]:
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
            dtype=dtype,
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
    "pointwise attention in bfloat16": (attention("pointwise", "bfloat16"), ATTENDED),
    "softmax attention in bfloat16": (attention("softmax", "bfloat16"), ATTENDED),
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


def rounded(x: np.ndarray) -> np.ndarray:
    """To bfloat16, ties to even."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


@dataclass
class Narrow:
    """A stack in bfloat16. Inputs have few bits, so that sums are the same in any order, and numpy
    rounds what the device rounds."""

    instances: int
    widths: list[int]
    activations: list[str | None]
    biased: list[bool]
    rate: float = 0.0

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(5)
        shapes = list(itertools.pairwise(self.widths))
        self.x = self.some(self.instances, self.widths[0], bits=8)
        self.weights = [self.some(*of, bits=2 if layer else 9) for layer, of in enumerate(shapes)]
        self.biases = [
            self.some(n, bits=4) if b else None
            for b, n in zip(self.biased, self.widths[1:], strict=True)
        ]
        self.dout = self.some(self.instances, self.widths[-1], bits=8)

    def some(self, *shape: int, bits: int) -> np.ndarray:
        """Numbers between -2 and 2 with so many bits after the point."""
        return np.ldexp(self.random.integers(-(2 << bits), 2 << bits, shape), -bits).astype("f4")

    def on_device(self) -> list[np.ndarray]:
        """The result and the gradients of the input, the weights and the biases."""
        arrays = [self.x, *self.weights, *(one for one in self.biases if one is not None)]
        x, *parameters = (paddle.to_tensor(one, stop_gradient=False) for one in arrays)
        weights, rest = parameters[: len(self.weights)], iter(parameters[len(self.weights) :])
        biases = [next(rest) if biased else None for biased in self.biased]
        out = ops.mlp(x, weights, biases, self.activations, "bfloat16", self.rate, self.seed())
        out.backward(paddle.to_tensor(self.dout))
        return [out.numpy(), *(one.grad.numpy() for one in (x, *parameters))]

    def seed(self) -> Any:
        return paddle.to_tensor(np.array([7], np.int64))

    def kept(self, layer: int) -> np.ndarray:
        """What dropout multiplies the results of a layer by."""
        ones = [paddle.ones([1, 1])] * layer + [paddle.ones([1, self.widths[layer + 1]])]
        linear: list[str | None] = [None] * layer
        x, none = paddle.ones([self.instances, 1]), [None] * (layer + 1)
        out = ops.mlp(x, ones, none, [*linear, "relu"], "float32", self.rate, self.seed())
        return np.array(out.numpy())

    def in_numpy(self) -> list[np.ndarray]:
        last = len(self.weights) - 1
        factors, masks = [rounded(self.x)], []
        weights = [rounded(one).astype(np.float64) for one in self.weights]
        for layer, weight in enumerate(weights):
            bias, relu = self.biases[layer], self.activations[layer] == "relu"
            h = factors[-1] @ weight + (0 if bias is None else bias)
            mask = np.float32(h > 0) * self.kept(layer) if relu else np.ones(h.shape, np.float32)
            h = (h if layer == last else rounded(h)) * mask
            factors.append(h if layer == last else rounded(h))
            masks.append(mask)
        gradient, of_weights, of_biases = self.dout, [], []
        for layer in reversed(range(last + 1)):
            whole = gradient if layer == last else rounded(gradient)
            gradient = rounded(whole * masks[layer]).astype(np.float64)
            of_weights.append(factors[layer].T @ gradient)
            if self.biased[layer]:
                of_biases.append(gradient.sum(0))
            gradient = gradient @ weights[layer].T
        return [factors[-1], gradient, *of_weights[::-1], *of_biases[::-1]]

    def differences(self) -> list[float]:
        """Of what is larger than 1, relative to the largest value."""
        paddle.set_device("cpu")
        expected = self.in_numpy()
        paddle.set_device("paddlebox_gpu")
        pairs = zip(self.on_device(), expected, strict=True)
        return [
            float(np.abs(own - right).max(initial=0) / np.abs(right).max(initial=1))
            for own, right in pairs
        ]


NARROW = {
    "one layer in bfloat16": Narrow(70, [9, 33], [None], [False]),
    "mlp in bfloat16 to a logit": Narrow(200, [13, 7, 5, 1], ["relu", "relu", None], [True] * 3),
    "mlp in bfloat16 with dropout": Narrow(
        *(70, [13, 7, 5, 3], ["relu", None, "relu"], [True, False, True], 0.4)
    ),
    "mlp of nothing in bfloat16": Narrow(0, [5, 9], ["relu"], [True]),
}


def differences() -> dict[str, list[float]]:
    found = {name: stack.differences() for name, stack in NARROW.items()}
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
