"""The work of all stores: keys, the content of their rows, and the rows that are read.

Letters: N = live rows, n = keys in a batch. The bytes of a row follow from its key and the pass
that wrote it last, so every store can be checked without keeping the rows anywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

KEY_BYTES = 8
ROW_BYTES = 80
RECENT_PASSES = 3
RECENT_SHARE = 0.8
_COLUMNS = np.arange(1, ROW_BYTES // 8 + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C14) + (
    np.uint64(1)
)


class Population:
    """N keys, ascending, uniform over 64 bits like mixed feasigns."""

    def __init__(self, rows: int, seed: int) -> None:
        draws = np.random.default_rng(seed).integers(1, 2**64, rows + 64, dtype=np.uint64)
        self.keys: Words = np.unique(draws)[:rows]
        self.seed = seed

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def packed_bytes(self) -> int:
        return len(self) * (KEY_BYTES + ROW_BYTES)

    def rng(self, *name: int) -> np.random.Generator:
        """A generator for each series, pass or batch, so that every store gets the same draws."""
        return np.random.default_rng((self.seed, *name))

    def absent(self, rng: np.random.Generator, count: int) -> Words:
        """About `count` keys, ascending, that no store holds."""
        keys = np.unique(rng.integers(1, 2**64, count, dtype=np.uint64))
        at = np.minimum(np.searchsorted(self.keys, keys), len(self) - 1)
        return np.asarray(keys[self.keys[at] != keys])


def row_bytes_of(keys: Words, writers: npt.NDArray[np.uint16]) -> Bytes:
    """The rows (n, ROW_BYTES) of keys (n) as written by the passes `writers` (n)."""
    base = keys ^ (writers.astype(np.uint64) << np.uint64(32))
    words: Words = base[:, None] * _COLUMNS[None, :]
    return words.view(np.uint8)


def uniform(population: Population, rng: np.random.Generator, share: float) -> Indices:
    """About share * N indices, drawn uniformly, ascending."""
    size = len(population)
    chosen = np.zeros(size, np.bool_)
    # Draws with repetition; the number of draws is such that the unique ones have the share.
    chosen[rng.integers(0, size, round(-size * math.log1p(-share)))] = True
    return np.flatnonzero(chosen)


@dataclass
class Life:
    """The expected content of a store after its passes."""

    population: Population
    writers: npt.NDArray[np.uint16] = field(init=False)  # (N) the pass that wrote each row last
    recent: list[Indices] = field(default_factory=list)  # rows of the last passes, newest last
    passes: int = 0

    def __post_init__(self) -> None:
        self.writers = np.zeros(len(self.population), np.uint16)

    def next_pass(
        self, rng: np.random.Generator, share: float, recency: bool
    ) -> tuple[Words, Bytes]:
        """Starts the next pass. Returns the keys (n) and rows (n, ROW_BYTES) that it writes."""
        chosen = self.draw(rng, share, recency)
        self.passes += 1
        self.writers[chosen] = self.passes
        self.recent = [*self.recent, chosen][-RECENT_PASSES:]
        keys = self.population.keys[chosen]
        return keys, row_bytes_of(keys, self.writers[chosen])

    def draw(self, rng: np.random.Generator, share: float, recency: bool) -> Indices:
        """Draws keys. With recency, RECENT_SHARE of them come from the last passes, or as many as
        these have."""
        if not recency or not self.recent:
            return uniform(self.population, rng, share)
        wanted = round(share * len(self.population))
        pool = np.unique(np.concatenate(self.recent))
        near = rng.choice(pool, min(round(RECENT_SHARE * wanted), len(pool)), replace=False)
        far = uniform(self.population, rng, max(wanted - len(near), 1) / len(self.population))
        return np.union1d(near, far)

    def rows(self, chosen: Indices) -> Bytes:
        return row_bytes_of(self.population.keys[chosen], self.writers[chosen])
