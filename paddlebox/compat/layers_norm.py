"""The layers of `paddlebox.compat.layers` that normalise by running sums over all batches so far.

Letters: N = instances, C = columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paddlebox import _native, ops_dense
from paddlebox._call import call
from paddlebox.ops_dense import (
    _SUMS,
    _activated,
    _create_sums,
    _normalised,
    _running,
)
from paddlebox.ranks.dense import sum_gradients

paddle = _native.paddle


def masked_data_norm(
    input: Any,  # noqa: A002
    mask: Any,
    act: str | None = None,
    epsilon: float = 1e-5,
    param_attr: Mapping[str, float] | None = None,
    data_layout: str = "NCHW",
    in_place: bool = False,  # noqa: ARG001
    name: str | None = None,
    moving_mean_name: str | None = None,  # noqa: ARG001
    moving_variance_name: str | None = None,  # noqa: ARG001
    do_model_average_for_mean_and_var: bool = True,  # noqa: ARG001
    slot_dim: int = -1,  # noqa: ARG001
    sync_stats: bool = False,
    update_norm: bool = True,
    summary_decay_rate: float = 0.9999999,
    enable_scale_and_shift: bool = False,
    *,
    sums: Sequence[Any] | None = None,
    scale_w: Any | None = None,
    bias: Any | None = None,
) -> Any:
    """`paddlebox.ops.data_norm`, with its arguments, of the rows (N, C) that a mask selects. The
    other rows become zeros, with a zero gradient, and do not enter the sums. If no row is selected,
    the sums do not change.

    Args:
        mask: (N) or (N, 1) bool.
        data_layout: "NCHW" or "NHWC", which are the same for (N, C).
        name: prefix of the parameters; None: "dn".
        sync_stats: as in `data_norm` here.
        in_place, moving_mean_name, moving_variance_name, do_model_average_for_mean_and_var,
            slot_dim: no effect, as in PaddleBox.

    Raises: ValueError for a wrong shape or dtype, an unknown data_layout, or if the sums are
        missing in dygraph.
    """
    op = "masked_data_norm"
    if data_layout not in ("NCHW", "NHWC"):
        raise ValueError(f"{op}: data_layout {data_layout!r}, expected 'NCHW' or 'NHWC'")
    if sums is None:
        sums, scale_w, bias = _create_sums(
            op, name or "dn", input, param_attr, enable_scale_and_shift, (scale_w, bias)
        )
    inputs = {"X": input, "Mask": mask, **dict(zip(_SUMS, sums, strict=True))}
    out = _normalised(op, inputs, {}, scale_w, bias)
    if update_norm:
        attrs = {"epsilon": float(epsilon), "summary_decay_rate": float(summary_decay_rate)}
        inputs["X"] = input.detach()
        counts = paddle.cast(paddle.any(mask), "float32") if sync_stats else None
        _update(op, inputs, attrs, sums, sync_stats, counts)
    return _activated(out, act)


def data_norm(
    input: Any,  # noqa: A002
    act: str | None = None,
    epsilon: float = 1e-5,
    param_attr: Mapping[str, float] | None = None,
    *,
    name: str = "dn",
    slot_dim: int = -1,
    sync_stats: bool = False,
    update_norm: bool = True,
    summary_decay_rate: float = 0.9999999,
    enable_scale_and_shift: bool = False,
    sums: Sequence[Any] | None = None,
    scale_w: Any | None = None,
    bias: Any | None = None,
) -> Any:
    """`paddlebox.ops.data_norm`, with its arguments, whose sums may also be those of all ranks.

    sync_stats: whether to add the batches of all ranks to the sums. Every rank has to run the step.
    If a rank has fewer batches than another, its idle steps enter the sums as one instance of
    zeros.
    """
    op = "data_norm"
    if sums is None:
        sums, scale_w, bias = _create_sums(
            op, name, input, param_attr, enable_scale_and_shift, (scale_w, bias)
        )
    out = ops_dense.data_norm(
        input, act, slot_dim=slot_dim, update_norm=False, sums=sums, scale_w=scale_w, bias=bias
    )
    if update_norm:
        attrs = {"slot_dim": slot_dim, "epsilon": epsilon, "summary_decay_rate": summary_decay_rate}
        inputs = {"X": input.detach(), **dict(zip(_SUMS, sums, strict=True))}
        _update(op, inputs, attrs, sums, sync_stats)
    return out


def cross_norm_layer_hadamard(
    input: Any,  # noqa: A002
    fields_num: int,
    embed_dim: int,
    param_dict: Mapping[str, float] | None = None,
    summary_decay_rate: float = 0.9999999,
    epsilon: float = 1e-4,
    name: str | None = None,
    sync_stats: bool = False,
    *,
    update_norm: bool = True,
    summary: Any | None = None,
) -> Any:
    """Pairs of embeddings, their products and the sums of these, normalised by running sums.

    C = fields_num * (3 * embed_dim + 1).

    Args:
        input: (N, 2 * fields_num * embed_dim), the two embeddings of each pair one after the other.
        param_dict: initial values of the running sums, as `param_attr` of `data_norm`.
        summary_decay_rate, epsilon, sync_stats, update_norm: as in `data_norm`.
        name: prefix of the parameter, name.cross_summary, in a static program.
        summary: (3, C), if it exists already: for each feature the running size, sum and square
            sum. No optimizer may change it.

    Returns: (N, C), for each pair a, b the features a, b, a * b (embed_dim columns each) and the
        sum of a * b (one column), each as (feature - sum / size) * sqrt(size / square_sum).

    Raises: ValueError for a wrong shape, dtype or number, or if the sums are missing in dygraph.
    """
    op = "cross_norm_hadamard"
    if fields_num < 1 or embed_dim < 1:
        raise ValueError(
            f"{op}: fields_num is {fields_num} and embed_dim is {embed_dim}, expected at least 1"
        )
    if summary is None:
        start = param_dict or {}
        rows = [start.get("batch_size", 1e4), start.get("batch_sum", 0.0)]
        rows.append(start.get("batch_square", 1e4))
        shape = [3, fields_num * (3 * embed_dim + 1)]
        values = np.repeat(np.array(rows, "float32"), shape[1]).reshape(shape)
        prefix = name or paddle.utils.unique_name.generate(op)
        initial = paddle.nn.initializer.Assign(values)
        summary = _running(op, "cross_summary", f"{prefix}.cross_summary", shape, initial)
    attrs: dict[str, Any] = {"fields_num": fields_num, "embed_dim": embed_dim}
    out = call("box_cross_norm_hadamard", {"Input": input, "Summary": summary}, attrs)[0]
    if update_norm:
        attrs |= {"epsilon": float(epsilon), "summary_decay_rate": float(summary_decay_rate)}
        inputs = {"Input": input.detach(), "Summary": summary}
        _update(op, inputs, attrs, [summary], sync_stats)
    return out


def _update(
    op: str,
    inputs: Mapping[str, Any],
    attrs: Mapping[str, Any],
    sums: Sequence[Any],
    sync_stats: bool,
    counts: Any | None = None,
) -> None:
    """Add a batch to running sums, by the operator box_<op>_update.

    Args:
        inputs: detached, because autograd of static programs follows assigned values, too.
        counts: 0 if this rank's batch does not change the sums, else 1; None: it does.
    """
    update = f"box_{op}_update"
    with paddle.no_grad():
        if not sync_stats or paddle.distributed.get_world_size() == 1:
            new = call(update, inputs, attrs)
        else:
            ones = paddle.ones([1], "float32")
            counts = ones if counts is None else paddle.reshape(counts, [1])
            # Without the old sums, the operator gives the terms of this rank's batch.
            terms = call(update, inputs, {**attrs, "summary_decay_rate": 0.0})
            *terms, ranks = sum_gradients([*(term * counts for term in terms), counts], ones)
            decay = paddle.where(ranks > 0, ones * float(attrs["summary_decay_rate"]), ones)
            new = [old * decay + term for old, term in zip(sums, terms, strict=True)]
        for value, target in zip(new, sums, strict=True):
            paddle.assign(value, output=target)
