"""One rank of Paddle's DataParallel over Gloo, for ranks.py. Each rank has a replica of the whole
embedding and gathers the sparse gradients of all ranks.

The network is that of ranks.py. Batches are made beforehand and are in memory.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import paddle

SLOTS, DENSE, DIM = 26, 13, 16
BATCHES, WARM_STEPS = 8, 5


class Network(paddle.nn.Layer):  # type: ignore[misc]  # Paddle has no types
    def __init__(self, keys: int) -> None:
        super().__init__()
        self.embedding = paddle.nn.Embedding(keys, 1 + DIM, sparse=True)
        sizes = [SLOTS * (1 + DIM) + DENSE, 400, 400, 400]
        layers: list[Any] = []
        for before, size in itertools.pairwise(sizes):
            layers += [paddle.nn.Linear(before, size), paddle.nn.ReLU()]
        self.layers = paddle.nn.Sequential(*layers, paddle.nn.Linear(400, 1))

    def forward(self, ids: Any, values: Any) -> Any:
        rows = paddle.reshape(self.embedding(ids), [ids.shape[0], -1])
        return self.layers(paddle.concat([rows, values], axis=1))


def main() -> None:
    parser = argparse.ArgumentParser(description="one rank of Paddle's DataParallel")
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    paddle.set_device("cpu")
    paddle.distributed.init_parallel_env()
    rank, size = paddle.distributed.get_rank(), paddle.distributed.get_world_size()
    paddle.seed(1)
    network = Network(options.keys)
    model = paddle.DataParallel(network) if size > 1 else network
    optimizer = paddle.optimizer.Adam(
        learning_rate=1e-3, parameters=model.parameters(), lazy_mode=True
    )
    rng = np.random.default_rng(rank)
    share = options.keys // SLOTS
    batches = []
    for _ in range(BATCHES):
        ids = (rng.zipf(1.05, (options.batch, SLOTS)) % share) * SLOTS + np.arange(SLOTS)
        values = rng.normal(size=(options.batch, DENSE)).astype(np.float32)
        labels = (rng.random((options.batch, 1)) < 0.25).astype(np.float32)
        batches.append([paddle.to_tensor(array) for array in (ids, values, labels)])
    begin = 0.0
    for step in range(WARM_STEPS + options.steps):
        if step == WARM_STEPS:
            begin = time.perf_counter()
        ids, values, labels = batches[step % BATCHES]
        loss = paddle.nn.functional.binary_cross_entropy_with_logits(model(ids, values), labels)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        float(loss)
    seconds = time.perf_counter() - begin
    if rank == 0:
        figure = {"samples_per_s": size * options.steps * options.batch / seconds}
        options.out.write_text(json.dumps(figure) + "\n")


if __name__ == "__main__":
    main()
