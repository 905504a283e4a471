"""Calls of custom operators, in dygraph and static programs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from paddlebox import _native, errors

paddle = _native.paddle


@contextmanager
def raising_own_errors() -> Iterator[None]:
    """Replace Paddle's error for a failed operator by the error that the operator raised.

    Operators prefix their message with its class: "[PassError] fused_pull_seqpool_cvm: ...". Paddle
    loses the message in static programs, but the native library keeps it.
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


def call(op: str, inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> list[Any]:
    """Call the operator.

    Args:
        inputs, attrs: in the order of the operator's declaration. A list is an input of several
            tensors; None is an optional input that is missing.

    Returns: the outputs, in order.

    Raises: ConfigError in a program of Paddle's old IR.
    """
    if not paddle.framework.in_dynamic_or_pir_mode():
        raise errors.ConfigError(
            f"{op}: expected dygraph or a program in PIR, found one in Paddle's old IR: start the "
            "process without FLAGS_enable_pir_api=0"
        )
    with raising_own_errors():
        return list(paddle._C_ops._run_custom_op(op, *inputs.values(), *attrs.values()))
