"""What functions of the Python API accept as a path and as a config."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paddlebox.config.check import validate
from paddlebox.config.load import config_of, load_config
from paddlebox.config.schema import Config
from paddlebox.config.slots import Slots, load_slots
from paddlebox.errors import ConfigError

AnyPath = str | os.PathLike[str]
AnySlots = Slots | Mapping[str, Any] | AnyPath
AnyConfig = Config | Mapping[str, Any] | AnyPath


def as_path(value: AnyPath, name: str) -> Path:
    """The value of the argument `name` as a path. Raises: ConfigError if it is no path, or
    empty."""
    found = f"{value!r} ({type(value).__name__})" if value is not None else "None"
    if isinstance(value, str | os.PathLike):
        text = os.fspath(value)
        if isinstance(text, str) and text:
            return Path(text)
    raise ConfigError(f'{name}: expected a path, such as "runs/x" or a pathlib.Path, found {found}')


def as_config(config: AnyConfig) -> Config:
    """A config; plain data are validated as the content of a file, a path is that of a YAML file.
    Raises: ConfigError as `load_config`, or if it is none of these."""
    if isinstance(config, Config):
        return config
    if isinstance(config, Mapping):
        return config_of(copy.deepcopy(dict(config)), (), "config")
    if isinstance(config, str | os.PathLike):
        return load_config(as_path(config, "config"))
    raise ConfigError(
        "config: expected a paddlebox.config.Config, a dict, or the path of a YAML file, found "
        f"{type(config).__name__}"
    )


def as_slots(slots: AnySlots) -> Slots:
    """Slots; plain data are validated as the content of slots.yaml, a path is that of a file.
    Raises: ConfigError as `load_slots`, or if it is none of these."""
    if isinstance(slots, Slots):
        return slots
    if isinstance(slots, Mapping):
        return validate(Slots, copy.deepcopy(dict(slots)), "slots")
    return load_slots(as_path(slots, "slots"))
