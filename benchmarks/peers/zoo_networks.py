"""The dense parts of the models of the zoo, made of FuxiCTR, DeepCTR-Torch, torch-rechub and
PyTorch: the peers of conformance.py.

A network takes p, the parameters by the names and in the layout of paddlebox; a batch; and the
section `model` of the config. It returns logits (B, T) and the loss. A module of a peer runs with
these parameters by torch.func.functional_call, so gradients and steps have the names of paddlebox.
What differs by design is taken out here: batch normalisation, activations, biases. Each such line
is named in DIFFERENCES of conformance.py.

Two models and one operator are in none of the packages. `gatenet`, `masknet` and `rank_attention`
are written from their papers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import numpy as np
import torch
from torch.nn import functional

# The packages import their data loading and a check of their own version, which need hundreds of
# megabytes of others (requirements/bench_conformance.txt). No layer calls them.
for _name in (
    *("polars", "requests", "fuxictr.preprocess", "fuxictr.preprocess.tokenizer"),
    *("ray", "ray.data", "ray.data.datasource", "ray.data.datasource.filename_provider"),
):
    sys.modules.setdefault(_name, MagicMock())

from deepctr_torch.layers.interaction import (  # noqa: E402
    CIN,
    BilinearInteraction,
    CrossNet,
    InteractingLayer,
    SENETLayer,
)
from fuxictr.pytorch.layers import (  # noqa: E402
    CrossNetMix,
    CrossNetV2,
    DIN_Attention,
    InnerProductInteraction,
    MLP_Block,
)
from model_zoo.LongCTR.FinalMLP.FinalMLP import InteractionAggregation  # noqa: E402
from torch_rechub.basic.features import DenseFeature  # noqa: E402
from torch_rechub.basic.layers import FM, LR, HSTUBlock  # noqa: E402
from torch_rechub.basic.loss_func import InBatchNCELoss  # noqa: E402
from torch_rechub.models.matching import DSSM  # noqa: E402
from torch_rechub.models.multi_task import AITM, ESMM, MMOE, PLE, SharedBottom  # noqa: E402
from torch_rechub.models.ranking import DCN, DIEN, DeepFM, WideDeep  # noqa: E402

Tensor = Any
Parameters = Mapping[str, Tensor]
Outputs = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Batch:
    """What a model is given. B = instances, C = cells, D = embedx_dim, L = max_length.

    The columns of `rows` before the last D + 1 are logarithms of counts.
    """

    rows: Tensor  # (B, C, width), the pooled slots
    dense: Tensor  # (B, W)
    label: Tensor  # (B, T)
    lengths: np.ndarray  # (B), of the histories, or of the users' sequences
    embedx_dim: int
    ranks: np.ndarray  # (B, 7), rank_offset of rank_attention
    times: np.ndarray  # (B), of the events of users

    @property
    def vectors(self) -> Tensor:
        return self.rows[:, :, -self.embedx_dim :]

    @property
    def weights(self) -> Tensor:
        return self.rows[:, :, -self.embedx_dim - 1]

    @property
    def counts(self) -> Tensor:
        return self.rows[:, :, : -self.embedx_dim - 1].flatten(1)

    @property
    def flat(self) -> Tensor:
        return torch.cat([self.rows.flatten(1), self.dense], dim=1)


def call(module: Any, parameters: Parameters, *inputs: Any, method: str = "forward") -> Any:
    """The result of a module with these parameters in place of its own. They have to be all."""
    module = module.to(torch.get_default_dtype())
    every = {**dict(module.named_buffers()), **parameters}
    if method != "forward":
        module.forward = getattr(module, method)
    return torch.func.functional_call(module, every, inputs, strict=True)


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape)


def log_loss(logits: Tensor, label: Tensor) -> Tensor:
    """The sum over tasks of the mean losses."""
    each = functional.binary_cross_entropy_with_logits(logits, label, reduction="none")
    return each.mean(0).sum()


# ---- parts


def linear(p: Parameters, name: str) -> dict[str, Tensor]:
    """A linear layer of paddlebox, (inputs, outputs), as PyTorch's."""
    weight = p[f"{name}.weight"].T
    bias = p.get(f"{name}.bias")
    return {"weight": weight, "bias": zeros(len(weight)) if bias is None else bias}


