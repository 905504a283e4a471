"""Erasures: brings erased rows out of the segments of a store (docs/store.md).

An event deletes the rows at once (life.py), but their bytes stay until merges have dropped them.
The segments that hold such a row are merged, the oldest first, so that no older copy comes back."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from paddlebox import _native
from paddlebox.store import compaction, life
from paddlebox.store.compaction import Merge

if TYPE_CHECKING:
    from paddlebox.store.version_store import VersionStore

core = _native.core
_BLOCKS = 256  # read at a time
_SLOT, _LIFE_SEQ = 0, 5  # words of a row (docs/formats/row.md)


class Erasures:
    """versions: opened for writing. Only one thread at a time plans, and makes, merges."""

    def __init__(self, versions: VersionStore) -> None:
        self._versions = versions
        self._clean: dict[int, int] = {}  # segment -> number of events for which it was searched
        self._merged: set[int] = set()  # sequences of segments that were merged alone

    def plan(self) -> list[Merge]:
        """The next merges; none if no segment holds an erased row. The keys of the events, which
        name the erased rows too, then leave the newest version."""
        with self._versions.committing:
            last = self._versions.last
        # Segments that a pass adds later have no erased rows, so the search needs no lock.
        pending = life.unmerged(last.events)
        if not pending:
            return []
        holders = self._oldest_holders(last.segments, pending)
        if not holders:
            with self._versions.committing:
                events = life.merged(self._versions.events, pending)
                self._versions.record("life", events=events, tables=self._versions.others())
                self._versions.retention.drop_old()
            return []
        sequence = holders[0]["sequence"]
        wide = sequence in self._merged
        self._merged.add(sequence)
        return compaction.plan_erasure(last.segments, holders, wide=wide)

    def _oldest_holders(
        self, segments: Sequence[Mapping[str, Any]], pending: Sequence[Mapping[str, Any]]
    ) -> list[Mapping[str, Any]]:
        newest = pending[-1]["seq"]
        found: list[Mapping[str, Any]] = []
        for segment in sorted(segments, key=lambda one: int(one["sequence"])):
            if found and segment["sequence"] != found[0]["sequence"]:
                break
            if self._clean.get(segment["id"]) == newest:
                continue
            if holds(self._versions.folder, segment, pending):
                found.append(segment)
            else:
                self._clean[segment["id"]] = newest
        return found


def holds(folder: str, segment: Mapping[str, Any], erased: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a segment of a store holds a row that one of these events deletes. Raises:
    CorruptionError."""
    file = core.SegmentFile(os.path.join(folder, "ssd", segment["file"]), segment)
    return any(
        bool(np.any(rows.view(np.uint32)[:, _LIFE_SEQ] < event["seq"]))
        for event in erased
        for rows in rows_of(file, event["keys"], event["slot"])
    )


def rows_of(file: Any, keys: Sequence[int], slot: int = -1) -> Iterator[np.ndarray]:
    """Chunks of (n, row_bytes) uint8 rows of a `SegmentFile`: those of some keys, and those of a
    slot."""
    shape = file.shape
    for key in keys:
        if not shape["min_key"] <= key <= shape["max_key"]:
            continue
        if (block := file.find(key)) is not None:
            of_block, rows = file.rows(block, 1)
            yield rows[of_block == key]
    for first in range(0, shape["blocks"] if slot >= 0 else 0, _BLOCKS):
        _, rows = file.rows(first, min(_BLOCKS, shape["blocks"] - first))
        yield rows[(rows.view(np.uint32)[:, _SLOT] & 0xFFFF) == slot]
