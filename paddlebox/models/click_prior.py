"""A model with the click rates of its slots as dense features: `model.click_prior`.

    log_odds   = logit((click + a p) / (show + a)) - logit(p)
    confidence = show / (show + a)

show and click are sums over the rows of a slot in an instance. p is the click rate of the slot. The
sums count for a shows at this rate besides their own, however many rows they have. p and a are
estimated from the rows of each pass (paddlebox/data/click_counts.py, which also says which shows
and clicks an instance sees). A row that was never shown has 0 for both features.

p and a are a parameter that no optimizer changes. So they are committed with the other parameters,
averaged with themselves, exported and served. The source of smoothing by p and a is the
beta-binomial model: Wang et al., "Click-Through Rate Estimation for Rare Events", 2011.

Letters: B = instances, W = dense width, K = slots with click priors, L = sequences.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paddlebox import ops

paddle = ops.paddle

#: The name of the parameter in a program that has names of its own, (2, K) float32: p, then a.
CLICK_PRIOR = "click_prior_0.w_0"


class ClickPrior(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """`model` with the features after its W dense features.

    Args:
        width: W.
        slots: K.
    """

    def __init__(self, model: Any, width: int, slots: int) -> None:
        super().__init__()
        self.model, self._width, self._slots = model, width, slots
        start = np.ones((2, slots), np.float32)
        start[0] = 0.5  # any rate; the first pass estimates it
        attr = paddle.ParamAttr(initializer=paddle.nn.initializer.Assign(start), trainable=False)
        self.prior = self.create_parameter([2, slots], attr=attr, dtype="float32")
        self.prior.stop_gradient = True
        if hasattr(model, "loss"):
            self.loss = model.loss

    def _features(self, shows: Any, clicks: Any) -> list[Any]:
        """shows, clicks: (B, K). Returns log_odds and confidence, (B, K) each."""
        rate = paddle.slice(self.prior, [0], [0], [1])
        strength = paddle.slice(self.prior, [0], [1], [2])
        yes = clicks + rate * strength
        no = paddle.nn.functional.relu(shows - clicks) + (1.0 - rate) * strength
        log_odds = paddle.log(yes) - paddle.log(no) - (paddle.log(rate) - paddle.log(1.0 - rate))
        return [log_odds, shows / (shows + strength)]

    def forward(
        self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any, *more: Any
    ) -> Any:
        """Inputs and result as for the model. dense: (B, W + L + 2 K): dense features, lengths of
        sequences, shows and clicks. The model gets (B, W + 2 K + L)."""
        begin = dense.shape[1] - 2 * self._slots
        middle = begin + self._slots
        shows = paddle.slice(dense, [1], [begin], [middle])
        clicks = paddle.slice(dense, [1], [middle], [dense.shape[1]])
        parts = self._features(shows, clicks)
        if self._width:
            parts.insert(0, paddle.slice(dense, [1], [0], [self._width]))
        if begin > self._width:
            parts.append(paddle.slice(dense, [1], [self._width], [begin]))
        return self.model(ids, offsets, show_click, plan, paddle.concat(parts, axis=1), *more)
