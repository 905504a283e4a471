"""Turns raw fields of an instance into feasigns and dense features, with the parsers of training.

They read an instance as a line of text: criteo_tsv if the config has that format, otherwise CSV.
Parsers differ in how they find the values, not in what they do with them.
"""

from __future__ import annotations

import datetime
import decimal
import math
import re
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np
import pyarrow as pa

from paddlebox._native import core
from paddlebox.config import Config, Format, KeySpace, Slots, SlotType
from paddlebox.config.check import did_you_mean
from paddlebox.config.data import MAX_LINE_BYTES
from paddlebox.errors import DataError

Unknown = Callable[[str, int], object]
CELL, VALUE = "\x1f", "\x1e"  # separators of cells, and of the values in a cell
CRITEO_COLUMNS = ("label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27)))

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


class Use(Enum):
    """What a slot reads in a column."""

    NUMBER = "number"  # floats
    ID = "id"  # a feasign
    TEXT = "text"  # a text that is hashed


_USES = {"number": Use.NUMBER, "id": Use.ID, "text": Use.TEXT, "stamp": Use.TEXT}  # of expressions
_NEGATIVE = re.compile(r"(-[0-9]{1,19})(:.*)?", re.DOTALL)  # with the weight of the id


def text_of(value: Any, use: Use, columnar: bool) -> str:
    """The text from which the parsers read the same feasign or number as from a value of the
    training data.

    Args:
        value: a string, bytes, a number, or a scalar of NumPy or Arrow. None is an empty text.
        columnar: whether the data are columns of Arrow: there a negative integer i is the id
            2^64 + i, and the text of a bool or a time is what pyarrow writes to a CSV file.

    Raises: ValueError for another value, or a float for an id.
    """
    if isinstance(value, np.generic | np.ndarray):
        value = pa.scalar(value) if value.dtype.kind in "Mm" else value.item()
    if isinstance(value, pa.Scalar):
        own_text = pa.types.is_temporal(value.type) or pa.types.is_decimal(value.type)
        value = value.cast(pa.string()).as_py() if own_text else value.as_py()
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, str):
        return _id_text(value, use, columnar)
    if isinstance(value, bool):
        return _bool_text(value, use, columnar)
    if isinstance(value, int):
        return _id_text(str(value), use, columnar)
    if isinstance(value, float | decimal.Decimal):
        return _number_text(value, use)
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value.isoformat()
    raise ValueError(
        f"expected a string, a number or a list of them, found {str(value)[:40]!r} "
        f"({type(value).__name__}): send the text that the data has"
    )


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, pa.Scalar) and not value.is_valid)


def _id_text(text: str, use: Use, columnar: bool) -> str:
    match = _NEGATIVE.fullmatch(text) if use is Use.ID and columnar else None
    if match is None or int(match[1]) < -(2**63):
        return text
    return f"{int(match[1]) % 2**64}{match[2] or ''}"


def _bool_text(value: bool, use: Use, columnar: bool) -> str:
    if use is Use.NUMBER:
        return str(int(value))
    if use is Use.TEXT and columnar:
        return str(value).lower()
    raise ValueError(
        f"expected an id, found {value}: send the "
        + ("text that the data has, such as '1'" if use is Use.TEXT else f"integer {int(value)}")
    )


def _number_text(value: float | decimal.Decimal, use: Use) -> str:
    text = repr(value) if isinstance(value, float) else format(value, "f")
    finite = math.isfinite(value)
    whole = finite and value == int(value)
    plain = finite and not whole and "e" not in text  # it has one text
    if use is Use.NUMBER or (use is Use.TEXT and (plain or isinstance(value, decimal.Decimal))):
        return text
    step = f"send {int(value)}" if whole else "send the text that the data has"
    step = "leave the field out, or send None" if math.isnan(value) else step
    if use is Use.ID:
        raise ValueError(f"expected an integer, found the float {text}: {step}")
    if whole:
        step = f"{step}, or {text!r} if the data has this text"
    raise ValueError(f"a hashed slot takes the text of the data, and {text} is a float: {step}")


