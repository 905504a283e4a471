"""What the models of several tasks share: their input, and the sum of the tasks' losses."""

from __future__ import annotations

from typing import Any

from paddlebox import ops
from paddlebox.config.task_models import TaskConfig
from paddlebox.errors import ConfigError
from paddlebox.nn import PooledSlots

paddle = ops.paddle


class TaskModel(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """Letters: B = instances, T = tasks, S = sparse slots, D = embedx_dim, W = dense width,
    N = S * width + W, the width of what the network reads.

    Raises: ConfigError for weights that are not one a task.
    """

    def __init__(
        self,
        config: TaskConfig,
        *,
        slots: int,
        embedx_dim: int,
        dense_width: int,
        table: str = "",
        tasks: int = 1,
    ) -> None:
        super().__init__()
        weights = config.task_weights or (1.0,) * tasks
        if len(weights) != tasks:
            raise ConfigError(
                f"model.task_weights: expected {tasks}, one a label of slots.yaml, found "
                f"{len(weights)}"
            )
        self.sparse = PooledSlots(slots, embedx_dim, config.use_cvm, table)
        self.dense_width, self.tasks, self.weights = dense_width, tasks, list(weights)
        self.inputs = slots * self.sparse.width + dense_width  # N

    def features(self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any) -> Any:
        """Sparse inputs as `PooledSlots`; dense: (B, W). Returns (B, N)."""
        if self.dense_width:
            return self.sparse(ids, offsets, show_click, plan, dense)
        pooled = self.sparse(ids, offsets, show_click, plan)
        return paddle.reshape(pooled, [-1, self.inputs])

    def loss(self, logits: Any, labels: Any) -> Any:
        """The weighted sum of the tasks' mean losses, of (B, T) each.

            sum_t weight_t * mean_b CE(label_bt, sigmoid(logit_bt))
        """
        every = paddle.nn.functional.binary_cross_entropy_with_logits(
            logits, labels, reduction="none"
        )
        weights = paddle.assign([[float(weight) for weight in self.weights]])
        return paddle.mean(every * weights) * float(self.tasks)
