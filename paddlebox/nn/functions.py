"""Functions that Paddle has and that do not build in old-IR programs: there, by their operators.

In Paddle 3.3 `paddle.exp` and its like take no variable of an old-IR program; the operators are
there still, with their gradients.
"""

from __future__ import annotations

from typing import Any

from paddlebox import ops

paddle = ops.paddle


def _append(op: str, inputs: dict[str, Any], attrs: dict[str, Any] | None = None) -> Any:
    helper = paddle.base.layer_helper.LayerHelper(op)
    out = helper.create_variable_for_type_inference(dtype=next(iter(inputs.values())).dtype)
    helper.append_op(type=op, inputs=inputs, outputs={"Out": out}, attrs=attrs or {})
    return out


def _unary(op: str, x: Any) -> Any:
    if paddle.in_dynamic_mode() or paddle.framework.in_pir_mode():
        return getattr(paddle, op)(x)
    return _append(op, {"X": x})


def exp(x: Any) -> Any:
    return _unary("exp", x)


def log(x: Any) -> Any:
    return _unary("log", x)


def sigmoid(x: Any) -> Any:
    return _unary("sigmoid", x)


def sqrt(x: Any) -> Any:
    return _unary("sqrt", x)


def tanh(x: Any) -> Any:
    return _unary("tanh", x)


def maximum(x: Any, y: Any) -> Any:
    """The larger one, elementwise."""
    return y + paddle.nn.functional.relu(x - y)


def matmul(x: Any, y: Any, *, transpose_y: bool = False) -> Any:
    if paddle.in_dynamic_mode() or paddle.framework.in_pir_mode():
        return paddle.matmul(x, y, transpose_y=transpose_y)
    return _append("matmul_v2", {"X": x, "Y": y}, {"trans_x": False, "trans_y": transpose_y})


def total(x: Any, axis: int, *, keepdim: bool = False) -> Any:
    """The sum over one axis."""
    if paddle.in_dynamic_mode() or paddle.framework.in_pir_mode():
        return paddle.sum(x, axis=axis, keepdim=keepdim)
    attrs = {"dim": [axis], "keep_dim": keepdim, "reduce_all": False}
    return _append("reduce_sum", {"X": x}, attrs)
