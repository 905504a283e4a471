"""The dense part of a model as an ONNX model, for callers of the serving library.

Each operator of the frozen program (program.py) becomes one or a few ONNX operators. `paddle2onnx`
2.1.0 does not replace this module: it has no wheel for Python 3.13, a sequence model (BST) differs
by 5e-4, and an operator that it does not know ends the process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox import ops
from paddlebox._native import start_openmp
from paddlebox.errors import ConfigError
from paddlebox.serving.program import INPUT, static_mode

paddle = ops.paddle

OPSET, IR_VERSION = 17, 8  # ONNX 1.12 of 2022, so that older runtimes load it too
OUTPUTS = ("probability", "user", "item")  # the latter two: the vectors of two towers
USER_OUTPUTS = ("probability", "known")  # of a model that reads sequences

_SAME = {
    "add": "Add",
    "subtract": "Sub",
    "multiply": "Mul",
    "divide": "Div",
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "less_than": "Less",
    "minimum": "Min",
    "maximum": "Max",
    "fmin": "Min",  # they differ for NaN, which no feature is
    "fmax": "Max",
    "assign": "Identity",
}
_MAPPED: dict[str, Callable[[_Graph, _Op], Any]] = {}


def onnx_of(program: bytes, parameters: bytes) -> bytes:
    """The ONNX model of a frozen program, with the inputs and outputs of the program. Raises:
    ConfigError if the package onnx is missing, or an operator has no mapping."""
    try:
        import onnx
    except ImportError as error:
        raise ConfigError(
            "an ONNX model needs the package onnx: pip install 'onnx>=1.16'"
        ) from error
    with static_mode(), tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder) / "model"
        prefix.with_suffix(".json").write_bytes(program)
        prefix.with_suffix(".pdiparams").write_bytes(parameters)
        start_openmp()
        executor, scope = paddle.static.Executor(paddle.CPUPlace()), paddle.static.Scope()
        with paddle.static.scope_guard(scope):
            loaded, _, _ = paddle.static.load_inference_model(str(prefix), executor)
            graph = _Graph(onnx, scope)
            for op in loaded.global_block().ops:
                graph.add(_Op(op))
    return graph.model()


class _Op:
    """An operator of the program. inputs, outputs: ids of values; None: not given."""

    def __init__(self, op: Any) -> None:
        self.name = str(op.name()).removeprefix("pd_op.")
        self.attributes: dict[str, Any] = op.attrs()
        self.inputs = [v.id if v.initialized() else None for v in op.operands_source()]
        self.outputs = [value.id for value in op.results()]
        self._op = op

    def rank(self, number: int) -> int:
        """Of an input."""
        return len(self._op.operands_source()[number].shape)

    def columns(self, number: int) -> int:
        """Of an input with two axes."""
        return int(self._op.operands_source()[number].shape[1])

    def dtype(self) -> np.dtype[Any]:
        """Of the first output."""
        return np.dtype(str(self._op.results()[0].dtype).removeprefix("paddle."))


class _Graph:
    """An ONNX graph in the making. A value is a name, a constant, or a list of values."""

    def __init__(self, onnx: Any, scope: Any) -> None:
        self.onnx, self._scope = onnx, scope
        self.values: dict[int, str | np.ndarray | list[Any]] = {}
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    # ---- building

    def add(self, op: _Op) -> None:
        if op.name in _SAME:
            inputs = [self.values[value] for value in op.inputs if value is not None]
            self.values[op.outputs[0]] = self.node(_SAME[op.name], inputs)
            return
        mapped = _MAPPED.get(op.name)
        if mapped is None:
            layer = str(op.attributes.get("struct_name", "")).strip("/")
            raise ConfigError(
                f"the operator {op.name}{f' of {layer}' if layer else ''} has no ONNX form: export "
                "without --onnx, and serve the model with paddlebox serve"
            )
        made = mapped(self, op)
        if made is not None:
            self.values[op.outputs[0]] = made

    def node(self, kind: str, inputs: Sequence[Any], **attributes: Any) -> str:
        """Add a node with one output. Returns the output's name."""
        made = f"{kind}_{len(self._nodes)}"
        names = [self.name_of(value) for value in inputs]
        self._nodes.append(self.onnx.helper.make_node(kind, names, [made], **attributes))
        return made

    def name_of(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        name = f"constant_{len(self._constants)}"
        array = np.ascontiguousarray(value)
        self._constants.append(self.onnx.numpy_helper.from_array(array, name))
        return name

    def input(self, name: str, shape: Sequence[int], dtype: np.dtype[Any]) -> str:
        self._inputs.append(self._described(name, shape, dtype))
        return name

    def output(self, value: Any, number: int, width: int) -> None:
        one_input = [given.name for given in self._inputs] == [INPUT]
        name = (OUTPUTS if one_input else USER_OUTPUTS)[number]
        self._nodes.append(self.onnx.helper.make_node("Identity", [self.name_of(value)], [name]))
        self._outputs.append(self._described(name, [-1, width], np.dtype(np.float32)))

    def _described(self, name: str, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
        rows = "B" if name in (INPUT, *OUTPUTS) else name  # those of other inputs differ
        kind = self.onnx.helper.np_dtype_to_tensor_dtype(dtype)
        sizes = [rows if size < 0 else size for size in shape]
        return self.onnx.helper.make_tensor_value_info(name, kind, sizes)

    def model(self) -> bytes:
        helper = self.onnx.helper
        graph = helper.make_graph(
            self._nodes, "dense", self._inputs, self._outputs, self._constants
        )
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, producer_name="paddlebox")
        model.ir_version = IR_VERSION
        self.onnx.checker.check_model(model)
        return bytes(model.SerializeToString())

    # ---- operands

    def of(self, op: _Op, number: int) -> Any:
        value = op.inputs[number]
        if value is None:
            raise ConfigError(f"the operator {op.name} has no input {number}, expected one")
        return self.values[value]

    def constant(self, op: _Op, number: int) -> np.ndarray:
        """An input that the program knows. Raises: ConfigError if it is computed."""
        value = self.of(op, number)
        if not isinstance(value, np.ndarray):
            raise ConfigError(
                f"the operator {op.name} computes its input {number}, expected a constant: it has "
                "no ONNX form"
            )
        return value

    def integers(self, op: _Op, number: int) -> np.ndarray:
        return self.constant(op, number).astype(np.int64).reshape(-1)

    def parameter(self, name: str) -> np.ndarray:
        return np.array(self._scope.find_var(name).get_tensor())


def _maps(*names: str) -> Callable[[Callable[[_Graph, _Op], Any]], Any]:
    def register(function: Callable[[_Graph, _Op], Any]) -> Any:
        _MAPPED.update(dict.fromkeys(names, function))
        return function

    return register


# ---- inputs, outputs and constants


@_maps("data")
def _data(graph: _Graph, op: _Op) -> Any:
    return graph.input(str(op.attributes["name"]), op.attributes["shape"], op.dtype())


@_maps("fetch")
def _fetch(graph: _Graph, op: _Op) -> None:
    graph.output(graph.of(op, 0), int(op.attributes["col"]), op.columns(0))


@_maps("builtin.parameter")
def _parameter(graph: _Graph, op: _Op) -> np.ndarray:
    return graph.parameter(str(op.attributes["parameter_name"]))


@_maps("full")
def _full(_: _Graph, op: _Op) -> np.ndarray:
    return np.full(op.attributes["shape"], op.attributes["value"], op.dtype())


@_maps("full_int_array")
def _full_int_array(_: _Graph, op: _Op) -> np.ndarray:
    return np.array(op.attributes["value"], np.int64)


@_maps("assign_value", "assign_value_")
def _assign_value(_: _Graph, op: _Op) -> np.ndarray:
    return np.array(op.attributes["values"], op.dtype()).reshape(op.attributes["shape"])


@_maps("full_like")
def _full_like(graph: _Graph, op: _Op) -> str:
    value = graph.constant(op, 1).astype(op.dtype()).reshape(1)
    tensor = graph.onnx.numpy_helper.from_array(value)
    shape = graph.node("Shape", [graph.of(op, 0)])
    return graph.node("ConstantOfShape", [shape], value=tensor)


@_maps("builtin.combine")
def _combine(graph: _Graph, op: _Op) -> list[Any]:
    return [graph.of(op, number) for number in range(len(op.inputs))]


# ---- shapes


@_maps("reshape")
def _reshape(graph: _Graph, op: _Op) -> str:
    return graph.node("Reshape", [graph.of(op, 0), graph.integers(op, 1)])


@_maps("unsqueeze")
def _unsqueeze(graph: _Graph, op: _Op) -> str:
    return graph.node("Unsqueeze", [graph.of(op, 0), graph.integers(op, 1)])


@_maps("squeeze")
def _squeeze(graph: _Graph, op: _Op) -> str:
    return graph.node("Squeeze", [graph.of(op, 0), graph.integers(op, 1)])


@_maps("transpose")
def _transpose(graph: _Graph, op: _Op) -> str:
    return graph.node("Transpose", [graph.of(op, 0)], perm=list(op.attributes["perm"]))


@_maps("tile")
def _tile(graph: _Graph, op: _Op) -> str:
    times = graph.integers(op, 1)
    missing = np.ones(op.rank(0) - len(times), np.int64)
    return graph.node("Tile", [graph.of(op, 0), np.concatenate([missing, times])])


@_maps("slice")
def _slice(graph: _Graph, op: _Op) -> str:
    axes = np.array(op.attributes["axes"], np.int64)
    made = graph.node(
        "Slice", [graph.of(op, 0), graph.integers(op, 1), graph.integers(op, 2), axes]
    )
    dropped = np.array(op.attributes["decrease_axis"], np.int64)
    return graph.node("Squeeze", [made, dropped]) if len(dropped) else made


@_maps("concat")
def _concat(graph: _Graph, op: _Op) -> str:
    return graph.node("Concat", graph.of(op, 0), axis=int(graph.integers(op, 1)[0]))


@_maps("stack")
def _stack(graph: _Graph, op: _Op) -> str:
    axis = np.array([op.attributes["axis"]], np.int64)
    parts = [graph.node("Unsqueeze", [part, axis]) for part in graph.of(op, 0)]
    return graph.node("Concat", parts, axis=int(axis[0]))


@_maps("gather")
def _gather(graph: _Graph, op: _Op) -> str:
    axis = int(graph.integers(op, 2)[0])
    return graph.node("Gather", [graph.of(op, 0), graph.of(op, 1)], axis=axis)


@_maps("cast")
def _cast(graph: _Graph, op: _Op) -> str:
    kind = graph.onnx.helper.np_dtype_to_tensor_dtype(op.dtype())
    return graph.node("Cast", [graph.of(op, 0)], to=kind)


# ---- arithmetic


@_maps("matmul")
def _matmul(graph: _Graph, op: _Op) -> str:
    inputs = []
    for number, key in enumerate(("transpose_x", "transpose_y")):
        value, rank = graph.of(op, number), op.rank(number)
        if op.attributes[key]:
            swapped = [*range(rank - 2), rank - 1, rank - 2]
            value = graph.node("Transpose", [value], perm=swapped)
        inputs.append(value)
    return graph.node("MatMul", inputs)


@_maps("einsum")
def _einsum(graph: _Graph, op: _Op) -> str:
    return graph.node("Einsum", graph.of(op, 0), equation=op.attributes["equation"])


@_maps("square")
def _square(graph: _Graph, op: _Op) -> str:
    return graph.node("Mul", [graph.of(op, 0)] * 2)


@_maps("scale")
def _scale(graph: _Graph, op: _Op) -> str:
    value, factor = graph.of(op, 0), graph.constant(op, 1).reshape(-1)[:1].astype(op.dtype())
    bias = np.array([op.attributes["bias"]], op.dtype())
    steps = [("Mul", factor, 1.0), ("Add", bias, 0.0)]
    for kind, other, nothing in steps if op.attributes["bias_after_scale"] else steps[::-1]:
        if other[0] != nothing:
            value = graph.node(kind, [value, other])
    return graph.node("Identity", [value])


@_maps("mean")
def _mean(graph: _Graph, op: _Op) -> str:
    axes, keep = graph.integers(op, 1).tolist(), int(op.attributes["keepdim"])
    return graph.node("ReduceMean", [graph.of(op, 0)], axes=axes, keepdims=keep)


@_maps("sum")
def _sum(graph: _Graph, op: _Op) -> str:
    inputs = [graph.of(op, 0), graph.integers(op, 1)]
    return graph.node("ReduceSum", inputs, keepdims=int(op.attributes["keepdim"]))


@_maps("softmax")
def _softmax(graph: _Graph, op: _Op) -> str:
    return graph.node("Softmax", [graph.of(op, 0)], axis=int(op.attributes["axis"]))


@_maps("leaky_relu")
def _leaky_relu(graph: _Graph, op: _Op) -> str:
    return graph.node("LeakyRelu", [graph.of(op, 0)], alpha=op.attributes["negative_slope"])


@_maps("dropout")
def _dropout(graph: _Graph, op: _Op) -> str:
    value = graph.of(op, 0)
    if op.attributes["mode"] == "upscale_in_train":
        return graph.node("Identity", [value])
    kept = (1 - graph.constant(op, 2).reshape(-1)[:1]).astype(op.dtype())
    return graph.node("Mul", [value, kept])


@_maps("layer_norm")
def _layer_norm(graph: _Graph, op: _Op) -> str:
    inputs = [graph.of(op, number) for number in range(3)]
    axis, epsilon = int(op.attributes["begin_norm_axis"]), op.attributes["epsilon"]
    return graph.node("LayerNormalization", inputs, axis=axis, epsilon=epsilon)


@_maps("batch_norm", "batch_norm_")
def _batch_norm(graph: _Graph, op: _Op) -> str:
    mean, variance, factor, bias = (
        graph.constant(op, number).astype(np.float64) for number in range(1, 5)
    )
    factor = factor / np.sqrt(variance + op.attributes["epsilon"])
    shape = (-1, *(1,) * (op.rank(0) - 2))
    scaled = graph.node("Mul", [graph.of(op, 0), factor.astype(np.float32).reshape(shape)])
    shift = (bias - mean * factor).astype(np.float32).reshape(shape)
    return graph.node("Add", [scaled, shift])


# ---- attention over the events of a user (program.py)


@_maps("custom_op.box_jagged_attention")
def _attention(graph: _Graph, op: _Op) -> str:
    """Of one sequence, as `paddlebox.ops.jagged_attention` defines it. Known events see nothing, so
    only the rows of `box_new` are computed, N of them; those of known events are 0.

    Letters: n = events, H = heads, A = width of a head.
    """
    form, rounded = op.attributes["form"], op.attributes["bfloat16"]
    if form != "pointwise" or rounded:
        raise ConfigError(
            f"box_jagged_attention: expected form pointwise with float32 products, found {form}"
            f"{' with bfloat16' if rounded else ''}: it has no ONNX form"
        )
    node, new = graph.node, graph.node("Cast", ["box_new"], to=graph.onnx.TensorProto.INT64)
    heads, width = int(op.attributes["heads"]), op.columns(0)
    whole = graph.onnx.TensorProto.INT64
    start, one = np.zeros(1, np.int64), np.ones(1, np.int64)
    n = node("Cast", [node("Slice", [graph.of(op, 3), one, 2 * one, start])], to=whole)

    def by_head(rows: Any) -> str:
        return node("Reshape", [rows, np.array([0, heads, width // heads])])  # 0: as it is

    def of_new(number: int) -> str:
        return node("Gather", [graph.of(op, number), new], axis=0)

    def of_events(number: int) -> str:
        return node("Slice", [graph.of(op, number), start, n, start])

    def weights(scores: Any) -> str:
        scores = node("Mul", [scores, node("Sigmoid", [scores])])
        return node("Div", [scores, np.float32(op.attributes["divisor"])])

    scale = np.float32(op.attributes["scale"])
    q, k, v = (by_head(of_new(number)) for number in range(3))  # (N, H, A)
    keys, values = (by_head(of_events(number)) for number in (1, 2))  # (n, H, A)
    time_bias, position_bias = graph.constant(op, 7), graph.constant(op, 8)

    places = node("Range", [np.int64(0), node("Squeeze", [n, start]), np.int64(1)])
    seen = node("Cast", [node("Unsqueeze", [of_new(5), one])], to=whole)
    distance = node("Sub", [seen, places])  # (N, n); 0 for an event itself
    is_seen = node("Not", [node("Less", [distance, np.int64(0)])])
    position = node("Max", [distance, np.int64(0)])
    position = node("Min", [position, np.int64(position_bias.shape[1] - 1)])
    scores = node(
        "MatMul",
        [node("Transpose", [q], perm=[1, 0, 2]), node("Transpose", [keys], perm=[1, 2, 0])],
    )
    scores = node("Mul", [scores, scale])
    scores = node("Add", [scores, node("Gather", [position_bias, position], axis=1)])
    if time_bias.shape[1] > 1:
        ages = node("Sub", [node("Unsqueeze", [of_new(6), one]), of_events(6)])
        bucket = _bucket(graph, ages, time_bias.shape[1])
        scores = node("Add", [scores, node("Gather", [time_bias, bucket], axis=1)])
    else:
        scores = node("Add", [scores, time_bias.reshape(-1, 1, 1)])
    weight = node("Where", [is_seen, weights(scores), np.float32(0)])  # (H, N, n)
    out = node("MatMul", [weight, node("Transpose", [values], perm=[1, 0, 2])])
    out = node("Transpose", [out], perm=[1, 0, 2])

    # A candidate also sees itself.
    own = node("ReduceSum", [node("Mul", [q, k]), 2 * one], keepdims=1)  # (N, H, 1)
    bias = (time_bias[:, 0] + position_bias[:, 0]).reshape(1, heads, 1)
    own = weights(node("Add", [node("Mul", [own, scale]), bias]))
    is_event = node("Unsqueeze", [node("Less", [new, n]), np.array([1, 2])])
    own = node("Mul", [node("Where", [is_event, np.float32(0), own]), v])
    made = node("Reshape", [node("Add", [out, own]), np.array([0, width])])

    known = node("Sub", [node("Shape", [graph.of(op, 5)]), node("Shape", [new])])
    shape = node("Concat", [known, np.array([width])], axis=0)
    return node("Concat", [node("ConstantOfShape", [shape]), made], axis=0)


def _bucket(graph: _Graph, ages: str, buckets: int) -> str:
    """The buckets of differences of times, as `paddlebox.ops.jagged_attention` defines them."""
    node, kinds = graph.node, graph.onnx.TensorProto
    age = node("Cast", [ages], to=kinds.FLOAT)
    double = node("Cast", [node("Max", [age, np.float32(1)])], to=kinds.DOUBLE)
    # Exact: below a power of 2, the logarithm of a float32 is lower by 8.6e-8 at least.
    doublings = node("Mul", [node("Log", [double]), np.float64(1 / np.log(2))])
    doublings = node("Floor", [node("Add", [doublings, np.float64(1e-9)])])
    doublings = node("Cast", [doublings], to=kinds.INT64)
    power = node("Gather", [np.exp2(np.arange(64)).astype(np.float32), doublings])
    more = node("Less", [age, node("Mul", [power, np.float32(1.5)])])
    more = node("Cast", [node("Not", [more])], to=kinds.INT64)
    bucket = node("Add", [node("Mul", [doublings, np.int64(2)]), np.int64(1)])
    bucket = node("Min", [node("Add", [bucket, more]), np.int64(buckets - 1)])
    is_later = node("Less", [np.int64(0), ages])
    return node("Where", [is_later, bucket, np.int64(0)])
