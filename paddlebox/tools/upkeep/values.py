"""Converts values of a slot, as in the data, to the feasigns of a store."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from paddlebox._native import core
from paddlebox.config import Format, KeySpace
from paddlebox.config.slots import Slots, SlotType
from paddlebox.errors import ConfigError, StoreError
from paddlebox.serving.fields import CELL, CRITEO_COLUMNS, VALUE, Use, text_of
from paddlebox.store.record import VersionRecord

_MARKS = CELL + VALUE
_MAX_BYTES = 1 << 20  # of a value


def feasigns_of(record: VersionRecord, slot: str, values: Sequence[str]) -> list[int]:
    """The feasigns that the feeder computed from these values when the version was trained. They
    are hashed if the slot has `hash`, and contain the slot if `data.key_space` is per_slot. The
    values of a weighted slot are ids without their weights.

    Raises: StoreError if the version has no record of its slots; ConfigError if there is no such
        slot, or the slot cannot have the value.
    """
    if not record.config:
        raise StoreError(
            f"version {record.version} has no record of its slots, which only tools/train.py "
            "writes: look up feasigns, without --slot"
        )
    slots = Slots.model_validate(record.config["slots"], strict=False)
    data = record.config["config"]["data"]
    criteo = data["format"] == Format.CRITEO_TSV.value
    place = [one.name for one in slots.sparse].index(_read_slot(slots, slot))
    schema = core.FeedSchema(
        "criteo_tsv" if criteo else "csv",
        [{**fields, "weighted": False} for fields in slots.fields()],
        data["key_space"] == KeySpace.PER_SLOT.value,
        _MAX_BYTES,
        ",|" if criteo else _MARKS,
    )
    columns = CRITEO_COLUMNS if criteo else schema.column_names
    cells = dict.fromkeys(columns, "")
    for one in slots.slots:  # a line must have a label and dense values
        if one.type is not SlotType.SPARSE and not (criteo and one.type is SlotType.DENSE):
            cells[one.column or one.name] = _MARKS[1].join(["0"] * one.dim)
    column = slots.sparse[place].column or slot
    use = Use.TEXT if slots.sparse[place].hash else Use.ID
    columnar = Format(data["format"]).is_columnar or bool(data.get("parser"))
    found = []
    for value in values:
        text = text_of(value, use, columnar)
        text = '"' + text.replace('"', '""') + '"' if text[:1] == '"' and not criteo else text
        line = ("\t" if criteo else _MARKS[0]).join({**cells, column: text}.values())
        chunk = core.parse_chunk(schema, line.encode("utf-8", "surrogateescape"))
        for _, reason, _ in chunk.first_bad:
            raise ConfigError(reason.replace(_MARKS[0], " "))
        instances = core.Instances(schema.sparse_slots, schema.dense_width)
        instances.append(chunk)
        instances.index(core.ThreadPool(1))
        feasigns, offsets = instances.pack_feasigns(0, 1)
        made = [int(feasign) for feasign in feasigns[offsets[place] : offsets[place + 1]]]
        if not made:
            raise ConfigError(f"slot {slot!r}: {value!r} is not a feasign")
        found += made
    return found


def index_of(record: VersionRecord, slot: str) -> int:
    """The index of a sparse slot, which its rows hold.

    Args:
        slot: its name; the index itself if the version has no record of its slots.

    Raises: ConfigError.
    """
    if record.config:
        slots = Slots.model_validate(record.config["slots"], strict=False)
        names = [one.name for one in slots.sparse]
        return names.index(_known(names, slot, f"version {record.version} has no slot {slot!r}"))
    if not slot.isdecimal():
        raise ConfigError(
            f"version {record.version} has no names of slots, which only tools/train.py writes: "
            f"expected the index of a slot, found {slot!r}"
        )
    return int(slot)


def _read_slot(slots: Slots, name: str) -> str:
    """Check that a name is that of a sparse slot in the data. Raises: ConfigError."""
    names = [one.name for one in slots.sparse if not one.made]
    return _known(names, name, f"no sparse slot {name!r} is read from the data")


def _known(names: Sequence[str], name: str, wrong: str) -> str:
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, 1)
    raise ConfigError(
        wrong + (f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(names)}")
    )
