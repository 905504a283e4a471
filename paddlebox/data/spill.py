"""SpillingInstances: keeps the instances of a pass of any size within a memory budget.

A pass over the budget is written to a file without a name on local disk, as pieces of a parsed file
(docs/formats/parsed_cache.md). It is trained in *windows*. A window is a range of instances, a
whole number of batches, in its own `Instances`. Windows are read ahead of their use.

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
from paddlebox.data.spill_layout import SpillLayout, gathered
from paddlebox.data.spill_windows import SpillWindows

core = _native.core

# Share of the budget for the columns of a pass in memory. Two passes are in memory at the same
# time, and the index of a pass takes as much as its columns.
_HELD_SHARE = 1 / 4
# Share of the budget for a window. A training pass holds a window and reads the next; a loading
# pass holds a window and its index; the allocator keeps about as much again. Measured: two shuffled
# passes of five budgets each, one packed while the other loads, took 0.85 of the budget at most.
_WINDOW_SHARE = 1 / 12
#: The budget of a pass that is loaded to disk if feeder.budget_bytes is 0.
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
    poolings: Sequence[str] = (),
) -> Any:
    """Native Instances, or SpillingInstances if there is a budget.

    Args:
        budget_bytes: 0: no limit.
        folder: for instances over the budget; None: the system's folder for temporary files.
        dedup: whether to hold lists that continue each other once, or the positions of the slots
            with such lists.
        to_disk: whether to write the pass to disk even if it is within the budget. The budget of
            windows is then DISK_BUDGET if budget_bytes is 0.
        tables: (S) the table of each slot; empty: there is one table.
        poolings: `Slots.poolings`.
    """
    if budget_bytes == 0 and not to_disk:
        return _native_instances(sparse_slots, dense_width, dedup, tables, poolings)
    budget_bytes = budget_bytes or DISK_BUDGET
    return SpillingInstances(
        *(sparse_slots, dense_width, batch_size, budget_bytes, folder, dedup, to_disk, tables),
        poolings,
    )


def _native_instances(
    sparse_slots: int,
    dense_width: int,
    dedup: bool | Sequence[int],
    tables: Sequence[int],
    poolings: Sequence[str] = (),
) -> Any:
    instances = core.Instances(sparse_slots, dense_width)
    if poolings:
        instances.set_poolings(list(poolings))
    if tables:
        instances.set_tables(list(tables))
    if dedup is not False:
        instances.share_lists(None if dedup is True else list(dedup))
    return instances


def indexed(instances: Any, pool: Any) -> Any:
    """Index the instances of a pass. Returns them, as native Instances if the pass fits."""
    if isinstance(instances, SpillingInstances) and not instances.spilled_bytes:
        instances = instances.in_memory()
    instances.index(pool)
    return instances


class SpillingInstances:
    """Has the methods and results of native `Instances`, but stays within a memory budget.

    The budget does not include 10 bytes per unique key, 12 bytes per instance if the order changes,
    and the tags. Batches start at multiples of `batch_size`, or where `cut_views` puts them. If the
    pass fits, `indexed` replaces this object by native `Instances`.
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
        poolings: Sequence[str] = (),
    ) -> None:
        self._shared = np.zeros(3, np.int64)  # as native `shared`
        self._held_bytes = -1 if to_disk else int(budget_bytes * _HELD_SHARE)
        self._window_bytes = int(budget_bytes * _WINDOW_SHARE)
        self._held: list[Any] = []  # chunks in memory, until they are over the budget
        self._bytes = 0  # of all chunks, in memory or on disk
        self._size = 0
        self._occurrences = 0
        self._first_order = ("file", 0, 0)  # by, seed and slot; applied when it is indexed
        # Or, by arrange_places: the number of the instance at each place, and the ends of batches.
        self._first_places: tuple[np.ndarray, np.ndarray | None] | None = None
        self._sparse_slots, self._dense_width = sparse_slots, dense_width
        self._new_instances = partial(
            _native_instances, sparse_slots, dense_width, dedup, tables, poolings
        )
        folder = folder or Path(tempfile.gettempdir())
        self._layout = SpillLayout(
            sparse_slots, batch_size, budget_bytes, self._window_bytes, folder
        )
        self._windows = SpillWindows(self._layout, self._new_instances)

    # ---- properties of Instances

    @property
    def size(self) -> int:
        return self._layout.places if self._windows.indexed else self._size

    @property
    def occurrences(self) -> int:
        return self._occurrences

    @property
    def unique_keys(self) -> int:
        return len(self._windows.keys.keys)

    @property
    def key_bounds(self) -> list[int]:
        return self._windows.keys.bounds

    @property
    def shared(self) -> tuple[int, int, int]:
        lists, values, index_bytes = (int(count) for count in self._shared)
        return lists, values, index_bytes

    @property
    def spilled_bytes(self) -> int:
        """Bytes on disk; 0 if the pass fits."""
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

    def reorder(self, order: Sequence[int]) -> None:
        """Put at place i the chunk that was appended as number order[i]. Call it before the pass is
        indexed. None of the chunks may be empty."""
        if self._layout.spilled:
            self._layout.reorder(order)
        else:
            self._held = [self._held[at] for at in order]

    def shuffle(self, seed: int) -> None:
        """The order of `Instances.shuffle`."""
        self.arrange_by("instance", seed)

    def arrange_by(self, by: str, seed: int, slot: int = 0) -> None:
        """As native `Instances.arrange_by`. Call it before the pass is indexed, or later between
        batches. Raises: PassError if the instances lack the tag that it needs."""
        if self._windows.indexed:
            self._windows.drop()
            self._layout.arrange(by, seed, slot)
        elif self._size:
            self._first_order = (by, seed, slot)

    def arrange_places(self, order: np.ndarray, ends: np.ndarray | None = None) -> None:
        """As native `Instances.arrange_places`.

        Args:
            ends: where the batches end; None: at multiples of the batch size.
        """
        if self._windows.indexed:
            self._windows.drop()
            self._layout.arrange_places(order, ends)
        else:
            self._first_places = (order, ends)

    def numbers(self) -> np.ndarray:
        """As native `Instances.numbers`, (N) uint32."""
        return self._layout.numbers_of(0, self.size)

    def gather(self, numbers: np.ndarray) -> Any:
        """As native `Instances.gather`. Call it before the pass is indexed."""
        chunks = self._layout.chunks() if self._layout.spilled else self._held
        return gathered(chunks, self._sparse_slots, self._dense_width, numbers)

    def cut_views(self, views_a_batch: int) -> None:
        """Set the number of page views in a batch, after arrange_by("page_views")."""
        if views_a_batch != self._layout.views_a_batch:
            self._windows.drop()
            self._layout.scatter(views_a_batch)

    def index(self, pool: Any) -> None:
        if self._first_places is not None:
            self._layout.arrange_places(*self._first_places)
        else:
            self._layout.arrange(*self._first_order)
        self._shared += self._windows.index(pool)

    def in_memory(self) -> Any:
        """Native Instances with the chunks of a pass that fits, not indexed yet."""
        instances = self._new_instances()
        for chunk in self._held:
            instances.append(chunk)
        self._held.clear()
        if self._first_places is not None:
            instances.arrange_places(self._first_places[0])
        elif self._first_order[0] != "file":
            instances.arrange_by(*self._first_order)
        return instances

    def replace_slots(self, slots: list[int], pool_size: int, seed: int) -> None:
        """As native `Instances.replace_slots`. Raises: OutOfSpaceError if the pool is larger than a
        window."""
        self._windows.drop()
        self._layout.choose_donors(slots, pool_size, seed)

    # ---- tags

    def page_view_starts(self) -> list[int]:
        return list(self._layout.tags("page views").page_view_starts())

    def rank_offsets(self, begin: int, end: int) -> np.ndarray:
        return np.asarray(self._layout.tags("set_rank_offset").rank_offsets(begin, end))

    def log_keys(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        search_ids, cmatch_ranks = self._layout.tags("log keys").log_keys(begin, end)
        return search_ids, cmatch_ranks

    def ins_ids(self, begin: int, end: int) -> list[Any]:
        return list(self._layout.tags("ins_ids").ins_ids(begin, end))

    def contents(self, begin: int, end: int) -> list[Any]:
        return list(self._layout.tags("contents").contents(begin, end))

    # ---- the pass

    def split(self, max_rows: Sequence[int], batch_size: int) -> list[Any]:
        """As native `Instances.split`. max_rows: (T)."""
        ends = [min(at + batch_size, self.size) for at in range(0, self.size, batch_size)]
        return self.split_at(max_rows, ends)

    def split_at(self, max_rows: Sequence[int], ends: Sequence[int]) -> list[Any]:
        """As native `Instances.split_at`. max_rows: (T)."""
        most = np.array(max_rows, np.int64)
        if np.all(np.diff(self._windows.keys.bounds) <= most):
            return [core.InstanceRange(0, self.size)] if self.size else []
        return self._split_into_parts(most, ends)

    def _split_into_parts(self, most: np.ndarray, ends: Sequence[int]) -> list[Any]:
        keys = self._windows.keys
        seen_in = np.zeros(len(keys.keys), np.uint32)  # number of the last range with the key
        ranges: list[Any] = []
        begin = 0
        rows = np.zeros(len(most), np.int64)  # rows of the current range, by table
        for at, end in itertools.pairwise([0, *ends]):
            positions = self._windows.positions(at, end)
            new = positions[seen_in[positions] != len(ranges) + 1]
            rows += keys.by_table(new)
            if np.any(rows > most) and at > begin:  # this batch begins a new range
                ranges.append(core.InstanceRange(begin, at))
                begin, new, rows = at, positions, keys.by_table(positions)
            if np.any(rows > most):
                over = int(np.argmax(rows > most))
                raise ValueError(
                    f"the batch of instances [{at}, {end}) alone needs {rows[over]} rows, the pass "
                    f"table holds {most[over]}; raise its budget or lower the batch size"
                )
            seen_in[new] = len(ranges) + 1
        return [*ranges, core.InstanceRange(begin, self.size)]

    def key_counts(self, counted: np.ndarray | None = None) -> np.ndarray:
        """As native `Instances.key_counts`, (U) uint32. Reads the whole pass again."""
        counts = np.zeros(self.unique_keys, np.uint32)
        for number in range(self._layout.windows):
            window = self._windows.load(number)
            own = None if counted is None else counted[window.begin : window.end]
            counts[window.positions] += window.instances.key_counts(own)
        return counts

    def select(self, chosen: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        keys, slots, _ = self._windows.keys
        if (chosen.begin, chosen.end) == (0, self.size):
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
        """The native Instances that hold [begin, end), the begin and end in them, and the rows of
        their keys. All inputs of a batch are packed from them."""
        window = self._windows.holding(begin, end)
        known = window.rows
        if known is None or known[0] is not row_of_position:
            known = window.rows = (row_of_position, row_of_position[window.positions])
        return window.instances, begin - window.begin, end - window.begin, known[1]

    def pack_batch(
        self, begin: int, end: int, row_of_position: np.ndarray, stamp: int, dense_width: int
    ) -> dict[str, np.ndarray]:
        instances, begin, end, rows = self.within(begin, end, row_of_position)
        packed: dict[str, np.ndarray] = instances.pack_batch(begin, end, rows, stamp, dense_width)
        return packed

    def pack_feasigns(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        window = self._windows.holding(begin, end)
        feasigns, offsets = window.instances.pack_feasigns(begin - window.begin, end - window.begin)
        return feasigns, offsets

    def pack_weights(self, begin: int, end: int) -> np.ndarray:
        window = self._windows.holding(begin, end)
        weights: np.ndarray = window.instances.pack_weights(
            begin - window.begin, end - window.begin
        )
        return weights
