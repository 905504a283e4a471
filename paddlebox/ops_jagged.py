"""Operators over sequences that lie one after another, without padding.

`paddlebox.ops` exports them. docs/operators.md has the formulas and a drawn example.

Letters: U = sequences, E = events, G = targets, T = E + G tokens, H = heads, A, V = widths of a
head's keys and values, B = padded sequences, L = their places, C = columns.
"""

from __future__ import annotations

from typing import Any

from paddlebox import _native
from paddlebox._call import call

paddle = _native.paddle


def jagged_attention(
    q: Any,
    k: Any,
    v: Any,
    offsets: Any,
    seen: Any,
    target_offsets: Any | None = None,
    *,
    heads: int,
    form: str = "pointwise",
    scale: float | None = None,
    divisor: float = 1.0,
    times: Any | None = None,
    time_bias: Any | None = None,
    position_bias: Any | None = None,
    dtype: str = "float32",
) -> Any:
    """Attention within sequences, with biases of relative time and position.

    s_ij = scale q_i . k_j + time_bias[h, bucket(t_i - t_j)] + position_bias[h, min(p, P - 1)], and
    the result of token i is the sum of w(s_ij) v_j over the tokens j that it sees: the first
    seen[i] events of its sequence, and itself. p is seen[i] - j for event j of the sequence, from
    0, and 0 for the token itself unless it is one of these events. A difference of times d, rounded
    to float32, has bucket 0 if it is at most 0, otherwise 1 + 2 floor(log2 d) + (1 if d >= 1.5 *
    2^floor(log2 d)), but at most N - 1.

    The bits of the result and of the gradients do not depend on the number of threads. A result
    does not depend on tokens that the token does not see, if those are finite.

    Args:
        q, k: (T, H * A) float32. The tokens are the events of all sequences, followed by the
            targets of all sequences.
        v: (T, H * V) float32.
        offsets: (U + 1) int32. Sequence u has the events [offsets[u], offsets[u + 1]).
        seen: (T) int32. Causal attention: the place of each event in its sequence, which
            `jagged_places` computes.
        target_offsets: (U + 1) int32, likewise of the targets. No token sees a target but itself.
            None: there are no targets.
        heads: H.
        form: "pointwise", w(s) = silu(s) / divisor, or "softmax" over the tokens that i sees.
        scale: None is A ** -0.5 with "softmax" and 1 with "pointwise".
        divisor: of the pointwise form, usually the largest length of a sequence.
        times: (T) int64, with a time_bias.
        time_bias: (H, N) float32; None: no bias.
        position_bias: (H, P) float32; None: no bias.
        dtype: "bfloat16" rounds the factors of each product to bfloat16: q, k, v, the weights and
            the gradients. Sums and results are float32 in both types. It does not change the speed.

    Returns: float32 (T, H * V).

    Raises: ValueError for shapes that do not fit, offsets that do not ascend, a token that sees
        more events than its sequence has, or an unknown form or type.

    Source of the pointwise form: HSTU (Zhai et al., ICML 2024).
    """
    if dtype not in ("float32", "bfloat16"):
        raise ValueError(f"jagged_attention: dtype {dtype!r}, expected 'float32' or 'bfloat16'")
    if (times is None) != (time_bias is None):
        raise ValueError("jagged_attention: expected times and time_bias, or neither of them")
    columns = int(q.shape[1])
    if heads < 1 or columns < 1 or columns % heads:
        raise ValueError(
            f"jagged_attention: heads is {heads}, expected a divisor of {columns}, the columns of q"
        )
    if scale is None:
        scale = (columns // heads) ** -0.5 if form == "softmax" else 1.0
    return call(
        "box_jagged_attention",
        {
            "Q": q,
            "K": k,
            "V": v,
            "Offsets": offsets,
            "TargetOffsets": paddle.zeros_like(offsets)
            if target_offsets is None
            else target_offsets,
            "Seen": seen,
            "Times": seen if times is None else times,  # not read without a time_bias
            "TimeBias": paddle.zeros([heads, 1]) if time_bias is None else time_bias,
            "PositionBias": paddle.zeros([heads, 1]) if position_bias is None else position_bias,
        },
        {
            "heads": heads,
            "form": form,
            "scale": float(scale),
            "divisor": float(divisor),
            "bfloat16": dtype == "bfloat16",
        },
    )[0]


def jagged_offsets(lengths: Any, places: int) -> Any:
    """The offsets of sequences with these lengths.

    Args:
        lengths: (B) or (B, 1) float32, whole numbers from 0 to places.
        places: L.

    Returns: int32 (B + 1).

    Raises: ValueError for another length.
    """
    return call("box_jagged_offsets", {"Lengths": lengths}, {"places": places})[0]


def jagged_places(offsets: Any) -> Any:
    """The place of each row in its sequence, from 0. offsets: (B + 1) int32. Returns (T) int32.
    Raises: ValueError for offsets that do not ascend from 0."""
    return call("box_jagged_places", {"Offsets": offsets}, {})[0]


def jagged_pack(x: Any, offsets: Any, *, reversed: bool = False) -> Any:  # noqa: A002
    """The rows of padded sequences.

    Args:
        x: (B, L, C) float32.
        offsets: (B + 1) int32, from `jagged_offsets`.
        reversed: whether the first place of a sequence becomes its last row.

    Returns: float32 (T, C). If all sequences are empty, it has one spare row of zeros, because
        several of Paddle's operators fail on arrays without rows.

    Raises: ValueError for shapes that do not fit, or offsets that do not ascend from 0.
    """
    attrs = {"places": int(x.shape[1]), "reversed": reversed}
    return call("box_jagged_pack", {"X": x, "Offsets": offsets}, attrs)[0]


def jagged_unpack(x: Any, offsets: Any, places: int, *, reversed: bool = False) -> Any:  # noqa: A002
    """The inverse of `jagged_pack`, with zeros in empty places.

    Args:
        x: (T, C) float32, possibly with spare rows.
        offsets: (B + 1) int32.
        places: L.
        reversed: as for `jagged_pack`.

    Returns: float32 (B, L, C).

    Raises: as `jagged_pack`.
    """
    attrs = {"places": places, "reversed": reversed}
    return call("box_jagged_unpack", {"X": x, "Offsets": offsets}, attrs)[0]


def jagged_repeat(x: Any, offsets: Any) -> Any:
    """The row of its sequence for each row. x: (B, C) float32; offsets: (B + 1) int32. Returns
    float32 (T, C), with a spare row as in `jagged_pack`. Raises: as `jagged_pack`."""
    return call("box_jagged_repeat", {"X": x, "Offsets": offsets}, {})[0]


def jagged_sum(x: Any, offsets: Any) -> Any:
    """The sums over the rows of each sequence. x: (T, C) float32, possibly with spare rows;
    offsets: (B + 1) int32. Returns float32 (B, C). Raises: as `jagged_pack`."""
    return call("box_jagged_sum", {"X": x, "Offsets": offsets}, {})[0]


def jagged_softmax(x: Any, offsets: Any) -> Any:
    """The softmax of each column over the rows of a sequence. x: (T, C) float32, possibly with
    spare rows, which give 0; offsets: (B + 1) int32. Returns float32 (T, C). Raises: as
    `jagged_pack`."""
    return call("box_jagged_softmax", {"X": x, "Offsets": offsets}, {})[0]
