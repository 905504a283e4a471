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
from paddlebox.nn.rows import Pointwise

paddle = ops.paddle


class Causal(Protocol):
    """The sequences of an array of tokens: `Tokens`, `Continued` or rows of `paddlebox.nn.rows`."""

    def causal(self, q: Any, k: Any, v: Any, form: Pointwise) -> Any:
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

    def causal(self, q: Any, k: Any, v: Any, form: Pointwise) -> Any:
        # Without a bias, times are an input of the operator too: a frozen program reads all inputs.
        bias = paddle.zeros([form.heads, 1]) if form.time_bias is None else form.time_bias
        return ops.jagged_attention(
            q,
            k,
            v,
            self.offsets,
            self.seen,
            self.target_offsets,
            heads=form.heads,
            divisor=form.divisor,
            times=self.times,
            time_bias=bias,
            position_bias=form.position_bias,
            dtype=form.dtype,
        )


class Continued:
    """Tokens that follow events whose keys and values are known from an earlier call.

    A model calls its layers once each, in their order, and each of them calls `causal`. K = the
    keys and values of an event in all layers, layers * 2 * H * A.

    Args:
        tokens: of P known events, E new ones and G targets, in this order, T = P + E + G. A known
            event may see nothing: its result is not used.
        known: (P, K) float32, what `made` gave.
        new: (E + G) int32, the numbers of the other tokens, P and up.
    """

    def __init__(self, tokens: Tokens, known: Any, new: Any) -> None:
        self._tokens, self._known, self._new = tokens, known, new
        self._made: list[Any] = []

    def causal(self, q: Any, k: Any, v: Any, form: Pointwise) -> Any:
        """q, k, v: (E + G, H * A). Returns (E + G, H * A)."""
        width = q.shape[1]
        begin = 2 * width * len(self._made)
        self._made.append(paddle.concat([k, v], axis=1))
        keys, values = (
            paddle.slice(self._known, [1], [at], [at + width]) for at in (begin, begin + width)
        )
        out = self._tokens.causal(
            paddle.concat([keys, q], axis=0),  # the queries of known events are not used
            paddle.concat([keys, k], axis=0),
            paddle.concat([values, v], axis=0),
            form,
        )
        return paddle.gather(out, self._new, axis=0)

    def made(self) -> Any:
        """(E + G, K): the keys and values of the new tokens in the layers called so far."""
        return paddle.concat(self._made, axis=1)


class HstuLayer(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """[u, v, q, k] = silu(W norm(x) + b)
    out = x + dropout(W2 (norm(attention(q, k, v)) * u) + b2)

    attention is the pointwise form of `paddlebox.ops.jagged_attention`, with biases of relative
    position and time.

    W and b of the keys are those of the queries plus parameters that start at 0, so before
    training, a token attends most to similar tokens. Independent starts were tried and lost: on
    "repeat" of benchmarks/sequences.py, the AUC after 6 epochs was 0.035 lower.

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
        form = Pointwise(
            self.heads,
            float(self.max_length),
            self.position_bias,
            self.time_bias,
            self.inputs.products or "float32",
        )
        seen = tokens.causal(q, k, v, form)
        out = self.output(self.norm_of_values(seen) * u)
        if self.dropout > 0:
            out = paddle.nn.functional.dropout(out, self.dropout, training=self.training)
        return x + out
