"""How many bytes would schemes of exchange send between two nodes? On paper, for ranks.py.

Nothing is trained. The script counts the rows of the feasigns of each step, on 2 nodes of 2 ranks
with random owners. Criteo: the lines and steps of `ranks.py modes`. Zipf: the 26 slots of `ranks.py
rates`, 2048 instances per rank. It counts transfers between nodes, each of a row or of its
gradient:

  one level    each rank asks the owner for the row and returns its gradient
  two levels   each node does so once for its ranks
  hot          the part of two levels for rows that both nodes touch in 95 % of the steps
  replicas     both nodes have a copy of the row, and exchange gradients in each step that
               touches it (an all-reduce). Used for rows where it sends less than two levels,
               which an oracle knows
  copies       a node keeps a row that it was sent, with the state of the optimizer, and applies
               its own gradients to it. After the other node changed the row, it asks again
  moves        a row is, with its state, where it was touched last. A node that lacks changes of
               the other is sent the row. At the end of the pass the row goes home. No scheme
               with exact steps sends fewer bytes of rows

A row without an embedx (score below --threshold) is 12 bytes, another row 4 (3 + D). A state
adds 12 bytes and an id 1.6. The bytes of each scheme are relative to one level with whole rows
and ids of 4 bytes.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import numpy as np

from peers.criteo import criteo_split

NODES, LOCAL = 2, 2
ID_BYTES = 1.6  # mean size of a varint, measured
SCHEMES = ("one level", "two levels", "hot", "replicas", "copies", "moves")


def feasigns_of_criteo() -> tuple[np.ndarray, np.ndarray]:
    """Feasigns (n, 39), 0 where a column is empty, and labels (n)."""
    train, _ = criteo_split()
    rows, labels = [], []
    for line in train:
        columns = line.rstrip("\n").split("\t")
        labels.append(int(columns[0]))
        row = []
        for column, token in enumerate(columns[1:], 1):
            if column <= 13 and token and int(token) > 2:
                token = str(math.floor(math.log(int(token)) ** 2))
            row.append(zlib.crc32(token.encode()) * 64 + column if token else 0)
        rows.append(row)
    return np.array(rows, np.int64), np.array(labels)


def zipf(instances: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    ids = (rng.zipf(1.05, (instances, 26)) % (2_000_000 // 26)) * 26 + np.arange(26) + 1
    return ids, (rng.random(instances) < 0.25).astype(np.int64)


def transfers(
    ids: np.ndarray, labels: np.ndarray, batch: int, threshold: float
) -> dict[str, np.ndarray]:
    """The transfers of each scheme as (4): rows or gradients with embedx, those without embedx
    ("bare"), rows with embedx and a state, bare rows with a state.

    Args:
        ids, labels: as from `feasigns_of_criteo`.
        batch: batch size of a rank.
        threshold: a row gets an embedx at this score; a click adds 1, another show 0.1.
    """
    feasigns, places = np.unique(ids, return_inverse=True)
    places = places.reshape(ids.shape)
    ranks, count = NODES * LOCAL, len(feasigns)
    home = np.random.default_rng(7).integers(0, ranks, count) // LOCAL
    score, step_size = np.zeros(count), batch * ranks
    found = {scheme: np.zeros(4) for scheme in SCHEMES}
    steps = len(ids) // step_size
    touched_by = np.zeros((steps, NODES, count), np.bool_)
    bare_at = np.zeros((steps, count), np.bool_)
    for step in range(steps):
        block = places[step * step_size : (step + 1) * step_size]
        of_labels = labels[step * step_size : (step + 1) * step_size]
        bare_at[step] = score < threshold
        for rank in range(ranks):
            rows = np.unique(block[rank::ranks])
            rows = rows[feasigns[rows] != 0]
            touched_by[step, rank // LOCAL, rows] = True
            far = home[rows] != rank // LOCAL
            _add(found["one level"], 0, bare_at[step, rows[far]], 2)
        np.add.at(score, block.ravel(), np.repeat(np.where(of_labels, 1.0, 0.1), ids.shape[1]))
    every = np.arange(count)
    far_touch, own_touch = touched_by[:, 1 - home, every], touched_by[:, home, every]
    two = 2 * far_touch.sum(axis=0)
    both = two // 2 + own_touch.sum(axis=0)
    hot = (far_touch & own_touch).mean(axis=0) >= 0.95
    fresh = np.ones(count, np.bool_)  # copies: the home has changes that the other node lacks
    lacks = np.stack([home == 1, home == 0])  # moves: rows of which each node lacks changes
    for step in range(steps):
        bare, far, own = bare_at[step], far_touch[step], own_touch[step]
        _add(found["two levels"], 0, bare[far], 2)
        _add(found["hot"], 0, bare[far & hot], 2)
        owned = two <= both
        _add(found["replicas"], 0, bare[far & owned], 2)
        _add(found["replicas"], 0, np.concatenate([bare[far & ~owned], bare[own & ~owned]]), 1)
        _add(found["copies"], 0, bare[far], 1)
        _add(found["copies"], 2, bare[far & fresh], 1)
        fresh = np.where(far, own, fresh | own)
        now = touched_by[step]
        for node in range(NODES):
            _add(found["moves"], 2, bare[now[node] & lacks[node]], 1)
        lacks = np.stack(
            [np.where(now[n], now[1 - n], lacks[n] | now[1 - n]) for n in range(NODES)]
        )
    _add(found["moves"], 2, score[lacks[home, every]] < threshold, 1)
    return found


def _add(counts: np.ndarray, at: int, bare: np.ndarray, times: int) -> None:
    counts[at] += times * np.count_nonzero(~bare)
    counts[at + 1] += times * np.count_nonzero(bare)


def in_bytes(counts: np.ndarray, dim: int, int8: bool) -> float:
    """Bytes of the transfers. int8 does not apply to rows with a state, which must stay exact."""
    whole = 14 + dim if int8 else 4 * (3 + dim)
    return float(counts @ np.array([whole + ID_BYTES / 2, 12 + ID_BYTES / 2, 24 + 4 * dim, 24]))


def shares(dims: Sequence[int], threshold: float) -> dict[str, dict[str, float]]:
    """The bytes of each scheme, of those of one level with whole rows, for each data set, D and
    format."""
    figures: dict[str, dict[str, float]] = {}
    data = {"zipf": (zipf(2048 * 4 * 20), 2048)}
    rows = feasigns_of_criteo()
    data = {"criteo": (rows, 128), "criteo, 2048 a rank": (rows, 2048), **data}
    for name, ((ids, labels), batch) in data.items():
        counts = transfers(ids, labels, batch, threshold)
        print(name)
        for dim in dims:
            base = counts["one level"][:2].sum() * (4 * (3 + dim) + 2)
            for int8 in (False, True):
                found = {scheme: in_bytes(counts[scheme], dim, int8) / base for scheme in SCHEMES}
                label = f"{name}, D {dim}, {'int8' if int8 else 'float32'}"
                figures[label] = found
                print(f"  D {dim:2} {'int8' if int8 else 'float32':8}", end="")
                print("".join(f"  {scheme} {value:.3f}" for scheme, value in found.items()))
    return figures
