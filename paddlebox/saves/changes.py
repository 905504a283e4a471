"""Finds what a delta holds: rows that changed since the last save of the chain, and deletions."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np

from paddlebox import _native
from paddlebox.saves.reader import Save
from paddlebox.saves.served import Served
from paddlebox.saves.touched import Index, keys_in, touched
from paddlebox.saves.writer import PartWriter
from paddlebox.store.coordinator import Coordinator
from paddlebox.store.life import SaveFilter
from paddlebox.store.tiered_table import TieredTable

core = _native.core
DELTA_SCORE, LIFE_SEQ = 3, 5  # positions in the words of a row (docs/formats/row.md)


def write_changes(
    table: TieredTable, chain: list[Save], writer: PartWriter, world: Coordinator
) -> SaveFilter:
    """Write how a base made now would differ from what the chain serves, in this rank's range.

    Args:
        chain: the saves of the table's chain, oldest first.

    Returns: the filter of the delta.
    """
    chosen = table.save_filter(delta=True)
    segments = touched(table, chain[-1], chosen, world)
    if segments is not None:
        of_base = asdict(replace(chosen, min_delta_score=0.0))
        index = Index(chain)
        for keys in keys_in(segments):
            found, rows = table.lookup(core.feasigns_of(keys), of_base)
            _write_changes(writer, chosen, keys[found], rows[found], *index.lookup(keys))
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
    """Write changed rows and deletions of one key range.

    Args:
        keys, rows: the rows that a base would hold, in key order.
        known, as_served: the keys and rows that the chain serves, in key order.
    """
    # With threshold 0, every change counts, even a change that lowered delta_score.
    grown = np.full(len(keys), chosen.min_delta_score <= 0)
    grown |= rows[:, DELTA_SCORE] >= np.float32(chosen.min_delta_score)
    rows = as_saved(rows)
    same = np.zeros(len(keys), bool)
    if len(known):
        at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
        found = known[at] == keys
        same[found] = _equal(rows[found], as_served[at[found]])
    changed = grown & ~same
    writer.add(keys[changed], rows[changed])
    writer.delete(known[~_in(known, keys)])


def as_saved(rows: np.ndarray, *words: int) -> np.ndarray:
    """A copy of the rows with some words set to 0; default: life_seq and delta_score, which have no
    meaning outside the table."""
    rows = rows.copy()
    rows[:, list(words or (DELTA_SCORE, LIFE_SEQ))] = 0
    return rows


def _equal(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(n) bool: which rows have equal bits. So NaNs with equal bits count as equal."""
    same: np.ndarray = (rows.view(np.uint32) == others.view(np.uint32)).all(axis=1)
    return same


def _in(values: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """(n) bool: which values are among the keys. Both must ascend."""
    if len(keys) == 0:
        return np.zeros(len(values), bool)
    at = np.minimum(np.searchsorted(keys, values), len(keys) - 1)
    found: np.ndarray = keys[at] == values
    return found
