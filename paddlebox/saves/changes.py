"""Finds what a delta holds: rows that changed since the last save of the chain, and deletions.

If nothing but passes can have changed a row, or whether a filter keeps it, only the feasigns that
they touched since then are read, and not the whole table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.saves.meta import DELETED, ROWS
from paddlebox.saves.reader import Cursor, Save, Served, ends_of
from paddlebox.saves.writer import DELETED_FINGERPRINT, DELETED_ROW_BYTES, PartWriter
from paddlebox.store.group import ONE_RANK, Group
from paddlebox.store.life import DELTA_RESET, SaveFilter, events_after
from paddlebox.store.tiered_table import TieredTable

core = _native.core
# Random reads cost more than sequential ones. Above this share of the rows, read the whole table.
_WORTH_IT = 0.2
_BLOCKS = 64  # blocks per read of each segment; small, because a pass may write hundreds of files


def touched(
    table: TieredTable, parent: Save, chosen: SaveFilter, world: Group = ONE_RANK
) -> list[Any] | None:
    """Open segments that contain every key whose row may differ from the save `parent`. None,
    unless parent was saved from a version of this store, with the same day and thresholds and by
    the same number of ranks; there were only passes and compactions since then, but no decay,
    shrink or repair; and the segments hold at most a fifth as many rows as the table.

    Args:
        chosen: the filter of the delta.
        world: the ranks that share the table.
    """
    of_ranks = parent.meta.get("ranks", [parent.meta])
    if len(of_ranks) != world.size:
        return None
    meta = of_ranks[world.rank]
    if meta["commit"] is None or meta["filter"] is None:
        return None
    for name in ("day", "min_score", "max_unseen_days"):
        if meta["filter"][name] != getattr(chosen, name):
            return None
    if any(event["kind"] != DELTA_RESET for event in events_after(table.events, meta["events"])):
        return None
    commits = table.versions.journal()
    if meta["commit"] not in commits:
        return None
    since = commits[commits.index(meta["commit"]) + 1 :]
    if not {commit["kind"] for commit in since} <= {"pass", "compaction", "life"}:
        return None
    segments = _open_segments(table, after=meta["sequence"])
    rows = sum(segment.shape["rows"] for segment in segments)
    head = table.head
    return segments if head is not None and rows <= _WORTH_IT * head.live_rows else None


def _open_segments(table: TieredTable, *, after: int) -> list[Any]:
    """The newest version's segments with a higher sequence, readable even if a merge removes
    them."""
    with table.versions.committing:
        return [
            core.SegmentFile(str(table.folder / "ssd" / segment["file"]), segment)
            for segment in table.versions.last.segments
            if table.folder is not None and segment["sequence"] > after
        ]


def keys_in(segments: Sequence[Any]) -> Iterator[np.ndarray]:
    """Chunks of (n) uint64 keys of all segments, ascending, without duplicates."""
    cursors = [Cursor(_keys_of(segment)) for segment in segments]
    for limit in ends_of(cursors):
        parts = [keys for cursor in cursors for keys, _ in cursor.take(limit)]
        yield np.unique(np.concatenate(parts))


def _keys_of(segment: Any) -> Iterator[tuple[np.ndarray, None]]:
    blocks = segment.shape["blocks"]
    for first in range(0, blocks, _BLOCKS):
        yield segment.rows(first, min(_BLOCKS, blocks - first))[0], None


class Index:
    """Looks up the rows that a chain serves, with the filters of its segments."""

    def __init__(self, chain: Sequence[Save]) -> None:
        self._words = int(chain[-1].meta["words"])
        self._tiers = []
        for save in reversed(chain):  # the newest save that names a key decides
            fingerprint = save.meta["layout_fingerprint"]
            rows = _tier(save, ROWS, "segments", 4 * self._words, fingerprint)
            gone = _tier(save, DELETED, "deletions", DELETED_ROW_BYTES, DELETED_FINGERPRINT)
            self._tiers.append((rows, gone))

    def lookup(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The keys that the chain serves, and their float32 rows. keys: (n) uint64, ascending."""
        rows = np.zeros((len(keys), 4 * self._words), np.uint8)
        known = np.zeros(len(keys), np.uint8)  # 1: some save names the key
        served = np.zeros(len(keys), bool)
        nothing = np.zeros((len(keys), DELETED_ROW_BYTES), np.uint8)
        for of_rows, of_deleted in self._tiers:
            before = known.copy()
            if of_rows is not None:
                of_rows.read(keys, rows, known)
            served |= known > before
            if of_deleted is not None:
                of_deleted.read(keys, nothing, known)
        return keys[served], rows[served].view(np.float32)


def _tier(save: Save, folder: str, part: str, row_bytes: int, fingerprint: int) -> Any:
    if not save.meta[part]:
        return None
    options = {"folder": str(save.folder / folder), "row_bytes": row_bytes, "threads": 1}
    options |= {"layout_fingerprint": fingerprint, "max_segment_bytes": 1 << 30}
    return core.SsdTier(options, save.meta[part])


DELTA_SCORE, LIFE_SEQ = 3, 5  # positions in the words of a row (docs/formats/row.md)


def write_changes(
    table: TieredTable, chain: list[Save], writer: PartWriter, world: Group
) -> SaveFilter:
    """Write how a base made now would differ from what a chain of saves, oldest first, serves in
    this rank's range. Returns the filter of the delta."""
    chosen = table.save_filter(delta=True)
    segments = touched(table, chain[-1], chosen, world)
    if segments is not None:
        of_base = asdict(replace(chosen, min_delta_score=0.0))
        index = Index(chain)
        for keys in keys_in(segments):
            exist, rows = table.lookup(core.feasigns_of(keys), of_base)
            _write_changes(writer, chosen, keys[exist], rows[exist], *index.lookup(keys))
        return chosen
    served = Served(chain, world.key_range)

    def visit(feasigns: np.ndarray, rows: np.ndarray) -> None:
        keys = core.keys_of(feasigns)
        _write_changes(writer, chosen, keys, rows, *served.take(keys[-1]))

    table.visit(visit, table.save_filter())
    writer.delete(served.take()[0])
    return chosen


def _write_changes(
    writer: PartWriter,
    chosen: SaveFilter,
    keys: np.ndarray,
    rows: np.ndarray,
    known: np.ndarray,
    as_served: np.ndarray,
) -> None:
    """Write changed rows and deletions of one key range. keys, rows: what a base would hold. known,
    as_served: what the chain serves. Both are in key order."""
    # With threshold 0, every change counts, even a change that lowered delta_score.
    grown = np.full(len(keys), chosen.min_delta_score <= 0)
    grown |= rows[:, DELTA_SCORE] >= np.float32(chosen.min_delta_score)
    rows = as_saved(rows)
    _, of_rows, of_known = np.intersect1d(keys, known, assume_unique=True, return_indices=True)
    same, gone = np.zeros(len(keys), bool), np.ones(len(known), bool)
    bits, served = rows[of_rows].view(np.uint32), as_served[of_known].view(np.uint32)
    same[of_rows] = (bits == served).all(axis=1)  # so NaNs with equal bits count as equal
    gone[of_known] = False
    changed = grown & ~same
    writer.add(keys[changed], rows[changed])
    writer.delete(known[gone])


def as_saved(rows: np.ndarray, *words: int) -> np.ndarray:
    """A copy of the rows with some words 0: by default life_seq and delta_score, which have no
    meaning outside the table."""
    rows = rows.copy()
    rows[:, list(words or (DELTA_SCORE, LIFE_SEQ))] = 0
    return rows
