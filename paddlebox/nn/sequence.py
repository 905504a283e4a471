"""Sequences of rows: what a user did, the latest first, beside the item in question.

Letters: B = instances, C = cells of `Fields`, L = max_length, P = pairs of history and item,
E = P * (1 + D), the width of a place: embed_w and embedx of each slot of a pair.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from paddlebox import ops
from paddlebox.config.fields import Fields
from paddlebox.config.task_models import Activation
from paddlebox.errors import ConfigError
from paddlebox.nn.functional import sigmoid, sum_over
from paddlebox.nn.pooled_slots import PooledSlots

paddle = ops.paddle


class Histories(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """Takes what the pull gives apart.

    Args:
        history: sequence slot: slot of the item.

    Raises: ConfigError for a slot that is not there, or is no sequence or item as it should be, and
        for sequences of several lengths.
    """

    def __init__(self, history: Mapping[str, str], fields: Fields, sparse: PooledSlots) -> None:
        super().__init__()
        fields.check([*history, *history.values()], "model.history")
        places = {name: end - begin for name, (begin, end) in fields.cells.items()}
        for sequence, item in history.items():
            if item not in places or item in fields.sequences:
                raise ConfigError(
                    f"model.history: {sequence}: expected a sparse slot that is no history itself, "
                    f"found {item!r}"
                )
        lengths = {places[name] for name in history}
        if len(lengths) > 1:
            raise ConfigError(
                f"model.history: {', '.join(history)}: expected one max_length, found "
                f"{', '.join(map(str, sorted(lengths)))}: they are joined place by place"
            )
        self.length = lengths.pop()  # L
        self.width = len(history) * (1 + sparse.embedx_dim)  # E
        self._history = [fields.cells[name] for name in history]
        self._items = [fields.cells[name] for name in history.values()]
        self._others = [fields.cells[name] for name in places if name not in fields.sequences]
        self._length_at = fields.sequences[next(iter(history))]
        self._dense_width = fields.dense_width
        self._from, self._to = sparse.width - sparse.embedx_dim - 1, sparse.width
        # The features of the pooled slots, the item's among them, and the dense ones.
        self.others = len(self._others) * sparse.width + fields.dense_width

    def _vectors(self, pooled: Any, cells: list[tuple[int, int]]) -> Any:
        parts = [
            paddle.slice(pooled, [1, 2], [begin, self._from], [end, self._to])
            for begin, end in cells
        ]
        return parts[0] if len(parts) == 1 else paddle.concat(parts, axis=2)

    def forward(self, pooled: Any, dense: Any) -> tuple[Any, Any, Any, Any]:
        """pooled: (B, C, width); dense: (B, W and lengths). Returns the item (B, E), the history
        (B, L, E), its mask (B, L) of 1 where there is an id, and the other features (B, others)."""
        item = paddle.reshape(self._vectors(pooled, self._items), [-1, self.width])
        history = self._vectors(pooled, self._history)
        length = paddle.slice(dense, [1], [self._length_at], [self._length_at + 1])
        places = paddle.assign(np.arange(self.length, dtype=np.float32).reshape(1, -1))
        mask = paddle.cast(paddle.less_than(places, length), "float32")
        mask.stop_gradient = True
        # Slots that stand side by side are one slice.
        spans: list[list[int]] = []
        for begin, end in self._others:
            if spans and spans[-1][1] == begin:
                spans[-1][1] = end
            else:
                spans.append([begin, end])
        others = [
            paddle.reshape(
                paddle.slice(pooled, [1], [begin], [end]), [-1, (end - begin) * self._to]
            )
            for begin, end in spans
        ]
        if self._dense_width:
            others.append(paddle.slice(dense, [1], [0], [self._dense_width]))
        features = others[0] if len(others) == 1 else paddle.concat(others, axis=1)
        return item, history, mask, features


class Dice(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """p * x + (1 - p) * alpha * x, with p = sigmoid((x - mean) / sqrt(variance + 1e-8)) over the
    batch (Zhou et al., KDD 2018, eq. 5); alpha is learned. Evaluation takes running means, as batch
    normalisation does.

    They are parameters that no optimizer changes, so that they are saved with the others.
    """

    def __init__(self, width: int, momentum: float = 0.99) -> None:
        super().__init__()
        # A scale and a shift of 1 and 0: without them its backward does not build in the old IR.
        fixed = [paddle.ParamAttr(trainable=False) for _ in range(2)]
        self.norm = paddle.nn.BatchNorm1D(
            width, momentum=momentum, epsilon=1e-8, weight_attr=fixed[0], bias_attr=fixed[1]
        )
        zero = paddle.nn.initializer.Constant(0.0)
        self.alpha = self.create_parameter([width], dtype="float32", default_initializer=zero)
        self.width = width

    def forward(self, x: Any) -> Any:
        """x: (..., width)."""
        shape = [-1, *x.shape[1:]]
        rows = paddle.reshape(x, [-1, self.width])
        p = sigmoid(self.norm(rows))
        return paddle.reshape(rows * (p + (1.0 - p) * self.alpha), shape)


class _Activated(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    def __init__(self, inputs: int, width: int, activation: Activation) -> None:
        super().__init__()
        self.linear = paddle.nn.Linear(inputs, width)
        self.dice = Dice(width) if activation is Activation.DICE else None
        self.curve = sigmoid if activation is Activation.SIGMOID else paddle.nn.functional.relu

    def forward(self, x: Any) -> Any:
        made = self.linear(x)
        return self.dice(made) if self.dice is not None else self.curve(made)


class AttentionUnit(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """A weight for each place of the history, by a network over it, the item, their difference and
    their product."""

    def __init__(
        self, width: int, hidden: tuple[int, ...], activation: Activation, softmax: bool
    ) -> None:
        super().__init__()
        widths = [4 * width, *hidden]
        self.layers = paddle.nn.LayerList(
            [_Activated(a, b, activation) for a, b in pairwise(widths)]
        )
        self.output = paddle.nn.Linear(widths[-1], 1)
        self.softmax = softmax

    def forward(self, item: Any, history: Any, mask: Any) -> Any:
        """(B, E), (B, L, E), (B, L). Returns weights (B, L), 0 where the mask is."""
        length = history.shape[1]
        asked = paddle.tile(paddle.unsqueeze(item, 1), [1, length, 1])
        x = paddle.concat([asked, history, asked - history, asked * history], axis=2)
        for layer in self.layers:
            x = layer(x)
        weights = paddle.reshape(self.output(x), [-1, length])
        return masked_softmax(weights, mask) if self.softmax else weights * mask


def masked_softmax(scores: Any, mask: Any) -> Any:
    """(B, L) that add up to 1 over the places of the mask; all 0 where it has none."""
    return paddle.nn.functional.softmax(scores + (mask - 1.0) * 1e9, axis=-1) * mask


def weighted_sum(weights: Any, history: Any) -> Any:
    """(B, L) and (B, L, E) -> (B, E)."""
    length = history.shape[1]
    return sum_over(history * paddle.reshape(weights, [-1, length, 1]), 1)
