"""Validates plain data as a typed model. An error has the path of the value, what was expected,
what was found, and for an unknown key the nearest legal key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence, Set
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
_BOUNDS = {  # pydantic's error type: (words, key of the bound in the error's ctx)
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}
# Unknown keys whose work another key or a tool does, which the nearest name would not show.
_INSTEAD = {
    "alerts.command": "use the alerts at alerts.metrics_port: docs/runbook.md",
    "alerts.max_copc": "set alerts.copc: [low, high]",
    "alerts.min_copc": "set alerts.copc: [low, high]",
    "feeder.cache_dir": "set XDG_CACHE_HOME",
    "feeder.spill_dir": "set TMPDIR",
    "data.holdout.from": "set data.holdout.at_least",
    "data.max_line_bytes": "a line has at most 1 MiB",
    "data.sequences.overlap": "set data.sequences.split: N, for pieces that overlap by N",
    "data.sequences.time": "set tags: {time: COLUMN} in slots.yaml",
    "metrics.cmatch_rank": 'set mask: {box_cmatch_rank: ["222_1"]}',
    "ranks.per_node": "the ranks of a host are a node",
    "ranks.transport": "MPI is used if it started the ranks, else TCP",
    "store": "data.threads is the number of threads",
    "table.click_coeff": "the score of a click is 1",
    "table.nonclk_coeff": "the score of a show without a click is 0.1",
    "table.slot_learning_rates": "give slots a learning_rate_factor in slots.yaml",
    **{
        f"table.{part}.{name}": "it is a constant: docs/migration.md"
        for part in ("embed", "embedx")
        for name in ("beta1", "beta2", "epsilon", "max_bound", "min_bound")
    },
    "trainer.evaluate_after_pass": "set trainer.evaluate_passes: after",
    "trainer.evaluate_before_pass": "set trainer.evaluate_passes: before",
    "trainer.trace": "use paddlebox train --trace FILE",
    "trainer.visualdl": "set trainer.trackers: [visualdl]",
}
_BOOLS = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}
_PAGE = "docs/config.md describes the keys"


def validate(model: type[M], values: Any, source: str, overridden: Set[str] = frozenset()) -> M:
    """Validate plain data, as from YAML or JSON, as a model. source: their origin for messages,
    usually a file. overridden: dotted paths that come from the command line; messages mark them.
    Raises: ConfigError that lists all wrong values, one per line."""
    try:
        made: M = model.__pydantic_validator__.validate_python(values)
    except ValidationError as error:
        raise described(model, values, error, source, overridden) from None
    return made


def described(
    model: type[BaseModel],
    values: Any,
    error: ValidationError,
    source: str,
    overridden: Set[str] = frozenset(),
) -> ConfigError:
    """The error of `validate` for an error of pydantic."""
    errors = _without_twins(error.errors(include_url=False))
    lines, steps = zip(*(_describe(model, values, e, overridden) for e in errors), strict=True)
    if len(lines) == 1:
        return ConfigError(f"{source}: {lines[0]}" + ("" if all(steps) else f"; {_PAGE}"))
    page = [] if all(steps) else [_PAGE]
    return ConfigError("\n  ".join([f"{source}: {len(lines)} errors", *lines, *page]))


def sections_of(annotation: Any) -> _Sections:
    """The models in the type of a field, also inside a list: several if the key `type` of the value
    chooses one of them, none for a plain value and for a mapping from names to models."""
    if get_origin(annotation) is dict:
        return ()
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return (annotation,)
    return tuple(found for part in get_args(annotation) for found in sections_of(part))


def tag_of(section: type[BaseModel]) -> str:
    """The value of `type` that chooses this section."""
    return str(get_args(section.model_fields["type"].annotation)[0])


def dotted(location: Location) -> str:
    """A location as text: ("data", "train_files", 1) becomes "data.train_files[1]"."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _without_twins(errors: list[ErrorDetails]) -> list[ErrorDetails]:
    """Drop the errors about required keys that are only misspelled: the error about the misspelled
    key names them."""
    absent = {e["loc"] for e in errors if e["type"] == "missing"}
    meant: set[Location] = set()
    for error in errors:
        if error["type"] != "extra_forbidden":
            continue
        *section, name = error["loc"]
        siblings = [str(loc[-1]) for loc in absent if [*loc[:-1]] == section]
        meant |= {(*section, near) for near in difflib.get_close_matches(str(name), siblings, 1)}
    return [e for e in errors if not (e["type"] == "missing" and e["loc"] in meant)]


