"""Finds what a delta holds: rows that changed since the last save of the chain, and deletions.

If possible, only the feasigns that passes touched since then are read, and not the whole table.
This is correct only if nothing else can have changed a row, or changed whether a filter keeps a
row. `touched` checks these conditions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.saves.meta import DELETED, ROWS
from paddlebox.saves.reader import Save, Served
from paddlebox.saves.writer import DELETED_FINGERPRINT, DELETED_ROW_BYTES, PartWriter
from paddlebox.store.coordinator import ONE_RANK, Coordinator
from paddlebox.store.life import DELTA_RESET, SaveFilter
from paddlebox.store.tiered_table import TieredTable

core = _native.core
# Random reads cost more than sequential ones. Above this share of the rows, read the whole table.
_WORTH_IT = 0.2
_BLOCKS = 64  # blocks per read of each segment; small, because a pass may write hundreds of files


def touched(
    table: TieredTable, parent: Save, chosen: SaveFilter, world: Coordinator = ONE_RANK
) -> list[Any] | None:
    """The segments that contain every key whose row may differ from the save `parent`.

    The conditions are: parent was saved from a version of this store, with the same day and
    thresholds and by the same number of ranks. Since then there were only passes and compactions:
    no decay, no shrink, no repair. The segments hold at most a fifth as many rows as the table.

    Args:
        chosen: the filter of the delta.
        world: the ranks that share the table.

    Returns: open segments; None if a condition does not hold.
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
    if any(event["kind"] != DELTA_RESET for event in table.events[meta["events"] :]):
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
    """Open the newest version's segments with a higher sequence. They can be read even if a merge
    removes them."""
    with table.versions.committing:
        return [
            core.SegmentFile(str(table.folder / "ssd" / segment["file"]), segment)
            for segment in table.versions.last.segments
            if table.folder is not None and segment["sequence"] > after
        ]


def keys_in(segments: Sequence[Any]) -> Iterator[np.ndarray]:
    """Chunks of (n) uint64 keys of all segments, ascending, without duplicates."""
    parts = [(next(reader), reader) for reader in map(_keys_of, segments)]  # no segment is empty
    while parts:
        limit = min(keys[-1] for keys, _ in parts)
        taken, left = [], []
        for keys, reader in parts:
            n = int(np.searchsorted(keys, limit, "right"))
            taken.append(keys[:n])
            rest = keys[n:] if n < len(keys) else next(reader, None)
            if rest is not None:
                left.append((rest, reader))
        yield np.unique(np.concatenate(taken))
        parts = left


def _keys_of(segment: Any) -> Iterator[np.ndarray]:
    blocks = segment.shape["blocks"]
    for first in range(0, blocks, _BLOCKS):
        yield segment.rows(first, min(_BLOCKS, blocks - first))[0]


class Index:
    """Looks up the row that a chain serves for a key. Filters of the segments show which save has
    the key."""

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
    table: TieredTable, chain: list[Save], writer: PartWriter, world: Coordinator
) -> SaveFilter:
    """Write how a base made now would differ from what the chain serves, in this rank's range.
    Returns the filter of the delta. chain: the saves of the table's chain, oldest first."""
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
    same = np.zeros(len(keys), bool)
    if len(known):
        at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
        served_too = known[at] == keys
        bits, served = rows[served_too].view(np.uint32), as_served[at[served_too]].view(np.uint32)
        same[served_too] = (bits == served).all(axis=1)  # so NaNs with equal bits count as equal
    changed = grown & ~same
    writer.add(keys[changed], rows[changed])
    writer.delete(known[~_in(known, keys)])


def as_saved(rows: np.ndarray, *words: int) -> np.ndarray:
    """A copy of the rows with some words set to 0; default: life_seq and delta_score, which have no
    meaning outside the table."""
    rows = rows.copy()
    rows[:, list(words or (DELTA_SCORE, LIFE_SEQ))] = 0
    return rows


def _in(values: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """(n) bool: which values are among the keys. Both must ascend."""
    if len(keys) == 0:
        return np.zeros(len(values), bool)
    at = np.minimum(np.searchsorted(keys, values), len(keys) - 1)
    inside: np.ndarray = keys[at] == values
    return inside
