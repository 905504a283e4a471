"""PLE (Tang et al., "Progressive Layered Extraction", RecSys 2020): each level has shared experts
and experts of each task. The gate of a task mixes its own and the shared experts. The shared gate
mixes all of them.

    x_t^(l+1) = sum over e in own_t and shared of softmax(G_t^l x_t^l)_e f_e^l
    x_s^(l+1) = sum over all e of softmax(G_s^l x_s^l)_e f_e^l,   logit_t = tower_t(x_t^L)

The experts of task t read x_t and the shared ones x_s. At the first level all read the features.
The last level has no shared gate, because nothing would read its output.
"""

from __future__ import annotations

from typing import Any

from paddlebox import ops
from paddlebox.config.models import PleConfig
from paddlebox.models.inputs import Inputs
from paddlebox.models.task_model import TaskModel
from paddlebox.nn import MLP
from paddlebox.nn.mlp import ExpertGate, Tower

paddle = ops.paddle


class _Level(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    def __init__(self, config: PleConfig, inputs: int, tasks: int, last: bool) -> None:
        super().__init__()

        def experts(count: int) -> Any:
            made = [Tower(inputs, config.hidden, config.dropout) for _ in range(count)]
            return paddle.nn.LayerList(made)

        own, shared = config.task_experts, config.experts
        self.own = paddle.nn.LayerList([experts(own) for _ in range(tasks)])
        self.shared = experts(shared)
        self.gates = paddle.nn.LayerList([ExpertGate(inputs, own + shared) for _ in range(tasks)])
        self.shared_gate = None if last else ExpertGate(inputs, own * tasks + shared)
        self.width = self.shared[0].width

    def forward(self, of_task: list[Any], of_all: Any) -> tuple[list[Any], Any]:
        """of_task: T tensors (B, N); of_all: (B, N). Returns the same for the next level; None for
        of_all after the last one."""
        shared = [expert(of_all) for expert in self.shared]
        own = [
            [expert(x) for expert in experts] for experts, x in zip(self.own, of_task, strict=True)
        ]
        mixed = [
            gate(x, [*known, *shared])
            for gate, x, known in zip(self.gates, of_task, own, strict=True)
        ]
        if self.shared_gate is None:
            return mixed, None
        return mixed, self.shared_gate(of_all, [*(e for known in own for e in known), *shared])


class PLE(TaskModel):
    def __init__(self, config: PleConfig, inputs: Inputs) -> None:
        super().__init__(config, inputs)
        width, levels = self.width, []
        for number in range(config.layers):
            levels.append(_Level(config, width, self.outputs, number == config.layers - 1))
            width = levels[-1].width
        self.levels = paddle.nn.LayerList(levels)
        self.towers = paddle.nn.LayerList(
            [MLP(width, config.tower, config.dropout) for _ in range(self.outputs)]
        )

    def forward(self, ids: Any, offsets: Any, show_click: Any, plan: Any, dense: Any) -> Any:
        """Inputs as for `TaskModel.features`. Returns logits (B, T), or (B, T + 1)."""
        shared = self.features(ids, offsets, show_click, plan, dense)
        of_task = [shared] * self.outputs
        for level in self.levels:
            of_task, shared = level(of_task, shared)
        each = zip(self.towers, of_task, strict=True)
        return paddle.concat([tower(x) for tower, x in each], axis=1)
