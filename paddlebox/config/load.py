"""Loads a config file with the overrides of a command line. PyYAML follows YAML 1.1, where ``1e-3``
is a string, ``on`` is a boolean, ``010`` is eight and ``1:30`` is ninety. Files are read with the
scalars of YAML 1.2, and a repeated key is an error."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from paddlebox.config.check import validate
from paddlebox.config.describe import describe
from paddlebox.config.schema import Config
from paddlebox.errors import ConfigError


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[str, yaml.Mark] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.value in seen:
                first = seen[key.value].line + 1
                raise yaml.constructor.ConstructorError(
                    None,
                    None,
                    f"key {key.value!r} is already given in line {first}; expected each key once: "
                    "take one of them out, or merge the two",
                    key.start_mark,
                )
            seen[key.value] = key.start_mark
        return super().construct_mapping(node, deep)


_SCALARS = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    ("merge", r"<<", ["<"]),
)
# An empty table: add_implicit_resolver would otherwise extend a copy of SafeLoader's.
_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in _SCALARS:
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first
    )


def parse_yaml(text: str, source: str) -> Any:
    """Parse YAML text; `source` is its origin in messages. Raises: ConfigError with source and line
    if it is not YAML, or if a key is given twice."""
    try:
        # _Loader changes only the scalars of SafeLoader: it builds plain data only.
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = source if mark is None else f"{source}:{mark.line + 1}:{mark.column + 1}"
        raise ConfigError(f"{where}: {_explained(error)}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{source}: nested too deeply") from error


def _explained(error: yaml.MarkedYAMLError) -> str:
    """The problem in words; for common mistakes, without terms of YAML's grammar."""
    problem = str(error.problem or error.context)
    if "'\\t' that cannot start" in problem:
        return "found a tab, expected spaces: replace the tab by spaces, which indent YAML"
    if problem == "mapping values are not allowed here":
        return (
            "found a colon where no key can be; expected `key: value`, with a space after the "
            "colon and the keys of a section one below the other: look at this line and the one "
            "before it"
        )
    if str(error.context).startswith("while parsing a flow") and error.context_mark is not None:
        mark = "[" if "sequence" in str(error.context) else "{"
        return f"{problem}; close the {mark} of line {error.context_mark.line + 1}"
    return problem


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read the mapping in a YAML file; an empty file is an empty mapping. Raises: ConfigError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        seen = ""
        if isinstance(error, FileNotFoundError):
            seen = (
                f"; expected a YAML file, looked for in {Path.cwd()}: correct the path, which is "
                "relative to the current folder, or start the command in another folder"
            )
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}{seen}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: is not UTF-8 text: {error.reason} at byte {error.start}"
        ) from error
    value = parse_yaml(text, str(path))
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(
            f"{path}: expected a mapping (key: value), found {type(value).__name__}: write it "
            "below a key (docs/config.md)"
        )
    return value


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """Load a YAML file. Paths in it are relative to the current folder, as on a command line.

    Args:
        overrides: texts "key.path=value". The value is YAML: "[a, b]" is a list, "1e-3" a number.
            The last override of a key wins. A whole section can be replaced. An empty value
            resets a key or a section to its default.

    Raises: ConfigError if the file cannot be read, keys or values are wrong, which it lists, or a
    URI has a password.
    """
    return config_of(read_yaml(path), overrides, str(path))


def config_of(values: dict[str, Any], overrides: Iterable[str], source: str) -> Config:
    """`load_config` for the content of a file, which is modified in place."""
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
