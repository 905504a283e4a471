"""The feed of a model: how the raw fields of an instance become the input of its dense part.

An export file holds it as JSON (docs/formats/export.md), for `Predictor` and for the serving
library, which knows no config. Both give it to the same native code (ops/library/model_inputs.h).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from paddlebox._native import core
from paddlebox.config import Config, Format, KeySpace, Slots, SlotType
from paddlebox.config.data import MAX_LINE_BYTES
from paddlebox.config.fields import click_cells

CELL, VALUE = "\x1f", "\x1e"  # separators of cells, and of the values in a cell
CRITEO_COLUMNS = ("label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27)))


class Use(Enum):
    """What a slot reads in a column."""

    NUMBER = "number"  # floats
    ID = "id"  # a feasign
    TEXT = "text"  # a text that is hashed


_USES = {"number": Use.NUMBER, "id": Use.ID, "text": Use.TEXT, "stamp": Use.TEXT}  # of expressions


def feed_of(config: Config, slots: Slots) -> dict[str, Any]:
    """The feed of a model, as JSON has it."""
    model, criteo = config.model, config.data.format is Format.CRITEO_TSV
    feed = {
        "model": config.name,
        "tasks": list(slots.tasks),
        "users": _users(config, slots) if model.reads_sequences else None,
        "format": "criteo_tsv" if criteo else "csv",
        "slots": slots.of_serving().fields(),
        "per_slot_keys": config.data.key_space is KeySpace.PER_SLOT,
        "max_line_bytes": MAX_LINE_BYTES,
        "csv": ",|" if criteo else CELL + VALUE,
        "poolings": slots.poolings(),
        "tables": list(slots.tables([table.name for table in config.tables])),
        "sequences": [
            (slot.max_length or 0) if slot.name in model.sequences else 0 for slot in slots.sparse
        ],
        "clicks": list(click_cells(model, slots)),
        "cvm": bool(model.use_cvm),
    }
    return {**feed, "fields": _plan(config, slots, feed)}


def known_width(model: Any) -> int:
    """Floats of the keys and values of an event, in all layers of a model that reads sequences."""
    return int(2 * model.layers * model.heads * model.head_dim)


def _users(config: Config, slots: Slots) -> dict[str, Any]:
    label = slots.label
    return {
        "known_width": known_width(config.model),
        "max_length": config.data.sequences.max_length,
        "time": slots.tags.time,
        "labels": list(dict.fromkeys((label.column or label.name, label.name))),
    }


def schema_of(feed: Mapping[str, Any]) -> Any:
    """The native FeedSchema with which instances are parsed."""
    return core.FeedSchema(
        feed["format"],
        feed["slots"],
        feed["per_slot_keys"],
        feed["max_line_bytes"],
        feed["csv"],
        csv_nulls=feed["fields"]["nulls"],
    )


def _plan(config: Config, slots: Slots, feed: Mapping[str, Any]) -> dict[str, Any]:
    """The plan of ops/library/fields.h: an instance is written as a line of text, criteo_tsv if the
    config has that format, otherwise CSV. Parsers differ in how they find the values, not in what
    they do with them."""
    data, criteo, nulls = config.data, config.data.format is Format.CRITEO_TSV, list(slots.csv.null)
    schema = schema_of({**feed, "fields": {"nulls": nulls}})
    # They are ignored, like the label, unless another slot reads their column.
    beside = {name for slot in slots.beside for name in (slot.name, slot.column)}
    if config.model.reads_sequences:
        beside.add(slots.tags.time)
    serving = slots.of_serving()
    columns = CRITEO_COLUMNS if criteo else tuple(schema.column_names)
    of_column = {column: place for place, column in enumerate(columns)}
    read = [(slot, of_column[slot.column or slot.name]) for slot in serving.slots if slot.read]
    places = of_column | {s.name: place for s, place in read if s.name not in of_column}
    computed = [
        (_USES[use], of_column[column], many) for column, use, many in schema.expression_columns
    ]
    # A dense slot of dim 1 reads its cell as one number.
    lists = {place for slot, place in read if slot.type is SlotType.SPARSE or slot.dim > 1}
    lists |= {place for _, place, many in computed if many}
    # What is read in each place, if all slots that read it agree; otherwise its text.
    uses = [Use.NUMBER] * len(columns)
    known = [(Use.TEXT if s.hash else Use.ID, p) for s, p in read if s.type is SlotType.SPARSE]
    for use in (Use.ID, Use.TEXT):
        for own, place in (*known, *((own, place) for own, place, _ in computed)):
            if own is use:
                uses[place] = use
    return {
        "columns": list(columns),
        "uses": [use.value for use in uses],
        "lists": sorted(lists) if data.format is Format.CSV else [],
        "places": places,
        "ignored": sorted(name for name in beside - places.keys() if name is not None),
        "label": of_column[slots.label.column or slots.label.name],
        "columnar": data.format.is_columnar or bool(data.parser),
        "nulls": nulls,
        "list_separator": slots.csv.list_separator,
        "tabs": criteo,
    }
