"""HSTU (Zhai et al., ICML 2024): a causal model over the events of a user, with a logit for each.

Without `history`, the instances of a user are the events of one sequence (data.sequences):

    x_i = linear([slots, dense]),   events x_i + action(label_i),   targets x_i
    logit_i = MLP([slots, dense, y_i]),   y = layers([events, targets])

The target of instance i sees the events before i, with their labels, and itself. So no logit
depends on its own label, and one pass over a user's events trains all of them.

With `history`, each instance is a sequence of its own: the places of the history, the oldest first,
and then the item:

    logit = MLP([other slots, item, dense, y_item]),   y = layers(linear([e_L .. e_1, v]))

The linear layer also reads which row is the item. `paddlebox.nn.hstu` has the layers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paddlebox import ops
from paddlebox.config.models import HstuConfig
from paddlebox.models.inputs import Inputs
from paddlebox.nn import MLP, Linear, flat
from paddlebox.nn.hstu import Causal, Continued, HstuLayer, Tokens
from paddlebox.nn.sequence import Histories

paddle = ops.paddle


def hstu(config: HstuConfig, inputs: Inputs) -> Any:
    """The model of a config: over the instances of users, or over the histories of instances."""
    return HstuOverHistory(config, inputs) if config.history else HstuOverUsers(config, inputs)


class _Layers(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    def __init__(self, config: HstuConfig, max_length: int, time_buckets: int) -> None:
        super().__init__()
        self.layers = paddle.nn.LayerList(
            [
                HstuLayer(
                    config.width,
                    config.heads,
                    config.head_dim,
                    max_length,
                    time_buckets,
                    config.dropout,
                )
                for _ in range(config.layers)
            ]
        )

    def forward(self, x: Any, tokens: Causal) -> Any:
        for layer in self.layers:
            x = layer(x, tokens)
        return x


class HstuOverUsers(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    def __init__(self, config: HstuConfig, inputs: Inputs) -> None:
        super().__init__()
        self.sparse = inputs.pooled_slots(config.use_cvm)
        features = inputs.width(self.sparse.width)
        self.event = Linear(features, config.width)
        self.action = Linear(1, config.width)
        self.encoder = _Layers(config, config.max_length, config.time_buckets)
        self.mlp = MLP(features + config.width, config.hidden, config.dropout)

    def forward(
        self,
        ids: Any,
        offsets: Any,
        show_click: Any,
        plan: Any,
        dense: Any,
        seq_offsets: Any,
        seq_time: Any,
        seq_position: Any,  # noqa: ARG002  # one of the inputs of all models of sequences
        train_mask: Any,  # noqa: ARG002
        label: Any,
    ) -> Any:
        """Sparse inputs as for `PooledSlots`; dense: (B, W); P = sequences.

        Args:
            seq_offsets: (P + 1) int32, the instances of each sequence, in the order of time.
            seq_time: (B, 1) int64.
            seq_position, train_mask: (B, 1), not read.
            label: (B, 1) float32. A label is read by the logits of later instances only.

        Returns: logits (B, 1).
        """
        features = flat(self.sparse(ids, offsets, show_click, plan), dense)
        x = self.event(features)
        places = ops.jagged_places(seq_offsets)
        times = paddle.reshape(seq_time, [-1])
        tokens = Tokens(
            offsets=seq_offsets,
            target_offsets=seq_offsets,
            seen=paddle.concat([places, places], axis=0),
            times=paddle.concat([times, times], axis=0),
        )
        both = paddle.concat([x + self.action(label), x], axis=0)
        y = paddle.split(self.encoder(both, tokens), 2, axis=0)[1]
        return self.mlp(paddle.concat([features, y], axis=1))

    def continued(
        self, events: Any, label: Any, candidates: Any, tokens: Continued, asked: Any
    ) -> Any:
        """The logits of candidates, each after the same events.

        E = new events, G = candidates, F = features of an instance.

        Args:
            events: (E, F) pooled slots and dense features. label: (E, 1) float32.
            candidates: (G, F).
            tokens: the new events, then the candidates as targets.
            asked: (G) int32, the places of the candidates among these, E and up.

        Returns: (G, 1).
        """
        seen = self.event(events) + self.action(label)
        both = paddle.concat([seen, self.event(candidates)], axis=0)
        y = paddle.gather(self.encoder(both, tokens), asked, axis=0)
        return self.mlp(paddle.concat([candidates, y], axis=1))


class HstuOverHistory(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    def __init__(self, config: HstuConfig, inputs: Inputs) -> None:
        super().__init__()
        self.sparse = inputs.pooled_slots(config.use_cvm)
        self.parts = Histories(config.history, inputs.of_one_table(), self.sparse)
        self.event = Linear(self.parts.width + 1, config.width)
        self.encoder = _Layers(config, self.parts.length + 1, 0)
        self._marks = np.zeros((1, self.parts.length + 1, 1), np.float32)
        self._marks[:, 0] = 1.0
        self.mlp = MLP(self.parts.others + config.width, config.hidden, config.dropout)

    def forward(self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any) -> Any:
        """Sparse inputs as for `PooledSlots`; dense: (B, W), followed by the lengths of the
        histories. Returns logits (B, 1)."""
        pooled = self.sparse(ids, offsets, show_click, plan)
        item, history, length, others = self.parts(pooled, dense)
        places = paddle.concat([paddle.unsqueeze(item, 1), history], axis=1)
        rows = self.parts.rows(length + 1.0, self.parts.length + 1, reversed=True)
        # One more column is 1 for the item and 0 for the places of the history.
        marks = paddle.zeros_like(paddle.slice(places, [2], [0], [1])) + paddle.assign(self._marks)
        x = self.event(rows.pack(paddle.concat([places, marks], axis=2)))
        y = rows.first(self.encoder(x, rows))
        return self.mlp(paddle.concat([others, y], axis=1))
