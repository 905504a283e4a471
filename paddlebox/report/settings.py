"""Configurations as flat keys, and what differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from paddlebox.config.check import section_of
from paddlebox.config.schema import Config

ABSENT = object()


def flat(
    values: Mapping[str, Any], model: type[BaseModel] = Config, prefix: str = ""
) -> dict[str, Any]:
    """{dotted key: value}. What is a section is said by the schema: a dict by name is one value."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        field = model.model_fields.get(name)
        section = section_of(field.annotation) if field is not None else None
        if section is not None and isinstance(value, Mapping):
            found |= flat(value, section, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def defaults(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, default) of every key that has one, as JSON has it."""
    for name, field in model.model_fields.items():
        section = section_of(field.annotation)
        if field.is_required():
            if section is not None:
                yield from defaults(section, f"{prefix}{name}.")
            continue
        default = to_jsonable_python(field.get_default(call_default_factory=True))
        if section is not None and isinstance(default, Mapping):
            yield from flat(default, section, f"{prefix}{name}.").items()
        else:
            yield prefix + name, default


def changed(config: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(key, value, default) where they differ; ABSENT for a key without a default."""
    usual = dict(defaults())
    return [
        (key, value, usual.get(key, ABSENT))
        for key, value in flat(config).items()
        if key not in usual or usual[key] != value
    ]


def differing(configs: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Any]]]:
    """(key, value in each) where not all are the same; ABSENT where one lacks the key."""
    flats = [flat(config) for config in configs]
    keys = list(dict.fromkeys(key for one in flats for key in one))
    rows = [(key, [one.get(key, ABSENT) for one in flats]) for key in keys]
    return [(key, values) for key, values in rows if any(v != values[0] for v in values)]
