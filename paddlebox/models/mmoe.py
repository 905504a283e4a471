"""MMoE (Ma et al., "Modeling Task Relationships in Multi-task Learning with Multi-gate
Mixture-of-Experts", KDD 2018): the tasks share the experts, and each task has a gate that mixes
them.

    logit_t = tower_t(sum_e g_te(x) f_e(x)),   g_t(x) = softmax(G_t x)
"""

from __future__ import annotations

from typing import Any

from paddlebox import ops
from paddlebox.config.models import MmoeConfig
from paddlebox.models.inputs import Inputs
from paddlebox.models.task_model import TaskModel
from paddlebox.nn import MLP
from paddlebox.nn.mlp import ExpertGate, Tower

paddle = ops.paddle


class MMoE(TaskModel):
    def __init__(self, config: MmoeConfig, inputs: Inputs) -> None:
        super().__init__(config, inputs)
        experts = [Tower(self.width, config.hidden, config.dropout) for _ in range(config.experts)]
        tasks = range(self.outputs)
        self.experts = paddle.nn.LayerList(experts)
        self.gates = paddle.nn.LayerList([ExpertGate(self.width, config.experts) for _ in tasks])
        self.towers = paddle.nn.LayerList(
            [MLP(experts[0].width, config.tower, config.dropout) for _ in tasks]
        )

    def forward(self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any) -> Any:
        """Inputs as for `TaskModel.features`. Returns logits (B, T), or (B, T + 1)."""
        x = self.features(ids, offsets, show_click, plan, dense)
        known = [expert(x) for expert in self.experts]
        each = zip(self.towers, self.gates, strict=True)
        return paddle.concat([tower(gate(x, known)) for tower, gate in each], axis=1)