class FieldParser:
    """Parses instances: dicts from the name of a column or slot to a string, a number, or a list of
    them. A missing field, or None, is an empty cell. The label, the weight, counts and the mark of
    late lines are ignored. If data.format is csv, a string is split into values as in training; the
    elements of a list are not.

    Args:
        unknown: called with the name of a field that no slot reads, and in how many instances it
            is; None: such a field is an error.
    """

    def __init__(self, config: Config, slots: Slots, unknown: Unknown | None = None) -> None:
        self._unknown = unknown
        criteo = config.data.format is Format.CRITEO_TSV
        self._schema = core.FeedSchema(
            "criteo_tsv" if criteo else "csv",
            slots.of_serving().fields(),
            config.data.key_space is KeySpace.PER_SLOT,
            MAX_LINE_BYTES,
            ",|" if criteo else CELL + VALUE,
            csv_nulls=slots.csv.null,  # requests write missing values as the data does
        )
        # They are ignored, like the label, unless another slot reads their column.
        beside = {name for slot in slots.beside for name in (slot.name, slot.column)}
        self._quoted = not criteo
        self._delimiter = "\t" if criteo else CELL
        self._forbidden = {CELL, VALUE, "\n", "\r", "\0", self._delimiter}
        slots = slots.of_serving()
        columns = CRITEO_COLUMNS if criteo else tuple(self._schema.column_names)
        places = {column: place for place, column in enumerate(columns)}
        read = [(slot, places[slot.column or slot.name]) for slot in slots.slots if slot.read]
        self._places = places | {s.name: place for s, place in read if s.name not in places}
        self._ignored = beside - self._places.keys()
        # A dense slot of dim 1 reads its cell as one number.
        self._lists = {
            place
            for slot, place in read
            if config.data.format is Format.CSV and (slot.type is SlotType.SPARSE or slot.dim > 1)
        }
        computed = [
            (_USES[use], places[column], many)
            for column, use, many in self._schema.expression_columns
        ]
        if config.data.format is Format.CSV:
            self._lists |= {place for _, place, many in computed if many}
        # What is read in each place, if all slots that read it agree; otherwise its text.
        self._use = [Use.NUMBER] * len(columns)
        uses = [(Use.TEXT if s.hash else Use.ID, p) for s, p in read if s.type is SlotType.SPARSE]
        for use in (Use.ID, Use.TEXT):
            for known, place in (*uses, *((use, place) for use, place, _ in computed)):
                if known is use:
                    self._use[place] = use
        self._columnar = config.data.format.is_columnar or bool(config.data.parser)
        self._separator, self._nulls = slots.csv.list_separator, frozenset(slots.csv.null)
        dense = [slot for slot in slots.slots if slot.type is SlotType.DENSE]
        self._with_default = {slot.name for slot in dense if slot.default is not None}
        self._label_name = slots.label.column or slots.label.name
        self._label = places[self._label_name]
        self._empty = [""] * len(columns)

    def reads(self, name: str) -> bool:
        return name in self._places

    def parse(self, instances: Sequence[Mapping[str, Any]], what: str = "instance") -> Any:
        """Parse at least one instance, which errors call `what`. Returns a native ParsedChunk.
        Raises: DataError that names the instance and the field."""
        if isinstance(instances, Mapping):
            raise DataError("instances: expected a list of instances, found one: write [instance]")
        if self._unknown is not None:
            instances = self._known(instances, self._unknown)
        text = "\n".join(
            [self._line(f"{what} {number}", fields) for number, fields in enumerate(instances)]
        )
        try:
            encoded = text.encode()
        except UnicodeEncodeError as error:
            number = text.count("\n", 0, error.start)
            raise DataError(
                f"{what} {number}: expected text, found {text[error.start]!r}, half of a surrogate "
                "pair, which UTF-8 cannot write: send the text as UTF-8"
            ) from error
        chunk = core.parse_chunk(self._schema, encoded)
        if chunk.bad_lines or chunk.instances != len(instances):
            for line, reason, _ in chunk.first_bad:
                raise DataError(f"{what} {line}: {self._said(reason)}")
            raise DataError(f"{len(instances)} instances became {chunk.instances} lines")
        return chunk

    def _said(self, reason: str) -> str:
        # The parser prints the separators of the lines that `_line` makes.
        reason = reason.replace(f"\\x{ord(CELL):02x}", " ").replace(f"\\x{ord(VALUE):02x}", ", ")
        return _explained(reason, self._with_default)

    def _line(self, instance: str, fields: Mapping[str, Any]) -> str:
        cells = self._empty.copy()
        try:
            for name, value in fields.items():
                if value is not None and name not in self._ignored:
                    place = self._places[name]
                    cells[place] = self._cell(value, place)
        except KeyError:
            known = ", ".join(name for name in self._places if name != self._label_name)
            hint = did_you_mean([name], self._places) or f"; expected one of {known}"
            raise DataError(f"{instance}: no slot reads a field {name!r}{hint}") from None
        except ValueError as error:
            raise DataError(f"{instance}: field {name!r}: {error}") from None
        cells[self._label] = "0"
        return self._delimiter.join(cells)

    def _known(self, instances: Sequence[Mapping[str, Any]], unknown: Unknown) -> Any:
        """The instances without the fields that no slot reads."""
        places, ignored = self._places, self._ignored
        found = Counter(
            name
            for fields in instances
            for name, value in fields.items()
            if name not in places and name not in ignored and value is not None
        )
        if not found:
            return instances
        for name, count in found.items():
            unknown(name, count)
        return [
            {name: value for name, value in fields.items() if name not in found}
            for fields in instances
        ]

    def _cell(self, value: Any, place: int) -> str:
        use = self._use[place]
        if isinstance(value, pa.ListScalar):
            value = list(value.values or ())
        elif isinstance(value, pa.Scalar) and type(value.as_py()) is str:
            value = value.as_py()
        if (
            hasattr(value, "__len__")
            and not isinstance(value, str | bytes | pa.Scalar | Mapping)
            and getattr(value, "ndim", True)
        ):
            # A missing id of a list is no feasign; a dense slot has no missing values in a list.
            present = [part for part in value if use is Use.NUMBER or not _is_missing(part)]
            text = VALUE.join([self._one(part, use) for part in present])
        else:
            text = self._one(value, use)
            if place in self._lists and isinstance(value, str) and text not in self._nulls:
                text = text.replace(self._separator, VALUE)
        return '"' + text.replace('"', '""') + '"' if text[:1] == '"' and self._quoted else text

    def _one(self, value: Any, use: Use) -> str:
        if type(value) is float and math.isnan(value) and "nan" in self._nulls:
            return "nan"
        text = text_of(value, use, self._columnar)
        if not self._forbidden.isdisjoint(text):
            raise ValueError(f"{text[:40]!r} holds a line break or a control character")
        return text
