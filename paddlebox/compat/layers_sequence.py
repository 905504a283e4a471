"""PaddleBox's layers over columns, sequences and jagged rows, for the CPU.

docs/operators.md has the formulas, and the differences from PaddleBox with their reasons. An error
of dtype, shape or attribute is a ValueError; in a static program, it is raised when the program
runs.

Letters: B = instances, S = slots, D = columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paddlebox import _native
from paddlebox._call import call
from paddlebox.ops_seqpool import Jagged, _by_slot, _of_slots

paddle = _native.paddle


def fused_concat(
    input: Sequence[Any],  # noqa: A002  # PaddleBox's name for it
    start_index: int = 0,
    length: int = -1,
    axis: int = 1,
) -> Any:
    """Put the same columns of n matrices (B, D) of one dtype side by side: (B, n * length).

    Args:
        start_index: the first column; a negative number means 0.
        length: the number of columns; 0 or a negative number means all from start_index on.
        axis: 1.

    Raises: ValueError for another axis, matrices of different shapes, or columns outside of them.
    """
    if axis != 1:
        raise ValueError(f"fused_concat: axis is {axis}, expected 1")
    columns = _columns("fused_concat", input)
    start = max(start_index, 0)
    return _concat(list(input), [start], [length if length > 0 else columns - start])


def partial_concat(
    input: Sequence[Any],  # noqa: A002
    start_index: int = 0,
    length: int = -1,
) -> Any:
    """Put the same columns of n matrices (B, D) of one dtype side by side: (B, n * length).

    Paddle's own function of this name cannot be called in PIR programs.

    Args:
        start_index: the first column; a negative number counts from the end.
        length: the number of columns; a negative number means all from start_index on.

    Raises: ValueError for matrices of different shapes, or columns outside of them.
    """
    start, length = _range("partial_concat", input, start_index, length)
    return _concat(list(input), [start], [length])


def partial_sum(
    input: Sequence[Any],  # noqa: A002
    start_index: int = 0,
    length: int = -1,
) -> Any:
    """Add the same columns of n matrices (B, D) of one dtype: (B, length). The other arguments and
    the errors are those of `partial_concat`.

    Paddle's own function of this name cannot be called in PIR programs, and accesses memory out of
    bounds if start_index is negative.
    """
    start, length = _range("partial_sum", input, start_index, length)
    return paddle.add_n(list(input))[:, start : start + length]


def fused_seqpool_concat(
    input: Sequence[Sequence[Any]],  # noqa: A002
    offsets: Sequence[int] | None = None,
    dims: Sequence[int] | None = None,
) -> list[Any]:
    """For each slot, put columns of two matrices side by side: S matrices (B, dims[0] + dims[1]).

    Args:
        input: two lists of S matrices, (B, D_0) and (B, D_1), of one dtype.
        offsets: for each list the first column; 0 if it is missing or negative.
        dims: for each list the number of columns; all from the first one on if it is missing, 0 or
            negative.

    Raises: ValueError for lists of different lengths, matrices of different shapes in a list, or
        columns outside of them.
    """
    if len(input) != 2 or len(input[0]) != len(input[1]):
        raise ValueError(
            "fused_seqpool_concat: expected two lists of the same length, found lists of "
            f"{[len(one) for one in input]} matrices"
        )
    starts, lengths = [], []
    for at, matrices in enumerate(input):
        columns = _columns("fused_seqpool_concat", matrices)
        starts.append(max(offsets[at], 0) if offsets is not None and at < len(offsets) else 0)
        length = dims[at] if dims is not None and at < len(dims) else 0
        lengths.append(length if length > 0 else columns - starts[at])
    slots = len(input[0])
    pairs = [one for pair in zip(*input, strict=True) for one in pair]
    out = _concat(pairs, starts, lengths, groups=slots)
    return list(paddle.split(out, slots, axis=0)) if slots > 1 else [out]


def fused_seq_tensor(
    input: Sequence[Any],  # noqa: A002
    batch_count: int,
    max_length: int,
    slot_num: int,
    ad_slot_num: int,
    fea_emb_dim: int,
    ad_slot_offset: int,
) -> tuple[Any, Any, Any, Any]:
    """Take sequences of a user's behaviour and an ad apart for an attention layer.

    Letters: N = instances, K = batch_count, L = max_length, S = slot_num, A = ad_slot_num,
    E = fea_emb_dim.

    Args:
        input: two float32 matrices: the sequences (N, K * S * L * E) and the ad (N, K * A * E).
        ad_slot_offset: the first slot of a sequence that the ad has too, 0 or S - A.

    Returns: four float32 tensors, where x are the ad's slots of the sequences. The mask has no
        gradient:

        | | with K = 1 | with K > 1 |
        |---|---|---|
        | x, ad, x - ad, x * ad | (N, L, 4 * A * E) | (K, N * L, 4 * A * E) |
        | mask: 1 where the floats of a position do not add up to 0 | (N, L) | (K, N, L) |
        | the other slots | (N, L, (S - A) * E) | (K, N * L, (S - A) * E) |
        | x | (N, L, A * E) | (K, N * L, A, E) |

    Raises: ValueError for shapes and numbers that do not fit each other.
    """
    if len(input) != 2:
        raise ValueError(
            f"fused_seq_tensor: {len(input)} inputs, expected the sequences and the ad"
        )
    din, mask, side, session = call(
        "box_fused_seq_tensor",
        {"Input": input[0], "ADInput": input[1]},
        {
            "batch_count": batch_count,
            "max_length": max_length,
            "slot_num": slot_num,
            "ad_slot_num": ad_slot_num,
            "fea_emb_dim": fea_emb_dim,
            "ad_slot_offset": ad_slot_offset,
        },
    )
    mask.stop_gradient = True
    return din, mask, side, session


def fused_causal_mask(seq_info: Any) -> Any:
    """The attention mask of Q sequences that are packed one after another, with T positions.

    Args:
        seq_info: (Q + 1) or (Q + 1, 1), int32 or int64: sequence q has the positions
            [seq_info[q], seq_info[q + 1]). The values ascend from 0 to T, at most 2**20.

    Returns: int64 (T, T), 1 where row and column are positions of the same sequence, and the column
        is not after the row; 0 elsewhere.
    """
    mask = call("box_fused_causal_mask", {"SeqInfo": seq_info}, {})[0]
    mask.stop_gradient = True
    return mask


def fused_seqpool_cvm_tradew(
    input: Jagged | Sequence[Jagged],  # noqa: A002
    pool_type: str,
    cvm: Any,
    pad_value: float = 0.0,
    use_cvm: bool = True,
    cvm_offset: int = 2,
    trade_id: int = -1,
    trade_num: int = 2,
    *,
    slots: int | None = None,
) -> Any:
    """`paddlebox.ops.fused_seqpool_cvm` for rows with weights of their own.

    A row is cvm_offset counts, trade_num weights and floats. With a trade_id, the sums of the
    floats are weighted by that weight of the row. The weights themselves are no features.

    Args:
        input: a list with one pair (values, offsets) for each slot, values (nnz_s, D) float32 and
            offsets (B + 1) int32. Or one pair for all S `slots`, values (nnz, D) and offsets
            (B * S + 1): slot s of instance b has the rows [offsets[b*S+s], offsets[b*S+s+1]).
        pool_type: "SUM".
        cvm: (B, cvm_offset) float32, the counts that become the first columns of the gradient of
            the rows. With a trade_id these columns are zeros.
        pad_value: the start value of every sum.
        use_cvm: whether the counts become features.
        trade_id: below trade_num; a negative number means no weight.

    Returns: for a list, a list of float32 (B, W), one for each slot; for one pair, (B, S * W).
        W = D - trade_num, without use_cvm D - trade_num - cvm_offset.

    Raises: ValueError for arguments of a wrong form, shape or value.
    """
    if pool_type.upper() != "SUM":
        raise ValueError(f"fused_seqpool_cvm_tradew: pool_type is {pool_type!r}, expected 'SUM'")
    inputs, attrs = _of_slots("fused_seqpool_cvm_tradew", input, slots)
    attrs = {"pool_type": "SUM", **attrs, "use_cvm": use_cvm, "cvm_offset": cvm_offset}
    attrs |= {"trade_num": trade_num, "trade_id": max(trade_id, -1), "pad_value": float(pad_value)}
    out = call("box_weighted_seqpool_cvm", {**inputs, "Cvm": cvm}, attrs)[0]
    return _by_slot(out, attrs)


def fusion_seqpool_cvm_concat(
    input: Jagged | Sequence[Jagged],  # noqa: A002
    pool_type: str,
    cvm: Any,
    use_cvm: bool = True,
    axis: int = 1,
    *,
    slots: int | None = None,
) -> Any:
    """Pool the rows of each slot, turn their shows and clicks into features, and put the slots side
    by side.

    Args:
        input, slots, cvm, use_cvm: as of `fused_seqpool_cvm_tradew`, with 2 counts.
        pool_type: "SUM", "AVERAGE", or "SQRT" for the sum over the root of the number of rows.
        axis: 1.

    Returns: float32 (B, S * W), W = D, without use_cvm D - 2.

    Raises: ValueError for arguments of a wrong form, shape or value.
    """
    if axis != 1:
        raise ValueError(f"fusion_seqpool_cvm_concat: axis is {axis}, expected 1")
    inputs, attrs = _of_slots("fusion_seqpool_cvm_concat", input, slots)
    attrs = {"pool_type": pool_type.upper(), **attrs, "use_cvm": use_cvm, "cvm_offset": 2}
    attrs |= {"trade_num": 0, "trade_id": -1, "pad_value": 0.0}
    return call("box_weighted_seqpool_cvm", {**inputs, "Cvm": cvm}, attrs)[0]


def _columns(name: str, matrices: Sequence[Any]) -> int:
    """The number of columns, which all matrices share."""
    shapes = [list(one.shape) for one in matrices]
    if not shapes or any(len(shape) != 2 or shape[1] != shapes[0][1] for shape in shapes):
        raise ValueError(
            f"{name}: expected at least one matrix, and the same number of columns in each, found "
            f"shapes {shapes}"
        )
    return int(shapes[0][1])


def _range(name: str, matrices: Sequence[Any], start: int, length: int) -> tuple[int, int]:
    """The first column and the number of columns that partial_concat and partial_sum mean."""
    columns = _columns(name, matrices)
    first = start + columns if start < 0 else start
    count = columns - first if length < 0 else length
    if first < 0 or count < 1 or first + count > columns:
        raise ValueError(
            f"{name}: start_index = {start}, length = {length}, expected at least one column, and "
            f"all inside a matrix of {columns} columns"
        )
    return first, count


def _concat(
    matrices: list[Any], starts: Sequence[int], lengths: Sequence[int], groups: int = 1
) -> Any:
    """The columns of the matrices. starts and lengths repeat over the matrices."""
    times = len(matrices) // len(starts)
    return call(
        "box_fused_concat",
        {"X": matrices},
        {"starts": [*starts] * times, "lengths": [*lengths] * times, "groups": groups},
    )[0]
