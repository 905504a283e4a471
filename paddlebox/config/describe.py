"""Generates the reference table of all keys from the schema."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from paddlebox.config.check import sections_of, tag_of
from paddlebox.config.schema import Config

_BOUNDS = (
    (annotated_types.Ge, "ge", ">= {}"),
    (annotated_types.Gt, "gt", "> {}"),
    (annotated_types.Le, "le", "<= {}"),
    (annotated_types.Lt, "lt", "< {}"),
)


_TABLE = ("| key | type | default | meaning |", "|---|---|---|---|")
_OF_MODELS = (
    *("### Keys that only some models have", ""),
    *("| models | key | type | default | meaning |", "|---|---|---|---|---|"),
)


class Key(NamedTuple):
    """One row of the table."""

    path: str
    type: str
    default: str
    meaning: str
    models: tuple[str, ...] = ()  # those that have the key; empty: it belongs to no model


def describe(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[Key]:
    """Every key of a model, in the order of the schema. `prefix` comes before each path."""
    for name, field in model.model_fields.items():
        sections = sections_of(field.annotation)
        if len(sections) > 1:
            yield from _describe_choice(sections, f"{prefix}{name}.")
        elif sections:
            yield from describe(sections[0], f"{prefix}{name}.")
        else:
            default = "required" if field.is_required() else _show(_default(field), name)
            yield Key(prefix + name, _type(name, field), default, field.description or "")


def _describe_choice(sections: Sequence[type[BaseModel]], prefix: str) -> Iterator[Key]:
    """Describe the keys of sections from which `type` chooses one. If most sections have a key, the
    types without it come before its text."""
    types = [tag_of(section) for section in sections]
    meaning = sections[0].model_fields["type"].description or ""
    yield Key(f"{prefix}type", ", ".join(f"`{tag}`" for tag in types), "required", meaning)
    declared: dict[tuple[type, Key], list[str]] = {}  # a class and its key: the types that have it
    for section in sections:
        for key in describe(section, prefix):
            name = key.path.removeprefix(prefix)
            owner = next(
                one for one in section.__mro__ if name in vars(one).get("__annotations__", ())
            )
            if name != "type":
                declared.setdefault((owner, key), []).append(tag_of(section))
    for (owner, key), tags in declared.items():
        if 2 * len(tags) < len(types):
            yield key._replace(models=tuple(tags))
            continue
        others = [tag_of(section) for section in sections if not issubclass(section, owner)]
        scope = f"not {', '.join(others)}: " if others else ""
        yield key._replace(meaning=scope + key.meaning)


def markdown() -> str:
    """Two tables as Markdown: the keys of a config, and those that only some models have."""
    keys = list(describe())
    lines = [*_TABLE, *_rows(key for key in keys if not key.models), "", *_OF_MODELS]
    of_models = sorted((key for key in keys if key.models), key=lambda key: -len(key.models))
    for key, row in zip(of_models, _rows(of_models), strict=True):
        lines.append(f"| {', '.join(key.models)} {row}")
    return "\n".join(lines) + "\n"


def _rows(keys: Iterable[Key]) -> list[str]:
    """A row for each key. Equal keys of `table.embed` and `table.embedx` share a row."""
    names: dict[Key, list[str]] = {}
    for key in keys:
        shared = key._replace(path=key.path.replace("table.embedx.", "table.embed."))
        names.setdefault(shared, []).append(f"`{key.path}`")
    return [
        f"| {', '.join(paths)} | {key.type} | {key.default} | {key.meaning} |"
        for key, paths in names.items()
    ]


def _default(field: FieldInfo) -> Any:
    return field.get_default(call_default_factory=True)


def _type(name: str, field: FieldInfo) -> str:
    annotation: Any = field.annotation
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return _choices(annotation)
    if get_origin(annotation) is UnionType or get_origin(annotation) is Union:
        words, *others = get_args(annotation)
        of_others = ["bool" if other is bool else _list_of(other) for other in others]
        return ", ".join([*(f"`{word}`" for word in get_args(words)), *of_others])
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{word}`" for word in get_args(annotation))
    if annotation in (int, float, bool, str):
        text = "bytes" if name.endswith("_bytes") else str(annotation.__name__)
    else:
        text = _list_of(annotation)
    bounds = [
        pattern.format(_show(getattr(bound, attribute), name))
        for bound in field.metadata
        for kind, attribute, pattern in _BOUNDS
        if isinstance(bound, kind)
    ]
    return " ".join([text, *([", ".join(bounds)] if bounds else [])])


def _list_of(annotation: Any) -> str:
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if annotation is int:
        return "int"
    if get_origin(annotation) is dict:
        value = get_args(annotation)[1]
        value = (get_args(value) or (value,))[0]
        return f"{_list_of(value) if get_origin(value) is tuple else value.__name__} by name"
    item = get_args(annotation)[0]
    if get_origin(item) is Union:
        names = [(get_args(one) or (one,))[0].__name__ for one in get_args(item)]
        return f"list of {' or '.join(names)}"
    item = (get_args(item) or (item,))[0]
    return f"list of {_choices(item) if issubclass(item, StrEnum) else item.__name__}"


def _choices(of: type[StrEnum]) -> str:
    return ", ".join(f"`{choice.value}`" for choice in of)


def _show(value: Any, name: str) -> str:
    if isinstance(value, StrEnum):
        return f"`{value.value}`"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return ""
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    if name.endswith("_bytes"):
        for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
            if value >= 1 << shift and value % (1 << shift) == 0:
                return f"{value >> shift}{unit}"
    if name == "seed" and value == 2**63 - 1:
        return "2^63 - 1"
    return str(value)
