"""SpillingInstances: keeps the instances of a pass of any size within a memory budget.

A pass over the budget is written to a file without a name on local disk, as pieces of a parsed file
(docs/formats/parsed_cache.md). It is trained in *windows*: a window is a range of instances, a
whole number of batches, in its own `Instances`. A thread reads windows ahead of their use.

Letters: N = instances, U = unique keys of the pass, u = those of a window, T = tables.
"""

from __future__ import annotations

import itertools
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paddlebox import _native
from paddlebox.data.spill_layout import SpillLayout, gathered
from paddlebox.errors import DataError, PassError

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


class Columns(NamedTuple):
    """What instances hold."""

    sparse_slots: int  # S
    dense_width: int
    dedup: bool | Sequence[int] = False  # as `LoadOptions.dedup`
    tables: Sequence[int] = ()  # (S) the table of each slot; empty: there is one table
    poolings: Sequence[str] = ()  # `Slots.poolings`

    def empty(self) -> Any:
        """Native Instances without instances."""
        instances = core.Instances(self.sparse_slots, self.dense_width)
        if self.poolings:
            instances.set_poolings(list(self.poolings))
        if self.tables:
            instances.set_tables(list(self.tables))
        if self.dedup is not False:
            instances.share_lists(None if self.dedup is True else list(self.dedup))
        return instances


def new_instances(
    columns: Columns,
    batch_size: int,
    budget_bytes: int = 0,
    folder: Path | None = None,
    to_disk: bool = False,
) -> Any:
    """Native Instances; SpillingInstances with a budget, or to_disk, which writes the pass to disk
    even if it is within the budget. folder: of the spill files; None: the system's folder for
    temporary files."""
    if budget_bytes == 0 and not to_disk:
        return columns.empty()
    return SpillingInstances(columns, batch_size, budget_bytes or DISK_BUDGET, folder, to_disk)


def indexed(instances: Any, pool: Any) -> Any:
    """Index the instances of a pass. Returns them, as native Instances if the pass fits."""
    if isinstance(instances, SpillingInstances) and not instances.spilled_bytes:
        instances = instances.in_memory()
    instances.index(pool)
    return instances


