"""Layers over an item and a history, which is the user's actions with the latest first.

Letters: B = instances, C = cells of `Fields`, L = max_length, P = pairs of history and item slots,
D = embedx_dim, E = P * (1 + D), the width of a place: embed_w and embedx of each pair.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from paddlebox import ops
from paddlebox.config.fields import Fields
from paddlebox.errors import ConfigError
from paddlebox.nn.linear import Linear
from paddlebox.nn.pooled_slots import PooledSlots
from paddlebox.nn.rows import JaggedRows, PaddedRows, Rows

paddle = ops.paddle


class Histories(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """Splits the result of the pull into item, history, its length and other features.

    Args:
        history: sequence slot -> slot of the item.

    Attributes:
        padded: whether `rows` has rows for empty places, too; `paddlebox.nn.rows.use_padding` sets
            it.

    Raises: ConfigError if a slot does not exist, if the slot of an item is not a sparse slot or is
        itself a history, or if the sequences differ in max_length.
    """

    def __init__(self, history: Mapping[str, str], fields: Fields, sparse: PooledSlots) -> None:
        super().__init__()
        self.padded = False
        fields.check([*history, *history.values()], "model.history")
        places = {name: end - begin for name, (begin, end) in fields.cells.items()}
        for sequence, item in history.items():
            if item not in places or item in fields.sequences:
                raise ConfigError(
                    f"model.history: {sequence}: expected a sparse slot that is not a history "
                    f"itself, found {item!r}"
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
        # The features of the pooled slots, including the item's, and the dense features.
        self.others = len(self._others) * sparse.width + fields.dense_width

    def _vectors(self, pooled: Any, cells: list[tuple[int, int]]) -> Any:
        parts = [
            paddle.slice(pooled, [1, 2], [begin, self._from], [end, self._to])
            for begin, end in cells
        ]
        return parts[0] if len(parts) == 1 else paddle.concat(parts, axis=2)

    def forward(self, pooled: Any, dense: Any) -> tuple[Any, Any, Any, Any]:
        """Split a batch.

        Args:
            pooled: (B, C, width), the result of `PooledSlots`.
            dense: (B, W + sequences), dense features followed by the lengths of the sequences.

        Returns: the item (B, E), the history (B, L, E), its length (B, 1), and the other features
            (B, others).
        """
        item = paddle.reshape(self._vectors(pooled, self._items), [-1, self.width])
        history = self._vectors(pooled, self._history)
        length = paddle.slice(dense, [1], [self._length_at], [self._length_at + 1])
        # Adjacent slots become one slice.
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
        return item, history, length, features

    def rows(self, lengths: Any, places: int, *, reversed: bool = False) -> Rows:  # noqa: A002
        """The rows of sequences of these lengths (B, 1) and at most `places` places."""
        return (PaddedRows if self.padded else JaggedRows)(lengths, places, reversed=reversed)


class Dice(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """p * x + (1 - p) * alpha * x, with p = sigmoid((x - mean) / sqrt(variance + 1e-8)).

    Mean and variance are those of the batch; alpha is learned (Zhou et al., KDD 2018, eq. 5).
    Evaluation uses running means, as batch normalisation does. The running means are parameters
    that no optimizer updates, so they are saved with the other parameters.
    """

    def __init__(self, width: int, momentum: float = 0.99) -> None:
        super().__init__()
        fixed = [paddle.ParamAttr(trainable=False) for _ in range(2)]
        self.norm = paddle.nn.BatchNorm1D(
            width, momentum=momentum, epsilon=1e-8, weight_attr=fixed[0], bias_attr=fixed[1]
        )
        zero = paddle.nn.initializer.Constant(0.0)
        self.alpha = self.create_parameter([width], dtype="float32", default_initializer=zero)
        self.width = width

    def forward(self, x: Any) -> Any:
        """x: (..., width). Returns the same shape."""
        shape = [-1, *x.shape[1:]]
        rows = paddle.reshape(x, [-1, self.width])
        p = paddle.nn.functional.sigmoid(self.norm(rows))
        return paddle.reshape(rows * (p + (1.0 - p) * self.alpha), shape)


class _Activated(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    def __init__(self, inputs: int, width: int, activation: str) -> None:
        super().__init__()
        self.linear = Linear(inputs, width)
        self.dice = Dice(width) if activation == "dice" else None
        self.curve = getattr(paddle.nn.functional, "sigmoid" if activation == "sigmoid" else "relu")

    def forward(self, x: Any) -> Any:
        made = self.linear(x)
        return self.dice(made) if self.dice is not None else self.curve(made)


class AttentionUnit(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """Computes a weight for each event of the history.

    The input of its network is the item, the event, their difference and their product.
    """

    def __init__(self, width: int, hidden: tuple[int, ...], activation: str, softmax: bool) -> None:
        super().__init__()
        widths = [4 * width, *hidden]
        self.layers = paddle.nn.LayerList(
            [_Activated(a, b, activation) for a, b in pairwise(widths)]
        )
        self.output = Linear(widths[-1], 1)
        self.softmax = softmax

    def forward(self, item: Any, events: Any, rows: Rows) -> Any:
        """item: (B, E); events: (T, E), the places of the history as rows. Returns weights (T,
        1)."""
        asked = rows.repeat(item)
        x = paddle.concat([asked, events, asked - events, asked * events], axis=1)
        for layer in self.layers:
            x = layer(x)
        weights = self.output(x)
        return rows.softmax(weights) if self.softmax else weights
