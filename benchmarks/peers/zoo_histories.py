"""The peers of models that read a history, or the instances of a user. zoo_networks.py says what a
network is.

With a history, cell 0 is the user. Then come the L places of the history, the latest first, and
the item.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from peers.zoo_parts import (
    DICE_EPSILON,
    EPSILON,
    Batch,
    Outputs,
    Parameters,
    Tensor,
    call,
    clicks,
    features_of,
    in_sequence,
    linear,
    mlp,
    mlp_of_rechub,
    numbers,
    of_widths,
    rechub,
    under,
    zeros,
)

# isort: split
# After zoo_parts, whose placeholders these imports need.
from fuxictr.pytorch.layers import DIN_Attention
from torch_rechub.basic.layers import HSTUBlock
from torch_rechub.models.ranking import DIEN


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
    for number in numbers(p, "attention.layers.{}.linear.weight"):
        names.append(f"attention.layers.{number}.linear")
    values |= in_sequence(p, [*names, "attention.output"], "attention_layer.mlp.{}", 2)
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
            layer.bn.eps = DICE_EPSILON
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
    logits, loss = clicks(torch.logit(found)[:, None], batch)
    return logits, loss + auxiliary


def bst(p: Parameters, batch: Batch, config: Any) -> Outputs:
    parts = History(batch)
    x = torch.cat([parts.events, parts.item[:, None]], dim=1) + p["positions"]
    there = torch.cat([parts.mask, torch.ones(len(x), 1, dtype=torch.bool)], dim=1)
    for number in range(config.layers):
        name, width = f"blocks.{number}", x.shape[2]
        module = torch.nn.TransformerEncoderLayer(
            width, config.heads, 4 * width, 0.0, torch.nn.LeakyReLU(), EPSILON, batch_first=True
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
        layer.norm_in.eps = layer.norm_attn.eps = EPSILON
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
    return (
        _hstu_of_history(p, batch, config) if config.history else _hstu_of_users(p, batch, config)
    )


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
    """The bucket of a difference of times, as `jagged_attention` says."""
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
            at = torch.tensor([[_bucket(a - b, config.time_buckets) for b in times] for a in times])

            def bias(name: str, at: Tensor = at) -> Any:
                of_time = p[f"{name}.time_bias"][:, at][None]
                return _of_distance(p, name, len(at)) + of_time

            module, values = _hstu_block(p, config, config.max_length, bias)
            found.append(call(module, values, tokens[None])[0, -1])
        begin += size
    return clicks(mlp(p, "mlp", torch.cat([batch.flat, torch.stack(found)], dim=1)), batch)
