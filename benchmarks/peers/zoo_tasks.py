"""The peers of models with several tasks: whole models of torch-rechub. zoo_networks.py says what a
network is."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from peers.zoo_parts import (
    Batch,
    Outputs,
    Parameters,
    Tensor,
    call,
    clicks,
    features_of,
    linear,
    logits_of,
    mlp_of_rechub,
    of_widths,
    rechub,
    under,
)

# isort: split
# After zoo_parts, whose placeholders these imports need.
from torch_rechub.models.multi_task import AITM, ESMM, MMOE, PLE, SharedBottom


def shared_bottom(p: Parameters, batch: Batch, _: Any) -> Outputs:
    width, tasks = batch.flat.shape[1], batch.label.shape[1]
    towers = [of_widths(p, f"towers.{t}") for t in range(tasks)]
    model = SharedBottom(
        features_of(width), ["classification"] * tasks, of_widths(p, "bottom"), towers
    )
    values = mlp_of_rechub(p, "bottom", "bottom_mlp", output=False)
    return _of_tasks(p, batch, model, values)


def _of_tasks(p: Parameters, batch: Batch, model: Any, values: dict[str, Tensor]) -> Outputs:
    """A model of torch-rechub whose towers and features are called alike."""
    for task in range(batch.label.shape[1]):
        values |= mlp_of_rechub(p, f"towers.{task}", f"towers.{task}")
    logits = logits_of(rechub(model, features="all"), values, {"all": batch.flat})
    return clicks(logits, batch)


def _gate(p: Parameters, name: str, to: str) -> dict[str, Tensor]:
    return under(f"{to}.mlp.0", linear(p, f"{name}.select"))


def mmoe(p: Parameters, batch: Batch, config: Any) -> Outputs:
    tasks = range(batch.label.shape[1])
    model = MMOE(
        features_of(batch.flat.shape[1]),
        ["classification" for _ in tasks],
        config.experts,
        of_widths(p, "experts.0"),
        [of_widths(p, f"towers.{t}") for t in tasks],
    )
    values: dict[str, Tensor] = {}
    for expert in range(config.experts):
        values |= mlp_of_rechub(p, f"experts.{expert}", f"experts.{expert}", output=False)
    for task in tasks:
        values |= _gate(p, f"gates.{task}", f"gates.{task}")
    return _of_tasks(p, batch, model, values)


def ple(p: Parameters, batch: Batch, config: Any) -> Outputs:
    tasks = range(batch.label.shape[1])
    model = PLE(
        features_of(batch.flat.shape[1]),
        ["classification" for _ in tasks],
        config.layers,
        config.task_experts,
        config.experts,
        of_widths(p, "levels.0.shared.0"),
        [of_widths(p, f"towers.{t}") for t in tasks],
    )
    values: dict[str, Tensor] = {}
    for level in range(config.layers):
        ours, to = f"levels.{level}", f"cgc_layers.{level}"
        for expert in range(config.experts):
            name = f"{to}.experts_shared.{expert}"
            values |= mlp_of_rechub(p, f"{ours}.shared.{expert}", name, output=False)
        for task in tasks:
            for expert in range(config.task_experts):
                name = f"{to}.experts_specific.{task * config.task_experts + expert}"
                values |= mlp_of_rechub(p, f"{ours}.own.{task}.{expert}", name, output=False)
            values |= _gate(p, f"{ours}.gates.{task}", f"{to}.gates_specific.{task}")
        if level < config.layers - 1:
            values |= _gate(p, f"{ours}.shared_gate", f"{to}.gate_shared")
    return _of_tasks(p, batch, model, values)


def esmm(p: Parameters, batch: Batch, _: Any) -> Outputs:
    half = batch.flat.shape[1] // 2
    sides = [features_of(half), features_of(batch.flat.shape[1] - half)]
    model = ESMM(*sides, of_widths(p, "cvr"), of_widths(p, "ctr"))
    model = rechub(model, user_features="user", item_features="item")
    values = mlp_of_rechub(p, "ctr", "tower_ctr") | mlp_of_rechub(p, "cvr", "tower_cvr")
    x = {"user": batch.flat[:, :half], "item": batch.flat[:, half:]}
    _, click, both = call(model, values, x).unbind(1)
    bought = torch.stack([batch.label[:, 0], batch.label.prod(1)], dim=1)
    found = torch.stack([click, both], dim=1)
    loss = functional.binary_cross_entropy(found, bought, reduction="none").mean(0).sum()
    return torch.logit(found), loss


def aitm(p: Parameters, batch: Batch, _: Any) -> Outputs:
    tasks = range(batch.label.shape[1])
    towers = [of_widths(p, f"towers.{t}") for t in tasks]
    model = AITM(features_of(batch.flat.shape[1]), len(tasks), of_widths(p, "networks.0"), towers)
    values: dict[str, Tensor] = {}
    for task in tasks:
        values |= mlp_of_rechub(p, f"networks.{task}", f"bottoms.{task}", output=False)
    for task in tasks[1:]:
        values |= mlp_of_rechub(p, f"hand_on.{task - 1}", f"info_gates.{task - 1}", output=False)
        for to, name in {"q": "query", "k": "key", "v": "value"}.items():
            weight = p[f"transfers.{task - 1}.{name}.weight"].T
            values[f"aits.{task - 1}.{to}_layer.weight"] = weight
    logits, loss = _of_tasks(p, batch, model, values)
    likely = torch.sigmoid(logits)  # the loss is the paper's eq. 10; torch-rechub has none
    over = torch.relu(likely[:, 1:] - likely[:, :-1]).mean(0).sum()
    return logits, loss + 0.6 * over