def under(prefix: str, parameters: Parameters) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": value for name, value in parameters.items()}


def layers_of(p: Parameters, name: str, output: bool) -> list[str]:
    found = [f"{name}.layers.{number}" for number in _numbers(p, f"{name}.layers.{{}}.weight")]
    return [*found, f"{name}.output"] if output else found


def _numbers(p: Parameters, pattern: str) -> Iterator[int]:
    for number in count():
        if pattern.format(number) not in p:
            return
        yield number


def block(p: Parameters, names: Sequence[str], x: Tensor, *, output: bool, **more: Any) -> Tensor:
    """FuxiCTR's MLP_Block with the linear layers of these names; the last is its output layer if
    `output`."""
    widths = [p[f"{name}.weight"].shape[1] for name in names]
    hidden = widths[:-1] if output else widths
    module = MLP_Block(
        x.shape[1], [*hidden], output_dim=widths[-1] if output else None, **more
    )
    return call(module, _in_sequence(p, names, "mlp.{}", 2), x)


def _in_sequence(p: Parameters, names: Sequence[str], place: str, step: int) -> dict[str, Tensor]:
    """Linear layers at every step-th place of a Sequential."""
    found: dict[str, Tensor] = {}
    for number, name in enumerate(names):
        found |= under(place.format(step * number), linear(p, name))
    return found


def mlp(p: Parameters, name: str, x: Tensor) -> Tensor:
    return block(p, layers_of(p, name, True), x, output=True)


def tower(p: Parameters, name: str, x: Tensor) -> Tensor:
    return block(p, layers_of(p, name, False), x, output=False)


def regression(p: Parameters, name: str, x: Tensor) -> Tensor:
    """torch-rechub's LR with a linear layer of one output."""
    return call(LR(x.shape[1]), under("fc", linear(p, name)), x)


def first(p: Parameters, batch: Batch) -> Tensor:
    """The first-order part: torch-rechub's LR over the slots' weights, each times 1, and the dense
    features."""
    slots = batch.weights.shape[1]
    of_dense = linear(p, "linear.dense")
    weight = torch.cat([torch.ones(1, slots), of_dense["weight"]], dim=1)
    x = torch.cat([batch.weights, batch.dense], dim=1)
    return call(LR(x.shape[1]), {"fc.weight": weight, "fc.bias": of_dense["bias"]}, x)


def clicks(logits: Tensor, batch: Batch) -> Outputs:
    return logits, log_loss(logits, batch.label)


# ---- whole models of torch-rechub


class _Given(torch.nn.Module):  # type: ignore[misc]  # not installed where types are checked
    """Stands where a model looks its embeddings up: the inputs by what the model calls them."""

    def forward(self, x: Any, features: Any, squeeze_dim: bool = False) -> Any:  # noqa: ARG002
        return x[features]

    def input_mask(self, x: Any, _: Any) -> Any:
        return x["mask"]


def features_of(width: int) -> list[Any]:
    return [DenseFeature("all", width)]


def plain(module: Any, activation: Any = None) -> Any:
    """The module without batch normalisation; its Dice replaced by `activation`."""
    for name, child in module.named_children():
        if isinstance(child, torch.nn.BatchNorm1d):
            setattr(module, name, torch.nn.Identity())
        elif activation is not None and type(child).__name__ == "Dice":
            setattr(module, name, activation)
        else:
            plain(child, activation)
    return module


def rechub(model: Any, **inputs: str) -> Any:
    """A model of torch-rechub that is given its embeddings. inputs: the attribute with a list of
    features -> the name of its input."""
    model.embedding = _Given()
    for attribute, name in inputs.items():
        setattr(model, attribute, name)
    return plain(model, torch.nn.ReLU())


def mlp_of_rechub(
    p: Parameters, name: str, to: str, *, output: bool = True
) -> dict[str, Tensor]:
    return _in_sequence(p, layers_of(p, name, output), f"{to}.mlp.{{}}", 4)


