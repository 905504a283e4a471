"""Reads a config.yaml of PaddleRec: its keys with their lines, and its model."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from paddlebox.config.yaml_io import read_yaml
from paddlebox.errors import ConfigError

# Names of PaddleRec's folders -> types of the model zoo.
MODELS = {
    "logistic_regression": "lr",
    "fm": "fm",
    "dnn": "dnn",
    "slot_dnn": "dnn",
    "wide_deep": "wide_deep",
    "deepfm": "deepfm",
    "dcn": "dcn",
    "dcn_v2": "dcn_v2",
    "xdeepfm": "xdeepfm",
    "autoint": "autoint",
    "dlrm": "dlrm",
    "gatenet": "gatenet",
    "din": "din",
    "dien": "dien",
    "bst": "bst",
    "share_bottom": "shared_bottom",
    "mmoe": "mmoe",
    "ple": "ple",
    "esmm": "esmm",
    "aitm": "aitm",
}
_OLD_KEYS = ("workspace", "dataset", "phase", "mode")  # only PaddleRec 1 has them


@dataclass(frozen=True)
class Key:
    line: int  # from 1
    name: str  # dotted, as PaddleRec names them: runner.epochs
    value: Any


@dataclass(frozen=True)
class Source:
    path: Path
    keys: tuple[Key, ...]
    model: str  # of PaddleRec

    def get(self, name: str, default: Any = None) -> Any:
        return next((key.value for key in self.keys if key.name == name), default)

    @property
    def folder(self) -> Path:
        """The folder to which relative paths in the config are relative."""
        return self.path.parent


def read_source(path: Path, model: str = "") -> Source:
    """Read a config.

    Args:
        model: the model's name in PaddleRec; "": the folder that holds the config has this name.

    Raises: ConfigError if the file is not a config of PaddleRec 2, or if the zoo does not have the
        model.
    """
    values = read_yaml(path)
    old = [key for key in _OLD_KEYS if key in values]
    if old or isinstance(values.get("runner"), list):
        raise ConfigError(
            f"{path}: is a config of PaddleRec 1 ({', '.join(old) or 'runner is a list'}); "
            "expected one of PaddleRec 2, with the sections runner and hyper_parameters: put your "
            "values into the config.yaml that PaddleRec 2 has for the model"
        )
    if "trainer" in values and "model" in values:
        raise ConfigError(f"{path}: is already a config of this project (model, trainer)")
    for section in ("runner", "hyper_parameters"):
        inside = any(str(key).startswith(f"{section}.") for key in values)
        if not isinstance(values.get(section), dict) and not inside:
            raise ConfigError(
                f"{path}: has no section {section!r}, which every config.yaml of PaddleRec 2 has; "
                f"found {', '.join(map(str, values)) or 'nothing'}"
            )
    lines = dict(_lines(yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)))
    keys = tuple(Key(lines.get(name, 1), name, value) for name, value in _flat(values))
    return Source(path, keys, _model_of(path, model))


def _model_of(path: Path, named: str) -> str:
    model = named or path.resolve().parent.name
    if model in MODELS:
        return model
    near = difflib.get_close_matches(model, MODELS, 1)
    where = f"--model {named!r}" if named else f"{path}: its folder, {model!r},"
    raise ConfigError(
        f"{where} is not a model of PaddleRec that the zoo has"
        + (f"; did you mean {near[0]!r}?" if near else ".")
        + f" Choose a --model of {', '.join(MODELS)}; for another network write the layer with "
        "tools/new_model.py, and use --model dnn for the rest"
    )


def _flat(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _lines(node: Any, prefix: str = "") -> Iterator[tuple[str, int]]:
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        yield f"{prefix}{key.value}", key.start_mark.line + 1
        yield from _lines(value, f"{prefix}{key.value}.")
