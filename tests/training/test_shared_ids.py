"""The warning of a model whose history and item look alike and do not share their ids."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from paddlebox.config import Config
from paddlebox.config.check import validate
from paddlebox.training.opening import warn_of_unshared
from tests.conftest import tool
from tests.support.configs import config_fields, make_slots, write_config, write_slots

WARNING = (
    "slots.yaml: the model compares seen with item, but with data.key_space per_slot the same id "
    "is a different feature in each; if both slots hold the same ids, give slot seen the line "
    "`shares: item`"
)


def config(**data: Any) -> Config:
    fields = config_fields(
        table={"embedx_dim": 4},
        data={"key_space": "per_slot", **data},
        model={"type": "din", "history": {"seen": "item"}},
        extra_tables={"wide": {"embedx_dim": 4}},
    )
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
    slots = make_slots(click="label", user="sparse", seen={"max_length": 3, **seen}, item=item)
    with caplog.at_level(logging.WARNING, "paddlebox"):
        warn_of_unshared(config(**data), slots)
    assert [record.message for record in caplog.records] == [WARNING] * warns


def test_training_warns_of_it(tmp_path: Path) -> None:
    """One line, whatever else the start says."""
    write_slots(tmp_path, click="label", item="sparse", seen={"max_length": 3})
    (tmp_path / "a.txt").write_text("1 1 1 5 1 5\n1 0 1 6 2 5 6\n" * 20)
    files = [f"{tmp_path}/a.txt"]
    config = write_config(
        tmp_path,
        data={"format": "multislot", "train_files": files, "key_space": "per_slot"},
        model={"type": "din", "history": {"seen": "item"}, "hidden": [8]},
    )
    done = tool("train", "-c", config, "--run-dir", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    said = [line for line in (done.stdout + done.stderr).splitlines() if "shares: item" in line]
    assert len(said) == 1