def logit(probability: Tensor) -> Tensor:
    return torch.logit(probability).reshape(len(probability), -1)


def of_widths(p: Parameters, name: str, **more: Any) -> dict[str, Any]:
    layers = layers_of(p, name, False)
    return {"dims": [p[f"{layer}.weight"].shape[1] for layer in layers], **more}


# ---- models of one task


def lr(p: Parameters, batch: Batch, _: Any) -> Outputs:
    return clicks(first(p, batch), batch)


def fm(p: Parameters, batch: Batch, _: Any) -> Outputs:
    return clicks(first(p, batch) + FM()(batch.vectors), batch)


def dnn(p: Parameters, batch: Batch, _: Any) -> Outputs:
    return clicks(mlp(p, "mlp", batch.flat), batch)


def wide_deep(p: Parameters, batch: Batch, _: Any) -> Outputs:
    wide = torch.cat([batch.weights, batch.dense], dim=1)
    params = of_widths(p, "mlp")
    model = rechub(
        WideDeep(features_of(wide.shape[1]), features_of(batch.flat.shape[1]), params),
        wide_features="wide",
        deep_features="deep",
    )
    of_dense = linear(p, "linear.dense")
    ones = torch.ones(1, batch.weights.shape[1])
    values = {
        "linear.fc.weight": torch.cat([ones, of_dense["weight"]], dim=1),
        "linear.fc.bias": of_dense["bias"],
        **mlp_of_rechub(p, "mlp", "mlp"),
    }
    return clicks(logit(call(model, values, {"wide": wide, "deep": batch.flat})), batch)


def deepfm(p: Parameters, batch: Batch, _: Any) -> Outputs:
    x = {"deep": batch.flat, "fm": batch.vectors}
    width = batch.vectors.flatten(1).shape[1]
    model = rechub(
        DeepFM(features_of(batch.flat.shape[1]), features_of(width), of_widths(p, "mlp")),
        deep_features="deep",
        fm_features="fm",
    )
    values = {
        "linear.fc.weight": zeros(1, width),
        "linear.fc.bias": zeros(1),
        **mlp_of_rechub(p, "mlp", "mlp"),
    }
    return clicks(first(p, batch) + logit(call(model, values, x)), batch)


def dcn(p: Parameters, batch: Batch, config: Any) -> Outputs:
    params = of_widths(p, "tower")
    model = rechub(
        DCN(features_of(batch.flat.shape[1]), config.layers, params), features="all"
    )
    values = mlp_of_rechub(p, "tower", "mlp", output=False)
    for number in range(config.layers):
        values[f"cn.w.{number}.weight"] = p[f"cross.{number}.weight"].T
        values[f"cn.b.{number}"] = p["biases"][number]
    values |= under("linear.fc", linear(p, "output"))
    return clicks(first(p, batch) + logit(call(model, values, {"all": batch.flat})), batch)


def dcn_v2(p: Parameters, batch: Batch, config: Any) -> Outputs:
    cross = _mixed(p, batch.flat, config) if config.low_rank else _crossed(p, batch.flat, config)
    both = torch.cat([cross, tower(p, "tower", batch.flat)], dim=1)
    return clicks(first(p, batch) + regression(p, "output", both), batch)


def _crossed(p: Parameters, x: Tensor, config: Any) -> Tensor:
    """By FuxiCTR and by DeepCTR, which have to agree."""
    values: dict[str, Tensor] = {}
    for number in range(config.layers):
        values |= under(f"cross_layers.{number}", linear(p, f"cross.{number}"))
    found = call(CrossNetV2(x.shape[1], config.layers), values, x)
    each = [linear(p, f"cross.{number}") for number in range(config.layers)]
    values = {
        "kernels": torch.stack([layer["weight"] for layer in each]),
        "bias": torch.stack([layer["bias"][:, None] for layer in each]),
    }
    other = call(CrossNet(x.shape[1], config.layers, "matrix"), values, x)
    torch.testing.assert_close(found, other)
    return found


