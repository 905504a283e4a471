"""Maps the slots of the source of a warm start to the slots of the new run."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

from paddlebox.config import Config, KeySpace, Slot, Slots
from paddlebox.train.warm_start.source import DEFAULT_TABLE, Source

log = logging.getLogger("paddlebox")

# Fields of a slot that determine the feasigns of its values.
_MEANING = ("hash", "bucket", "cross")
_DROPPED = -1


@dataclass(frozen=True)
class SlotMap:
    """Maps the sparse slots of the source to those of the new run."""

    indices: list[int]  # by slot of the source: its index in the new run; -1: dropped
    keys: list[tuple[int, int]]  # by slot of the source: its number in feasigns, old and new
    kept: list[str]
    dropped: list[str]
    changed: list[str]  # kept, but their values now become other feasigns
    tables: list[tuple[str, str]]  # by slot of the source: its table, old and new; "": dropped
    moved_tables: list[str]  # kept, but now in another table, so their rows are not carried

    def report(self, slots: Slots) -> dict[str, list[str]]:
        added = [slot.name for slot in slots.sparse if slot.name not in self.kept]
        return {
            "kept": self.kept,
            "added": added,
            "dropped": self.dropped,
            "changed_meaning": self.changed,
        }

    @property
    def moved(self) -> bool:
        return any(new not in (-1, old) for old, new in enumerate(self.indices))

    def within(self, table: str) -> SlotMap:
        """The map restricted to slots that belong to this table in both runs."""
        indices = [
            to if of_both == (table, table) else -1
            for to, of_both in zip(self.indices, self.tables, strict=True)
        ]
        return replace(self, indices=indices)


def map_slots(source: Source, config: Config, new: Slots) -> SlotMap:
    old = source.slots
    first = source.config["table"]["name"]
    places = {slot.name: (index, slot) for index, slot in enumerate(new.sparse)}
    kept = [slot for slot in old.sparse if slot.name in places]
    meaning = (*_MEANING, "shares") if is_per_slot(config) else _MEANING
    changed = [
        slot.name
        for slot in kept
        if any(getattr(slot, name) != getattr(places[slot.name][1], name) for name in meaning)
    ]
    if changed:
        log.warning(
            "init: slots whose values become other feasigns than before: %s", ", ".join(changed)
        )
    indices, keys = _places(old, new, is_per_slot(config))
    tables = [
        (_table_of(slot, first), _table_of(new.sparse[to], config.table.name))
        if to != _DROPPED
        else ("", "")
        for slot, to in zip(old.sparse, indices, strict=True)
    ]
    moved = [slot.name for slot, (a, b) in zip(old.sparse, tables, strict=True) if a != b]
    if moved:
        log.warning(
            "init: slots that moved to another table start without rows: %s", ", ".join(moved)
        )
    return SlotMap(
        indices,
        keys,
        [slot.name for slot in kept],
        [slot.name for slot in old.sparse if slot.name not in places],
        changed,
        tables,
        moved,
    )


def is_per_slot(config: Config) -> bool:
    return config.data.key_space is KeySpace.PER_SLOT


def _table_of(slot: Slot, first: Any) -> str:
    """The name of a slot's table, or DEFAULT_TABLE. first: name of the default table."""
    return DEFAULT_TABLE if slot.table in (None, first) else str(slot.table)


def _places(old: Slots, new: Slots, per_slot: bool) -> tuple[list[int], list[tuple[int, int]]]:
    """`indices` and `keys` of a `SlotMap`.

    With key_space per_slot, a feasign contains the number of the slot that owns its row. Rows move
    with their owner, so that no two rows get the same feasign. If an owner now shares the ids of
    another slot, the owner's rows could collide with the rows of that slot, and are dropped.
    """
    place = {slot.name: index for index, slot in enumerate(new.sparse)}
    if not per_slot:
        return [place.get(slot.name, _DROPPED) for slot in old.sparse], []
    before, after = old.key_slots(), new.key_slots()
    indices, keys = [], []
    for slot, number in zip(old.sparse, before, strict=True):
        to = place.get(old.sparse[number].name, _DROPPED)
        if to != _DROPPED and after[to] != to:
            to = _DROPPED
        own = place.get(slot.name, _DROPPED)
        shared_still = own != _DROPPED and to != _DROPPED and after[own] == to
        indices.append(own if shared_still else to)
        keys.append((number, to if to != _DROPPED else number))
    return indices, keys
