"""PaddleBox's layers that `paddlebox.ops` does not have, under their names there.

docs/operators.md has the formulas, and the differences from PaddleBox with their reasons. In a
static program the layers create their parameters from PaddleBox's `..._attr` arguments. In dygraph
they create none, because every call would create new ones: create the parameters once and pass
them. All tensors are float32 unless a docstring says otherwise.

Letters: N = instances, I = input columns, O = output columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from paddlebox import _native, ops
from paddlebox._call import call
from paddlebox.compat.layers_norm import cross_norm_layer_hadamard, data_norm, masked_data_norm
from paddlebox.compat.layers_sequence import (
    fused_causal_mask,
    fused_concat,
    fused_seq_tensor,
    fused_seqpool_concat,
    fused_seqpool_cvm_tradew,
    fusion_seqpool_cvm_concat,
    partial_concat,
    partial_sum,
)
from paddlebox.ops_dense import _activated, _parameter

__all__ = [
    "cross_norm_layer_hadamard",
    "data_norm",
    "fused_causal_mask",
    "fused_concat",
    "fused_seq_tensor",
    "fused_seqpool_concat",
    "fused_seqpool_cvm_tradew",
    "fusion_seqpool_cvm_concat",
    "masked_data_norm",
    "partial_concat",
    "partial_sum",
    "pull_box_sparse",
    "rank_attention2",
    "scaled_fc",
    "scaled_int8fc",
]

paddle = _native.paddle


def rank_attention2(
    input: Any,  # noqa: A002
    rank_offset: Any,
    rank_param_shape: Sequence[int] | None = None,
    rank_param_attr: Any = None,
    max_rank: int = 3,
    max_size: int = 0,  # noqa: ARG001  # PaddleBox ignores it too
    *,
    rank_param: Any | None = None,
) -> Any:
    """`paddlebox.ops.rank_attention`, with its arguments and `enable_input_bp=False`.

    Raises: ValueError for a wrong shape or dtype, a rank above max_rank, a row outside of input, or
        if the parameter is missing, in dygraph or without a shape.
    """
    if rank_param is None:
        rank_param = _parameter("rank_attention2", "rank_param", rank_param_shape, rank_param_attr)
    return ops.rank_attention(input, rank_offset, max_rank=max_rank, rank_param=rank_param)


def pull_box_sparse(
    input: Any,  # noqa: A002  # PaddleBox's name for it
    size: int,
    dtype: str = "float32",
    offset: int = 0,
    slot_idx: int = -1,
    *,
    anchor: Any | None = None,
) -> Any:
    """`paddlebox.ops.pull_box_sparse` with PaddleBox's signature, which can leave out columns and
    set the batch size.

    Args:
        size: number of columns of the result. The table's rows have offset + size columns, [show,
            click, embed_w, embedx...].
        dtype: "float32".
        offset: number of columns at the front to leave out. The push takes 1 for them, so with
            offset 1 each occurrence of a feasign counts as a show.
        slot_idx: the slot whose first dimension scales the gradient of the rows. All slots have the
            same B here, so this has an effect only if it is above the number of slots: the gradient
            is then not scaled.

    Raises also: ValueError for another dtype, or a negative offset.
    """
    if dtype != "float32" or offset < 0:
        raise ValueError(
            f"pull_box_sparse: dtype {dtype!r} and offset {offset}, expected 'float32' and at "
            "least 0"
        )
    listed = isinstance(input, (list, tuple))
    slots = list(input) if listed else [input]
    anchor = ops.create_anchor() if anchor is None else anchor
    if slot_idx > len(slots):
        rows = [_unscaled(ids, size + offset, anchor) for ids in slots]
    else:
        found = ops.pull_box_sparse(input, size + offset, anchor=anchor)
        rows = found if listed else [found]
    if offset:
        rows = [call("box_skip_columns", {"X": r}, {"offset": offset})[0] for r in rows]
    return rows if listed else rows[0]


def _unscaled(ids: Any, columns: int, anchor: Any) -> Any:
    """The rows of a slot. Its first dimension is 1 for the pull, which scales the gradient."""
    rows = ops.pull_box_sparse(paddle.reshape(ids, [1, -1]), columns, anchor=anchor)
    if len(ids.shape) > 1 and ids.shape[-1] == 1:
        shape = paddle.shape(ids)[:-1]
    else:
        shape = paddle.shape(ids)
    whole = paddle.concat([paddle.cast(shape, "int32"), paddle.full([1], columns, "int32")])
    return paddle.reshape(rows, whole)


def scaled_fc(
    input: Any,  # noqa: A002
    param_size: Sequence[int] | None = None,
    param_attr: Any = None,
    bias_size: Sequence[int] | None = None,
    bias_attr: Any = None,
    input_scale_factor: float = 1.0,
    bias_scale_factor: float = 1.0,
    grad_scale_factor: float = 256.0,
    act: str | None = None,
    *,
    weight: Any | None = None,
    bias: Any | None = None,
) -> Any:
    """A fully connected layer: (N, O), input (N, I) @ weight + bias.

    PaddleBox multiplies by the factors and later divides by them, so that its float16 products on
    GPUs do not overflow. Products are float32 here: the factors would cancel and have no effect.

    Args:
        param_size, param_attr: shape (I, O) and attributes of the weight, for a static program.
        bias_size, bias_attr: shape (O) or (O, 1) and attributes of the bias, likewise.
        input_scale_factor, bias_scale_factor: finite, not 0, and equal.
        grad_scale_factor: finite and not 0.
        act: name of an activation in paddle.nn.functional.
        weight, bias: the parameters, if they exist already.

    Raises: ValueError for a wrong factor, shape or dtype, or if a parameter is missing, in dygraph
        or without a shape.
    """
    factors = {
        "input_scale_factor": input_scale_factor,
        "bias_scale_factor": bias_scale_factor,
        "grad_scale_factor": grad_scale_factor,
    }
    for name, factor in factors.items():
        if not math.isfinite(factor) or factor == 0.0:
            raise ValueError(f"scaled_fc: {name} is {factor}, expected a finite number, not 0")
    _check_equal("scaled_fc", input_scale_factor, bias_scale_factor)
    if weight is None:
        weight = _parameter("scaled_fc", "weight", param_size, param_attr)
    if bias is None:
        bias = _parameter("scaled_fc", "bias", bias_size, bias_attr)
    return _fully_connected("scaled_fc", input, weight, bias, {}, act)


def scaled_int8fc(
    input: Any,  # noqa: A002
    param_size: Sequence[int] | None = None,
    param_attr: Any = None,
    bias_size: Sequence[int] | None = None,
    bias_attr: Any = None,
    input_scale_factor: float = 1.0,
    bias_scale_factor: float = 1.0,
    grad_scale_factor: float = 1.0,  # noqa: ARG001  # PaddleBox ignores it too
    input_expand_factor: float = 1.0,
    input_clip_factor: float = 2.0,
    weight_expand_factor: float = 1.0,
    weight_clip_factor: float = 2.0,
    int8_range: float = 240.0,
    act: str | None = None,
    *,
    weight: Any | None = None,
    bias: Any | None = None,
) -> Any:
    """`scaled_fc`, with its arguments, whose input and weight are rounded to 8 bits.

    With e = value * expand_factor, clipped to [-clip_factor, clip_factor], a value becomes the
    integer q = trunc(e / (2 * clip_factor / int8_range) + 0.5), at most 127. The gradients are
    those of input @ weight + bias without rounding.

    Args:
        input: (N, I), I at most 131071.
        input_scale_factor, bias_scale_factor: no effect, but must be equal.
        grad_scale_factor: no effect.
        input_expand_factor, input_clip_factor: of the input; positive.
        weight_expand_factor, weight_clip_factor: of the weight; positive.
        int8_range: number of steps between -clip_factor and clip_factor; positive.

    Returns: (N, O), q(input) @ q(weight) / (input_expand_factor * weight_expand_factor) *
        (2 * input_clip_factor / int8_range) + bias. As in PaddleBox, the step of the weight's
        integers is not in this product.
    """
    _check_equal("scaled_int8fc", input_scale_factor, bias_scale_factor)
    if weight is None:
        weight = _parameter("scaled_int8fc", "weight", param_size, param_attr)
    if bias is None:
        bias = _parameter("scaled_int8fc", "bias", bias_size, bias_attr)
    attrs = {
        "input_expand_factor": float(input_expand_factor),
        "input_clip_factor": float(input_clip_factor),
        "weight_expand_factor": float(weight_expand_factor),
        "weight_clip_factor": float(weight_clip_factor),
        "int8_range": float(int8_range),
    }
    return _fully_connected("scaled_int8fc", input, weight, bias, attrs, act)


def _fully_connected(
    op: str, x: Any, weight: Any, bias: Any, attrs: Mapping[str, float], act: str | None
) -> Any:
    inputs = {"Input": x, "W": weight, "Bias": bias}
    return _activated(call(f"box_{op}", inputs, attrs)[0], act)


def _check_equal(op: str, input_scale_factor: float, bias_scale_factor: float) -> None:
    if input_scale_factor != bias_scale_factor:
        raise ValueError(
            f"{op}: input_scale_factor is {input_scale_factor} and bias_scale_factor is "
            f"{bias_scale_factor}, expected equal factors"
        )
