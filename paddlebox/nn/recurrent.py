"""Recurrent layers over a masked history. They are unrolled, so that every kind of program can
build them.

Letters: B = instances, L = places, E = width of a place, H = hidden width.
"""

from __future__ import annotations

from typing import Any

from paddlebox import ops
from paddlebox.nn.functional import sigmoid, tanh
from paddlebox.nn.linear import Linear

paddle = ops.paddle


class GRU(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """u = sigmoid(W_u x + U_u h), r = sigmoid(W_r x + U_r h), c = tanh(W_c x + r * U_c h)
    h = (1 - u) * h + u * c

    With attention a, a * u replaces u, which is AUGRU (Zhou et al., "Deep Interest Evolution
    Network", AAAI 2019, eq. 12 to 14). The state h starts at zeros. The layer reads the history
    from its last place, the oldest, to its first. A place with mask 0 does not change h.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.of_input = Linear(inputs, 3 * hidden)
        self.of_gates = paddle.nn.Linear(hidden, 2 * hidden, bias_attr=False)
        self.of_state = paddle.nn.Linear(hidden, hidden, bias_attr=False)
        self.hidden = hidden

    def forward(self, x: Any, mask: Any, attention: Any | None = None) -> list[Any]:
        """x: (B, L, E); mask, attention: (B, L). Returns the state (B, H) after each place, in the
        order of x, so that the first element is the final state."""
        length, width = x.shape[1], self.hidden
        every = self.of_input(x)
        state = paddle.zeros_like(paddle.slice(every, [1, 2], [0, 0], [1, width]))
        state = paddle.reshape(state, [-1, width])
        states = []
        for place in reversed(range(length)):
            given = paddle.reshape(paddle.slice(every, [1], [place], [place + 1]), [-1, 3 * width])
            there = paddle.slice(mask, [1], [place], [place + 1])
            gates = sigmoid(paddle.slice(given, [1], [0], [2 * width]) + self.of_gates(state))
            update = paddle.slice(gates, [1], [0], [width])
            reset = paddle.slice(gates, [1], [width], [2 * width])
            candidate = tanh(
                paddle.slice(given, [1], [2 * width], [3 * width]) + reset * self.of_state(state)
            )
            if attention is not None:
                update = update * paddle.slice(attention, [1], [place], [place + 1])
            state = state + there * update * (candidate - state)
            states.append(state)
        return states[::-1]
