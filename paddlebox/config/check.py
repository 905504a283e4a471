"""From plain data to a typed model, with errors a person can act on: the path of the value, what
was expected, what was found, and for an unknown key the legal one that is nearest.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Set
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from paddlebox.errors import ConfigError

M = TypeVar("M", bound=BaseModel)
Location = tuple[int | str, ...]
_Sections = tuple[type[BaseModel], ...]

_EXPECTED = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list, as in [a, b]",
    "model_type": "a section with keys of its own",
    "model_attributes_type": "a section with keys of its own",
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


def sections_of(annotation: Any) -> _Sections:
    """The models behind a field's type, also behind a list: several where a key of theirs chooses
    one of them; none for a plain value and for a mapping from names to models."""
    if get_origin(annotation) is dict:
        return ()
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return (annotation,)
    return tuple(found for part in get_args(annotation) for found in sections_of(part))


def tag_of(section: type[BaseModel]) -> str:
    """The `type` by which a section is chosen from several."""
    return str(get_args(section.model_fields["type"].annotation)[0])


def dotted(location: Location) -> str:
    """("data", "train_files", 1) as "data.train_files[1]"."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _describe(model: type[BaseModel], error: ErrorDetails, overridden: Set[str]) -> str:
    location, chosen = _place(model, error["loc"])
    path = dotted(location)
    kind = error["type"]
    if kind == "extra_forbidden":
        text = f"unknown key{_nearest(model, location, chosen)}"
    elif kind == "missing":
        text = "is required, and not given"
    elif kind == "union_tag_not_found":
        path = dotted((*location, "type"))
        text = "is required, and not given"
    elif kind == "union_tag_invalid":
        path = dotted((*location, "type"))
        tags = re.findall(r"'([^']*)'", error["ctx"]["expected_tags"])
        near = difflib.get_close_matches(str(error["ctx"]["tag"]), tags, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        text = f"expected one of {', '.join(tags)}, found {error['ctx']['tag']!r}{meant}"
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


def _place(model: type[BaseModel], location: Location) -> tuple[Location, _Sections]:
    """An error's location as the file has it, and the section that its last part is a key of,
    before those that another `type` would have chosen there. Pydantic's location has the type too.
    """
    kept: list[int | str] = []
    sections: _Sections = (model,)  # that the part before has
    owners = sections
    in_mapping = to_choose = False
    for part in location:
        if to_choose:
            sections = tuple(sorted(sections, key=lambda one: tag_of(one) != part))
            to_choose = False
            continue
        kept.append(part)
        owners = sections
        if in_mapping:  # a name that the user chose
            in_mapping = False
        elif isinstance(part, str) and sections and part in sections[0].model_fields:
            annotation = sections[0].model_fields[part].annotation
            in_mapping = get_origin(annotation) is dict
            sections = sections_of(get_args(annotation)[1] if in_mapping else annotation)
            to_choose = len(sections) > 1
    return tuple(kept), owners


def _nearest(model: type[BaseModel], location: Location, sections: _Sections) -> str:
    """The key that was probably meant: a sibling with a like name, or the same name elsewhere."""
    siblings = list(sections[0].model_fields) if sections else []
    name = str(location[-1])
    able = [tag_of(other) for other in sections[1:] if name in other.model_fields]
    if able:
        return f" of {tag_of(sections[0])}; it is one of {', '.join(able)}"
    near = difflib.get_close_matches(name, siblings, n=1)
    if near:
        return f"; did you mean {dotted((*location[:-1], near[0]))}?"
    elsewhere = list(dict.fromkeys(p for p in _leaves(model) if p.rsplit(".", 1)[-1] == name))
    if elsewhere:
        return f"; did you mean {' or '.join(elsewhere)}?"
    loose = difflib.get_close_matches(name, siblings, n=1, cutoff=0.0)
    nearest = f"; the nearest is {dotted((*location[:-1], loose[0]))}" if loose else ""
    return f"{nearest}; legal here: {', '.join(siblings)}"


def _leaves(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        sections = sections_of(field.annotation)
        if not sections:
            yield prefix + name
        for section in sections:
            yield from _leaves(section, f"{prefix}{name}.")
