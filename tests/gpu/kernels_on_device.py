"""Prints, for each function below, the largest difference of its result and gradients between the
CPU and the device of the stock Paddle wheel, as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from paddlebox._native import paddle

F = paddle.nn.functional
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
    "gather": (lambda x: paddle.gather(x, paddle.to_tensor([2, 0, 2]), axis=1), [(4, 3, 2)]),
    "unsqueeze and reshape": (lambda x: x.unsqueeze(1).reshape([2, -1]), [(4, 5)]),
    "softmax": (lambda x: F.softmax(x, axis=1), [(4, 5, 2)]),
    "layer norm": (lambda x, y, z: F.layer_norm(x, [5], y, z), [(4, 3, 5), (5,), (5,)]),
    "log loss": (
        lambda x: F.binary_cross_entropy_with_logits(x, paddle.ones_like(x)),
        [(40, 1)],
    ),
}


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


paddle.set_flags({"FLAGS_enable_api_kernel_fallback": False, "FLAGS_use_stride_kernel": False})
print(json.dumps(differences()))
