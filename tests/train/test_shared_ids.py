"""The warning of a model whose history and item look alike and do not share their ids."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from paddlebox.config import Config, Slots
from paddlebox.config.check import validate
from paddlebox.train.opening import warn_of_unshared
from tests.conftest import tool

WARNING = (
    "slots.yaml: the model compares seen with item, but with data.key_space per_slot the same id "
    "is a different feature in each; if both slots hold the same ids, give slot seen the line "
    "`shares: item`"
)


def config(**data: Any) -> Config:
    fields = {
        "name": "a",
        "table": {"embedx_dim": 4},
        "hbm": {"budget_bytes": 1 << 20},
        "mem": {"budget_bytes": 1 << 20},
        "data": {
            "format": "multislot",
            "slots": "slots.yaml",
            "train_files": ["a"],
            "key_space": "per_slot",
            **data,
        },
        "model": {"type": "din", "history": {"seen": "item"}},
        "extra_tables": {"wide": {"embedx_dim": 4}},
    }
    return validate(Config, fields, "test")


@pytest.mark.parametrize(
    ("seen", "item", "data", "warns"),
    [
        ({}, {}, {}, True),
        ({"shares": "user"}, {}, {}, True),
        ({"shares": "item"}, {}, {}, False),
        ({}, {"shares": "seen"}, {}, False),
        ({"shares": "user"}, {"shares": "user"}, {}, False),
        ({"table": "wide"}, {}, {}, False),  # they cannot share
        ({}, {}, {"key_space": "shared"}, False),
    ],
)
def test_a_history_that_does_not_share_its_items_ids_is_warned_of_once(
    seen: dict[str, Any], item: dict[str, Any], data: dict[str, Any], warns: bool, caplog: Any
) -> None:
    slots = Slots.model_validate(
        {
            "slots": [
                {"name": "click", "type": "label"},
                {"name": "user", "type": "sparse"},
                {"name": "seen", "type": "sparse", "max_length": 3, **seen},
                {"name": "item", "type": "sparse", **item},
            ]
        },
        strict=False,
    )
    with caplog.at_level(logging.WARNING, "paddlebox"):
        warn_of_unshared(config(**data), slots)
    assert [record.message for record in caplog.records] == [WARNING] * warns


def test_training_says_it(tmp_path: Path) -> None:
    """One line, whatever else the start says."""
    (tmp_path / "slots.yaml").write_text(
        "slots:\n  - {name: click, type: label}\n  - {name: item, type: sparse}\n"
        "  - {name: seen, type: sparse, max_length: 3}\n"
    )
    (tmp_path / "a.txt").write_text("1 1 1 5 1 5\n1 0 1 6 2 5 6\n" * 20)
    (tmp_path / "c.yaml").write_text(
        "name: a\ntable: {embedx_dim: 4}\nmem: {budget_bytes: 1MiB}\nhbm: {budget_bytes: 4MiB}\n"
        f"data: {{format: multislot, slots: {tmp_path}/slots.yaml,\n"
        f"  train_files: [{tmp_path}/a.txt], key_space: per_slot}}\n"
        "model: {type: din, history: {seen: item}, hidden: [8]}\n"
    )
    done = tool("train", "-c", tmp_path / "c.yaml", "--run-dir", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    said = [line for line in (done.stdout + done.stderr).splitlines() if "shares: item" in line]
    assert len(said) == 1
