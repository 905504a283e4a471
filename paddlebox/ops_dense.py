"""CPU versions of dense operators that Paddle has only for GPUs, or has removed.

`paddlebox.ops` exports them under PaddleBox's names. docs/operators.md has the formulas, and the
differences from PaddleBox with their reasons. In a static program the operators create their
parameters from PaddleBox's `..._attr` arguments. In dygraph they create none, because every call
would create new ones: create the parameters once and pass them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paddlebox import _native
from paddlebox._call import call

paddle = _native.paddle

_SUMS = ("BatchSize", "BatchSum", "BatchSquareSum")


def rank_attention(
    input: Any,  # noqa: A002
    rank_offset: Any,
    rank_param_shape: Sequence[int] | None = None,
    rank_param_attr: Any = None,
    max_rank: int = 3,
    max_size: int = 0,  # noqa: ARG001  # PaddleBox sizes a buffer with it; none is needed here
    enable_input_bp: bool = False,
    *,
    rank_param: Any | None = None,
) -> Any:
    """Attention of each instance to those on the same page, with one matrix per pair of ranks.

    Letters: N = instances, I = input columns, O = output columns.

    Args:
        input: (N, I) float32.
        rank_offset: (N, 2 * max_rank + 1) int32: the instance's own rank, then max_rank pairs of
            rank and row of input. Ranks start at 1; a value below 1 means no rank.
        rank_param_shape: (max_rank * max_rank * I, O), for a static program.
        rank_param_attr: attributes of the parameter, for a static program.
        max_rank: the highest rank.
        max_size: accepted for compatibility with PaddleBox, without effect.
        enable_input_bp: whether input gets a gradient; otherwise its gradient is zeros.
        rank_param: the parameter, if it exists already.

    Returns: float32 (N, O): the sum over the pairs of input[row] @ the matrix of the two ranks.

    Raises: ValueError if the parameter is missing, in dygraph or without a shape.
    """
    if rank_param is None:
        rank_param = _parameter("rank_attention", "rank_param", rank_param_shape, rank_param_attr)
    return call(
        "box_rank_attention",
        {"X": input, "RankOffset": rank_offset, "RankParam": rank_param},
        {"max_rank": max_rank, "enable_input_bp": enable_input_bp},
    )[0]


def batch_fc(
    input: Any,  # noqa: A002
    param_size: Sequence[int] | None = None,
    param_attr: Any = None,
    bias_size: Sequence[int] | None = None,
    bias_attr: Any = None,
    act: str | None = None,
    batchcount: int = 0,
    transpose_weight: bool = False,
    *,
    weight: Any | None = None,
    bias: Any | None = None,
) -> Any:
    """Apply a fully connected layer to each of G groups.

    Letters: N = instances, I = input columns, O = output columns. All are float32.

    | form | input | weight | bias | returns |
    |---|---|---|---|---|
    | batchcount = 0 | (G, N, I) | (G, I, O) | (G, O) | (G, N, O) |
    | batchcount = G | (N, G * I) | (I, G * O) | (1, G * O) | (N, G * O) |
    | batchcount = G, transpose_weight | (G, N, I) | (I, G * O) | (1, G * O) | (G, N, O) |

    Args:
        param_size, param_attr, bias_size, bias_attr: shapes and attributes of the parameters, for a
            static program.
        act: name of an activation in paddle.nn.functional.
        weight, bias: the parameters, if they exist already.

    Raises: ValueError if a parameter is not given and cannot be created: in dygraph, or in a static
        program without its shape.
    """
    if weight is None:
        weight = _parameter("batch_fc", "weight", param_size, param_attr)
    if bias is None:
        bias = _parameter("batch_fc", "bias", bias_size, bias_attr)
    out = call(
        "box_batch_fc",
        {"Input": input, "W": weight, "Bias": bias},
        {"batchcount": batchcount, "transpose_weight": transpose_weight},
    )[0]
    return _activated(out, act)


def data_norm(
    input: Any,  # noqa: A002
    act: str | None = None,
    epsilon: float = 1e-5,
    param_attr: dict[str, float] | None = None,
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
    """Normalise columns by running sums over all batches so far.

    In dygraph use `paddlebox.nn.DataNorm`, which holds the sums.

    Args:
        input: (N, C) float32.
        act: name of an activation in paddle.nn.functional.
        epsilon: added to the mean square of each batch.
        param_attr: initial values of the sums: batch_size (1e4), batch_sum (0), batch_square (1e4),
            and with enable_scale_and_shift scale_w (1) and bias (0).
        name: prefix of the parameters: name.batch_size, name.batch_sum and so on.
        slot_dim: width of a slot. A slot whose first column, its shows, is within 1e-7 of 0 gives
            zeros and does not enter the sums. -1: no slots.
        sync_stats: must be False, because each process has its own sums;
            `paddlebox.compat.layers.data_norm` can add those of all ranks.
        update_norm: whether to add this batch to the sums after they were used. Set it to False in
            programs for evaluation.
        summary_decay_rate: factor of the old sums at each update.
        enable_scale_and_shift: whether to create scale_w and bias, for a static program.
        sums: batch_size, batch_sum and batch_square_sum, (C) each, if they exist already.
        scale_w, bias: (C) each, if they exist already.

    Returns: float32 (N, C), (input - sum / size) * sqrt(size / square_sum), times scale_w plus bias
        if these exist.

    Raises: ValueError if sync_stats is set, or the sums are missing in dygraph.
    """
    if sync_stats:
        raise ValueError("data_norm: sync_stats is not supported: each process has its own sums")
    if sums is None:
        sums, scale_w, bias = _create_sums(
            *("data_norm", name, input, param_attr, enable_scale_and_shift, (scale_w, bias))
        )
    inputs = {"X": input, **dict(zip(_SUMS, sums, strict=True))}
    attrs: dict[str, Any] = {"slot_dim": slot_dim}
    out = _normalised("data_norm", inputs, attrs, scale_w, bias)
    if update_norm:
        # Detached, because autograd of static programs also follows assigned values backwards.
        inputs["X"] = input.detach()
        attrs |= {"epsilon": epsilon, "summary_decay_rate": summary_decay_rate}
        with paddle.no_grad():
            new = call("box_data_norm_update", inputs, attrs)
            for value, target in zip(new, sums, strict=True):
                paddle.assign(value, output=target)
    return _activated(out, act)


def mlp(
    input: Any,  # noqa: A002
    weights: Sequence[Any],
    biases: Sequence[Any | None],
    activations: Sequence[str | None],
    dtype: str = "float32",
    dropout: float = 0.0,
    seed: Any | None = None,
) -> Any:
    """Apply a stack of linear layers in one operator, with the oneDNN of Paddle's wheel, or on a
    GPU with libpaddlebox_gpu.so.

    The bits of the result and of the gradients do not depend on the number of threads, which is
    OMP_NUM_THREADS when the process starts.

    Args:
        input: (..., N_0) float32.
        weights: for each layer (N_(l-1), N_l) float32.
        biases: for each layer (N_l) float32, or None.
        activations: for each layer "relu" or None. ReLU has the gradient 0 at 0.
        dtype: "bfloat16" rounds input, weights, activations and their gradients to bfloat16 before
            each product. Sums, biases, the result and the gradients of input, weights and biases
            are float32 in both types.
        dropout: the probability with which each result of a ReLU becomes 0; the others are divided
            by 1 - dropout.
        seed: int64 (1), with dropout. It determines which results become 0.

    Returns: float32 (..., N_L).

    Raises: ValueError for shapes that do not fit, an unknown activation or type, dropout without a
        seed or outside [0, 1), or on a CPU bfloat16 on a processor without AVX512_BF16; StoreError
        if the process has no oneDNN 3.6.
    """
    if dtype not in ("float32", "bfloat16"):
        raise ValueError(f"mlp: dtype {dtype!r}, expected 'float32' or 'bfloat16'")
    unknown = [name for name in activations if name not in ("relu", None)]
    if unknown:
        raise ValueError(f"mlp: activation {unknown[0]!r}, expected 'relu' or None")
    return call(
        "box_mlp",
        {
            "Inputs": [input, *weights, *(bias for bias in biases if bias is not None)],
            "Seed": seed,
        },
        {
            "relu": [int(name == "relu") for name in activations],
            "biased": [int(bias is not None) for bias in biases],
            "bfloat16": dtype == "bfloat16",
            "dropout": float(dropout),
        },
    )[0]


def _parameter(op: str, argument: str, shape: Sequence[int] | None, attr: Any) -> Any:
    if paddle.in_dynamic_mode() or shape is None:
        raise ValueError(
            f"{op}: {argument} is missing. In dygraph create it once, with "
            "paddle.create_parameter, and pass it; in a static program give its shape"
        )
    attr = paddle.ParamAttr._to_attr(attr)
    if attr.name is None:  # see ops.create_anchor
        attr.name = paddle.utils.unique_name.generate(f"{op}.{argument}")
    return paddle.static.create_parameter(list(shape), "float32", attr=attr)


def _create_sums(
    op: str,
    prefix: str,
    x: Any,
    param_attr: Mapping[str, float] | None,
    enable_scale_and_shift: bool,
    given: tuple[Any, Any],
) -> tuple[list[Any], Any, Any]:
    """The sums over the columns of x, and scale_w and bias, which are those given without
    enable_scale_and_shift."""
    start = param_attr or {}

    def made(part: str, key: str, value: float, trainable: bool = False) -> Any:
        initial = paddle.nn.initializer.Constant(float(start.get(key, value)))
        argument = "sums (batch_size, batch_sum, batch_square_sum, as in paddlebox.nn.DataNorm)"
        shape = [int(x.shape[-1])]
        return _running(op, argument, f"{prefix}.{part}", shape, initial, trainable)

    sums = [
        made("batch_size", "batch_size", 1e4),
        made("batch_sum", "batch_sum", 0.0),
        made("batch_square_sum", "batch_square", 1e4),
    ]
    if not enable_scale_and_shift:
        return sums, *given
    return sums, made("scale_w", "scale_w", 1.0, True), made("bias", "bias", 0.0, True)


def _running(
    op: str,
    argument: str,
    name: str,
    shape: Sequence[int],
    initializer: Any,
    trainable: bool = False,
) -> Any:
    """A parameter that no optimizer changes, unless it is trainable."""
    attr = paddle.ParamAttr(name=name, initializer=initializer, trainable=trainable)
    made = _parameter(op, argument, shape, attr)
    made.stop_gradient = not trainable
    return made


def _normalised(
    op: str, inputs: Mapping[str, Any], attrs: Mapping[str, Any], scale_w: Any, bias: Any
) -> Any:
    """The input X, normalised by its sums. scale_w, bias: None: 1 and 0."""
    columns = int(inputs["X"].shape[-1])
    scaling = {
        "ScaleW": paddle.ones([columns], "float32") if scale_w is None else scale_w,
        "Bias": paddle.zeros([columns], "float32") if bias is None else bias,
    }
    return call(f"box_{op}", {**inputs, **scaling}, attrs)[0]


def _activated(out: Any, act: str | None) -> Any:
    return out if act is None else getattr(paddle.nn.functional, act)(out)
