"""`core.complete_rows`: what a given row takes from the row of the table, or from a new row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox._native import core
from paddlebox.store.table import Table

PARTS = core.given_parts
KEY = core.keys_of(np.array([7], np.uint64))


@pytest.fixture
def complete(tmp_path: Path) -> Any:
    """Completes one row of an ftrl table of D = 2: 7 + 2 + 2 + 4 words."""
    rule = {"rule": "ftrl", "learning_rate": 0.5}
    config = {"embedx_dim": 2, "embed": rule, "embedx": {**rule, "initial_range": 0.25}}
    with Table(config, folder=tmp_path / "store", mem_budget_bytes=1 << 20) as table:

        def run(
            given: dict[int, float], parts: list[str], existing: Any = None, has: int = 1
        ) -> np.ndarray:
            rows = np.zeros((1, 15), np.float32)
            for word, value in given.items():
                rows[0, word] = value
            rows.view(np.uint32)[0, 0] = 3 | has << 16  # slot 3
            bits = np.array([sum(PARTS[name] for name in parts)], np.uint32)
            found, old = np.empty(0, np.uint8), np.empty((0, 15), np.float32)
            if existing is not None:
                found, old = np.ones(1, np.uint8), existing
            core.complete_rows(table.first.native, KEY, bits, found, old, rows, 20000, 4)
            return rows

        yield run


def test_what_is_not_given_is_that_of_a_new_row(complete: Any) -> None:
    row = complete({1: 5.0, 2: 2.0}, ["counts"])[0]
    assert row[1:3].tolist() == [5, 2]
    assert row.view(np.uint32)[[0, 4, 5]].tolist() == [3, 20000, 4]  # no embedx
    assert not row[9:].any()


def test_a_state_that_is_not_given_is_that_of_new_weights_with_these_values(complete: Any) -> None:
    """z of FTRL determines the weight, so a z of another weight would undo the import."""
    new = complete({6: 1.5, 9: 1.0, 10: -1.0}, ["embed_w", "embedx_w"])
    assert new[0, [6, 9, 10]].tolist() == [1.5, 1.0, -1.0]
    again = complete({6: 0.5, 9: 2.0, 10: 4.0}, ["embed_w", "embedx_w"], new)
    fresh = complete({6: 0.5, 9: 2.0, 10: 4.0}, ["embed_w", "embedx_w"])
    assert again.tobytes() == fresh.tobytes()
    assert again[0, 7] != new[0, 7]  # z of embed_w
    kept = complete({1: 9.0}, ["counts"], again)
    assert kept[0, 6:].tobytes() == again[0, 6:].tobytes()


def test_a_row_that_is_given_without_an_embedx_loses_it(complete: Any) -> None:
    old = complete({9: 1.0, 10: -1.0}, ["embedx_w"])
    assert old.view(np.uint32)[0, 0] == 3 | 1 << 16
    new = complete({}, ["embedx_w"], old, has=0)
    assert new.view(np.uint32)[0, 0] == 3
    assert not new[0, 9:].any()
    assert new[0, :9].view(np.uint32)[1:].tolist() == old[0, :9].view(np.uint32)[1:].tolist()
