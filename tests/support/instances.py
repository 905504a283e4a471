"""Generated instances of one label, one dense slot and two sparse ones."""

from __future__ import annotations

from functools import cache

import numpy as np

from tests.support.configs import make_slots

SLOTS = make_slots(click="label", age={"type": "dense", "dim": 2}, user="sparse", words="sparse")


def multislot_lines(rows: int, seed: int = 1, vocabulary: int = 500) -> list[str]:
    """`click age user words` lines: one user, one to three words."""
    return list(_lines(rows, seed, vocabulary))


@cache
def _lines(rows: int, seed: int, vocabulary: int) -> tuple[str, ...]:
    random = np.random.default_rng(seed)
    lines = []
    for _ in range(rows):
        words = random.integers(1, vocabulary, random.integers(1, 4))
        user = int(random.integers(1, vocabulary)) + (1 << 63)
        lines.append(
            f"1 {random.integers(0, 2)} 2 {random.random():.4f} {random.random():.4f} 1 {user} "
            f"{len(words)} {' '.join(map(str, words))}"
        )
    return tuple(lines)
