"""PaddleBox's layers that `paddlebox.ops` does not have, under their names there.

docs/operators.md has the formulas, and the differences from PaddleBox with their reasons. In a
static program the layers create their parameters from PaddleBox's `..._attr` arguments. In dygraph
they create none, because every call would create new ones: create the parameters once and pass
them. All tensors are float32 unless a docstring says otherwise.

Letters: N = instances, I = input columns, O = output columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from paddlebox import _native
from paddlebox._call import call
from paddlebox.compat.layers_norm import cross_norm_layer_hadamard, data_norm, masked_data_norm
from paddlebox.compat.layers_pull import pull_box_sparse
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
    """Attention of each instance to those on the same page, without a gradient of the input.

    This is `paddlebox.ops.rank_attention` with `enable_input_bp=False`.

    Args:
        input: (N, I).
        rank_offset: (N, 2 * max_rank + 1) int32: the instance's own rank, then max_rank pairs of
            rank and row of input. Ranks start at 1; a value below 1 means no rank.
        rank_param_shape: (max_rank * max_rank * I, O), for a static program.
        rank_param_attr: attributes of the parameter, for a static program.
        max_rank: the highest rank.
        max_size: no effect.
        rank_param: the parameter, if it exists already.

    Returns: (N, O), the sum over the pairs of input[row] @ the matrix of the two ranks.

    Raises: ValueError for a wrong shape or dtype, a rank above max_rank, a row outside of input, or
        if the parameter is missing, in dygraph or without a shape.
    """
    if rank_param is None:
        rank_param = _parameter("rank_attention2", "rank_param", rank_param_shape, rank_param_attr)
    return call(
        "box_rank_attention",
        {"X": input, "RankOffset": rank_offset, "RankParam": rank_param},
        {"max_rank": max_rank, "enable_input_bp": False},
        ["Out"],
        gradients=["X", "RankParam"],
    )[0]


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
    """A fully connected layer.

    PaddleBox multiplies by the factors and later divides by them, so that its float16 products on
    GPUs do not overflow. Products are float32 here. The factors would cancel, so they have no
    effect.

    Args:
        input: (N, I).
        param_size, param_attr: shape (I, O) and attributes of the weight, for a static program.
        bias_size, bias_attr: shape (O) or (O, 1) and attributes of the bias, likewise.
        input_scale_factor, bias_scale_factor: finite, not 0, and equal.
        grad_scale_factor: finite and not 0.
        act: name of an activation in paddle.nn.functional.
        weight, bias: the parameters, if they exist already.

    Returns: (N, O), input @ weight + bias.

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
    out = call(
        "box_scaled_fc",
        {"Input": input, "W": weight, "Bias": bias},
        {},
        ["Out"],
        gradients=["Input", "W", "Bias"],
    )[0]
    return _activated(out, act)


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
    """A fully connected layer whose input and weight are rounded to 8 bits.

    With e = value * expand_factor, clipped to [-clip_factor, clip_factor], a value becomes the
    integer q = trunc(e / (2 * clip_factor / int8_range) + 0.5), at most 127. The gradients are
    those of input @ weight + bias without rounding.

    Args:
        input: (N, I), I at most 131071.
        param_size, param_attr: shape (I, O) and attributes of the weight, for a static program.
        bias_size, bias_attr: shape (O) or (O, 1) and attributes of the bias, likewise.
        input_scale_factor, bias_scale_factor: no effect, but must be equal.
        grad_scale_factor: no effect.
        input_expand_factor, input_clip_factor: of the input; positive.
        weight_expand_factor, weight_clip_factor: of the weight; positive.
        int8_range: number of steps between -clip_factor and clip_factor; positive.
        act: name of an activation in paddle.nn.functional.
        weight, bias: the parameters, if they exist already.

    Returns: (N, O), q(input) @ q(weight) / (input_expand_factor * weight_expand_factor) *
        (2 * input_clip_factor / int8_range) + bias. As in PaddleBox, the step of the weight's
        integers is not in this product.

    Raises: ValueError for a wrong factor, shape or dtype, or if a parameter is missing, in dygraph
        or without a shape.
    """
    _check_equal("scaled_int8fc", input_scale_factor, bias_scale_factor)
    if weight is None:
        weight = _parameter("scaled_int8fc", "weight", param_size, param_attr)
    if bias is None:
        bias = _parameter("scaled_int8fc", "bias", bias_size, bias_attr)
    out = call(
        "box_scaled_int8fc",
        {"Input": input, "W": weight, "Bias": bias},
        {
            "input_expand_factor": float(input_expand_factor),
            "input_clip_factor": float(input_clip_factor),
            "weight_expand_factor": float(weight_expand_factor),
            "weight_clip_factor": float(weight_clip_factor),
            "int8_range": float(int8_range),
        },
        ["Out"],
        gradients=["Input", "W", "Bias"],
    )[0]
    return _activated(out, act)


def _check_equal(op: str, input_scale_factor: float, bias_scale_factor: float) -> None:
    if input_scale_factor != bias_scale_factor:
        raise ValueError(
            f"{op}: input_scale_factor is {input_scale_factor} and bias_scale_factor is "
            f"{bias_scale_factor}, expected equal factors"
        )
