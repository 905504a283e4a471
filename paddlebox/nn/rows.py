"""The places of padded sequences as rows of one array, and attention among the rows of a sequence.

`JaggedRows` has rows for the places that hold something, and computes nothing for the others.
`PaddedRows` has the same methods over all places and needs none of this package's operators.

Letters: B = sequences, L = places, T = rows, C = columns, H = heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from paddlebox import ops
from paddlebox.nn.functional import silu, sum_over

paddle = ops.paddle


@dataclass(frozen=True)
class Pointwise:
    """The pointwise attention of a layer. The fields are arguments of
    `paddlebox.ops.jagged_attention`."""

    heads: int
    divisor: float
    position_bias: Any  # (H, places)
    time_bias: Any | None  # (H, buckets)
    dtype: str


class Rows(Protocol):
    """The rows of sequences, each of which begins at its first place."""

    def pack(self, x: Any) -> Any:
        """(B, L, C) -> (T, C)"""

    def unpack(self, rows: Any) -> Any:
        """(T, C) -> (B, L, C), with zeros in empty places"""

    def repeat(self, x: Any) -> Any:
        """(B, C) -> (T, C): the row of its sequence for each row"""

    def sum(self, rows: Any) -> Any:
        """(T, C) -> (B, C)"""

    def softmax(self, scores: Any) -> Any:
        """(T, 1) -> (T, 1), over the rows of each sequence"""

    def first(self, rows: Any) -> Any:
        """(T, C) -> (B, C): the first place of each sequence. REQUIRES: no sequence is empty."""

    def attention(self, q: Any, k: Any, v: Any, *, heads: int, dtype: str) -> Any:
        """softmax(q k^T / sqrt(A)) v in each head, over all rows of a sequence. q, k, v: (T, H *
        A). dtype: as for `paddlebox.ops.jagged_attention`. Returns (T, H * A). REQUIRES: not all
        sequences are empty."""


class JaggedRows:
    """Rows without padding.

    Args:
        lengths: (B, 1) float32, whole numbers from 0 to L.
        places: L.
        reversed: whether the first place of a sequence is its last row. In `causal`, a row sees
            the rows before it.
    """

    def __init__(self, lengths: Any, places: int, *, reversed: bool = False) -> None:  # noqa: A002
        self._lengths, self._places, self._reversed = lengths, places, reversed
        self._offsets = ops.jagged_offsets(lengths, places)

    def pack(self, x: Any) -> Any:
        return ops.jagged_pack(x, self._offsets, reversed=self._reversed)

    def unpack(self, rows: Any) -> Any:
        return ops.jagged_unpack(rows, self._offsets, self._places, reversed=self._reversed)

    def repeat(self, x: Any) -> Any:
        return ops.jagged_repeat(x, self._offsets)

    def sum(self, rows: Any) -> Any:
        return ops.jagged_sum(rows, self._offsets)

    def softmax(self, scores: Any) -> Any:
        return ops.jagged_softmax(scores, self._offsets)

    def first(self, rows: Any) -> Any:
        if self._reversed:
            at = paddle.slice(self._offsets, [0], [1], [1 << 30]) - 1
        else:
            at = paddle.slice(self._offsets, [0], [0], [-1])
        return paddle.gather(rows, at, axis=0)

    def attention(self, q: Any, k: Any, v: Any, *, heads: int, dtype: str) -> Any:
        whole = paddle.cast(paddle.reshape(self.repeat(self._lengths), [-1]), "int32")
        return ops.jagged_attention(
            q, k, v, self._offsets, whole, heads=heads, form="softmax", dtype=dtype
        )

    def causal(self, q: Any, k: Any, v: Any, form: Pointwise) -> Any:
        """The pointwise attention of `paddlebox.nn.hstu` over the earlier rows of a sequence.
        REQUIRES: not all sequences are empty."""
        assert form.time_bias is None  # rows have no times
        return ops.jagged_attention(
            q,
            k,
            v,
            self._offsets,
            ops.jagged_places(self._offsets),
            heads=form.heads,
            divisor=form.divisor,
            position_bias=form.position_bias,
            dtype=form.dtype,
        )


class PaddedRows:
    """Rows for all places, T = B * L, with zeros in the results for empty places.

    Args:
        lengths, places, reversed: as for `JaggedRows`. Rows are in the order of places, but
            `causal` takes the first place to be the last row if `reversed`.
    """

    def __init__(self, lengths: Any, places: int, *, reversed: bool = False) -> None:  # noqa: A002
        self._places, self._reversed = places, reversed
        self._mask = mask_of(lengths, places)

    def pack(self, x: Any) -> Any:
        return paddle.reshape(x, [-1, x.shape[2]])

    def unpack(self, rows: Any) -> Any:
        padded = paddle.reshape(rows, [-1, self._places, rows.shape[1]])
        return padded * paddle.reshape(self._mask, [-1, self._places, 1])

    def repeat(self, x: Any) -> Any:
        return self.pack(paddle.tile(paddle.unsqueeze(x, 1), [1, self._places, 1]))

    def sum(self, rows: Any) -> Any:
        return sum_over(self.unpack(rows), 1)

    def softmax(self, scores: Any) -> Any:
        padded = paddle.reshape(scores, [-1, self._places])
        return paddle.reshape(masked_softmax(padded, self._mask), [-1, 1])

    def first(self, rows: Any) -> Any:
        padded = paddle.reshape(rows, [-1, self._places, rows.shape[1]])
        return paddle.reshape(paddle.slice(padded, [1], [0], [1]), [-1, rows.shape[1]])

    def attention(self, q: Any, k: Any, v: Any, *, heads: int, dtype: str) -> Any:
        del dtype
        width = q.shape[1] // heads
        scores = self._scores(q, k, heads) * width**-0.5
        hidden = paddle.reshape((self._mask - 1.0) * 1e9, [-1, 1, 1, self._places])
        return self._weighted(paddle.nn.functional.softmax(scores + hidden, axis=-1), v, heads)

    def causal(self, q: Any, k: Any, v: Any, form: Pointwise) -> Any:
        """As `JaggedRows.causal`."""
        assert form.time_bias is None
        heads, position_bias, length = form.heads, form.position_bias, self._places
        distance = np.arange(length) - np.arange(length)[:, None]
        distance = distance if self._reversed else -distance
        at = np.clip(distance, 0, position_bias.shape[1] - 1).astype(np.int32)
        biases = paddle.gather(position_bias, paddle.assign(at.reshape(-1)), axis=1)
        scores = self._scores(q, k, heads) + paddle.reshape(biases, [1, heads, length, length])
        earlier = paddle.assign((distance >= 0).astype(np.float32).reshape(1, 1, length, length))
        there = paddle.reshape(self._mask, [-1, 1, 1, length])
        return self._weighted(silu(scores) * (1.0 / form.divisor) * earlier * there, v, heads)

    def _headed(self, x: Any, heads: int) -> Any:
        """(T, H * A) -> (B, H, L, A)."""
        parted = paddle.reshape(x, [-1, self._places, heads, x.shape[1] // heads])
        return paddle.transpose(parted, [0, 2, 1, 3])

    def _scores(self, q: Any, k: Any, heads: int) -> Any:
        return paddle.matmul(self._headed(q, heads), self._headed(k, heads), transpose_y=True)

    def _weighted(self, weights: Any, v: Any, heads: int) -> Any:
        seen = paddle.matmul(weights, self._headed(v, heads))
        return paddle.reshape(paddle.transpose(seen, [0, 2, 1, 3]), [-1, v.shape[1]])


def mask_of(lengths: Any, places: int) -> Any:
    """(B, 1) -> (B, L) float32: 1 for the first `lengths` places, then 0."""
    at = paddle.assign(np.arange(places, dtype=np.float32).reshape(1, -1))
    mask = paddle.cast(paddle.less_than(at, lengths), "float32")
    mask.stop_gradient = True
    return mask


def masked_softmax(scores: Any, mask: Any) -> Any:
    """Softmax over the places with mask 1; 0 elsewhere. scores, mask: (B, L). Returns (B, L).

    The result is all 0 for an instance whose mask is all 0.
    """
    return paddle.nn.functional.softmax(scores + (mask - 1.0) * 1e9, axis=-1) * mask


def use_padding(model: Any) -> None:
    """Make a model compute with `PaddedRows`, so that its program has only Paddle's operators."""
    for layer in model.sublayers(include_self=True):
        if hasattr(layer, "padded"):
            layer.padded = True
