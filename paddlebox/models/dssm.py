"""DSSM (Huang et al., "Learning Deep Structured Semantic Models for Web Search using Clickthrough
Data", CIKM 2013): a tower for the user, one for the item, and the cosine of their outputs.

    u = user(x_u) / |user(x_u)|,   v = item(x_i) / |item(x_i)|,   logit = 10 u . v

`loss: click` adds a bias to the logit and takes the mean cross entropy. `loss: in_batch` has no
bias and takes the other items of the batch as negatives, whereas the paper samples random ones:

    loss = mean_b click_b * -log(exp(10 u_b . v_b) / sum_j exp(10 u_b . v_j))

It learns the order of the items. Its probabilities are not calibrated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paddlebox import ops
from paddlebox.config.fields import Fields
from paddlebox.config.models import DssmConfig
from paddlebox.config.slots import INTERCEPT
from paddlebox.errors import ConfigError
from paddlebox.models.inputs import Inputs
from paddlebox.nn.functional import exp, log, log_loss, matmul, sqrt, sum_over
from paddlebox.nn.linear import Linear
from paddlebox.nn.mlp import Tower

paddle = ops.paddle

_SMOOTHING = 10.0  # of the cosine
_BESIDE_ZERO = 1e-30  # for a batch whose factors are all 0


class _Tower(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """Maps the slots of one side to a vector of norm 1, (B, output_dim)."""

    def __init__(
        self, names: Sequence[str], fields: Fields, width: int, config: DssmConfig
    ) -> None:
        super().__init__()
        self.cells = [fields.cells[name] for name in names if name in fields.cells]
        self.spans = [fields.dense[name] for name in names if name in fields.dense]
        inputs = len(self.cells) * width + sum(end - begin for begin, end in self.spans)
        self.stack = Tower(inputs, config.hidden, config.dropout)
        self.output = Linear(self.stack.width, config.output_dim)
        self.width = width

    def forward(self, pooled: Any, dense: Any) -> Any:
        parts = [
            paddle.reshape(paddle.slice(pooled, [1], [begin], [end]), [-1, self.width])
            for begin, end in self.cells
        ] + [paddle.slice(dense, [1], [begin], [end]) for begin, end in self.spans]
        x = self.output(self.stack(paddle.concat(parts, axis=1)))
        return x / sqrt(sum_over(x * x, 1, keepdim=True) + 1e-12)


class DSSM(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """The model.

    Raises: ConfigError if a tower names a slot that does not exist, or if a slot is in no tower.
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
        self.sparse = inputs.pooled_slots(config.use_cvm)
        self.user = _Tower(config.user, fields, self.sparse.width, config)
        self.item = _Tower(config.item, fields, self.sparse.width, config)
        of_clicks = config.loss == "click"
        self.bias = self.create_parameter([1], dtype="float32", is_bias=True) if of_clicks else 0.0
        self.of_clicks = of_clicks
        # User and item of the last call of forward, (B, output_dim) each.
        self.vectors: tuple[Any, Any] | None = None

    def forward(self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any) -> Any:
        """Sparse inputs as for `PooledSlots`; dense: (B, W). Returns logits (B, 1)."""
        pooled = self.sparse(ids, offsets, show_click, plan)
        user, item = self.user(pooled, dense), self.item(pooled, dense)
        self.vectors = (user, item)
        return sum_over(user * item, 1, keepdim=True) * _SMOOTHING + self.bias

    def loss(self, logits: Any, labels: Any, mask: Any = None) -> Any:
        if self.of_clicks:
            return log_loss(logits, labels, mask=mask)
        assert self.vectors is not None  # logits come from a call of forward
        user, item = self.vectors
        every = matmul(user, item, transpose_y=True) * _SMOOTHING  # (B, B)
        own = sum_over(user * item, 1, keepdim=True) * _SMOOTHING
        # The exponents are at most 20, so no float overflows. The product with ones sums over the
        # batch: a static program does not know its size.
        if mask is None:
            among = matmul(exp(every - own), paddle.ones_like(own))
            return paddle.mean(labels * log(among))
        among = matmul(exp(every - own), mask) + _BESIDE_ZERO
        return paddle.mean(labels * mask * log(among))
