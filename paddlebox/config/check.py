"""From plain data to a typed model, with errors a person can act on: the path of the value, what
was expected, what was found, and for an unknown key the legal one that is nearest.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Set
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from paddlebox.errors import ConfigError

M = TypeVar("M", bound=BaseModel)
Location = tuple[int | str, ...]

_EXPECTED = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list, as in [a, b]",
    "model_type": "a section with keys of its own",
    "finite_number": "a finite number",
}


def validate(model: type[M], values: Any, source: str, overridden: Set[str] = frozenset()) -> M:
    """``values`` as a ``model``.

    Args:
        source: what to call the place the values come from, usually a file.
        overridden: dotted paths that the command line gave; the message says so.

    Raises:
        ConfigError: lists every value that is wrong, one a line.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        lines = [_describe(model, e, overridden) for e in error.errors(include_url=False)]
    head = f"{source}: " if len(lines) == 1 else f"{source}: {len(lines)} errors\n  "
    raise ConfigError(head + "\n  ".join(lines))


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The model behind a field's type, also behind a list of it; None for a plain value and for a
    mapping from names to models."""
    if get_origin(annotation) is dict:
        return None
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (section_of(argument) for argument in get_args(annotation))
    return next((section for section in found if section is not None), None)


def dotted(location: Location) -> str:
    """("data", "train_files", 1) as "data.train_files[1]"."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _describe(model: type[BaseModel], error: ErrorDetails, overridden: Set[str]) -> str:
    location = error["loc"]
    path = dotted(location)
    kind = error["type"]
    if kind == "extra_forbidden":
        text = f"unknown key{_nearest(model, location)}"
    elif kind == "missing":
        text = "is required, and not given"
    elif kind == "invalid_key":
        path = dotted(location[:-1]) or "the top level"
        text = f"the key {location[-1]!r} is not a string; quote it"
    elif kind == "value_error":
        text = str(error["ctx"]["error"])
    elif kind == "enum":
        text = f"expected {error['ctx']['expected']}, found {_found(error['input'])}"
    elif kind in _EXPECTED:
        text = f"expected {_EXPECTED[kind]}, found {_found(error['input'])}"
    else:
        text = f"{error['msg']}, found {_found(error['input'])}"
    given = any(path == p or path.startswith((f"{p}.", f"{p}[")) for p in overridden)
    # An override makes the sections on its way; one that should not be is an error of its own.
    made = kind == "extra_forbidden" and any(p.startswith(f"{path}.") for p in overridden)
    origin = " (from -o)" if given or made else ""
    return f"{path}{origin}: {text}" if path else text


def _found(value: Any) -> str:
    if value is None:
        return "nothing (null)"
    text = repr(value)
    if len(text) > 60:
        text = text[:57] + "..."
    return f"{text} ({type(value).__name__})"


def _nearest(model: type[BaseModel], location: Location) -> str:
    """The key that was probably meant: a sibling with a like name, or the same name elsewhere."""
    parent: type[BaseModel] | None = model
    in_mapping = False
    for part in location[:-1]:
        if in_mapping:  # a name that the user chose
            in_mapping = False
        elif isinstance(part, str) and parent is not None:
            annotation = parent.model_fields[part].annotation
            in_mapping = get_origin(annotation) is dict
            parent = section_of(get_args(annotation)[1] if in_mapping else annotation)
    siblings = list(parent.model_fields) if parent is not None else []
    name = str(location[-1])
    near = difflib.get_close_matches(name, siblings, n=1)
    if near:
        return f"; did you mean {dotted((*location[:-1], near[0]))}?"
    elsewhere = [path for path in _leaves(model) if path.rsplit(".", 1)[-1] == name]
    if elsewhere:
        return f"; did you mean {' or '.join(elsewhere)}?"
    loose = difflib.get_close_matches(name, siblings, n=1, cutoff=0.0)
    nearest = f"; the nearest is {dotted((*location[:-1], loose[0]))}" if loose else ""
    return f"{nearest}; legal here: {', '.join(siblings)}"


def _leaves(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        section = section_of(field.annotation)
        if section is None:
            yield prefix + name
        else:
            yield from _leaves(section, f"{prefix}{name}.")
