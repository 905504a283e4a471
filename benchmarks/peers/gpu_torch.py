"""Steps of PyTorch on a GPU for gpu_program.py: `gpu_torch.py SETTINGS` prints the samples/s of
each batch size, eager and replayed as a CUDA graph, as JSON.

A step looks up `ids` rows a sample, uniformly drawn, sums them into `slots` bags, and trains an MLP
with Adam and the rows with row-wise AdaGrad as FBGEMM's: a row has one sum, of the means of the
squared gradients. Inputs are on the GPU before the step. Products are float32 without TF32.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

ROWS, STEPS, WARM = 1_000_000, 30, 5


class Step:
    """One batch of a model."""

    def __init__(self, batch: int, ids: int, slots: int, width: int, hidden: list[int]) -> None:
        on_gpu = {"device": "cuda"}
        n = batch * ids
        self.weight = torch.randn(ROWS + 1, width, **on_gpu) * 0.01  # the last one is spare
        self.squares = torch.zeros(ROWS + 1, **on_gpu)
        self.ids = torch.randint(0, ROWS, (n,), **on_gpu)
        self.offsets = torch.arange(batch * slots, **on_gpu) * ids // slots
        self.bag_of = torch.bucketize(torch.arange(n, **on_gpu), self.offsets, right=True) - 1
        self.label = (torch.rand(batch, 1, **on_gpu) < 0.2).float()
        sizes = [slots * width, *hidden, 1]
        layers: list[Any] = []
        for one, other in pairwise(sizes):
            layers += [torch.nn.Linear(one, other), torch.nn.ReLU()]
        self.mlp = torch.nn.Sequential(*layers[:-1]).cuda()
        self.adam = torch.optim.Adam(self.mlp.parameters(), lr=1e-3, fused=True, capturable=True)
        self.batch = batch

    def run(self) -> None:
        self.adam.zero_grad(set_to_none=False)
        pooled = torch.nn.functional.embedding_bag(self.ids, self.weight, self.offsets, mode="sum")
        pooled.requires_grad_()
        logits = self.mlp(pooled.reshape(self.batch, -1))
        torch.nn.functional.binary_cross_entropy_with_logits(logits, self.label).backward()
        self.adam.step()
        self.push(pooled.grad)

    def push(self, grad: Any) -> None:
        """Row-wise AdaGrad. No shape depends on the ids, so a graph can replay it."""
        ordered, order = torch.sort(self.ids)
        begins = torch.ones_like(ordered, dtype=torch.bool)
        begins[1:] = ordered[1:] != ordered[:-1]
        place = torch.cumsum(begins, 0) - 1
        rows = torch.full_like(ordered, ROWS).scatter_(0, place, ordered)
        summed = torch.zeros(len(ordered), self.weight.shape[1], device="cuda")
        summed.index_add_(0, place, grad[self.bag_of[order]])
        self.squares.index_add_(0, rows, summed.square().mean(1))
        rate = 0.05 / (self.squares[rows].sqrt() + 1e-8)
        self.weight.index_add_(0, rows, summed * -rate[:, None])


def samples_per_s(batch: int, run: Callable[[], None]) -> float:
    for _ in range(WARM):
        run()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(STEPS):
        run()
    torch.cuda.synchronize()
    return batch * STEPS / (time.perf_counter() - begun)


def graph_of(step: Step) -> Callable[[], None]:
    """The step as a graph, captured after it has run in another stream."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step.run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.run()
    return graph.replay  # type: ignore[no-any-return]


def measured(settings: dict[str, Any]) -> dict[str, dict[str, float]]:
    torch.backends.cuda.matmul.allow_tf32 = False
    found = {}
    for batch in settings.pop("batches"):
        step = Step(batch, **settings)
        found[str(batch)] = {"eager": samples_per_s(batch, step.run)}
        found[str(batch)]["graph"] = samples_per_s(batch, graph_of(step))
    return found


if __name__ == "__main__":
    print(json.dumps(measured(json.loads(sys.argv[1]))))