def _mixed(p: Parameters, x: Tensor, config: Any) -> Tensor:
    rank, experts = config.low_rank, config.experts
    values: dict[str, Tensor] = {}
    for layer in range(config.layers):
        v, u = (p[f"cross.{layer}.{part}.weight"] for part in "vu")
        values[f"V_list.{layer}"] = torch.stack(v.split(rank, dim=1))
        values[f"U_list.{layer}"] = torch.stack([part.T for part in u.split(rank, dim=0)])
        values[f"C_list.{layer}"] = torch.stack([torch.eye(rank)] * experts)
        values[f"bias.{layer}"] = p[f"cross.{layer}.u.bias"][:, None]
    gate = p["cross.0.gate.weight"] if experts > 1 else zeros(x.shape[1], 1)
    values |= {f"gating.{k}.weight": gate[:, k : k + 1].T for k in range(experts)}
    with patch.object(torch, "tanh", lambda low: low):
        return call(CrossNetMix(x.shape[1], config.layers, rank, experts), values, x)


def xdeepfm(p: Parameters, batch: Batch, config: Any) -> Outputs:
    cin = CIN(batch.vectors.shape[1], config.cin, activation="linear", split_half=False)
    values: dict[str, Tensor] = {}
    for number, maps in enumerate(config.cin):
        values[f"conv1ds.{number}.weight"] = p[f"cin.{number}.weight"].T[:, :, None]
        values[f"conv1ds.{number}.bias"] = zeros(maps)
    second = regression(p, "output", call(cin, values, batch.vectors))
    return clicks(first(p, batch) + second + mlp(p, "mlp", batch.flat), batch)


def autoint(p: Parameters, batch: Batch, config: Any) -> Outputs:
    x = torch.cat([batch.vectors, batch.dense[:, :, None] * p["dense_vectors"]], dim=1)
    parts = {"W_Query": "query", "W_key": "key", "W_Value": "value", "W_Res": "residual"}
    for number in range(config.layers):
        values = {to: p[f"attention.{number}.{name}.weight"] for to, name in parts.items()}
        x = call(InteractingLayer(x.shape[2], config.heads), values, x)
    attended = regression(p, "output", x.flatten(1))
    return clicks(first(p, batch) + attended + mlp(p, "mlp", batch.flat), batch)


def fibinet(p: Parameters, batch: Batch, config: Any) -> Outputs:
    slots, width = batch.vectors.shape[1:]
    values = {
        "excitation.0.weight": p["squeeze.weight"].T,
        "excitation.2.weight": p["excite.weight"].T,
    }
    weighed = call(SENETLayer(slots), values, batch.vectors)
    parts = [batch.counts]
    for number, x in enumerate((batch.vectors, weighed)):
        w = p[f"products.{number}.w"]
        values = (
            {"bilinear.weight": w.T}
            if w.ndim == 2
            else {f"bilinear.{slot}.weight": one.T for slot, one in enumerate(w)}
        )
        kind = str(config.bilinear.value)
        parts.append(call(BilinearInteraction(slots, width, kind), values, x).flatten(1))
    top = torch.cat([*parts, batch.dense], dim=1)
    return clicks(first(p, batch) + mlp(p, "mlp", top), batch)


def dlrm(p: Parameters, batch: Batch, _: Any) -> Outputs:
    z = tower(p, "bottom", batch.dense)
    x = torch.cat([z[:, None], batch.vectors], dim=1)
    dots = InnerProductInteraction(x.shape[1], "inner_product")(x)
    top = torch.cat([z, dots, batch.counts], dim=1)
    return clicks(first(p, batch) + mlp(p, "mlp", top), batch)


