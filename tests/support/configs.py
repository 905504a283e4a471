"""Small configs and slots: a test names only what it is about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from paddlebox.config import Config, Slots


def config_fields(**sections: Any) -> dict[str, Any]:
    """A small config with these keys in its sections; None leaves a section out.

    The files that it names need not exist. A test that trains uses `write_config`.
    """
    fields: dict[str, Any] = {
        "name": "run",
        "data": {"format": "csv", "slots": "slots.yaml", "train_files": ["train.csv"]},
        "model": {"type": "dnn", "click_prior": False},
    }
    for name, value in sections.items():
        fields[name] = {**fields.get(name, {}), **value} if isinstance(value, dict) else value
    return {name: value for name, value in fields.items() if value is not None}


def make_config(**sections: Any) -> Config:
    return Config.model_validate(config_fields(**sections), strict=False)


def write_config(folder: Path, **sections: Any) -> Path:
    """config.yaml in a folder, for slots.yaml and train.csv there unless `data` names others."""
    data = {"slots": f"{folder}/slots.yaml", "train_files": [f"{folder}/train.csv"]}
    usual = {"mem": {"budget_bytes": "4MiB"}, "hbm": {"budget_bytes": "16MiB"}}
    sections = {**usual, **sections, "data": data | sections.get("data", {})}
    return _written(folder / "config.yaml", config_fields(**sections))


def slots_fields(**slots: str | dict[str, Any]) -> list[dict[str, Any]]:
    """Slots by name: their type, or their fields, whose type is sparse unless they have one."""
    return [
        {"name": name, **({"type": slot} if isinstance(slot, str) else {"type": "sparse", **slot})}
        for name, slot in slots.items()
    ]


def make_slots(**slots: str | dict[str, Any]) -> Slots:
    return Slots.model_validate({"slots": slots_fields(**slots)}, strict=False)


def write_slots(folder: Path, **slots: str | dict[str, Any]) -> Path:
    """slots.yaml in a folder."""
    return _written(folder / "slots.yaml", {"slots": slots_fields(**slots)})


def _written(path: Path, content: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path
