"""The base class of models with several tasks: their input, and the sum of the tasks' losses."""

from __future__ import annotations

from typing import Any

import numpy as np

from paddlebox import ops
from paddlebox.config.models import TaskConfig
from paddlebox.errors import ConfigError
from paddlebox.models.inputs import Inputs
from paddlebox.nn import log_loss

paddle = ops.paddle

# The part of the expected late labels that a line anticipates; its late line brings the rest. 0
# needs no estimate of delays, but what is new has too low a prediction until its late lines come. 1
# uses late lines for the estimate only. In a planted logistic model of 24 passes, 40 % late, the
# COPC with 0, 0.5 and 1 was 0.000, 0.004 and 0.012 off that of complete labels, and the AUC 0.0001,
# 0.0003 and 0.005.
_ANTICIPATED = 0.5

# The largest logit that late lines raise; its probability is 0.9999. An id that has only late lines
# would be raised without bound, because their loss is linear.
_HIGHEST = 9.21


class TaskModel(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """Base class of a model with several tasks.

    Letters: B = instances, T = tasks, S = sparse slots, D = embedx_dim, W = dense width,
    N = S * width + W, the number of inputs of the network.

    With `delayed_task`, the logits have one more column than there are tasks: l, the probability
    that a positive label of that task comes late.

    Raises: ConfigError if `task_weights` does not have T entries, or `delayed_task` is not a task.
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
        self.delayed: int | None = None  # the number of the delayed task
        if config.delayed:
            if config.delayed not in inputs.tasks:
                raise ConfigError(
                    f"model.delayed_task: expected a label, {' or '.join(inputs.tasks)}, found "
                    f"{config.delayed!r}"
                )
            self.delayed = inputs.tasks.index(config.delayed)
        self.outputs = self.tasks + (self.delayed is not None)
        self.sparse = inputs.pooled_slots(config.use_cvm)
        self.dense_width = inputs.dense_width
        self.width = inputs.width(self.sparse.width)  # N

    def features(self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any) -> Any:
        """Sparse inputs as for `PooledSlots`; dense: (B, W). Returns (B, N)."""
        if self.dense_width:
            return self.sparse(ids, offsets, show_click, plan, dense)
        pooled = self.sparse(ids, offsets, show_click, plan)
        return paddle.reshape(pooled, [-1, self.width])

    def loss(self, logits: Any, labels: Any, mask: Any = None, late: Any = None) -> Any:
        """The weighted sum of the mean losses of the tasks; logits, labels: (B, T).

        sum_t weight_t * mean_b CE(label_bt, sigmoid(logit_bt))

        With a delayed task, the loss of a line without the label yet has the label `to_come`
        times _ANTICIPATED. A late line trains this task only: its loss is linear up to _HIGHEST,
        and changes the label by the rest. The loss of l is added: the log loss of `late` over
        positive labels.

        Args:
            mask: (B, 1) a factor for the loss of each instance; None: all are 1.
            late: (B, 1) 1 for late lines, otherwise 0; None: there is no delayed task.
        """
        weights = paddle.assign(np.array([self.weights], np.float32))
        if late is None:
            every = log_loss(logits, labels, reduction="none", mask=mask)
            return paddle.mean(every * weights) * float(self.tasks)
        assert self.delayed is not None
        at, count = self.delayed, self.tasks
        scores, delays = _columns(logits, 0, count), _columns(logits, count, count + 1)
        positive, score = _columns(labels, at, at + 1), _columns(scores, at, at + 1)
        to_come = self.to_come(scores, paddle.nn.functional.sigmoid(delays), labels)
        to_come.stop_gradient = True
        expected = _ANTICIPATED * (1.0 - positive) * to_come
        columns = [_columns(labels, task, task + 1) for task in range(count)]
        columns[at] = positive + expected
        every = log_loss(scores, paddle.concat(columns, axis=1), reduction="none", mask=mask)
        in_time = paddle.mean(every * (1.0 - late) * weights) * float(count)
        raised = _HIGHEST - paddle.nn.functional.relu(_HIGHEST - score)
        corrected = (_ANTICIPATED - 1.0) * raised * positive * late
        corrected = corrected if mask is None else corrected * mask
        of_delays = log_loss(delays, late, reduction="none", mask=mask) * positive
        return in_time + paddle.mean(corrected + of_delays) * self.weights[at]

    def to_come(self, scores: Any, l: Any, labels: Any) -> Any:  # noqa: E741  # of the formula
        """(B, 1) the probability that a label of the delayed task that is negative so far is still
        to come. scores, labels: (B, T). l: (B, 1) the probability that a positive label is late.
        """
        del labels
        assert self.delayed is not None
        score = _columns(scores, self.delayed, self.delayed + 1)
        return share_to_come(paddle.nn.functional.sigmoid(score), l)


def _columns(x: Any, begin: int, end: int) -> Any:
    return paddle.slice(x, [1], [begin], [end])


def share_to_come(p: Any, l: Any) -> Any:  # noqa: E741  # the letters of the formula
    """The probability that a label that is negative so far is still to come. p: that of a positive
    label. l: that of its being late."""
    return p * l / (1.0 - p * (1.0 - l) + 1e-7)