def finalmlp(p: Parameters, batch: Batch, config: Any) -> Outputs:
    x, outputs = batch.flat, []
    for number, context in enumerate((batch.dense, batch.rows.flatten(1))):
        names = [f"gates.{number}.0.layers.0", f"gates.{number}.1"]
        y = x
        if config.gate_hidden:
            y = x * block(p, names, context, output=True, output_activation="Sigmoid") * 2
        outputs.append(tower(p, f"towers.{number}", y))
    width = outputs[0].shape[1]
    values = {
        **under("w_x", linear(p, "outputs.0")),
        **under("w_y", linear(p, "outputs.1")),
        "w_xy": p["fusion"].reshape(-1, 1),
    }
    fused = call(InteractionAggregation(width, width, 1, config.heads), values, *outputs)
    return clicks(first(p, batch) + fused, batch)


def gatenet(p: Parameters, batch: Batch, config: Any) -> Outputs:
    """Huang et al., 2020: eq. 3 and 4 (feature embedding gate), eq. 8 (hidden gate)."""
    gated = [
        row * torch.sigmoid(row @ gate)
        for row, gate in zip(batch.rows.unbind(1), p["gates"], strict=True)
    ]
    x = torch.cat([*gated, batch.dense], dim=1)
    for number in range(len(config.hidden)):
        x = block(p, [f"layers.{number}.layers.0"], x, output=False)
        x = x * torch.sigmoid(functional.linear(x, p[f"hidden_gates.{number}.weight"].T))
    return clicks(first(p, batch) + regression(p, "output", x), batch)


def masknet(p: Parameters, batch: Batch, config: Any) -> Outputs:
    """Wang et al., 2021: eq. 4 to 9 and the parallel model of section 3.6."""
    width = batch.embedx_dim
    normal = functional.layer_norm(batch.vectors, [width], p["norm.weight"], p["norm.bias"])
    e = torch.cat([batch.rows[:, :, :-width], normal], dim=2).flatten(1)
    e = torch.cat([e, batch.dense], dim=1)
    blocks = []
    for number in range(config.layers):
        name = f"blocks.{number}"
        mask = block(p, [f"{name}.reads.layers.0", f"{name}.mask"], batch.flat, output=True)
        product = functional.linear(e * mask, p[f"{name}.linear.weight"].T)
        scale, shift = p[f"{name}.norm.weight"], p[f"{name}.norm.bias"]
        blocks.append(torch.relu(functional.layer_norm(product, scale.shape, scale, shift)))
    return clicks(first(p, batch) + mlp(p, "mlp", torch.cat(blocks, dim=1)), batch)


def rank_attention(p: Parameters, batch: Batch, config: Any) -> Outputs:
    """The formula of PaddleBox's operator: a_i = sum_k X_k P[rank_i, rank_k], over the page."""
    x = batch.flat
    pairs = p["pairs"].reshape(3, 3, x.shape[1], config.output_dim)
    attended = []
    for own, *others in batch.ranks.tolist():
        found = zeros(config.output_dim)
        for rank, row in zip(others[0::2], others[1::2], strict=True):
            if own > 0 and rank > 0:
                found = found + x[row] @ pairs[own - 1, rank - 1]
        attended.append(found)
    return clicks(mlp(p, "mlp", torch.cat([x, torch.stack(attended)], dim=1)), batch)


# ---- models of several tasks


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
    found = call(rechub(model, features="all"), values, {"all": batch.flat})
    return clicks(logit(found), batch)


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
    return logit(found), loss


def aitm(p: Parameters, batch: Batch, _: Any) -> Outputs:
    tasks = range(batch.label.shape[1])
    towers = [of_widths(p, f"towers.{t}") for t in tasks]
    model = AITM(
        features_of(batch.flat.shape[1]), len(tasks), of_widths(p, "networks.0"), towers
    )
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


# ---- models of histories: cell 0 is the user, then the L places, the latest first, then the item


@dataclass(frozen=True)
class History:
    """The parts of a batch for models of a history."""

    batch: Batch

    @property
    def item(self) -> Tensor:
        return self.batch.rows[:, -1]

    @property
    def events(self) -> Tensor:
        return self.batch.rows[:, 1:-1]

    @property
    def mask(self) -> Tensor:
        places = torch.arange(self.batch.rows.shape[1] - 2)
        return places < torch.tensor(self.batch.lengths)[:, None]

    @property
    def others(self) -> Tensor:
        return torch.cat([self.batch.rows[:, 0], self.item, self.batch.dense], dim=1)

    def by_time(self, x: Tensor) -> Tensor:
        """The places of x (B, L, ...), the oldest first, and then the empty places."""
        length = x.shape[1]
        at = torch.tensor(self.batch.lengths)[:, None] - 1 - torch.arange(length)
        at = torch.where(at < 0, at + length, at)
        return x[torch.arange(len(x))[:, None], at]


