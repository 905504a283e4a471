"""DIEN (Zhou et al., "Deep Interest Evolution Network for Click-Through Rate Prediction", AAAI
2019): a GRU over the history extracts interests, and a second one with attention to the item
follows how they evolve.

    h_1 .. h_L = GRU(e),   a_l = softmax(h_l W v),   evolved = AUGRU(h, a)
    logit = MLP([other slots, item, dense, evolved])
    loss = mean CE + auxiliary * mean over places -log sigmoid(h_l . e_next) - log(1 - sigmoid(h_l .
    other_next))

other_next is the negative example: the action at the same
place of the previous instance in the batch.
"""

from __future__ import annotations

from typing import Any

from paddlebox import ops
from paddlebox.config.models import DienConfig
from paddlebox.models.inputs import Inputs
from paddlebox.nn import MLP, Linear, log_loss
from paddlebox.nn.functional import sum_over
from paddlebox.nn.rows import mask_of, masked_softmax
from paddlebox.nn.sequence import Histories

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
            gates = paddle.slice(given, [1], [0], [2 * width]) + self.of_gates(state)
            gates = paddle.nn.functional.sigmoid(gates)
            update = paddle.slice(gates, [1], [0], [width])
            reset = paddle.slice(gates, [1], [width], [2 * width])
            candidate = paddle.tanh(
                paddle.slice(given, [1], [2 * width], [3 * width]) + reset * self.of_state(state)
            )
            if attention is not None:
                update = update * paddle.slice(attention, [1], [place], [place + 1])
            state = state + there * update * (candidate - state)
            states.append(state)
        return states[::-1]


class DIEN(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    def __init__(self, config: DienConfig, inputs: Inputs) -> None:
        super().__init__()
        self.sparse = inputs.pooled_slots(config.use_cvm)
        self.parts = Histories(config.history, inputs.of_one_table(), self.sparse)
        width = self.parts.width
        self.interests = GRU(width, width)
        self.evolution = GRU(width, width)
        self.asked = Linear(width, width, bias_attr=False)
        self.mlp = MLP(self.parts.others + width, config.hidden, config.dropout)
        self.auxiliary = config.auxiliary
        self.auxiliary_loss: Any = None  # (B, L - 1) of the last call of forward, without its sign

    def forward(self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any) -> Any:
        """Sparse inputs as for `PooledSlots`; dense: (B, W), followed by the lengths of the
        histories. Returns logits (B, 1)."""
        pooled = self.sparse(ids, offsets, show_click, plan)
        item, history, length, others = self.parts(pooled, dense)
        mask = mask_of(length, self.parts.length)
        states = paddle.stack(self.interests(history, mask), axis=1)  # (B, L, E)
        if self.training and self.auxiliary > 0 and self.parts.length > 1:
            self.auxiliary_loss = self._auxiliary(states, history, mask)
        asked = paddle.reshape(self.asked(item), [-1, 1, self.parts.width])
        attention = masked_softmax(sum_over(states * asked, 2), mask)
        evolved = self.evolution(states, mask, attention)[0]
        return self.mlp(paddle.concat([others, evolved], axis=1))

    def _auxiliary(self, states: Any, history: Any, mask: Any) -> Any:
        """The auxiliary loss (B, L - 1) of the places that have a next action. Place l - 1 is the
        action after place l, because the latest action comes first."""
        length = self.parts.length
        known = paddle.slice(states, [1], [1], [length])
        after = paddle.slice(history, [1], [0], [length - 1])
        others = _of_the_instance_before(after)
        there = paddle.slice(mask, [1], [1], [length])
        # A place counts only if the previous instance's history reaches it too.
        both = there * _of_the_instance_before(paddle.slice(mask, [1], [0], [length - 1]))
        log_sigmoid = paddle.nn.functional.log_sigmoid
        done = log_sigmoid(sum_over(known * after, 2)) * there
        not_done = log_sigmoid(-1.0 * sum_over(known * others, 2)) * both
        return done + not_done

    def loss(self, logits: Any, labels: Any, mask: Any = None) -> Any:
        click = log_loss(logits, labels, mask=mask)
        every = self.auxiliary_loss
        if not self.training or every is None:
            return click
        every = every if mask is None else every * mask
        return click + self.auxiliary * (-1.0 * paddle.mean(every))


def _of_the_instance_before(x: Any) -> Any:
    """Shift (B, ...) by one along B, so that the last instance comes first.

    `paddle.roll` would do it, but does not build in old-IR programs.
    """
    last, others = paddle.slice(x, [0], [-1], [1 << 30]), paddle.slice(x, [0], [0], [-1])
    return paddle.concat([last, others], axis=0)
