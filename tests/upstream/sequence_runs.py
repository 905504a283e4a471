"""Runs a layer on the inputs of a case, in dygraph or in a static program, and compares outputs and
gradients with float64 numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paddlebox._native import paddle

BOUND = 1e-6  # of the sum of the absolute terms
Arrays = list[np.ndarray]
# A value, and the sum of the absolute values of its terms. Without terms the value is exact.
Expected = tuple[np.ndarray, np.ndarray]


def exact(value: np.ndarray) -> Expected:
    return value, np.zeros(value.shape)


@dataclass
class Case:
    inputs: dict[str, np.ndarray]
    call: Callable[[dict[str, Any]], list[Any]]  # the layer's outputs for the inputs
    outputs: list[Expected]
    # The names of the inputs that get a gradient, and their gradients for those of the outputs.
    wanted: list[str] = field(default_factory=list)
    gradients: Callable[[Arrays], list[Expected]] | None = None
    constant: int = -1  # the output that has no gradient

    def draw_gradients(self, random: np.random.Generator) -> Arrays:
        """A gradient for each output that has one; none if no input wants one."""
        if not self.wanted:
            return []
        shapes = [value.shape for i, (value, _) in enumerate(self.outputs) if i != self.constant]
        dtype = self.inputs[self.wanted[0]].dtype
        return [random.normal(size=shape).astype(dtype) for shape in shapes]

    def with_gradient(self, outputs: list[Any]) -> list[Any]:
        """The outputs that `draw_gradients` makes gradients for."""
        return [out for i, out in enumerate(outputs) if i != self.constant] if self.wanted else []


def ratio(found: np.ndarray, expected: Expected) -> float:
    """The largest error, in units of the bound; infinite if an exact value differs."""
    value, terms = expected
    assert found.shape == value.shape, (found.shape, value.shape)
    error = np.abs(found - value)
    if np.any(error[terms == 0] > 0) or np.isnan(error).any():
        return np.inf
    return float(np.max(error[terms > 0] / terms[terms > 0], initial=0.0) / BOUND)


def in_dygraph(case: Case, given: Arrays) -> Arrays:
    """The outputs, then the gradients."""
    paddle.disable_static()
    tensors = {
        name: paddle.to_tensor(array, stop_gradient=name not in case.wanted)
        for name, array in case.inputs.items()
    }
    outputs = case.call(tensors)
    if case.wanted:
        paddle.autograd.backward(
            case.with_gradient(outputs), [paddle.to_tensor(gradient) for gradient in given]
        )
    return [t.numpy() for t in outputs] + [tensors[name].grad.numpy() for name in case.wanted]


def in_program(case: Case, given: Arrays) -> Arrays:
    """As `in_dygraph`, in a program of the kind of this process."""
    paddle.enable_static()
    program = paddle.static.Program()
    with paddle.static.program_guard(program, paddle.static.Program()):
        # The first dimension of an input is not known before the program runs.
        data = {
            name: paddle.static.data(name, [-1, *array.shape[1:]], str(array.dtype))
            for name, array in case.inputs.items()
        }
        for name in case.wanted:
            data[name].stop_gradient = False
        outputs = case.call(data)
        made: list[Any] = []
        if case.wanted:
            smooth = case.with_gradient(outputs)
            targets = [
                paddle.static.data(f"gradient{i}", list(out.shape), str(gradient.dtype))
                for i, (out, gradient) in enumerate(zip(smooth, given, strict=True))
            ]
            made = paddle.static.gradients(smooth, [data[name] for name in case.wanted], targets)
    feed = case.inputs | {f"gradient{i}": gradient for i, gradient in enumerate(given)}
    executor = paddle.static.Executor(paddle.CPUPlace())
    return list(executor.run(program, feed=feed, fetch_list=[*outputs, *made]))


def worst(
    cases: Iterable[Case], seed: int, run: Callable[[Case, Arrays], Arrays] = in_dygraph
) -> float:
    """The largest ratio of all cases."""
    random = np.random.default_rng(seed)
    largest = 0.0
    for case in cases:
        given = case.draw_gradients(random)
        expected = list(case.outputs)
        if case.gradients is not None and case.wanted:
            expected += case.gradients([one.astype(np.float64) for one in given])
        found = run(case, given)
        largest = max(largest, *map(ratio, found, expected))
        assert len(found) == len(expected)
    return largest


def random_worst(
    make: Callable[[np.random.Generator], Case],
    cases: int,
    run: Callable[[Case, Arrays], Arrays] = in_dygraph,
) -> float:
    """The largest ratio of so many random cases, which are the same in every call."""
    random = np.random.default_rng(1)
    return worst((make(random) for _ in range(cases)), 2, run)