def din(p: Parameters, batch: Batch, config: Any) -> Outputs:
    parts, names = History(batch), []
    values: dict[str, Tensor] = {}
    for number in _numbers(p, "attention.layers.{}.linear.weight"):
        names.append(f"attention.layers.{number}.linear")
    values |= _in_sequence(p, [*names, "attention.output"], "attention_layer.mlp.{}", 2)
    kind = str(config.activation.value)
    activation = {"dice": "dice", "sigmoid": "Sigmoid", "relu": "ReLU"}[kind]
    module = DIN_Attention(
        parts.item.shape[1],
        [p[f"{name}.weight"].shape[1] for name in names],
        activation,
        use_softmax=config.softmax,
    )
    for number, layer in enumerate(module.attention_layer.mlp):
        if kind == "dice" and hasattr(layer, "alpha"):
            layer.bn.eps = 1e-8
            alpha = p[f"attention.layers.{number // 2}.dice.alpha"]
            values[f"attention_layer.mlp.{number}.alpha"] = alpha
    interest = call(module, values, parts.item, parts.events, parts.mask)
    return clicks(mlp(p, "mlp", torch.cat([parts.others, interest], dim=1)), batch)


def _gru(p: Parameters, name: str) -> dict[str, Tensor]:
    """As torch.nn.GRU, which keeps z = 1 - u of the state, in the order r, z, n."""
    inputs, bias = p[f"{name}.of_input.weight"].T, p[f"{name}.of_input.bias"]
    state = torch.cat([p[f"{name}.of_gates.weight"], p[f"{name}.of_state.weight"]], dim=1).T

    def ordered(x: Tensor) -> Tensor:
        update, reset, candidate = x.chunk(3)
        return torch.cat([reset, -update, candidate])

    return {
        "weight_ih_l0": ordered(inputs),
        "weight_hh_l0": ordered(state),
        "bias_ih_l0": ordered(bias),
        "bias_hh_l0": zeros(len(bias)),
    }


def _augru(p: Parameters) -> dict[str, Tensor]:
    name, found = "evolution", {"Wa": p["asked.weight"].T}
    of_input = p[f"{name}.of_input.weight"].chunk(3, dim=1)
    biases = p[f"{name}.of_input.bias"].chunk(3)
    of_state = [*p[f"{name}.of_gates.weight"].chunk(2, dim=1), p[f"{name}.of_state.weight"]]
    for part, w, u, b in zip("urh", of_input, of_state, biases, strict=True):
        found |= {
            f"augru_cell.W{part}": w,
            f"augru_cell.U{part}": u,
            f"augru_cell.b{part}": b[None],
        }
    return found


def dien(p: Parameters, batch: Batch, config: Any) -> Outputs:
    parts = History(batch)
    width, profile = parts.item.shape[1], torch.cat([batch.rows[:, 0], batch.dense], dim=1)
    of = [features_of(n) for n in (profile.shape[1], width, width, width)]
    model = DIEN(*of, of_widths(p, "mlp"), config.auxiliary)
    model = rechub(model, features="features")
    # It takes one GRU for each feature of the history.
    model.history_features, model.neg_history_features = ("history",), ("others",)
    model.target_features = ("item",)
    x: dict[Any, Tensor] = {
        "features": profile,
        ("history",): parts.by_time(parts.events)[:, None],
        ("others",): parts.by_time(parts.events.roll(1, 0))[:, None],
        ("item",): parts.item[:, None],
        "mask": parts.by_time(parts.mask)[:, None],
    }
    values = under("interest_extractor_layers.0", _gru(p, "interests"))
    values |= under("interest_evolving_layers.0", _augru(p)) | mlp_of_rechub(p, "mlp", "mlp")
    # Ours reads [user, item, dense, evolved], the peer's [evolved, item, user, dense].
    user, item, dense, evolved = values["mlp.mlp.0.weight"].split(
        [width, width, batch.dense.shape[1], width], dim=1
    )
    values["mlp.mlp.0.weight"] = torch.cat([evolved, item, user, dense], dim=1)
    found, auxiliary = call(model, values, x)
    logits, loss = clicks(logit(found), batch)
    return logits, loss + auxiliary


