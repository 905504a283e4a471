"""The MLP of the peers that use PyTorch, and the fastest way to train it, for steps (end_to_end.py)
and for ranks (torchrec_rank.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

LEARNING_RATE = 1e-3
# Under autocast, bfloat16 products are oneDNN's in any case.
WAYS = {"float32": ("eager", "compiled", "oneDNN"), "bfloat16": ("eager", "compiled")}


class Mlp(torch.nn.Module):  # type: ignore[misc]  # not installed where types are checked
    """The loss of an MLP with ReLU over pooled slots and dense features.

    `way` says how it runs; all ways have the same parameters. dtype: float32, or bfloat16 through
    autocast; parameters and gradients are float32 in both.
    """

    def __init__(self, widths: list[int], way: str = "eager", dtype: str = "float32") -> None:
        super().__init__()
        self.dtype = dtype
        self.layers = torch.nn.ModuleList([torch.nn.Linear(a, b) for a, b in pairwise(widths)])
        self.way = way
        self._compiled: Any = None

    def forward(self, pooled: Any, dense: Any, label: Any) -> Any:
        """pooled: (B, S, D) or (B, S * D). dense: (B, W). label: (B, 1)."""
        if self.way != "compiled":
            return self._loss(pooled, dense, label)
        self._compiled = self._compiled or torch.compile(self._loss)
        return self._compiled(pooled, dense, label)

    def _loss(self, pooled: Any, dense: Any, label: Any) -> Any:
        x = torch.cat([pooled.reshape(len(dense), -1), dense], dim=1)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.dtype == "bfloat16"):
            logits = self._one_dnn(x) if self.way == "oneDNN" else self._plain(x)
        logits = logits.float()
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, label)

    def _plain(self, x: Any) -> Any:
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return self.layers[-1](x)

    def _one_dnn(self, x: Any) -> Any:
        # PyTorch computes float32 products with MKL, which on processors of other makers than Intel
        # has half of oneDNN's rate. For tensors in this layout it uses oneDNN.
        x = x.to_mkldnn()
        for number, layer in enumerate(self.layers):
            x = torch._C._nn.mkldnn_linear(x, layer.weight, layer.bias)
            x = torch.relu(x) if number + 1 < len(self.layers) else x
        return x.to_dense()


def adam(parameters: Any, best: bool = True) -> Any:
    """Adam as shipped, or at its best: fused."""
    return torch.optim.Adam(parameters, lr=LEARNING_RATE, fused=best or None)


def use_fastest(mlp: Mlp, seconds_of: Callable[[str], float]) -> str:
    """Sets the fastest way to run the MLP, and flushes denormals.

    Args:
        seconds_of: trains a few steps and returns their median seconds, for "warm up" or "trial".

    Returns: the way, with the times of all.
    """
    torch.set_flush_denormal(True)
    seconds = {}
    for way in WAYS[mlp.dtype]:
        mlp.way = way
        try:
            seconds_of("warm up")
        except torch._dynamo.exc.TorchDynamoException as error:
            print(f"{mlp.way}: does not work here: {error}", file=sys.stderr)
            continue
        seconds[mlp.way] = seconds_of("trial")
    mlp.way = min(seconds, key=lambda way: seconds[way])
    tried = ", ".join(f"{way} {s * 1e3:.1f} ms" for way, s in seconds.items())
    return f"Adam(fused), {mlp.way} ({tried})"
