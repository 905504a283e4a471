"""The layers of `paddlebox.compat.layers` that normalise by running sums over all batches so far.

Letters: N = instances, C = columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox._call import call
from paddlebox.ops_dense import _activated, _parameter

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
    """`paddlebox.ops.data_norm` of the rows that a mask selects; the other rows become zeros.

    Rows that are not selected have a zero gradient and do not enter the sums. If no row is
    selected, the sums do not change.

    Args:
        input: (N, C).
        mask: (N) or (N, 1) bool.
        act: name of an activation in paddle.nn.functional.
        epsilon: added to the mean square of each batch.
        param_attr: initial values of the sums: batch_size (1e4), batch_sum (0), batch_square (1e4),
            and with enable_scale_and_shift scale_w (1) and bias (0).
        data_layout: "NCHW" or "NHWC", which are the same for (N, C).
        name: prefix of the parameters, default "dn": name.batch_size, name.batch_sum and so on.
        sync_stats: must be False, because each process has its own sums.
        update_norm: whether to add this batch to the sums after they were used. Set it to False in
            programs for evaluation.
        summary_decay_rate: factor of the old sums at each update.
        enable_scale_and_shift: whether to create scale_w and bias, for a static program.
        sums: batch_size, batch_sum and batch_square_sum, (C) each, if they exist already.
        scale_w, bias: (C) each, if they exist already.
        in_place, moving_mean_name, moving_variance_name, do_model_average_for_mean_and_var,
            slot_dim: no effect, as in PaddleBox.

    Returns: (N, C), in selected rows (input - sum / size) * sqrt(size / square_sum), times scale_w
        plus bias if these exist.

    Raises: ValueError for a wrong shape or dtype, an unknown data_layout, sync_stats, or if the
        sums are missing in dygraph.
    """
    op = "masked_data_norm"
    if data_layout not in ("NCHW", "NHWC"):
        raise ValueError(f"{op}: data_layout {data_layout!r}, expected 'NCHW' or 'NHWC'")
    _refuse_sync_stats(op, sync_stats)
    columns = int(input.shape[-1])
    start, prefix = param_attr or {}, name or "dn"

    def made(part: str, key: str, value: float, trainable: bool = False) -> Any:
        initial = paddle.nn.initializer.Constant(float(start.get(key, value)))
        return _running(op, f"{prefix}.{part}", [columns], initial, trainable)

    if sums is None:
        sums = [
            made("batch_size", "batch_size", 1e4),
            made("batch_sum", "batch_sum", 0.0),
            made("batch_square_sum", "batch_square", 1e4),
        ]
        if enable_scale_and_shift:
            scale_w, bias = made("scale_w", "scale_w", 1.0, True), made("bias", "bias", 0.0, True)
    inputs = {
        "X": input,
        "Mask": mask,
        **dict(zip(("BatchSize", "BatchSum", "BatchSquareSum"), sums, strict=True)),
    }
    scaling = {
        "ScaleW": paddle.ones([columns], "float32") if scale_w is None else scale_w,
        "Bias": paddle.zeros([columns], "float32") if bias is None else bias,
    }
    out = call(
        "box_masked_data_norm",
        {**inputs, **scaling},
        {},
        ["Y", "Means", "Scales"],
        gradients=["X", "ScaleW", "Bias"],
    )[0]
    if update_norm:
        attrs = {"epsilon": float(epsilon), "summary_decay_rate": float(summary_decay_rate)}
        inputs["X"] = input.detach()
        _update(op, inputs, attrs, ["NewSize", "NewSum", "NewSquareSum"], sums)
    return _activated(out, act)


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
        fields_num: number of pairs.
        embed_dim: columns of an embedding.
        param_dict: initial values of the running sums: batch_size (1e4), batch_sum (0),
            batch_square (1e4).
        summary_decay_rate: factor of the old sums at each update.
        epsilon: added to the mean square of each batch.
        name: prefix of the parameter, name.cross_summary, in a static program.
        sync_stats: must be False, because each process has its own sums.
        update_norm: whether to add this batch to the sums after they were used. Set it to False in
            programs for evaluation.
        summary: (3, C), if it exists already: for each feature the running size, sum and square
            sum. No optimizer may change it.

    Returns: (N, C), for each pair a, b the features a, b, a * b (embed_dim columns each) and the
        sum of a * b (one column), each as (feature - sum / size) * sqrt(size / square_sum).

    Raises: ValueError for a wrong shape, dtype or number, sync_stats, or if the sums are missing in
        dygraph.
    """
    op = "cross_norm_hadamard"
    if fields_num < 1 or embed_dim < 1:
        raise ValueError(
            f"{op}: fields_num is {fields_num} and embed_dim is {embed_dim}, expected at least 1"
        )
    _refuse_sync_stats(op, sync_stats)
    if summary is None:
        start = param_dict or {}
        rows = [start.get("batch_size", 1e4), start.get("batch_sum", 0.0)]
        rows.append(start.get("batch_square", 1e4))
        shape = [3, fields_num * (3 * embed_dim + 1)]
        values = np.repeat(np.array(rows, "float32"), shape[1]).reshape(shape)
        prefix = name or paddle.utils.unique_name.generate(op)
        initial = paddle.nn.initializer.Assign(values)
        summary = _running(op, f"{prefix}.cross_summary", shape, initial)
    attrs: dict[str, Any] = {"fields_num": fields_num, "embed_dim": embed_dim}
    out = call(
        "box_cross_norm_hadamard",
        {"Input": input, "Summary": summary},
        attrs,
        ["Out", "Means", "Scales"],
        gradients=["Input"],
    )[0]
    if update_norm:
        attrs |= {"epsilon": float(epsilon), "summary_decay_rate": float(summary_decay_rate)}
        _update(op, {"Input": input.detach(), "Summary": summary}, attrs, ["NewSummary"], [summary])
    return out


def _refuse_sync_stats(op: str, sync_stats: bool) -> None:
    if sync_stats:
        raise ValueError(f"{op}: sync_stats is not supported: each process has its own sums")


def _running(
    op: str, name: str, shape: Sequence[int], initializer: Any, trainable: bool = False
) -> Any:
    """A parameter that no optimizer changes, unless it is trainable."""
    attr = paddle.ParamAttr(name=name, initializer=initializer, trainable=trainable)
    made = _parameter(op, name.rpartition(".")[2], shape, attr)
    made.stop_gradient = not trainable
    return made


def _update(
    op: str,
    inputs: Mapping[str, Any],
    attrs: Mapping[str, Any],
    outputs: Sequence[str],
    targets: Sequence[Any],
) -> None:
    """Assigns the outputs of the operator that updates running sums. The inputs must be detached,
    because autograd of PIR programs also follows assigned values backwards."""
    with paddle.no_grad():
        new = call(f"box_{op}_update", inputs, attrs, outputs)
        for value, target in zip(new, targets, strict=True):
            paddle.assign(value, output=target)