def bst(p: Parameters, batch: Batch, config: Any) -> Outputs:
    parts = History(batch)
    x = torch.cat([parts.events, parts.item[:, None]], dim=1) + p["positions"]
    there = torch.cat([parts.mask, torch.ones(len(x), 1, dtype=torch.bool)], dim=1)
    for number in range(config.layers):
        name, width = f"blocks.{number}", x.shape[2]
        module = torch.nn.TransformerEncoderLayer(
            width, config.heads, 4 * width, 0.0, torch.nn.LeakyReLU(), batch_first=True
        )
        each = [linear(p, f"{name}.{part}") for part in ("query", "key", "value")]
        values = {
            "self_attn.in_proj_weight": torch.cat([part["weight"] for part in each]),
            "self_attn.in_proj_bias": torch.cat([part["bias"] for part in each]),
            **under("self_attn.out_proj", linear(p, f"{name}.output")),
            **under("linear1", linear(p, f"{name}.widen")),
            **under("linear2", linear(p, f"{name}.narrow")),
        }
        for norm in (0, 1):
            for part in ("weight", "bias"):
                values[f"norm{norm + 1}.{part}"] = p[f"{name}.norms.{norm}.{part}"]
        x = call(module, values, x, None, ~there)
    seen = (x * there[:, :, None]).flatten(1)
    return clicks(mlp(p, "mlp", torch.cat([parts.others, seen], dim=1)), batch)


def _hstu_block(p: Parameters, config: Any, length: int, bias: Any) -> tuple[Any, dict[str, Any]]:
    """torch-rechub's HSTUBlock. bias: a layer -> its biases of relative place and time, (1, H, L,
    L)."""
    heads, inner = config.heads, config.heads * config.head_dim
    sizes = {"dqk": config.head_dim, "dv": config.head_dim, "dropout": 0.0}
    module = HSTUBlock(config.width, heads, config.layers, max_seq_len=length, **sizes)
    values: dict[str, Tensor] = {}
    for number, layer in enumerate(module.layers):
        ours, to = f"encoder.layers.{number}", f"layers.{number}"
        layer.attn_alpha, layer.rab = 1.0, _Bias(bias(ours))
        inputs = linear(p, f"{ours}.inputs")
        keys = linear(p, f"{ours}.keys")
        for part in ("weight", "bias"):
            u, v, q = inputs[part].split(inner)
            values[f"{to}.proj1.{part}"] = torch.cat([q, q + keys[part], u, v])
            values[f"{to}.norm_in.{part}"] = p[f"{ours}.norm.{part}"]
            values[f"{to}.norm_attn.{part}"] = p[f"{ours}.norm_of_values.{part}"]
        values |= under(f"{to}.proj2", linear(p, f"{ours}.output"))
    return module, values


class _Bias(torch.nn.Module):  # type: ignore[misc]
    """Stands where a layer computes its biases, and gives these."""

    def __init__(self, bias: Tensor) -> None:
        super().__init__()
        self.bias = bias

    def forward(self, **_: Any) -> Any:
        return self.bias


def _of_distance(p: Parameters, name: str, length: int) -> Tensor:
    """The biases of relative places, (1, H, length, length)."""
    table = p[f"{name}.position_bias"]
    distance = torch.arange(length)[:, None] - torch.arange(length)
    return table[:, distance.clamp(0, table.shape[1] - 1)][None]


def hstu(p: Parameters, batch: Batch, config: Any) -> Outputs:
    return _hstu_of_history(p, batch, config) if config.history else _hstu_of_users(p, batch, config)


