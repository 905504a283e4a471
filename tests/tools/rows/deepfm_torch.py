"""A DeepFM in PyTorch, trained on ids that decide the click: what another system would have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

SLOTS, IDS, DIM, HIDDEN = ("user", "item", "hour"), (400, 200, 24), 8, 16


def write_data(path: Path, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A CSV file. Returns its ids (rows, 3), dense features (rows, 1) and labels (rows)."""
    rng, of_ids = np.random.default_rng(seed), np.random.default_rng(0)
    weights = [of_ids.normal(0, 1, count + 1) for count in IDS]
    ids = np.stack([rng.integers(1, count + 1, rows) for count in IDS], axis=1)
    dense = rng.random((rows, 1)).astype(np.float32).round(3)
    logit = sum(weights[slot][ids[:, slot]] for slot in range(3)) + dense[:, 0] - 1
    labels = (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.float32)
    lines = [
        f"{int(label)},{x[0]:.3f},{','.join(map(str, line))}"
        for label, x, line in zip(labels, dense, ids, strict=True)
    ]
    path.write_text("\n".join(["click,x,user,item,hour", *lines]) + "\n")
    return ids, dense, labels


WIDTH = 12  # of a table of FBGEMM: w, v and unused columns, because widths are multiples of 4


def _fbgemm_tables() -> Any:
    import torch
    from fbgemm_gpu import split_table_batched_embeddings_ops_training as training
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation

    where = EmbeddingLocation.HOST, training.ComputeDevice.CPU
    tables = training.SplitTableBatchedEmbeddingBagsCodegen(
        [(count + 1, WIDTH, *where) for count in IDS], learning_rate=0.05
    )
    for weights in tables.split_embedding_weights():
        torch.nn.init.normal_(weights, 0, 0.01)
    return tables


def make_model(*, fbgemm: bool = False) -> Any:
    """The network of paddlebox/models/deepfm.py with use_cvm: false. Row i of a table is id i.
    fbgemm: with split tables of FBGEMM, which train by an optimizer of their own."""
    import torch

    class DeepFM(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            one_each = () if fbgemm else IDS
            self.tables = _fbgemm_tables() if fbgemm else None
            self.w = torch.nn.ModuleList(torch.nn.Embedding(n + 1, 1) for n in one_each)
            self.v = torch.nn.ModuleList(torch.nn.Embedding(n + 1, DIM) for n in one_each)
            width = len(IDS) * (1 + DIM) + 1
            self.mlp = torch.nn.Sequential(
                torch.nn.Linear(width, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 1)
            )
            self.linear = torch.nn.Linear(1, 1)
            for table in [*self.w, *self.v]:
                torch.nn.init.normal_(table.weight, 0, 0.01)

        def vectors(self, ids: Any) -> tuple[Any, Any]:
            """(B, 3, 1) and (B, 3, DIM)."""
            if self.tables is not None:
                by_slot = ids.T.contiguous().flatten()
                pooled = self.tables(by_slot, torch.arange(len(by_slot) + 1))
                whole = pooled.reshape(len(ids), len(IDS), WIDTH)
                return whole[:, :, :1], whole[:, :, 1 : 1 + DIM]
            w = torch.stack([t(ids[:, s]) for s, t in enumerate(self.w)], 1)
            return w, torch.stack([t(ids[:, s]) for s, t in enumerate(self.v)], 1)

        def forward(self, ids: Any, dense: Any) -> Any:
            w, v = self.vectors(ids)
            first = w.sum(1) + self.linear(dense)
            second = 0.5 * (v.sum(1) ** 2 - (v**2).sum(1)).sum(1, keepdim=True)
            deep = self.mlp(torch.cat([torch.cat([w, v], 2).flatten(1), dense], 1))
            return (first + second + deep)[:, 0]

    torch.manual_seed(1)
    return DeepFM()


def fit(model: Any, ids: np.ndarray, dense: np.ndarray, labels: np.ndarray) -> None:
    """One epoch."""
    import torch

    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    loss = torch.nn.BCEWithLogitsLoss()
    for begin in range(0, len(labels), 128):
        rows = slice(begin, begin + 128)
        optimizer.zero_grad()
        of_batch = model(torch.from_numpy(ids[rows]), torch.from_numpy(dense[rows]))
        loss(of_batch, torch.from_numpy(labels[rows])).backward()
        optimizer.step()


def predict(model: Any, ids: np.ndarray, dense: np.ndarray) -> np.ndarray:
    import torch

    with torch.no_grad():
        logits = model(torch.from_numpy(ids), torch.from_numpy(dense))
        return np.asarray(torch.sigmoid(logits.double()).numpy())
