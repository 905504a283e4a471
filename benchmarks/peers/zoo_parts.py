"""Parts of the networks of the zoo's peers, made of FuxiCTR and torch-rechub with the parameters of
paddlebox.

p is the parameters by the names and in the layout of paddlebox. A module of a peer runs with them
by torch.func.functional_call, so gradients and steps have the names of paddlebox.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any
from unittest.mock import MagicMock, patch

import numpy as np
import torch
from torch.nn import functional

# The packages import their data loading and a check of their own version, which need hundreds of
# megabytes of others (requirements/bench_conformance.txt). No layer calls them.
for _name in (
    *("polars", "requests", "fuxictr.preprocess", "fuxictr.preprocess.tokenizer", "h5py"),
    *("ray", "ray.data", "ray.data.datasource", "ray.data.datasource.filename_provider"),
):
    sys.modules.setdefault(_name, MagicMock())

from fuxictr.pytorch.layers import MLP_Block  # noqa: E402
from torch_rechub.basic.features import DenseFeature  # noqa: E402
from torch_rechub.basic.layers import LR  # noqa: E402

Tensor = Any
Parameters = Mapping[str, Tensor]
Outputs = tuple[Tensor, Tensor]

# Paddle keeps the epsilon of normalisations in float32.
EPSILON, DICE_EPSILON = (float(np.float32(epsilon)) for epsilon in (1e-5, 1e-8))


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
    """The result of a module with these parameters in place of its own: all, of the same shapes."""
    module = module.to(torch.get_default_dtype())
    for name, own in module.named_parameters():
        if own.shape != parameters[name].shape:
            raise ValueError(f"{name}: expected {own.shape}, found {parameters[name].shape}")
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
    found = [f"{name}.layers.{number}" for number in numbers(p, f"{name}.layers.{{}}.weight")]
    return [*found, f"{name}.output"] if output else found


def numbers(p: Parameters, pattern: str) -> Iterator[int]:
    for number in count():
        if pattern.format(number) not in p:
            return
        yield number


def block(p: Parameters, names: Sequence[str], x: Tensor, *, output: bool, **more: Any) -> Tensor:
    """FuxiCTR's MLP_Block with the linear layers of these names; the last is its output layer if
    `output`."""
    widths = [p[f"{name}.weight"].shape[1] for name in names]
    hidden = widths[:-1] if output else widths
    module = MLP_Block(x.shape[1], [*hidden], output_dim=widths[-1] if output else None, **more)
    return call(module, in_sequence(p, names, "mlp.{}", 2), x)


def in_sequence(p: Parameters, names: Sequence[str], place: str, step: int) -> dict[str, Tensor]:
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


def mlp_of_rechub(p: Parameters, name: str, to: str, *, output: bool = True) -> dict[str, Tensor]:
    return in_sequence(p, layers_of(p, name, output), f"{to}.mlp.{{}}", 4)


def logits_of(model: Any, parameters: Parameters, x: Any) -> Tensor:
    """What a model that has no other sigmoid computes before its last one. The logit of a
    probability near 1 would be less exact."""
    with patch.object(torch, "sigmoid", lambda x: x):
        found = call(model, parameters, x)
    return found.reshape(len(found), -1)


def of_widths(p: Parameters, name: str) -> dict[str, Any]:
    layers = layers_of(p, name, False)
    return {"dims": [p[f"{layer}.weight"].shape[1] for layer in layers]}
