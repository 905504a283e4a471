"""StagedPass: a pass whose rows were brought up into a pass table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from paddlebox import _native


@dataclass(frozen=True)
class StagedPass:
    """K = keys it was staged with."""

    stamp: int  # identifies the pass; batches carry it
    rows: int
    row_of_key: np.ndarray  # (K) int32, -1 if the key has no row (evaluation)
    hits: Mapping[str, int]  # rows found in "hbm", "mem", "ssd", and created as "new"
    train: bool = True
    refused: int = 0  # keys that get no row yet: see TableSet.count_keys

    @property
    def own(self) -> StagedPass:
        """The pass in the table of this rank's own range."""
        return self


def sorted_unique_keys(feasigns: np.ndarray) -> np.ndarray:
    """(K) uint64 keys, ascending, of feasigns (any shape, uint64 or int64 bits) without
    padding."""
    flat = np.ascontiguousarray(feasigns).reshape(-1)
    if flat.dtype not in (np.dtype(np.int64), np.dtype(np.uint64)):
        raise ValueError(f"feasigns have dtype {flat.dtype}, expected uint64 or int64")
    return np.asarray(_native.core.sorted_unique_keys(flat.view(np.uint64)))