def _hstu_of_history(p: Parameters, batch: Batch, config: Any) -> Outputs:
    parts = History(batch)
    # Each instance by itself: [the oldest event .. the latest, the item].
    length = parts.events.shape[1] + 1
    found = []
    for own, size in enumerate(batch.lengths):
        events = torch.cat([parts.events[own, :size].flip(0), parts.item[own : own + 1]])
        marks = torch.zeros(size + 1, 1)
        marks[-1] = 1.0
        x = functional.linear(torch.cat([events, marks], dim=1), **linear(p, "event"))

        def bias(name: str, size: int = size) -> Any:
            return _of_distance(p, name, size + 1)

        module, values = _hstu_block(p, config, length, bias)
        found.append(call(module, values, x[None])[0, -1])
    inputs = torch.cat([parts.others, torch.stack(found)], dim=1)
    return clicks(mlp(p, "mlp", inputs), batch)


def _bucket(difference: int, buckets: int) -> int:
    """The bucket of a difference of times, as docs/operators.md says."""
    if difference <= 0:
        return 0
    power = difference.bit_length() - 1
    return min(1 + 2 * power + (2 * difference >= 3 << power), buckets - 1)


def _hstu_of_users(p: Parameters, batch: Batch, config: Any) -> Outputs:
    """Each target by itself, after the events before it."""
    x = functional.linear(batch.flat, **linear(p, "event"))
    events = x + functional.linear(batch.label, **linear(p, "action"))
    found, begin = [], 0
    for size in batch.lengths:
        for own in range(begin, begin + size):
            tokens = torch.cat([events[begin:own], x[own : own + 1]])
            times = batch.times[begin : own + 1].tolist()
            at = torch.tensor(
                [[_bucket(a - b, config.time_buckets) for b in times] for a in times]
            )

            def bias(name: str, at: Tensor = at) -> Any:
                of_time = p[f"{name}.time_bias"][:, at][None]
                return _of_distance(p, name, len(at)) + of_time

            module, values = _hstu_block(p, config, config.max_length, bias)
            found.append(call(module, values, tokens[None])[0, -1])
        begin += size
    return clicks(mlp(p, "mlp", torch.cat([batch.flat, torch.stack(found)], dim=1)), batch)


def dssm(p: Parameters, batch: Batch, config: Any) -> Outputs:
    user = torch.cat([batch.rows[:, 0], batch.rows[:, 1], batch.dense], dim=1)
    x = {"user": user, "item": batch.rows[:, 2]}
    names = {side: [*layers_of(p, f"{side}.stack", False), f"{side}.output"] for side in x}
    params = [{"dims": [p[f"{n}.weight"].shape[1] for n in of]} for of in names.values()]
    model = DSSM(*(features_of(of.shape[1]) for of in x.values()), *params)
    model = rechub(model, user_features="user", item_features="item")
    values: dict[str, Tensor] = {}
    for side, of in names.items():
        getattr(model, f"{side}_mlp").mlp[4 * len(of) - 2] = torch.nn.Identity()
        values |= _in_sequence(p, of, f"{side}_mlp.mlp.{{}}", 4)
    u, v = (call(model, values, x, method=f"{side}_tower") for side in x)
    logits = 10 * (u * v).sum(1, keepdim=True)
    if str(config.loss.value) == "click":
        return clicks(logits + p["bias"], batch)
    every = InBatchNCELoss(0.1, ignore_index=-1, reduction="none")(u, v, torch.arange(len(u)))
    return logits, (batch.label[:, 0] * every).mean()


NETWORKS: dict[str, Callable[[Parameters, Batch, Any], Outputs]] = {
    network.__name__: network
    for network in (
        *(lr, fm, dnn, wide_deep, deepfm, dcn, dcn_v2, xdeepfm, autoint, fibinet, dlrm, finalmlp),
        *(gatenet, masknet, rank_attention, shared_bottom, mmoe, ple, esmm, aitm, din, dien, bst),
        *(hstu, dssm),
    )
}
