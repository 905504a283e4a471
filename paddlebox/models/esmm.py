"""ESMM (Ma et al., "Entire Space Multi-Task Model", SIGIR 2018): predicts conversions after clicks
from all impressions.

    pCTCVR = pCTR * pCVR = sigmoid(a) * sigmoid(b),   a = ctr(x), b = cvr(x)
    loss = mean CE(click, pCTR) + mean CE(click and conversion, pCTCVR)

The two networks share the sparse rows. The outputs are pCTR and pCTCVR; pCVR is pCTCVR / pCTR. A
conversion without a click does not count: the second label is multiplied by the first.

The logit of pCTCVR comes from a formula that loses no precision near 0 and 1:

    log(p / (1 - p)) = -log(exp(-a) + exp(-b) + exp(-a - b))
"""

from __future__ import annotations

from typing import Any

from paddlebox import ops
from paddlebox.config.models import EsmmConfig
from paddlebox.errors import ConfigError
from paddlebox.models.inputs import Inputs
from paddlebox.models.task_model import TaskModel, share_to_come
from paddlebox.nn import MLP

paddle = ops.paddle


def logit_of_product(a: Any, b: Any) -> Any:
    """The logit of sigmoid(a) * sigmoid(b), elementwise."""
    terms = [-1.0 * a, -1.0 * b, -1.0 * (a + b)]
    highest = terms[2]
    for term in terms[:2]:
        highest = highest + paddle.nn.functional.relu(term - highest)  # the larger of the two
    return -1.0 * (highest + paddle.log(sum(paddle.exp(term - highest) for term in terms)))


class ESMM(TaskModel):
    """The model.

    Raises: ConfigError if there are not exactly two labels.
    """

    def __init__(self, config: EsmmConfig, inputs: Inputs) -> None:
        super().__init__(config, inputs)
        if self.tasks != 2:
            raise ConfigError(
                f"model.type esmm: expected two labels, click and conversion, found {self.tasks}"
            )
        self.ctr = MLP(self.width, config.hidden, config.dropout)
        self.cvr = MLP(self.width, config.hidden, config.dropout)
        delayed = self.delayed is not None
        self.delay = MLP(self.width, config.hidden, config.dropout) if delayed else None

    def forward(self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any) -> Any:
        """Inputs as for `TaskModel.features`. Returns logits (B, 2) of pCTR and pCTCVR, and with a
        delayed task (B, 3)."""
        x = self.features(ids, offsets, show_click, plan, dense)
        clicked = self.ctr(x)
        scores = [clicked, logit_of_product(clicked, self.cvr(x))]
        return paddle.concat(scores + ([] if self.delay is None else [self.delay(x)]), axis=1)

    def loss(self, logits: Any, labels: Any, mask: Any = None, late: Any = None) -> Any:
        click = paddle.slice(labels, [1], [0], [1])
        both = click * paddle.slice(labels, [1], [1], [2])
        return super().loss(logits, paddle.concat([click, both], axis=1), mask, late)

    def to_come(self, scores: Any, l: Any, labels: Any) -> Any:  # noqa: E741  # of the formula
        if self.delayed != 1:
            return super().to_come(scores, l, labels)
        # The click is known, and without it no conversion can come: p is pCVR.
        known = paddle.nn.functional.sigmoid(scores)
        click, p_click, p = (
            paddle.slice(x, [1], [at], [at + 1]) for x, at in ((labels, 0), (known, 0), (known, 1))
        )
        return click * share_to_come(p / (p_click + 1e-7), l)
