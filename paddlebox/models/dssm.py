"""DSSM (Huang et al., "Learning Deep Structured Semantic Models for Web Search using Clickthrough
Data", CIKM 2013): a tower for the user, one for the item, and the cosine of their outputs.

    u = user(x_u) / |user(x_u)|,   v = item(x_i) / |item(x_i)|,   logit = 10 u . v

`loss: click` adds a bias to the logit and takes the mean cross entropy. The other losses have no
bias and take the other items of the batch as negatives, whereas the paper samples random ones:

    in_batch          mean_b click_b * -log(exp(10 u_b . v_b) / sum_j exp(10 u_b . v_j))
    sampled_softmax   mean_b click_b * -log(exp(s_bb) / (exp(s_bb) + sum_j exp(s_bj))),
                      s_bj = 10 u_b . v_j - log(1 + show_j),
                      j: the instances of the batch with another item than that of b

An item is a negative as often as it occurs in the data, so `in_batch` learns too low scores of
frequent items. `sampled_softmax` has the correction of Yi et al., "Sampling-Bias-Corrected Neural
Modeling for Large Corpus Item Recommendations", RecSys 2019: it subtracts log q_j, where q_j, the
share of an item in the data, is proportional to the shows that its row has counted. A constant
factor of q changes nothing. Yi et al. estimate q from the steps between two occurrences instead.

Both learn the order of the items. Their probabilities are not calibrated.

With `sequence`, the user's tower reads a slot, such as the items of a user's history, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paddlebox import ops
from paddlebox.config.fields import Fields
from paddlebox.config.models import DssmConfig
from paddlebox.config.slots import INTERCEPT
from paddlebox.errors import ConfigError
from paddlebox.models.encoded_dense import EncodedDense
from paddlebox.models.inputs import Inputs
from paddlebox.nn.functional import log_loss, sum_over
from paddlebox.nn.hstu import HstuLayer
from paddlebox.nn.linear import Linear
from paddlebox.nn.mlp import Tower
from paddlebox.nn.pooled_slots import PooledSlots
from paddlebox.nn.rows import JaggedRows, PaddedRows

paddle = ops.paddle

TOWERS = ("user", "item")

_SMOOTHING = 10.0  # of the cosine
_BESIDE_ZERO = 1e-30  # for a batch whose factors are all 0


class _Sequence(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """Reads the places of a sequence, the latest first, and what comes next: (B, output_dim).

        x = linear([e_L .. e_1, asked]),   result = y_asked,   y = layers(x)

    asked is a learned row behind the latest place, so an empty sequence has a result, too.
    `paddlebox.nn.hstu` has the layers. L = max_length, E = floats of a place.
    """

    def __init__(self, fields: Fields, width: int, config: DssmConfig) -> None:
        super().__init__()
        self.padded = False  # `paddlebox.nn.rows.use_padding` sets it
        self.begin, self.end = fields.cells[config.sequence]
        self.length_at = fields.sequences[config.sequence]
        places = self.end - self.begin + 1
        self.event = Linear(width + 1, config.output_dim)
        sizes = config.output_dim, config.heads, config.head_dim, places
        self.layers = paddle.nn.LayerList(
            [HstuLayer(*sizes, dropout=config.dropout) for _ in range(config.layers)]
        )
        self._marks = np.zeros((1, places, 1), np.float32)
        self._marks[:, 0] = 1.0

    def forward(self, pooled: Any, dense: Any) -> Any:
        history = paddle.slice(pooled, [1], [self.begin], [self.end])  # (B, L, E)
        asked = paddle.zeros_like(paddle.slice(history, [1], [0], [1]))
        places = paddle.concat([asked, history], axis=1)
        # One more column is 1 for the asked row: its weights are that row.
        marks = paddle.zeros_like(paddle.slice(places, [2], [0], [1])) + paddle.assign(self._marks)
        length = paddle.slice(dense, [1], [self.length_at], [self.length_at + 1])
        of = PaddedRows if self.padded else JaggedRows
        rows = of(length + 1.0, self._marks.shape[1], reversed=True)
        x = self.event(rows.pack(paddle.concat([places, marks], axis=2)))
        for layer in self.layers:
            x = layer(x, rows)
        return rows.first(x)


class _Tower(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """Maps the slots of one side to a vector of norm 1, (B, output_dim)."""

    def __init__(
        self, names: Sequence[str], fields: Fields, width: int, config: DssmConfig
    ) -> None:
        super().__init__()
        read = [name for name in names if name in fields.cells and name not in fields.sequences]
        self.cells = [fields.cells[name] for name in read]
        self.spans = [fields.dense[name] for name in names if name in fields.dense]
        inputs = len(self.cells) * width + sum(end - begin for begin, end in self.spans)
        self.sequence = None
        if config.sequence in names:
            self.sequence = _Sequence(fields, width, config)
            inputs += config.output_dim
        self.stack = Tower(inputs, config.hidden, config.dropout)
        self.output = Linear(self.stack.width, config.output_dim)
        self.width = width

    def forward(self, pooled: Any, dense: Any) -> Any:
        parts = [
            paddle.reshape(paddle.slice(pooled, [1], [begin], [end]), [-1, self.width])
            for begin, end in self.cells
        ] + [paddle.slice(dense, [1], [begin], [end]) for begin, end in self.spans]
        if self.sequence is not None:
            parts.append(self.sequence(pooled, dense))
        x = self.output(self.stack(paddle.concat(parts, axis=1)))
        return x / paddle.sqrt(sum_over(x * x, 1, keepdim=True) + 1e-12)


class DSSM(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """The model.

    Raises: ConfigError if a tower names a slot that does not exist, if a slot is in no tower, or if
        `sampled_softmax` finds no sparse slot in the item's tower.
    """

    def __init__(self, config: DssmConfig, inputs: Inputs) -> None:
        super().__init__()
        fields = inputs.of_one_table()
        fields.check(config.user, "model.user")
        fields.check(config.item, "model.item")
        # Data without sparse slots gets the slot INTERCEPT. No tower has to read it.
        read = (*config.user, *config.item, INTERCEPT)
        unused = [n for n in (*fields.cells, *fields.dense) if n not in read]
        if unused:
            raise ConfigError(
                f"model.user, model.item: no tower reads {', '.join(unused)}: name each slot in "
                "one of them, or remove it from slots.yaml"
            )
        self.corrected = config.loss == "sampled_softmax"
        self.sparse = inputs.pooled_slots(config.use_cvm or self.corrected)
        self.item_cell = -1
        if self.corrected:
            sparse = [name for name in config.item if name in fields.cells]
            self.item_cell = fields.cells[config.identified_by(sparse, "item")][0]
        #: Floats of a pooled slot that the towers read: the last ones.
        self.width = _width_of(self.sparse, config.use_cvm)
        self.user = _Tower(config.user, fields, self.width, config)
        self.item = _Tower(config.item, fields, self.width, config)
        of_clicks = config.loss == "click"
        self.bias = self.create_parameter([1], dtype="float32", is_bias=True) if of_clicks else 0.0
        self.of_clicks = of_clicks
        # User and item of the last call of forward, (B, output_dim) each.
        self.vectors: tuple[Any, Any] | None = None
        # Of the last call of forward, if corrected: the items, and the logarithms of their shows
        # plus 1, (B, 1) each.
        self._items: tuple[Any, Any] | None = None

    def forward(self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any) -> Any:
        """Sparse inputs as for `PooledSlots`; dense: (B, W), followed by the length of the sequence
        if there is one. Returns logits (B, 1)."""
        pooled = self.sparse(ids, offsets, show_click, plan)
        if self.corrected:
            cell = [self.item_cell, self.item_cell + 1]
            shows = paddle.slice(pooled, [1, 2], [cell[0], 0], [cell[1], 1])
            shows = paddle.reshape(shows, [-1, 1])
            shows.stop_gradient = True
            self._items = _first_ids(ids, offsets, pooled.shape[1], cell), shows
            at = self.sparse.width - self.width
            pooled = paddle.slice(pooled, [2], [at], [self.sparse.width])
        user, item = self.user(pooled, dense), self.item(pooled, dense)
        self.vectors = (user, item)
        return sum_over(user * item, 1, keepdim=True) * _SMOOTHING + self.bias

    def loss(self, logits: Any, labels: Any, mask: Any = None) -> Any:
        if self.of_clicks:
            return log_loss(logits, labels, mask=mask)
        assert self.vectors is not None  # logits come from a call of forward
        user, item = self.vectors
        every = paddle.matmul(user, item, transpose_y=True) * _SMOOTHING  # (B, B)
        own = sum_over(user * item, 1, keepdim=True) * _SMOOTHING
        # The product with ones sums over the batch: a static program does not know its size.
        counted = paddle.ones_like(own) if mask is None else mask
        if self._items is None:
            # The exponents are at most 20, so no float overflows.
            among = paddle.matmul(paddle.exp(every - own), counted)
            among = among if mask is None else among + _BESIDE_ZERO
        else:
            among = paddle.matmul(self._odds(every - own, *self._items), counted) + 1.0
        factor = labels if mask is None else labels * mask
        return paddle.mean(factor * paddle.log(among))

    @staticmethod
    def _odds(differences: Any, items: Any, shows: Any) -> Any:
        """exp(s_bj - s_bb) of `sampled_softmax`, (B, B); 0 where j has the item of b. The exponents
        are at most 20 + log(shows), 64 with 10^19 shows, so no float overflows."""
        others = [paddle.transpose(of, [1, 0]) for of in (items, shows)]
        same = paddle.cast(paddle.equal(items, others[0]), "float32")
        return paddle.exp(differences + shows - others[1]) * (1.0 - same)


def towers_of(model: Any) -> dict[str, Any] | None:
    """The vectors that the last call of `forward` of a model has computed, by tower, (B,
    output_dim) each; None if the model is no DSSM, with encoded dense features or without."""
    own = model.model if isinstance(model, EncodedDense) else model
    if not isinstance(own, DSSM) or own.vectors is None:
        return None
    return dict(zip(TOWERS, own.vectors, strict=True))


def _width_of(sparse: PooledSlots, use_cvm: bool) -> int:
    return sparse.width if use_cvm else 1 + sparse.embedx_dim


def _first_ids(ids: Any, offsets: Any, cells: int, cell: list[int]) -> Any:
    """The first id of each instance in a cell, (B, 1); of an empty cell, that of the next one.

    ids: (nnz); offsets: (B * cells + 1) int32; cell: its span.
    """
    begins = paddle.reshape(paddle.slice(offsets, [0], [0], [-1]), [-1, cells])
    at = paddle.reshape(paddle.slice(begins, [1], [cell[0]], [cell[1]]), [-1])
    flat = paddle.reshape(ids, [-1])
    padded = paddle.concat([flat, paddle.zeros_like(paddle.slice(flat, [0], [0], [1]))], axis=0)
    return paddle.reshape(paddle.gather(padded, at, axis=0), [-1, 1])
