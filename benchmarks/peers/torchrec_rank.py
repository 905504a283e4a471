"""One rank of torchrec, for ranks.py: its tables are sharded over the ranks, and its MLP uses
PyTorch's DistributedDataParallel, all over Gloo.

    python -m torch.distributed.run --standalone --nproc-per-node R torchrec_rank.py ...

Each slot has a table, which is whole on one rank, because its planner has no row-wise sharding on a
CPU. The rule of the rows, row-wise Adagrad, runs inside the backward pass; it is the cheapest that
torchrec has. Batches are made beforehand and are in memory. The MLP and its Adam run as
end_to_end.py runs them at their best (torch_mlp.py): all ranks try the ways and take the fastest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from pyarrow import csv
from torch import distributed as dist
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.types import ParameterConstraints

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from peers import torch_mlp

SLOTS, DENSE, DIM = 26, 13, 16
BATCHES, WARM_STEPS = 8, 5
NAMES = [f"s{i}" for i in range(SLOTS)]


class Network(torch.nn.Module):  # type: ignore[misc]  # not installed where types are checked
    def __init__(self, rows_per_slot: int) -> None:
        super().__init__()
        tables = [
            EmbeddingBagConfig(
                name=f"t{i}", embedding_dim=DIM, num_embeddings=rows_per_slot, feature_names=[name]
            )
            for i, name in enumerate(NAMES)
        ]
        self.rows = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
        self.mlp = torch_mlp.Mlp([SLOTS * DIM + DENSE, 400, 400, 400, 1])

    def forward(self, ids: KeyedJaggedTensor, values: torch.Tensor, labels: torch.Tensor) -> Any:
        return self.mlp(self.rows(ids).values(), values, labels)


def sharded(network: Network) -> Any:
    fused = {"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": 0.05}
    sharders = [EmbeddingBagCollectionSharder(fused_params=fused)]
    size = dist.get_world_size()
    planner = EmbeddingShardingPlanner(
        topology=Topology(world_size=size, compute_device="cpu", local_world_size=size),
        constraints={
            f"t{i}": ParameterConstraints(sharding_types=["table_wise"]) for i in range(SLOTS)
        },
    )
    plan = planner.collective_plan(network, sharders, dist.group.WORLD)
    return DistributedModelParallel(
        module=network, device=torch.device("cpu"), plan=plan, sharders=sharders
    )


def batch(rng: np.random.Generator, rows: int, rows_per_slot: int) -> tuple[Any, ...]:
    ids = rng.zipf(1.05, (SLOTS, rows)) % rows_per_slot  # ordered by slot
    values = rng.normal(size=(rows, DENSE)).astype(np.float32)
    return tensors(ids, values, (rng.random((rows, 1)) < 0.25).astype(np.float32))


def tensors(ids: np.ndarray, values: np.ndarray, labels: np.ndarray) -> tuple[Any, ...]:
    """ids: (SLOTS, B). values: (B, DENSE). labels: (B, 1)."""
    jagged = KeyedJaggedTensor.from_lengths_sync(
        NAMES, torch.from_numpy(ids.reshape(-1)), torch.ones(ids.size, dtype=torch.int32)
    )
    return jagged, torch.from_numpy(values), torch.from_numpy(labels)


def read(files: Sequence[str], size: int) -> Iterator[tuple[Any, ...]]:
    """Batches of the files of ranks.py: lines of one label, one id for each slot, and the dense
    values, each list behind its length."""
    names = [f"c{number}" for number in range(2 + 2 * SLOTS + 1 + DENSE)]
    types = {name: pyarrow.float32() for name in [names[1], *names[-DENSE:]]}
    types |= {name: pyarrow.int64() for name in names[3 : 2 + 2 * SLOTS : 2]}
    for file in files:
        columns = csv.read_csv(
            file,
            csv.ReadOptions(column_names=names, use_threads=False),
            csv.ParseOptions(delimiter=" "),
            csv.ConvertOptions(column_types=types, include_columns=list(types)),
        )
        label, values, ids = (
            np.stack([columns[name].to_numpy() for name in of])
            for of in ([names[1]], names[-DENSE:], names[3 : 2 + 2 * SLOTS : 2])
        )
        ids = (ids - 1) // SLOTS
        for at in range(0, ids.shape[1] - size + 1, size):
            here = slice(at, at + size)
            own = np.ascontiguousarray
            yield tensors(own(ids[:, here]), own(values[:, here].T), own(label[:, here].T))


def main() -> None:
    parser = argparse.ArgumentParser(description="one rank of torchrec")
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--text", nargs="+", help="files; --steps of them are trained")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    rows_per_slot = options.keys // SLOTS
    network = Network(rows_per_slot)
    mlp = network.mlp
    model = sharded(network)
    dense = [p for name, p in model.named_parameters() if ".mlp." in f".{name}"]
    optimizer = torch_mlp.adam(dense)
    rng = np.random.default_rng(dist.get_rank())
    batches = [batch(rng, options.batch, rows_per_slot) for _ in range(BATCHES)]

    def train(number: int) -> None:
        train_on(batches[number % BATCHES])

    def train_on(batch: tuple[Any, ...]) -> None:
        loss = model(*batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def seconds_of(_: str) -> float:
        seconds = []
        for number in range(BATCHES):
            begin = time.perf_counter()
            train(number)
            seconds.append(time.perf_counter() - begin)
        slowest = torch.tensor(statistics.median(seconds))
        dist.all_reduce(slowest, dist.ReduceOp.MAX)  # so that all ranks take the same way
        return float(slowest)

    way = torch_mlp.use_fastest(mlp, seconds_of)
    for step in range(WARM_STEPS):
        train(step)
    dist.barrier()
    begin = time.perf_counter()
    if options.text:
        own = options.text[dist.get_rank() :: dist.get_world_size()]
        for one in islice(read(own, options.batch), options.steps):
            train_on(one)
    else:
        for step in range(options.steps):
            train(WARM_STEPS + step)
    dist.barrier()
    seconds = time.perf_counter() - begin
    if dist.get_rank() == 0:
        samples = dist.get_world_size() * options.steps * options.batch
        found = {"samples_per_s": samples / seconds, "way": way}
        options.out.write_text(json.dumps(found) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
