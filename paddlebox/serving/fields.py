"""Turns raw fields of an instance into feasigns and dense features, with the parsers of training.

They read an instance as a line of text: criteo_tsv if the config has that format, otherwise CSV.
Parsers differ in how they find the values, not in what they do with them.
"""

from __future__ import annotations

import datetime
import decimal
import json
import re
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from paddlebox._native import core
from paddlebox.config.check import did_you_mean
from paddlebox.errors import DataError
from paddlebox.serving.feed import Use, schema_of

Unknown = Callable[[str, int], object]

_NO_NUMBER = re.compile(r"slot ('[^']*'): (.*) is not a finite number", re.DOTALL)
_NO_INTEGER = re.compile(r"slot ('[^']*'): '(.*)' is not a decimal feasign.*", re.DOTALL)


def _explained(reason: str, with_default: Container[str]) -> str:
    """Reword a parser's message for the sender of a request. with_default: the dense slots that
    have a default."""
    match = _NO_INTEGER.fullmatch(reason)
    if match is not None and (step := _integer_instead(match[2])):
        return f"slot {match[1]}: expected an integer, found {match[2]!r}: {step}"
    match = _NO_NUMBER.fullmatch(reason)
    if match is None:
        return reason
    slot, value = match.groups()
    step = "send a number"
    if value == "'nan'" and slot[1:-1] in with_default:
        step = "leave the field out, or send None, for the slot's default"
    elif value == "''":
        value, step = "none", f"{step}, or train with a default for the slot in slots.yaml"
    return f"slot {slot}: expected a finite number, found {value}: {step}"


def _integer_instead(text: str) -> str:
    """What to send in place of a text that is not an integer; "" if that is not known."""
    if text == "nan":
        return "leave the field out, or send None"
    if re.fullmatch(r"[0-9]+\.0", text):
        return f"send the integer {text[:-2]}"
    if re.fullmatch("-[0-9]{1,19}", text) and int(text) >= -(2**63):
        return f"the data has no id below 0; if 2^64{text} is meant, send {int(text) + 2**64}"
    return ""


_PLAIN = (str, int, float, bool, type(None))


def plain(value: Any, use: Use, in_list: bool) -> Any:
    """What the native code makes of a value that is no str, int, float, bool or None.

    Args:
        use: what slots read in the field.
        in_list: whether the value is one of a list.

    Returns: a list; a float, an int or a bool; None for a missing value; or (text, whether it is
        split at the list separator as a string is).

    Raises: ValueError for another type, or a decimal for an id.
    """
    if isinstance(value, pa.ListScalar) and not in_list:
        return list(value.values or ())
    if _is_list(value) and not in_list:
        return list(value)
    if isinstance(value, np.generic | np.ndarray):
        value = pa.scalar(value) if value.dtype.kind in "Mm" else value.item()
    if isinstance(value, pa.Scalar):
        kind = value.type
        if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
            return (value.cast(pa.string()).as_py(), False) if value.is_valid else None
        value = value.as_py()
    if isinstance(value, str):
        return str(value), True
    if isinstance(value, bytes):
        return value.decode(), False
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, decimal.Decimal):
        return _decimal(value, use)
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value.isoformat(), False
    raise ValueError(
        f"expected a string, a number or a list of them, found {str(value)[:40]!r} "
        f"({type(value).__name__}): send the text that the data has"
    )


def text_of(value: Any, use: Use, columnar: bool) -> str:
    """The text from which the parsers read the same feasign or number as from a value of the
    training data.

    Args:
        value: a string, bytes, a number, or a scalar of NumPy or Arrow. None is an empty text.
        columnar: whether the data are columns of Arrow: there a negative integer i is the id
            2^64 + i, and the text of a bool or a time is what pyarrow writes to a CSV file.

    Raises: ValueError for another value, or a float for an id.
    """
    if type(value) not in _PLAIN:
        value = plain(value, use, True)
    if isinstance(value, tuple):
        value, splits = value
        if not splits:
            return str(value)
    return str(core.text_of(value, use.value, columnar))


def _is_list(value: Any) -> bool:
    return (
        hasattr(value, "__len__")
        and not isinstance(value, str | bytes | pa.Scalar | Mapping)
        and bool(getattr(value, "ndim", True))
    )


def _decimal(value: decimal.Decimal, use: Use) -> Any:
    text = format(value, "f")
    if use is not Use.ID:
        return text, False
    step = "send the text that the data has"
    if value.is_nan():
        step = "leave the field out, or send None"
    elif value.is_finite() and value == int(value):
        step = f"send {int(value)}"
    raise ValueError(f"expected an integer, found the float {text}: {step}")


class FieldParser:
    """Parses instances: dicts from the name of a column or slot to a string, a number, or a list of
    them. A missing field, or None, is an empty cell. The label, the weight, counts and the mark of
    late lines are ignored. If data.format is csv, a string is split into values as in training; the
    elements of a list are not.

    Args:
        feed: what the model reads (feed.py).
        unknown: called with the name of a field that no slot reads, and in how many instances it
            is; None: such a field is an error.
    """

    def __init__(self, feed: Mapping[str, Any], unknown: Unknown | None = None) -> None:
        self._unknown = unknown
        self._schema = schema_of(feed)
        plan = feed["fields"]
        self._fields = core.Fields(json.dumps(plan))
        self._places: Mapping[str, int] = plan["places"]
        self._label = plan["label"]
        self._uses = [Use(use) for use in plan["uses"]]
        self._with_default = {
            slot["name"]
            for slot in feed["slots"]
            if slot["type"] == "dense" and slot["default"] is not None
        }

    def parse(
        self, instances: Sequence[Mapping[str, Any]], what: str = "instance", stamps: Any = None
    ) -> Any:
        """Parse instances, which errors call `what`. stamps: takes their times and labels (native
        Stamps). Returns a native ParsedChunk. Raises: DataError that names the instance and the
        field."""
        if isinstance(instances, Mapping):
            raise DataError(f"{what}: expected a list of instances, found one: write [instance]")
        lines = core.FieldLines(self._fields, self._unknown is not None, self._plain, stamps)
        try:
            for instance in instances:
                lines.add(instance if isinstance(instance, dict) else dict(instance))
        except KeyError as error:
            raise DataError(f"{what} {lines.count}: {self._unread(error.args[0])}") from None
        except UnicodeEncodeError as error:
            raise DataError(
                f"{what} {lines.count}: expected text, found {error.object[error.start]!r}, half "
                "of a surrogate pair, which UTF-8 cannot write: send the text as UTF-8"
            ) from error
        except ValueError as error:
            raise DataError(f"{what} {lines.count}: {error}") from None
        for name, count in lines.unknown.items():
            if self._unknown is not None:
                self._unknown(name, count)
        chunk = core.parse_chunk(self._schema, lines.text)
        if chunk.bad_lines or chunk.instances != len(instances):
            for line, reason, _ in chunk.first_bad:
                said = _explained(core.reworded(reason), self._with_default)
                raise DataError(f"{what} {line}: {said}")
            raise DataError(f"{len(instances)} instances became {chunk.instances} lines")
        return chunk

    def _plain(self, value: Any, place: int, in_list: bool) -> Any:
        return plain(value, self._uses[place], in_list)

    def _unread(self, name: Any) -> str:
        known = ", ".join(known for known, at in self._places.items() if at != self._label)
        hint = did_you_mean([name], self._places) or f"; expected one of {known}"
        return f"no slot reads a field {name!r}{hint}"
