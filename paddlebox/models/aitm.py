"""AITM (Xi et al., "Modeling the Sequential Dependence among Audience Multi-step Conversions", KDD
2021): the tasks are steps, such as click and purchase. Each passes its features to the next.

    q_t = f_t(x),  z_1 = q_1,  z_t = AIT(g_(t-1)(z_(t-1)), q_t),  logit_t = tower_t(z_t)
    AIT(p, q) = sum over u in {p, q} of w_u V(u),  w = softmax(<Q(u), K(u)> / sqrt(dim))
    loss = sum_t weight_t mean CE + 0.6 sum_(t>1) mean max(y_t - y_(t-1), 0)

slots.yaml must list the labels in the order of the steps.
"""

from __future__ import annotations

from typing import Any

from paddlebox import ops
from paddlebox.config.models import AitmConfig
from paddlebox.models.inputs import Inputs
from paddlebox.models.task_model import TaskModel
from paddlebox.nn import MLP
from paddlebox.nn.functional import sum_over
from paddlebox.nn.linear import Linear
from paddlebox.nn.mlp import Tower

paddle = ops.paddle

_CALIBRATION = 0.6  # weight of the loss of a task that is likelier than the one before


class _Transfer(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """AIT of the module's docstring: attention over the two inputs."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (Linear(dim, dim, bias_attr=False) for _ in range(3))
        self.scale = dim**-0.5

    def forward(self, handed_on: Any, own: Any) -> Any:
        """handed_on, own: (B, dim). Returns (B, dim)."""
        both = paddle.stack([handed_on, own], axis=1)  # (B, 2, dim)
        scores = sum_over(self.query(both) * self.key(both), 2, keepdim=True) * self.scale
        return sum_over(paddle.nn.functional.softmax(scores, axis=1) * self.value(both), 1)


class AITM(TaskModel):
    def __init__(self, config: AitmConfig, inputs: Inputs) -> None:
        super().__init__(config, inputs)
        dim, tasks = config.output_dim, range(self.tasks)
        layers, widths = paddle.nn.LayerList, [*config.hidden, dim]
        self.networks = layers([Tower(self.width, widths, config.dropout) for _ in tasks])
        self.hand_on = layers([Tower(dim, [dim]) for _ in tasks[1:]])
        self.transfers = layers([_Transfer(dim) for _ in tasks[1:]])
        self.towers = layers([MLP(dim, config.tower, config.dropout) for _ in tasks])

    def forward(self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any) -> Any:
        """Inputs as for `TaskModel.features`. Returns logits (B, T)."""
        x = self.features(ids, offsets, show_click, plan, dense)
        known = [network(x) for network in self.networks]
        for task, (hand_on, transfer) in enumerate(zip(self.hand_on, self.transfers, strict=True)):
            known[task + 1] = transfer(hand_on(known[task]), known[task + 1])
        each = zip(self.towers, known, strict=True)
        return paddle.concat([tower(z) for tower, z in each], axis=1)

    def loss(self, logits: Any, labels: Any, mask: Any = None, late: Any = None) -> Any:
        summed = super().loss(logits, labels, mask, late)
        if self.tasks == 1:
            return summed
        likely = paddle.nn.functional.sigmoid(logits)
        before = paddle.slice(likely, [1], [0], [self.tasks - 1])
        after = paddle.slice(likely, [1], [1], [self.tasks])
        every = paddle.nn.functional.relu(after - before)
        over = paddle.mean(every if mask is None else every * mask) * float(self.tasks - 1)
        return summed + _CALIBRATION * over
