"""Small generated files and a feeder over a table in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.config import Slots

SLOTS = Slots.model_validate(
    {
        "slots": [
            {"name": "click", "type": "label"},
            {"name": "age", "type": "dense", "dim": 2},
            {"name": "user", "type": "sparse"},
            {"name": "words", "type": "sparse"},
        ]
    }
)


def multislot_lines(rows: int, seed: int = 1, vocabulary: int = 500) -> list[str]:
    """`click age user words` lines: one user, one to three words."""
    random = np.random.default_rng(seed)
    lines = []
    for _ in range(rows):
        words = random.integers(1, vocabulary, random.integers(1, 4))
        user = int(random.integers(1, vocabulary)) + (1 << 63)
        lines.append(
            f"1 {random.integers(0, 2)} 2 {random.random():.4f} {random.random():.4f} 1 {user} "
            f"{len(words)} {' '.join(map(str, words))}"
        )
    return lines


@pytest.fixture
def write_lines(tmp_path: Path) -> Callable[[str, Sequence[str]], str]:
    def write(name: str, lines: Sequence[str]) -> str:
        path = tmp_path / name
        path.write_text("".join(f"{line}\n" for line in lines))
        return str(path)

    return write


@pytest.fixture
def open_dataset(open_table: Callable[..., Any]) -> Any:
    """open_dataset(table arguments as a dict, **init arguments) -> dataset; closed at the test's
    end."""
    from paddlebox.data.dataset import InMemoryDataset

    opened = []

    def make(table: dict[str, Any] | None = None, **init: Any) -> InMemoryDataset:
        dataset = InMemoryDataset(open_table(**(table or {})), seed=1)
        dataset.init(**{"slots": SLOTS, "batch_size": 32, **init})
        opened.append(dataset)
        return dataset

    yield make
    for dataset in opened:
        dataset.close()
