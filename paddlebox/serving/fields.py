"""Turns raw fields of an instance into feasigns and dense features, with the code of training.

An instance is written as a line of text, which the parsers of training read. The line is criteo_tsv
if the config has that format, and CSV for every other format: parsers differ in how they find the
values, not in what they do with them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

from paddlebox._native import core
from paddlebox.config import Config, Format, KeySpace, Slots, SlotType
from paddlebox.errors import DataError

CELL, VALUE = "\x1f", "\x1e"  # separators of cells, and of the values in a cell
CRITEO_COLUMNS = ("label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27)))

_NO_NUMBER = re.compile(r"slot ('[^']*'): (.*) is not a finite number", re.DOTALL)
_NO_INTEGER = re.compile(r"slot ('[^']*'): ('nan'|'([0-9]+)\.0') is not a decimal feasign.*")


def _explained(reason: str, with_default: Container[str]) -> str:
    """Reword a parser's message for the sender of a request.

    Args:
        with_default: names of the dense slots that have a default.
    """
    found = _NO_INTEGER.fullmatch(reason)
    if found is not None:
        slot, value, integer = found.groups()
        step = f"send the integer {integer}" if integer else "leave the field out, or send None"
        return f"slot {slot}: expected an integer, found {value}: {step}"
    found = _NO_NUMBER.fullmatch(reason)
    if found is None:
        return reason
    slot, value = found.groups()
    if value == "'nan'" and slot[1:-1] in with_default:
        return (
            f"slot {slot}: expected a finite number, found {value}: leave the field out, or send "
            "None, for the slot's default"
        )
    if value == "''":
        return (
            f"slot {slot}: expected a finite number, found none: send a number, or train with a "
            "default for the slot in slots.yaml"
        )
    return f"slot {slot}: expected a finite number, found {value}: send a number"


class FieldParser:
    """Parses instances: dicts from the name of a column or slot to a value.

    A value is a string, a number, or a list of them. A missing field, or None, is an empty cell.
    The label, the weight, counts and the mark of late lines are ignored. If data.format is csv, a
    string is the text of a cell and is split into values as in training. The elements of a list are
    not split.
    """

    def __init__(self, config: Config, slots: Slots) -> None:
        criteo = config.data.format is Format.CRITEO_TSV
        self._schema = core.FeedSchema(
            "criteo_tsv" if criteo else "csv",
            slots.of_serving().fields(),
            config.data.key_space is KeySpace.PER_SLOT,
            config.data.max_line_bytes,
            ",|" if criteo else CELL + VALUE,
            csv_nulls=slots.csv.null,  # requests write missing values as the data does
        )
        beside = slots.beside
        self._quoted = not criteo
        self._delimiter = "\t" if criteo else CELL
        self._forbidden = {CELL, VALUE, "\n", "\r", "\0", self._delimiter}
        slots = slots.of_serving()
        label = slots.label.column or slots.label.name
        column_of = {slot.name: slot.column or slot.name for slot in slots.slots if not slot.made}
        columns = CRITEO_COLUMNS if criteo else tuple(self._schema.column_names)
        self._places = {column: place for place, column in enumerate(columns)}
        self._places |= {
            name: self._places[column]
            for name, column in column_of.items()
            if name not in self._places
        }
        # They are ignored, like the label, unless another slot reads their column.
        ignored = {name for slot in beside for name in (slot.name, slot.column)}
        self._ignored = ignored - self._places.keys()
        # A dense slot of dim 1 reads its cell as one number.
        self._lists = {
            self._places[slot.column or slot.name]
            for slot in slots.slots
            if config.data.format is Format.CSV
            and not slot.made
            and (slot.type is SlotType.SPARSE or slot.dim > 1)
        }
        self._hashed = {self._places[s.column or s.name] for s in slots.slots if s.hash}
        self._separator, self._nulls = slots.csv.list_separator, frozenset(slots.csv.null)
        self._with_default = {
            slot.name
            for slot in slots.slots
            if slot.type is SlotType.DENSE and slot.default is not None
        }
        self._label, self._label_name = self._places[label], label
        self._empty = [""] * len(columns)
        self._empty[self._label] = "0"

    def reads(self, name: str) -> bool:
        """Whether a slot reads a field of this name."""
        return name in self._places

    def parse(self, instances: Sequence[Mapping[str, Any]], what: str = "instance") -> Any:
        """Parse at least one instance. Returns a native ParsedChunk.

        Args:
            what: what errors call an instance.

        Raises: DataError that names the instance and the field.
        """
        if isinstance(instances, Mapping):
            raise DataError("instances: expected a list of instances, found one: write [instance]")
        text = "\n".join(
            [self._line(f"{what} {number}", one) for number, one in enumerate(instances)]
        )
        chunk = core.parse_chunk(self._schema, text.encode("utf-8", "surrogateescape"))
        if chunk.bad_lines or chunk.instances != len(instances):
            for line, reason, _ in chunk.first_bad:
                raise DataError(f"{what} {line}: {self._said(reason)}")
            raise DataError(f"{len(instances)} instances became {chunk.instances} lines")
        return chunk

    def _said(self, reason: str) -> str:
        return _explained(reason.replace(CELL, " "), self._with_default)

    def _line(self, instance: str, fields: Mapping[str, Any]) -> str:
        cells = self._empty.copy()
        try:
            for name, value in fields.items():
                if value is not None and name not in self._ignored:
                    place = self._places[name]
                    cells[place] = self._cell(value, place)
        except KeyError:
            near = difflib.get_close_matches(name, list(self._places), 1)
            known = ", ".join(name for name in self._places if name != self._label_name)
            hint = f"; did you mean {near[0]!r}?" if near else f"; expected one of {known}"
            raise DataError(f"{instance}: no slot reads a field {name!r}{hint}") from None
        except ValueError as error:
            raise DataError(f"{instance}: field {name!r}: {error}") from None
        cells[self._label] = "0"
        return self._delimiter.join(cells)

    def _cell(self, value: Any, place: int) -> str:
        """The text of the cell at this place of a line."""
        hashed = place in self._hashed
        if isinstance(value, str) or not hasattr(value, "__len__"):
            text = self._one(value, hashed)
            if place in self._lists and isinstance(value, str) and text not in self._nulls:
                text = text.replace(self._separator, VALUE)
        else:
            text = VALUE.join([self._one(one, hashed) for one in value])
        return '"' + text.replace('"', '""') + '"' if text[:1] == '"' and self._quoted else text

    def _one(self, value: Any, hashed: bool) -> str:
        if isinstance(value, str):
            text = value
        else:
            text = str(int(value) if isinstance(value, bool) else value)
            if hashed and (text.endswith(".0") or text == "nan") and text not in self._nulls:
                raise ValueError(
                    f"a hashed slot takes the text of the data, and {text} is a float: "
                    + (
                        "leave the field out, or send None"
                        if text == "nan"
                        else f"send {text[:-2]}, or {text!r} if the data has this text"
                    )
                )
        if not self._forbidden.isdisjoint(text):
            raise ValueError(f"{text[:40]!r} holds a line break or a control character")
        return text
