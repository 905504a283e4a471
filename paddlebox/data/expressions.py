"""The columns that the expressions of slots read."""

from __future__ import annotations

from typing import Any

from paddlebox import _native
from paddlebox.config import Slot, Slots, SlotType
from paddlebox.config.data import MAX_LINE_BYTES


def expression_columns(slots: Slots) -> list[tuple[str, str, bool]]:
    """(column, use, whether as a list) of each column that an expression reads. A use is number,
    id, text or stamp."""
    # What a normalizer reads does not depend on its constants, which a run may still choose.
    computed = [slot for slot in slots.without_normalizers().slots if slot.expr is not None]
    if not computed:
        return []
    shared = [{**slot.fields(slots.lookups), "shares": None} for slot in computed]
    schema = _native.core.FeedSchema("csv", shared, False, MAX_LINE_BYTES)
    return list(schema.expression_columns)


class ReadColumn(Slot):
    """A slot that accepts what an expression reads in a column, and no value."""

    excluded: str  # a character that its one value does not have; "": it may be a list


def slots_of_expressions(slots: Slots) -> list[ReadColumn]:
    """One for each column that an expression reads. The default of times is an example."""
    made = []
    for column, use, many in expression_columns(slots):
        mark = "" if many else slots.csv.list_separator
        fields: dict[str, Any] = {"name": "expr", "column": column, "excluded": mark}
        if use == "number":
            made.append(ReadColumn(type=SlotType.DENSE, default=0, **fields))
        else:
            example = "2024-01-31 23:59:59" if use == "stamp" else None
            hashed = use != "id"
            made.append(ReadColumn(type=SlotType.SPARSE, hash=hashed, default=example, **fields))
    return made
