"""Two ranks of TorchRec save a model whose table is on one of them, and the same gathered, into the
folder that is named, with the table's weights."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import distributed, multiprocessing
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology

CPU = torch.device("cpu")


class Model(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
    def __init__(self) -> None:
        super().__init__()
        table = EmbeddingBagConfig(
            name="users", embedding_dim=4, num_embeddings=5, feature_names=["user"]
        )
        self.sparse = EmbeddingBagCollection(tables=[table], device=CPU)


def save(rank: int, folder: Path) -> None:
    store = f"file://{folder / 'store'}"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    whole_model = Model()
    planner = EmbeddingShardingPlanner(
        topology=Topology(world_size=2, compute_device="cpu"),
        constraints={"users": ParameterConstraints(sharding_types=["table_wise"])},
    )
    sharders = [EmbeddingBagCollectionSharder()]
    plan = planner.plan(whole_model, sharders)
    model = DistributedModelParallel(whole_model, device=CPU, plan=plan, sharders=sharders)
    gathered = {}
    for name, value in model.state_dict().items():
        if isinstance(value, ShardedTensor):
            for shard in value.local_shards():  # one, on one of the ranks
                np.save(folder / "weights.npy", shard.tensor.numpy())
            whole = torch.empty(value.size()) if rank == 0 else None
            value.gather(0, out=whole)
            value = whole
        gathered[name] = value
    if rank == 0:
        torch.save(model.state_dict(), folder / "sharded.pt")
        torch.save(gathered, folder / "gathered.pt")
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    multiprocessing.spawn(save, (Path(sys.argv[1]),), nprocs=2)
