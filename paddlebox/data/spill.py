"""SpillingInstances: the instances of a pass within a budget, whatever the size of the pass.

What is over the budget lies in a nameless file on local disk, as pieces of a parsed file
(docs/formats/parsed_cache.md). The pass is gone through in *windows*: instances that follow each
other, a whole number of batches, each an `Instances` of its own that is read ahead of its use.

Letters: N = instances, U = unique keys of the pass, u = those of a window.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.data.spill_layout import SpillLayout
from paddlebox.data.spill_windows import SpillWindows

core = _native.core

# Of the budget: two passes live at once, and one that is indexed in memory takes twice what its
# columns take.
_HELD_SHARE = 1 / 4
# A pass that trains holds a window and reads the next, one that loads holds one and its index, and
# the allocator keeps about as much again: two shuffled passes of five budgets, one packed while the
# other loads, took 0.85 of the budget at most.
_WINDOW_SHARE = 1 / 12
#: Of a pass that is loaded to disk where feeder.budget_bytes says nothing.
DISK_BUDGET = 1 << 30


def new_instances(
    sparse_slots: int,
    dense_width: int,
    batch_size: int,
    budget_bytes: int = 0,
    folder: Path | None = None,
    dedup: bool | Sequence[int] = False,
    to_disk: bool = False,
    tables: Sequence[int] = (),
) -> Any:
    """Native Instances, or with a budget what does the same within it.

    Args:
        budget_bytes: 0: none. folder: of what is over it; None: the system's for temporary files.
        dedup: whether lists that repeat are held once, or the places of the slots that may.
        to_disk: all of it goes there at once, also what is within the budget (0: DISK_BUDGET).
        tables: (S) the table of each slot; empty: one.
    """
    if budget_bytes == 0 and not to_disk:
        return _native_instances(sparse_slots, dense_width, dedup, tables)
    budget_bytes = budget_bytes or DISK_BUDGET
    return SpillingInstances(
        sparse_slots, dense_width, batch_size, budget_bytes, folder, dedup, to_disk, tables
    )


def _native_instances(
    sparse_slots: int, dense_width: int, dedup: bool | Sequence[int], tables: Sequence[int]
) -> Any:
    instances = core.Instances(sparse_slots, dense_width)
    if tables:
        instances.set_tables(list(tables))
    if dedup is not False:
        instances.share_lists(None if dedup is True else list(dedup))
    return instances


class SpillingInstances:
    """Does what native `Instances` does, with the same results, and holds at most the budget: but
    for 10 bytes a unique key, 12 an instance when it is put into another order, and the tags.

    Batches are packed at multiples of `batch_size`, or as `cut_views` says. The life is that of
    `Instances`.
    """

    def __init__(
        self,
        sparse_slots: int,
        dense_width: int,
        batch_size: int,
        budget_bytes: int,
        folder: Path | None = None,
        dedup: bool | Sequence[int] = False,
        to_disk: bool = False,
        tables: Sequence[int] = (),
    ) -> None:
        self._shared = np.zeros(3, np.int64)  # as native `shared`
        self._held_bytes = -1 if to_disk else int(budget_bytes * _HELD_SHARE)
        self._window_bytes = int(budget_bytes * _WINDOW_SHARE)
        self._held: list[Any] = []  # chunks, until there are too many
        self._bytes = 0  # of all chunks, as they lay in memory
        self._size = 0
        self._occurrences = 0
        self._whole: Any = None  # native Instances of a pass that fits, once it is indexed
        self._first_order = ("file", 0, 0)  # by, seed and slot, until it is indexed
        self._new_instances = partial(_native_instances, sparse_slots, dense_width, dedup, tables)
        folder = folder or Path(tempfile.gettempdir())
        self._layout = SpillLayout(
            sparse_slots, batch_size, budget_bytes, self._window_bytes, folder
        )
        self._windows = SpillWindows(self._layout, self._new_instances)

    # ---- what Instances tells

    @property
    def size(self) -> int:
        return self._size

    @property
    def occurrences(self) -> int:
        return self._occurrences

    @property
    def unique_keys(self) -> int:
        whole = self._whole
        return int(whole.unique_keys) if whole is not None else len(self._windows.keys.keys)

    @property
    def key_bounds(self) -> list[int]:
        whole = self._whole
        return list(whole.key_bounds) if whole is not None else self._windows.keys.bounds

    @property
    def shared(self) -> tuple[int, int, int]:
        lists, values, index_bytes = (int(count) for count in self._shared)
        return lists, values, index_bytes

    @property
    def whole(self) -> Any:
        """The native Instances of a pass that fits, once it is indexed; None of another."""
        return self._whole

    @property
    def spilled_bytes(self) -> int:
        """Bytes on disk; 0 for a pass that fits."""
        return self._layout.file_bytes

    # ---- loading

    def append(self, chunk: Any) -> None:
        rows, size = int(chunk.instances), int(core.chunk_bytes(chunk))
        if rows == 0:
            return
        self._held.append(chunk)
        self._bytes += size
        self._size += rows
        self._occurrences += chunk.occurrences
        if not self._layout.spilled and self._bytes > self._held_bytes:
            self._layout.open()
        if self._layout.spilled:
            for held in self._held:
                self._layout.add(held)
            self._held.clear()

    def shuffle(self, seed: int) -> None:
        """The order of `Instances.shuffle`."""
        self.arrange_by("instance", seed)

    def arrange_by(self, by: str, seed: int, slot: int = 0) -> None:
        """As of native `Instances`; before the pass is indexed and at any time after, between
        batches. Raises: PassError when the instances lack the tag that it takes."""
        if self._whole is not None:
            self._whole.arrange_by(by, seed, slot)
        elif self._size and not self._windows.indexed:
            self._first_order = (by, seed, slot)
        elif self._size:
            self._windows.drop()
            self._layout.arrange(by, seed, slot)

    def cut_views(self, views_a_batch: int) -> None:
        """Batches are from now on so many page views, after arrange_by("page_views")."""
        if self._layout.spilled and views_a_batch != self._layout.views_a_batch:
            self._windows.drop()
            self._layout.scatter(views_a_batch)

    def index(self, pool: Any) -> None:
        if self._layout.spilled:
            self._layout.arrange(*self._first_order)
            self._shared += self._windows.index(pool)
            return
        whole = self._new_instances()
        for chunk in self._held:
            whole.append(chunk)
        self._held.clear()
        if self._first_order[0] != "file":
            whole.arrange_by(*self._first_order)
        whole.index(pool)
        self._whole = whole
        self._shared += whole.shared

    def replace_slots(self, slots: list[int], pool_size: int, seed: int) -> None:
        """As of native `Instances`. Raises: OutOfSpaceError when the pool is over a window."""
        if self._whole is not None:
            self._whole.replace_slots(slots, pool_size, seed)
            return
        self._windows.drop()
        self._layout.choose_donors(slots, pool_size, seed)

    # ---- tags

    def page_view_starts(self) -> list[int]:
        return list(self._tags("page views").page_view_starts())

    def rank_offsets(self, begin: int, end: int) -> np.ndarray:
        return np.asarray(self._tags("set_rank_offset").rank_offsets(begin, end))

    def log_keys(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        search_ids, cmatch_ranks = self._tags("log keys").log_keys(begin, end)
        return search_ids, cmatch_ranks

    def ins_ids(self, begin: int, end: int) -> list[Any]:
        return list(self._tags("ins_ids").ins_ids(begin, end))

    def contents(self, begin: int, end: int) -> list[Any]:
        return list(self._tags("contents").contents(begin, end))

    def _tags(self, call: str) -> Any:
        return self._whole if self._whole is not None else self._layout.tags(call)

    # ---- the pass

    def split(self, max_rows: Sequence[int], batch_size: int) -> list[Any]:
        """As of native Instances. max_rows: (T)."""
        if self._whole is not None:
            return list(self._whole.split(list(max_rows), batch_size))
        most = np.array(max_rows, np.int64)
        if np.all(np.diff(self._windows.keys.bounds) <= most):
            return [core.InstanceRange(0, self._size)] if self._size else []
        return self._split_into_parts(most, batch_size)

    def _split_into_parts(self, most: np.ndarray, batch_size: int) -> list[Any]:
        keys = self._windows.keys
        seen_in = np.zeros(len(keys.keys), np.uint32)  # number of the last range with the key
        ranges: list[Any] = []
        begin = 0
        rows = np.zeros(len(most), np.int64)  # of the range, by table
        for at in range(0, self._size, batch_size):
            end = min(at + batch_size, self._size)
            positions = self._windows.positions(at, end)
            new = positions[seen_in[positions] != len(ranges) + 1]
            rows += keys.by_table(new)
            if np.any(rows > most) and at > begin:  # this batch begins a range of its own
                ranges.append(core.InstanceRange(begin, at))
                begin, new, rows = at, positions, keys.by_table(positions)
            if np.any(rows > most):
                over = int(np.argmax(rows > most))
                raise ValueError(
                    f"the batch of instances [{at}, {end}) alone needs {rows[over]} rows, the pass "
                    f"table holds {most[over]}; raise its budget or lower the batch size"
                )
            seen_in[new] = len(ranges) + 1
        return [*ranges, core.InstanceRange(begin, self._size)]

    def key_counts(self) -> np.ndarray:
        """(U) uint32 as of native Instances. Reads the whole pass once more."""
        if self._whole is not None:
            return np.asarray(self._whole.key_counts())
        counts = np.zeros(self.unique_keys, np.uint32)
        for number in range(self._layout.windows):
            window = self._windows.load(number)
            counts[window.positions] += window.instances.key_counts()
        return counts

    def select(self, chosen: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if self._whole is not None:
            keys, slots, positions = self._whole.select(chosen)
            return keys, slots, positions
        keys, slots, _ = self._windows.keys
        if (chosen.begin, chosen.end) == (0, self._size):
            return keys, slots, np.arange(len(keys), dtype=np.int32)
        used = np.zeros(len(keys), bool)
        bounds = self._layout.bounds
        inner = bounds[(bounds > chosen.begin) & (bounds < chosen.end)].tolist()
        for begin, end in itertools.pairwise([chosen.begin, *inner, chosen.end]):
            used[self._windows.positions(begin, end)] = True
        positions = np.flatnonzero(used).astype(np.int32)
        return keys[positions], slots[positions], positions

    def within(
        self, begin: int, end: int, row_of_position: np.ndarray
    ) -> tuple[Any, int, int, np.ndarray]:
        """The native Instances that hold [begin, end), their numbers there, and the rows of its
        keys: all inputs of a batch are packed from it at once."""
        if self._whole is not None:
            return self._whole, begin, end, row_of_position
        window = self._windows.holding(begin, end)
        if window.rows is None or window.rows_of is not row_of_position:
            window.rows, window.rows_of = row_of_position[window.positions], row_of_position
        return window.instances, begin - window.begin, end - window.begin, window.rows

    def pack_batch(
        self, begin: int, end: int, row_of_position: np.ndarray, stamp: int, dense_width: int
    ) -> dict[str, np.ndarray]:
        instances, begin, end, rows = self.within(begin, end, row_of_position)
        packed: dict[str, np.ndarray] = instances.pack_batch(begin, end, rows, stamp, dense_width)
        return packed

    def pack_feasigns(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        if self._whole is not None:
            feasigns, offsets = self._whole.pack_feasigns(begin, end)
            return feasigns, offsets
        window = self._windows.holding(begin, end)
        feasigns, offsets = window.instances.pack_feasigns(begin - window.begin, end - window.begin)
        return feasigns, offsets
