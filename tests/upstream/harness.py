"""Runs cases of tests/upstream/cases.py, in dygraph or in a static program, and measures errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from paddlebox._native import paddle
from tests.upstream.cases import OPERATORS, UPSTREAM, Arrays, Case, Random, Result

BOUND = 1e-6  # of the sum of the absolute values of the terms


def run_dygraph(case: Case) -> Arrays:
    tensors = {
        name: paddle.to_tensor(array, stop_gradient=name not in case.gradients)
        for name, array in {**case.arrays, **case.sums}.items()
    }
    out = case.build(tensors)
    (out * tensors["weight"]).sum().backward()
    found = {"out": out, **{name: tensors[name].grad for name in case.gradients}}
    found |= {name: tensors[name] for name in case.sums}
    return {name: tensor.numpy() for name, tensor in found.items()}


def run_static(case: Case) -> Arrays:
    program, startup = paddle.static.Program(), paddle.static.Program()
    scope = paddle.static.Scope()
    with paddle.static.scope_guard(scope), paddle.static.program_guard(program, startup):
        tensors = {}
        for name, array in case.arrays.items():
            if name == "weight":
                continue
            shape = [-1, *array.shape[1:]] if name == "x" else array.shape
            tensors[name] = paddle.static.data(name, shape, str(array.dtype))
            tensors[name].stop_gradient = name not in case.gradients
        for name, array in case.sums.items():
            tensors[name] = paddle.static.create_parameter(
                list(array.shape),
                "float32",
                attr=paddle.ParamAttr(
                    name=name, initializer=paddle.nn.initializer.Assign(array), trainable=False
                ),
            )
            tensors[name].stop_gradient = True
        out = case.build(tensors)
        weight = paddle.static.data("weight", out.shape, "float32")  # the shape that is inferred
        gradients = paddle.static.gradients(
            [out], [tensors[name] for name in case.gradients], [weight]
        )
        exe = paddle.static.Executor(paddle.CPUPlace())
        exe.run(startup)
        values = exe.run(program, feed=case.arrays, fetch_list=[out, *gradients])
        found = dict(zip(("out", *case.gradients), values, strict=True))
        for name in case.sums:
            found[name] = np.array(scope.find_var(name).get_tensor())
    return found


def ratio(found: np.ndarray, expected: Result) -> float:
    """The largest error, relative to the sum of the absolute values of the terms."""
    assert found.shape == expected.value.shape, (found.shape, expected.value.shape)
    error = np.abs(found.astype(np.float64) - expected.value)
    exact = expected.terms == 0
    if error[exact].any() or not np.isfinite(error).all():
        return float("inf")
    return float((error[~exact] / expected.terms[~exact]).max(initial=0.0))


def worst(
    make: Callable[[Random], Case],
    cases: int,
    run: Callable[[Case], Arrays] = run_dygraph,
) -> tuple[float, str]:
    """The largest ratio over cases with the seeds 0, 1, ..., and where it was found."""
    largest = (0.0, "nowhere")
    for seed in range(cases):
        case = make(np.random.default_rng(seed))
        found = run(case)
        assert found.keys() == case.expected.keys()
        for name, expected in case.expected.items():
            largest = max(largest, (ratio(found[name], expected), f"{name} of seed {seed}"))
    return largest


def worst_static(cases: int, of_upstream: bool) -> dict[str, tuple[float, str]]:
    """For each operator, or for each of upstream's test cases; in this process."""
    paddle.enable_static()
    table = UPSTREAM if of_upstream else OPERATORS
    return {name: worst(make, cases, run_static) for name, make in table.items()}


def describe(name: str, cases: int, found: Any) -> str:
    return f"{name}: worst ratio {found[0]:.2g} ({found[1]}) over {cases} cases"
