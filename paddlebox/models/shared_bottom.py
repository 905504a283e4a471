"""Shared-Bottom (Caruana, "Multitask Learning", Machine Learning 28, 1997): one network for all
tasks, and a tower for each task on top of it.

    logit_t = tower_t(f(x))
"""

from __future__ import annotations

from typing import Any

from paddlebox import ops
from paddlebox.config.models import SharedBottomConfig
from paddlebox.models.inputs import Inputs
from paddlebox.models.task_model import TaskModel
from paddlebox.nn import MLP
from paddlebox.nn.mlp import Tower

paddle = ops.paddle


class SharedBottom(TaskModel):
    def __init__(self, config: SharedBottomConfig, inputs: Inputs) -> None:
        super().__init__(config, inputs)
        self.bottom = Tower(self.width, config.hidden, config.dropout)
        self.towers = paddle.nn.LayerList(
            [MLP(self.bottom.width, config.tower, config.dropout) for _ in range(self.outputs)]
        )

    def forward(self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any) -> Any:
        """Inputs as for `TaskModel.features`. Returns logits (B, T), or (B, T + 1)."""
        shared = self.bottom(self.features(ids, offsets, show_click, plan, dense))
        return paddle.concat([tower(shared) for tower in self.towers], axis=1)