class SpillingInstances:
    """Has the methods and results of native `Instances`, but stays within a memory budget.

    The budget does not include 10 bytes per unique key, 12 bytes per instance if the order changes,
    and the tags. Batches start at multiples of `batch_size`, or where `cut_views` puts them.
    """

    def __init__(
        self,
        columns: Columns,
        batch_size: int,
        budget_bytes: int,
        folder: Path | None = None,
        to_disk: bool = False,
    ) -> None:
        self._columns = columns
        self._shared = np.zeros(3, np.int64)  # as native `shared`
        self._held_bytes = -1 if to_disk else int(budget_bytes * _HELD_SHARE)
        self._window_bytes = int(budget_bytes * _WINDOW_SHARE)
        self._held: list[Any] = []  # chunks in memory, until they are over the budget
        self._bytes = 0  # of all chunks, in memory or on disk
        self._size = 0
        self._first_order = ("file", 0, 0)  # by, seed and slot; applied when it is indexed
        # Or, by arrange_places: the number of the instance at each place, and the ends of batches.
        self._first_places: tuple[np.ndarray, np.ndarray | None] | None = None
        self._layout = SpillLayout(
            columns.sparse_slots,
            batch_size,
            budget_bytes,
            self._window_bytes,
            folder or Path(tempfile.gettempdir()),
        )
        self._windows = _Windows(self._layout, columns.empty)

    # ---- properties of Instances

    @property
    def size(self) -> int:
        return self._layout.places if self._windows.indexed else self._size

    @property
    def unique_keys(self) -> int:
        return len(self._windows.keys.keys)

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
        if self._layout.spilled or self._bytes > self._held_bytes:
            for held in self._held:
                self._layout.add(held)
            self._held.clear()

    def reorder(self, order: Sequence[int]) -> None:
        """Put at place i the chunk that was appended as number order[i]. REQUIRES: the pass is not
        indexed, and no chunk is empty."""
        if self._layout.spilled:
            self._layout.reorder(order)
        else:
            self._held = [self._held[at] for at in order]

    def shuffle(self, seed: int) -> None:
        self.arrange_by("instance", seed)

    def arrange_by(self, by: str, seed: int, slot: int = 0) -> None:
        """Call it before the pass is indexed, or later between batches. Raises: PassError if the
        instances lack the tag that it needs."""
        if self._windows.indexed:
            self._windows.drop()
            self._layout.arrange(by, seed, slot)
        elif self._size:
            self._first_order = (by, seed, slot)

    def arrange_places(self, order: np.ndarray, ends: np.ndarray | None = None) -> None:
        """ends: where the batches end; None: at multiples of the batch size."""
        if self._windows.indexed:
            self._windows.drop()
            self._layout.arrange_places(order, ends)
        else:
            self._first_places = (order, ends)

    def numbers(self) -> np.ndarray:
        """(N) uint32"""
        return self._layout.order.numbers_of(0, self.size)

    def gather(self, numbers: np.ndarray) -> Any:
        """REQUIRES: the pass is not indexed."""
        chunks = self._layout.chunks() if self._layout.spilled else self._held
        return gathered(chunks, self._columns.sparse_slots, self._columns.dense_width, numbers)

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
        """Native Instances of a pass that fits, not indexed yet."""
        instances = self._columns.empty()
        for chunk in self._held:
            instances.append(chunk)
        self._held.clear()
        if self._first_places is not None:
            instances.arrange_places(self._first_places[0])
        elif self._first_order[0] != "file":
            instances.arrange_by(*self._first_order)
        return instances

    def replace_slots(self, slots: list[int], pool_size: int, seed: int) -> None:
        """Raises: OutOfSpaceError if the pool is larger than a window."""
        self._windows.drop()
        self._layout.choose_donors(slots, pool_size, seed)

    # ---- tags

    def page_view_starts(self) -> list[int]:
        return list(self._layout.order.tags("page views").page_view_starts())

    def rank_offsets(self, begin: int, end: int) -> np.ndarray:
        return np.asarray(self._layout.order.tags("set_rank_offset").rank_offsets(begin, end))

    def log_keys(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        search_ids, cmatch_ranks = self._layout.order.tags("log keys").log_keys(begin, end)
        return search_ids, cmatch_ranks

    def ins_ids(self, begin: int, end: int) -> list[Any]:
        return list(self._layout.order.tags("ins_ids").ins_ids(begin, end))

    def contents(self, begin: int, end: int) -> list[Any]:
        return list(self._layout.order.tags("contents").contents(begin, end))

    # ---- the pass

    def split_at(self, max_rows: Sequence[int], ends: Sequence[int]) -> list[Any]:
        keys, most = self._windows.keys, np.array(max_rows, np.int64)
        if np.all(np.diff(keys.bounds) <= most):
            return [core.InstanceRange(0, self.size)] if self.size else []
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
        """(U) uint32. Reads the whole pass again."""
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
        """As `LoadedPass.within`."""
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


@dataclass
class _Window:
    begin: int
    end: int
    instances: Any  # native Instances
    positions: np.ndarray  # (u) int32 among the keys of the pass
    # The last row ids of the pass, and those of the window, (u) int32. One attribute, because
    # several threads use it.
    rows: tuple[np.ndarray, np.ndarray] | None = None


class _SlottedKeys(NamedTuple):
    """Keys with their lowest slots, grouped by table. Table t has [bounds[t], bounds[t + 1])."""

    keys: np.ndarray  # (n) uint64, ascending in each table
    slots: np.ndarray  # (n) uint16
    bounds: list[int]  # (T + 1)

    def merged(self, other: _SlottedKeys) -> _SlottedKeys:
        keys, slots, bounds = [], [], [0]
        for table in range(len(self.bounds) - 1):
            a = slice(*self.bounds[table : table + 2])
            b = slice(*other.bounds[table : table + 2])
            both = core.merge_sorted_keys(
                self.keys[a], self.slots[a], other.keys[b], other.slots[b]
            )
            keys.append(both[0])
            slots.append(both[1])
            bounds.append(bounds[-1] + len(both[0]))
        return _SlottedKeys(np.concatenate(keys), np.concatenate(slots), bounds)

    def by_table(self, positions: np.ndarray) -> np.ndarray:
        """(T) how many of these ascending positions belong to the keys of each table."""
        return np.diff(np.searchsorted(positions, self.bounds))

    def positions_of(self, instances: Any) -> np.ndarray:
        """(u) int32 positions of the keys of native Instances."""
        keys, _, _ = instances.select(core.InstanceRange(0, instances.size))
        places = []
        for table, low in enumerate(self.bounds[:-1]):
            own = keys[slice(*instances.key_bounds[table : table + 2])]
            among = self.keys[low : self.bounds[table + 1]]
            places.append(core.positions_of_sorted(own, among) + np.int32(low))
        return np.concatenate(places)


class _Windows:
    """The windows of a layout, and the keys of the pass. Any thread may request a window."""

    def __init__(self, layout: SpillLayout, new_instances: Callable[[], Any]) -> None:
        self._layout = layout
        self._new_instances = new_instances
        self._pool: Any = None
        self._lock = threading.Lock()  # guards _windows, _waiting
        self._waiting: Counter[int] = Counter()  # window -> number of threads that wait for it
        self._windows: dict[int, Future[_Window]] = {}
        self._reader = ThreadPoolExecutor(
            1, "paddlebox-spill", initializer=core.release_thread_affinity
        )
        self.keys = _SlottedKeys(np.zeros(0, np.uint64), np.zeros(0, np.uint16), [0, 0])
        self.indexed = False

    def index(self, pool: Any) -> np.ndarray:
        """Find the unique keys of the pass, window by window. Returns the sum of `shared`."""
        self._pool = pool
        shared = np.zeros(3, np.int64)
        merged: list[_SlottedKeys] = []

        def merge_last() -> None:
            right, left = merged.pop(), merged.pop()
            merged.append(left.merged(right))

        for number in range(self._layout.windows):
            instances = self._read(number)
            shared += instances.shared
            keys, slots, _ = instances.select(core.InstanceRange(0, instances.size))
            merged.append(_SlottedKeys(keys, slots, instances.key_bounds))
            # Sets of about the same size are merged, so that a key moves log(windows) times.
            while len(merged) > 1 and len(merged[-2].keys) < 2 * len(merged[-1].keys):
                merge_last()
        while len(merged) > 1:
            merge_last()
        self.keys, self.indexed = (merged[0] if merged else self.keys), True
        if len(self.keys.keys) >= 1 << 31:
            raise DataError(
                f"{len(self.keys.keys)} unique feasigns in one load, expected at most 2^31 - 1; "
                "load fewer files"
            )
        return shared

    def load(self, number: int) -> _Window:
        instances = self._read(number)
        begin, end = (int(bound) for bound in self._layout.bounds[number : number + 2])
        return _Window(begin, end, instances, self.keys.positions_of(instances))

    def holding(self, begin: int, end: int) -> _Window:
        """The window that holds [begin, end). Also starts to read the next one, and drops earlier
        ones."""
        number = self._number_of(begin, end)
        with self._lock:
            self._waiting[number] += 1
            # Several threads pack neighbouring batches, perhaps in different windows. So keep the
            # windows that another thread waits for, or has just requested.
            for old in set(self._windows) - {number, number + 1, number + 2} - set(+self._waiting):
                self._windows.pop(old).cancel()
            for wanted in (number, number + 1):
                if wanted < self._layout.windows and wanted not in self._windows:
                    self._windows[wanted] = self._reader.submit(self.load, wanted)
            future = self._windows[number]
        try:
            return future.result()
        finally:
            with self._lock:
                self._waiting[number] -= 1

    def drop(self) -> None:
        """Drop all windows. Call it before changing the files that they are read from."""
        with self._lock:
            dropped = list(self._windows.values())
            self._windows.clear()
        for future in dropped:
            future.cancel()
        wait(dropped)

    def positions(self, begin: int, end: int) -> np.ndarray:
        """(n) int32 positions of the unique keys of instances [begin, end), within one window."""
        window = self.holding(begin, end)
        chosen = core.InstanceRange(begin - window.begin, end - window.begin)
        _, _, positions = window.instances.select(chosen)
        among: np.ndarray = window.positions[positions]
        return among

    def _read(self, number: int) -> Any:
        instances = self._new_instances()
        self._layout.read_into(instances, number, self._pool)
        return instances

    def _number_of(self, begin: int, end: int) -> int:
        if not self._layout.spilled:
            raise PassError("the batches of a pass cannot be read before it is indexed")
        bounds = self._layout.bounds
        number = int(np.searchsorted(bounds, begin, side="right")) - 1
        number = max(0, min(number, len(bounds) - 2))
        if not bounds[number] <= begin <= end <= bounds[number + 1]:
            raise ValueError(
                f"instances [{begin}, {end}) of a spilled pass of {bounds[-1]} instances: expected "
                f"{self._layout.batch()}"
            )
        return number
