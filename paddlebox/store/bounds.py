"""Bounds: keeps tables within `table.max_rows` (docs/life.md).

When a pass ends with too many rows, those of the lowest ranks are evicted, by an event in the
version of the pass. A *rank* is the place of a row in the order of eviction: day (20 bits), bits
of the score (32), key (64), the lowest first; the day counts only with `evict: least_recent`.
The lowest rank that stays is found by its digits of 20 bits, from the highest on: each step reads
every row once, and counts rows by digit. Ranks of a job add up their counts, so the result does
not depend on their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from paddlebox.config.table import Evict
from paddlebox.store import life
from paddlebox.store.tiered_table import TieredTable

if TYPE_CHECKING:  # group.py imports the tables
    from paddlebox.store.group import Group

_DIGIT_BITS = 20  # as `Table::kRankDigitBits` in ops/table/table.h
_FIRST_BIT = {Evict.LEAST_RECENT: 96, Evict.LEAST_SCORE: 76}  # of the first digit
_LAST_BIT = 16  # of the last digit
_MASK = (1 << 64) - 1


class Bounds:
    """tables: may grow until the first pass. world: all of its ranks call the methods alike, on
    the thread that trains."""

    def __init__(self, tables: Sequence[TieredTable], world: Group) -> None:
        self._tables, self._world = tables, world
        #: Table -> the number of its live rows on this rank, and of events that delete rows then.
        self._known: dict[str, tuple[int, int]] = {}

    def pass_ended(self) -> None:
        """Counts the new rows of a pass that has ended, or of a part of it."""
        for table in self._bounded():
            if table.name in self._known:
                rows, deletions = self._known[table.name]
                self._known[table.name] = rows + table.native.ended_new_rows, deletions

    def keep(self) -> None:
        """Evicts rows of tables that have too many, before the ended pass is written."""
        for table in self._bounded():
            self._keep(table)

    def _bounded(self) -> list[TieredTable]:
        return [table for table in self._tables if table.config.max_rows]

    def _keep(self, table: TieredTable) -> None:
        deletions = sum(event["kind"] in life.DELETING for event in table.events)
        rows, then = self._known.get(table.name, (0, -1))
        limit = table.config.max_rows
        if then != deletions:  # unknown, but no more than are stored
            rows = table.native.pairs_upper_bound + table.native.unwritten_rows
            if table.folder is None:  # a staged pass holds some of them
                rows = limit + 1
        if sum(self._world.gather("rows", rows)) <= limit:
            return
        rows = _Selection(table, self._world, limit - limit // 16, limit // 64).evict(limit)
        self._known[table.name] = rows, deletions


class _Selection:
    """target: the most rows to keep, on all ranks. spare: how many fewer may be kept."""

    def __init__(self, table: TieredTable, world: Group, target: int, spare: int) -> None:
        self._table, self._world = table, world
        self._target, self._spare = target, spare
        self._by_day = table.config.evict is Evict.LEAST_RECENT

    def evict(self, limit: int) -> int:
        """Evicts rows if there are more than the limit. Returns the rows of this rank."""
        first, prefix, kept, own = _FIRST_BIT[self._table.config.evict], 0, 0, 0
        for bit in range(first, _LAST_BIT - 1, -_DIGIT_BITS):
            digits, counts, mine = self._count(prefix, bit)
            if bit == first and counts.sum() <= limit:
                return int(mine.sum())
            # Of the digits from the highest on, those that are kept as a whole.
            sums = kept + np.cumsum(counts[::-1])
            whole = int(np.searchsorted(sums, self._target, "right"))
            kept += int(counts[len(counts) - whole :].sum())
            own += int(mine[len(mine) - whole :].sum())
            at = len(digits) - whole - 1  # the digit of which only some rows can be kept
            prefix = prefix << _DIGIT_BITS | int(digits[at])
            if counts[at] <= self._spare or kept == self._target:
                break
        lowest = (prefix + 1) << bit
        self._table.native.evict(self._by_day, _parts(lowest))
        return own

    def _count(self, prefix: int, bit: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The digits from `bit` on of rows whose higher bits are `prefix`, ascending; the number
        of rows of each on all ranks, and on this one."""
        rank = _parts(prefix << (bit + _DIGIT_BITS))
        digits, counts = self._table.native.count_ranks(self._by_day, rank, bit)
        pairs = np.stack([digits.astype(np.uint64), counts])
        every = [
            np.frombuffer(one, np.uint64).reshape(2, -1)
            for one in self._world.gather_bytes(pairs.tobytes())
        ]
        found = np.unique(np.concatenate([one[0] for one in every]))
        total, mine = np.zeros(len(found), np.uint64), np.zeros(len(found), np.uint64)
        for one in every:
            total[np.searchsorted(found, one[0])] += one[1]
        mine[np.searchsorted(found, pairs[0])] = counts
        return found, total, mine


def _parts(rank: int) -> tuple[int, int, int]:
    """Day, bits of the score and key."""
    return rank >> 96, rank >> 64 & 0xFFFFFFFF, rank & _MASK