def _describe(
    model: type[BaseModel], values: Any, error: ErrorDetails, overridden: Set[str]
) -> tuple[str, bool]:
    """A line about an error in the values, and whether the line says what to do."""
    location, chosen = _place(model, error["loc"])
    path = dotted(location)
    kind = error["type"]
    step = ""
    if kind == "extra_forbidden":
        text, step = "unknown key", _nearest(model, location, chosen)
    elif kind in ("missing", "union_tag_not_found"):
        path = path if kind == "missing" else dotted((*location, "type"))
        text = "is required, but not given"
    elif kind == "union_tag_invalid":
        path = dotted((*location, "type"))
        tags = re.findall(r"'([^']*)'", error["ctx"]["expected_tags"])
        text = f"expected one of {', '.join(tags)}, found {error['ctx']['tag']!r}"
        step = _choice(error["ctx"]["tag"], tags)
    elif kind == "invalid_key":
        path = dotted(location[:-1]) or "the top level"
        text, step = f"the key {location[-1]!r} is not a string", "; quote it"
    elif kind == "value_error":
        text = str(error["ctx"]["error"])
    else:
        text = f"{_expected(error)}, found {_found(error['input'])}"
        step = _step(error)
    given = any(path == p or path.startswith((f"{p}.", f"{p}[")) for p in overridden)
    # An override creates the sections on its path. An unknown one of them is an error too.
    made = kind == "extra_forbidden" and any(p.startswith(f"{path}.") for p in overridden)
    origin = " (from -o)" if given or made else ""
    says = bool(step) or kind == "value_error"
    path += _owner(values, location)
    return (f"{path}{origin}: {text}{step}" if path else text + step), says


def _owner(values: Any, location: Location) -> str:
    """ " of 'user'" for a key of a list's entry with that name, such as slots[2].dim; else ""."""
    text = ""
    for part in location[:-1]:
        try:
            values = values[part]
        except (KeyError, IndexError, TypeError):
            break
        if isinstance(part, int) and isinstance(values, dict):
            name = values.get("name")
            text = f" of {name!r}" if isinstance(name, str) else ""
    return text


def _expected(error: ErrorDetails) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind in ("enum", "literal_error"):
        return f"expected {context['expected']}"
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}"
    if kind in _BOUNDS:
        words, name = _BOUNDS[kind]
        return f"expected {words} {context[name]}"
    if kind == "string_pattern_mismatch":
        return "expected letters, digits, '_', '.' and '-', with no '.' or '-' at the beginning"
    return error["msg"]


def _step(error: ErrorDetails) -> str:
    """What to write instead, if the value found makes it clear; else ""."""
    kind, value = error["type"], error["input"]
    if kind in ("enum", "literal_error"):
        return _choice(value, re.findall(r"'([^']*)'", error["ctx"]["expected"]))
    if kind == "tuple_type" and isinstance(value, (str, int, float)):
        return f"; write [{value}]"
    if kind == "string_type" and isinstance(value, list):
        return f"; write {value[0]}, without brackets" if len(value) == 1 else ""
    if kind == "string_type" and isinstance(value, (int, float)):
        return f'; write "{value}"'
    if kind == "bool_type" and str(value).lower() in _BOOLS:
        return f"; write {_BOOLS[str(value).lower()]}"
    if kind in ("int_type", "float_type") and isinstance(value, str):
        plain = value.strip().replace(",", ".")
        if re.fullmatch(r"[-+]?\d+" if kind == "int_type" else r"[-+]?\d+(\.\d+)?", plain):
            digits = re.sub(r"^([-+]?)0+(?=\d)", r"\1", plain)  # YAML reads 010 as a string
            return f"; write {digits}" + (", without quotes" if digits == value else "")
    return ""


def _choice(found: Any, names: list[str]) -> str:
    near = difflib.get_close_matches(str(found).lower(), names, n=1)
    return f"; did you mean {near[0]}?" if near else "; write one of these"


def _found(value: Any) -> str:
    if value is None:
        return "nothing (null)"
    text = repr(value)
    if len(text) > 60:
        text = text[:57] + "..."
    return f"{text} ({type(value).__name__})"


def _place(model: type[BaseModel], location: Location) -> tuple[Location, _Sections]:
    """The location of an error as in the file, and the sections that may hold its last part: first
    the one that `type` chose, then those that another `type` would have chosen. Pydantic's location
    also contains the type."""
    kept: list[int | str] = []
    sections: _Sections = (model,)  # the sections in which the next part is a key
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
    """The key that was probably meant, or what does the work of this one: from `_INSTEAD`, a
    similar sibling, or the same name in another section."""
    of_table = location[2:] if location[0] == "extra_tables" else ()
    plain = ("table", *of_table) if of_table else location
    if instead := _INSTEAD.get(".".join(part for part in plain if isinstance(part, str))):
        return f"; {instead}"
    siblings = list(sections[0].model_fields) if sections else []
    name = str(location[-1])
    able = [tag_of(other) for other in sections[1:] if name in other.model_fields]
    if able:
        return f" of {tag_of(sections[0])}; it is a key of {', '.join(able)}"
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


def refuse_twice(names: Sequence[str], key: str, step: str = ": rename one") -> None:
    """Raises: ValueError, which ends with `step`, if a name is given twice."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{key}: expected each name once, found {', '.join(twice)} twice{step}")


def nearest(unknown: str, names: Iterable[str]) -> str:
    """A hint about an unknown name: "; did you mean 'user'?", or "; there are: " and all names."""
    known = list(names)
    return did_you_mean([unknown], known) or f"; there are: {', '.join(known) or 'none'}"


def did_you_mean(unknown: Iterable[str], names: Iterable[str]) -> str:
    """A hint such as "; did you mean 'user'?" for the first unknown name that is similar to one of
    `names`; "" if none is."""
    known = list(names)
    for name in unknown:
        near = difflib.get_close_matches(name, known, n=1)
        if near:
            return f"; did you mean {near[0]!r}?"
    return ""
