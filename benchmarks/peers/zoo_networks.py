"""The dense parts of the models of the zoo, made of FuxiCTR, DeepCTR-Torch, torch-rechub and
PyTorch: the peers of conformance.py.

A network takes p, the parameters of paddlebox (zoo_parts.py); a batch; and the section `model` of
the config. It returns logits (B, T) and the loss. What differs by design is taken out here, such as
batch normalisation, activations and biases; the table of conformance.py names it.

Two models and one operator are in none of the packages: `gatenet`, `masknet` and `rank_attention`
are written from their papers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch.nn import functional

from peers import zoo_histories, zoo_tasks
from peers.zoo_parts import (
    EPSILON,
    Batch,
    Outputs,
    Parameters,
    Tensor,
    block,
    call,
    clicks,
    features_of,
    first,
    in_sequence,
    layers_of,
    linear,
    logits_of,
    mlp,
    mlp_of_rechub,
    of_widths,
    rechub,
    regression,
    tower,
    under,
    zeros,
)

# isort: split
# After zoo_parts, whose placeholders these imports need.
from deepctr_torch.layers.interaction import (
    CIN,
    BilinearInteraction,
    CrossNet,
    InteractingLayer,
    SENETLayer,
)
from fuxictr.pytorch.layers import CrossNetMix, CrossNetV2, InnerProductInteraction
from model_zoo.LongCTR.FinalMLP.FinalMLP import InteractionAggregation
from torch_rechub.basic.layers import FM
from torch_rechub.basic.loss_func import InBatchNCELoss
from torch_rechub.models.matching import DSSM
from torch_rechub.models.ranking import DCN, DeepFM, WideDeep


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
    return clicks(logits_of(model, values, {"wide": wide, "deep": batch.flat}), batch)


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
    return clicks(first(p, batch) + logits_of(model, values, x), batch)


def dcn(p: Parameters, batch: Batch, config: Any) -> Outputs:
    params = of_widths(p, "tower")
    model = rechub(DCN(features_of(batch.flat.shape[1]), config.layers, params), features="all")
    values = mlp_of_rechub(p, "tower", "mlp", output=False)
    for number in range(config.layers):
        values[f"cn.w.{number}.weight"] = p[f"cross.{number}.weight"].T
        values[f"cn.b.{number}"] = p["biases"][number]
    values |= under("linear.fc", linear(p, "output"))
    return clicks(first(p, batch) + logits_of(model, values, {"all": batch.flat}), batch)


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
    scale, shift = p["norm.weight"], p["norm.bias"]
    normal = functional.layer_norm(batch.vectors, [width], scale, shift, EPSILON)
    e = torch.cat([batch.rows[:, :, :-width], normal], dim=2).flatten(1)
    e = torch.cat([e, batch.dense], dim=1)
    blocks = []
    for number in range(config.layers):
        name = f"blocks.{number}"
        mask = block(p, [f"{name}.reads.layers.0", f"{name}.mask"], batch.flat, output=True)
        product = functional.linear(e * mask, p[f"{name}.linear.weight"].T)
        scale, shift = p[f"{name}.norm.weight"], p[f"{name}.norm.bias"]
        normal = functional.layer_norm(product, scale.shape, scale, shift, EPSILON)
        blocks.append(torch.relu(normal))
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


def _unit(x: Tensor, p: int, dim: int) -> Tensor:  # noqa: ARG001  always 2
    return x / torch.sqrt((x * x).sum(dim, keepdim=True) + 1e-12)


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
        values |= in_sequence(p, of, f"{side}_mlp.mlp.{{}}", 4)
    with patch.object(functional, "normalize", _unit):
        u, v = (call(model, values, x, method=f"{side}_tower") for side in x)
    logits = 10 * (u * v).sum(1, keepdim=True)
    if str(config.loss) == "click":
        return clicks(logits + p["bias"], batch)
    every = InBatchNCELoss(0.1, ignore_index=-1, reduction="none")(u, v, torch.arange(len(u)))
    return logits, (batch.label[:, 0] * every).mean()


NETWORKS: dict[str, Callable[[Parameters, Batch, Any], Outputs]] = {
    network.__name__: network
    for network in (
        *(lr, fm, dnn, wide_deep, deepfm, dcn, dcn_v2, xdeepfm, autoint, fibinet, dlrm, finalmlp),
        *(gatenet, masknet, rank_attention, dssm),
        *(zoo_tasks.shared_bottom, zoo_tasks.mmoe, zoo_tasks.ple, zoo_tasks.esmm, zoo_tasks.aitm),
        *(zoo_histories.din, zoo_histories.dien, zoo_histories.bst, zoo_histories.hstu),
    )
}
