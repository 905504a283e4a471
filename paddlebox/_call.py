"""Calls of custom operators, for dygraph, static PIR and static old-IR programs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from paddlebox import _native, errors

paddle = _native.paddle


@contextmanager
def raising_own_errors() -> Iterator[None]:
    """Replace Paddle's error for a failed operator by the error that the operator raised.

    Operators prefix their message with its class: "[PassError] fused_pull_seqpool_cvm: ...". Paddle
    loses the message in static PIR programs, but the native library keeps it.
    """
    _native.core.take_operator_error()  # drop the message of an earlier failure
    try:
        yield
    except (OSError, RuntimeError) as error:
        text = _native.core.take_operator_error() or str(error)
        found = re.search(r"\[(ValueError|[A-Z]\w+Error)\] (\w+: .*)", text)
        kind = getattr(errors, found[1], ValueError) if found is not None else None
        if found is None or kind is None:
            raise
        raise kind(re.sub(r"\s*\(at [^()]*\)\s*$", "", found[2])) from None


def call(
    op: str,
    inputs: Mapping[str, Any],
    attrs: Mapping[str, Any],
    outputs: Sequence[str],
    dtype: str = "float32",
    *,
    gradients: Sequence[str] = (),
    in_place: Mapping[str, str] | None = None,
) -> list[Any]:
    """Call the operator, or append it to an old-IR program.

    Args:
        inputs, attrs: in the order of the operator's declaration. A list is an input of several
            tensors. An optional input is named NAME@OPTIONAL, and may be None.
        gradients: the inputs for which the backward returns gradients, if there are several.
        in_place: the input that each output changes in place; these outputs are not returned.

    Returns: the outputs, in order.
    """
    if paddle.framework.in_dynamic_or_pir_mode():
        with raising_own_errors():
            out = paddle._C_ops._run_custom_op(op, *inputs.values(), *attrs.values())
        return list(out) if isinstance(out, (list, tuple)) else [out]
    tensors = {
        name: [
            _wanting_gradient(one) if name in gradients else one
            for one in (value if isinstance(value, list) else [value])
        ]
        for name, value in inputs.items()
        if value is not None
    }
    helper = paddle.base.layer_helper.LayerHelper(op)
    made = [helper.create_variable_for_type_inference(dtype) for _ in outputs]
    helper.append_op(
        type=op,
        inputs={
            f"{name}@VECTOR" if isinstance(inputs[name], list) else name: values
            for name, values in tensors.items()
        },
        outputs={
            **{name: [value] for name, value in zip(outputs, made, strict=True)},
            **{name: tensors[source] for name, source in (in_place or {}).items()},
        },
        attrs=dict(attrs),
    )
    return made


def _wanting_gradient(variable: Any) -> Any:
    """The variable, or a copy of it that takes a gradient.

    Old-IR programs cannot build the backward of a custom operator if one of several gradients has
    no target, for example that of a fed input.
    """
    if not variable.stop_gradient:
        return variable
    copy = paddle.assign(variable)
    copy.stop_gradient = False
    return copy
