"""The base class of models with several tasks: their input, and the sum of the tasks' losses."""

from __future__ import annotations

from typing import Any

import numpy as np

from paddlebox import ops
from paddlebox.config.task_models import TaskConfig
from paddlebox.errors import ConfigError
from paddlebox.models.inputs import Inputs
from paddlebox.nn import log_loss

paddle = ops.paddle


class TaskModel(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """Base class of a model with several tasks.

    Letters: B = instances, T = tasks, S = sparse slots, D = embedx_dim, W = dense width,
    N = S * width + W, the number of inputs of the network.

    Raises: ConfigError if `task_weights` does not have T entries.
    """

    def __init__(self, config: TaskConfig, inputs: Inputs) -> None:
        super().__init__()
        self.tasks = len(inputs.tasks)
        weights = config.task_weights or (1.0,) * self.tasks
        if len(weights) != self.tasks:
            raise ConfigError(
                f"model.task_weights: expected {self.tasks}, one per label of slots.yaml, found "
                f"{len(weights)}"
            )
        self.weights = [float(weight) for weight in weights]
        self.sparse = inputs.pooled_slots(config.use_cvm)
        self.dense_width = inputs.dense_width
        self.width = inputs.width(self.sparse.width)  # N

    def features(self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any) -> Any:
        """Sparse inputs as for `PooledSlots`; dense: (B, W). Returns (B, N)."""
        if self.dense_width:
            return self.sparse(ids, offsets, show_click, plan, dense)
        pooled = self.sparse(ids, offsets, show_click, plan)
        return paddle.reshape(pooled, [-1, self.width])

    def loss(self, logits: Any, labels: Any, mask: Any = None) -> Any:
        """The weighted sum of the mean losses of the tasks; logits, labels: (B, T).

        sum_t weight_t * mean_b CE(label_bt, sigmoid(logit_bt))

        mask: (B, 1) a factor for the loss of each instance; None: all are 1.
        """
        every = log_loss(logits, labels, reduction="none", mask=mask)
        weights = paddle.assign(np.array([self.weights], np.float32))
        return paddle.mean(every * weights) * float(self.tasks)
