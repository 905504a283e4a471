"""Loads a config file with the overrides of a command line."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from paddlebox.config.check import validate
from paddlebox.config.describe import describe
from paddlebox.config.schema import Config
from paddlebox.config.yaml_io import parse_yaml, read_yaml
from paddlebox.errors import ConfigError


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """Load a config file and apply overrides.

    Args:
        path: a YAML file. Paths in it are relative to the current folder, as on a command line.
        overrides: texts "key.path=value". The value is YAML: "[a, b]" is a list, "1e-3" a number.
            The last override of a key wins. A whole section can be replaced. An empty value
            resets a key or a section to its default.

    Raises:
        ConfigError: the file cannot be read, keys or values are wrong, or a URI has a password.
            The error lists all wrong keys and values.
    """
    return config_of(read_yaml(path), overrides, str(path))


def config_of(values: dict[str, Any], overrides: Iterable[str], source: str) -> Config:
    """`load_config` for values that have been read already.

    Args:
        values: the content of the file; it is modified in place.
        overrides: as for `load_config`.
        source: name of the file, for messages.

    Raises:
        ConfigError: as for `load_config`.
    """
    overridden = {_apply(values, override) for override in overrides}
    return validate(Config, values, source, overridden)


def _apply(values: dict[str, Any], override: str) -> str:
    key, equals, text = override.partition("=")
    key = key.strip()
    parts = key.split(".")
    if not equals or not all(parts):
        raise ConfigError(f"-o {override!r}: expected key.path=value, as in data.batch_size=1024")
    section = values
    for depth, part in enumerate(parts[:-1], start=1):
        if section.get(part) is None:
            section[part] = {}
        section = section[part]
        if not isinstance(section, dict):
            raise ConfigError(
                f"-o {override!r}: {'.'.join(parts[:depth])} is a value, not a section"
            )
    if not text.strip() and _is_known(key):
        section.pop(parts[-1], None)
    else:
        section[parts[-1]] = parse_yaml(text, f"-o {key}")
    return key


@functools.cache
def _is_known(key: str) -> bool:
    return any(known.path == key or known.path.startswith(f"{key}.") for known in describe())
