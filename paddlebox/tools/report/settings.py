"""Configurations as flat keys, and their differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from paddlebox.config.check import sections_of, tag_of
from paddlebox.config.schema import Config

ABSENT = object()


def _section(model: type[BaseModel] | None, name: str, value: Any) -> type[BaseModel] | None:
    """The schema of a key whose value is a section; None for other values. If there are several
    schemas, the one that `type` chooses."""
    if model is None or name not in model.model_fields or not isinstance(value, Mapping):
        return None
    found = sections_of(model.model_fields[name].annotation)
    named = [one for one in found if len(found) > 1 and tag_of(one) == value.get("type")]
    return next(iter(named or found), None)


def flat(
    values: Mapping[str, Any], model: type[BaseModel] | None = Config, prefix: str = ""
) -> dict[str, Any]:
    """Dotted key -> value. The schema decides what is a section; other dicts are values."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        section = _section(model, name, value)
        if section is not None:
            found |= flat(value, section, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def defaults(
    values: Mapping[str, Any], model: type[BaseModel] = Config, prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """(dotted key, default as in JSON) for every key of a config that has a default."""
    for name, field in model.model_fields.items():
        section = _section(model, name, values.get(name))
        if section is not None:
            yield from defaults(values[name], section, f"{prefix}{name}.")
        elif not field.is_required():
            default = to_jsonable_python(field.get_default(call_default_factory=True))
            yield prefix + name, default


def changed(config: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(key, value, default) for keys with another value; the default is ABSENT if there is none."""
    usual = dict(defaults(config))
    return [
        (key, value, usual.get(key, ABSENT))
        for key, value in flat(config).items()
        if key not in usual or usual[key] != value
    ]


def differing(configs: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Any]]]:
    """(key, the value in each config) for keys that differ; ABSENT if a config lacks the key."""
    flats = [flat(config) for config in configs]
    keys = list(dict.fromkeys(key for one in flats for key in one))
    rows = [(key, [one.get(key, ABSENT) for one in flats]) for key in keys]
    return [(key, values) for key, values in rows if any(v != values[0] for v in values)]
