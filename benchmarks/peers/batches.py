"""Batches of row ids as in CTR training: each slot draws from its own share of the rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]


@dataclass(frozen=True)
class Setting:
    """B instances of S slots with 1 .. most ids each, over `rows` rows, Zipf within a slot."""

    name: str
    instances: int
    slots: int
    most: int
    rows: int
    zipf: float

    @property
    def segments(self) -> int:
        return self.instances * self.slots

    @property
    def rows_per_slot(self) -> int:
        return self.rows // self.slots


@dataclass(frozen=True)
class Batch:
    """Segment = instance * S + slot. N = ids, U = unique rows."""

    ids: Ids  # (N) in segment order
    offsets: Ids  # (segments + 1)
    unique: Ids  # (U) ascending
    # The same for a library with one table per slot: ordered by slot, with ids within the slot.
    slot_ids: Ids  # (N)
    slot_offsets: Ids  # (segments + 1)


def draw(setting: Setting, count: int, seed: int) -> Iterator[Batch]:
    """Draws `count` different batches."""
    rng = np.random.default_rng([seed, setting.slots])
    per_slot = setting.rows_per_slot
    weights = np.arange(1, per_slot + 1, dtype=np.float64) ** -setting.zipf
    cumulative = np.cumsum(weights) / weights.sum()
    # Frequent rows are at random places, because row ids are in the order of hashes.
    anywhere = rng.permutation(setting.rows).astype(np.int32)
    in_slot = rng.permutation(per_slot).astype(np.int32)
    for _ in range(count):
        counts = rng.integers(1, setting.most + 1, setting.segments)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        slots = np.repeat(np.arange(setting.segments) % setting.slots, counts)
        ranks = np.searchsorted(cumulative, rng.random(len(slots)))
        ids = anywhere[slots * per_slot + ranks]
        by_slot = np.argsort(slots, kind="stable")
        slot_counts = counts.reshape(-1, setting.slots).T.reshape(-1)
        yield Batch(
            ids,
            offsets,
            np.unique(ids),
            in_slot[ranks][by_slot],
            np.concatenate([[0], np.cumsum(slot_counts)]).astype(np.int32),
        )


def save(folder: Path, setting: Setting, count: int, seed: int) -> dict[str, float]:
    """Writes batches for `load` and returns their mean size."""
    sizes = []
    for number, batch in enumerate(draw(setting, count, seed)):
        np.savez(_path(folder, setting.name, number), **vars(batch))
        sizes.append((len(batch.ids), len(batch.unique)))
    ids, unique = np.mean(sizes, axis=0)
    return {"ids": float(ids), "unique": float(unique)}


def load(folder: Path, name: str, count: int) -> list[Batch]:
    return [Batch(**_arrays(_path(folder, name, number))) for number in range(count)]


def _path(folder: Path, name: str, number: int) -> Path:
    return folder / f"{name}-{number}.npz"


def _arrays(path: Path) -> dict[str, Any]:
    with np.load(path) as arrays:
        return dict(arrays)
