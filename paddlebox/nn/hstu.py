"""The layer of HSTU (Zhai et al., "Actions Speak Louder than Words: Trillion-Parameter Sequential
Transducers for Generative Recommendations", ICML 2024).

Letters: U = sequences, T = tokens, E = width of a token, H = heads, A = width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from paddlebox import ops
from paddlebox.nn.functional import silu
from paddlebox.nn.linear import Linear

paddle = ops.paddle


class Causal(Protocol):
    """The sequences of an array of tokens: `Tokens`, or rows of `paddlebox.nn.rows`."""

    def causal(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        heads: int,
        divisor: float,
        position_bias: Any,
        time_bias: Any | None,
        dtype: str,
    ) -> Any:
        """The pointwise attention of each token over earlier tokens and itself, as
        `paddlebox.ops.jagged_attention`. q, k, v: (T, H * A). Returns (T, H * A)."""


@dataclass(frozen=True)
class Tokens:
    """Events and targets, with times. The fields are arguments of
    `paddlebox.ops.jagged_attention`."""

    offsets: Any  # (U + 1) int32, of events
    target_offsets: Any  # (U + 1) int32, of targets
    seen: Any  # (T) int32
    times: Any  # (T) int64

    def causal(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        heads: int,
        divisor: float,
        position_bias: Any,
        time_bias: Any | None,
        dtype: str,
    ) -> Any:
        return ops.jagged_attention(
            q,
            k,
            v,
            self.offsets,
            self.seen,
            self.target_offsets,
            heads=heads,
            divisor=divisor,
            times=self.times if time_bias is not None else None,
            time_bias=time_bias,
            position_bias=position_bias,
            dtype=dtype,
        )


class HstuLayer(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """[u, v, q, k] = silu(W norm(x) + b)
    out = x + dropout(W2 (norm(attention(q, k, v)) * u) + b2)

    attention is the pointwise form of `paddlebox.ops.jagged_attention`, with biases of relative
    position and time.

    W and b of the keys are those of the queries plus parameters that start at 0. So a token first
    attends to the tokens that are like it. Where a click depends on an early event with the same
    item (benchmarks/sequences.py, "repeat"), the AUC after 6 epochs is 0.696; with independent
    starts it is 0.661, and the best possible AUC is 0.726.

    Args:
        width: E.
        heads, head_dim: H and A.
        max_length: the divisor of the attention, and the number of positions with a bias of their
            own.
        time_buckets: buckets of relative time; 0: no such bias.
        dropout: dropout rate of the layer's result, in training only.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        head_dim: int,
        max_length: int,
        time_buckets: int = 0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.heads, self.inner, self.max_length = heads, heads * head_dim, max_length
        self.dropout = dropout
        self.norm = paddle.nn.LayerNorm(width)
        self.norm_of_values = paddle.nn.LayerNorm(self.inner)
        self.inputs, self.output = Linear(width, 3 * self.inner), Linear(self.inner, width)
        zero = paddle.ParamAttr(initializer=paddle.nn.initializer.Constant(0.0))
        self.keys = Linear(width, self.inner, weight_attr=zero)
        self.position_bias = self._bias(max_length)
        self.time_bias = self._bias(time_buckets) if time_buckets else None

    def _bias(self, columns: int) -> Any:
        start = paddle.nn.initializer.Normal(0.0, 0.02)
        return self.create_parameter(
            [self.heads, columns], dtype="float32", default_initializer=start
        )

    def forward(self, x: Any, tokens: Causal) -> Any:
        """x: (T, E). Returns (T, E)."""
        normal = self.norm(x)
        made = self.inputs(normal)
        u, v, q = (
            paddle.slice(made, [1], [part * self.inner], [(part + 1) * self.inner])
            for part in range(3)
        )
        k = silu(q + self.keys(normal))
        u, v, q = silu(u), silu(v), silu(q)
        seen = tokens.causal(
            q,
            k,
            v,
            heads=self.heads,
            divisor=float(self.max_length),
            position_bias=self.position_bias,
            time_bias=self.time_bias,
            dtype=self.inputs.products or "float32",
        )
        out = self.output(self.norm_of_values(seen) * u)
        if self.dropout > 0:
            out = paddle.nn.functional.dropout(out, self.dropout, training=self.training)
        return x + out
