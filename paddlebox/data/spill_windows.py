"""SpillWindows: reads the windows of a spilled pass ahead of their use, and holds its keys.

Letters: U = unique keys of the pass, u = those of a window, T = tables.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from paddlebox import _native
from paddlebox.data.spill_layout import SpillLayout
from paddlebox.errors import DataError, PassError

core = _native.core


@dataclass
class Window:
    """Instances [begin, end) in memory, indexed."""

    begin: int
    end: int
    instances: Any  # native Instances
    positions: np.ndarray  # (u) int32 among the keys of the pass
    rows_of: np.ndarray | None = None  # the row ids from which `rows` was computed
    rows: np.ndarray | None = None  # (u) int32


class SlottedKeys(NamedTuple):
    """Keys with their lowest slots, grouped by table. Table t has [bounds[t], bounds[t + 1])."""

    keys: np.ndarray  # (n) uint64, ascending in each table
    slots: np.ndarray  # (n) uint16
    bounds: list[int]  # (T + 1)

    def merged(self, other: SlottedKeys) -> SlottedKeys:
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
        return SlottedKeys(np.concatenate(keys), np.concatenate(slots), bounds)

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


class SpillWindows:
    """Reads the windows of a layout in its own thread. Any thread may request one.

    Args:
        layout: the windows and their instances.
        new_instances: returns empty native Instances.
    """

    def __init__(self, layout: SpillLayout, new_instances: Callable[[], Any]) -> None:
        self._layout = layout
        self._new_instances = new_instances
        self._pool: Any = None
        self._lock = threading.Lock()  # guards _windows, _waiting
        self._waiting: Counter[int] = Counter()  # window -> number of threads that wait for it
        self._windows: dict[int, Future[Window]] = {}
        self._reader = ThreadPoolExecutor(
            1, "paddlebox-spill", initializer=core.release_thread_affinity
        )
        self.keys = SlottedKeys(np.zeros(0, np.uint64), np.zeros(0, np.uint16), [0, 0])
        self.indexed = False

    def index(self, pool: Any) -> np.ndarray:
        """Find the unique keys of the pass, window by window. Returns the sum of `shared`."""
        self._pool = pool
        shared = np.zeros(3, np.int64)
        # Two sets of keys of about the same size are merged, so each key moves log(windows) times.
        merged: list[SlottedKeys] = []
        for number in range(self._layout.windows):
            instances = self._read(number)
            shared += instances.shared
            keys, slots, _ = instances.select(core.InstanceRange(0, instances.size))
            merged.append(SlottedKeys(keys, slots, instances.key_bounds))
            while len(merged) > 1 and len(merged[-2].keys) < 2 * len(merged[-1].keys):
                right, left = merged.pop(), merged.pop()
                merged.append(left.merged(right))
        while len(merged) > 1:
            right, left = merged.pop(), merged.pop()
            merged.append(left.merged(right))
        self.keys, self.indexed = (merged[0] if merged else self.keys), True
        if len(self.keys.keys) >= 1 << 31:
            raise DataError(
                f"{len(self.keys.keys)} unique feasigns in one load, expected at most 2^31 - 1; "
                "load fewer files"
            )
        return shared

    def load(self, number: int) -> Window:
        """Read a window in the calling thread."""
        instances = self._read(number)
        begin, end = (int(bound) for bound in self._layout.bounds[number : number + 2])
        return Window(begin, end, instances, self.keys.positions_of(instances))

    def holding(self, begin: int, end: int) -> Window:
        """The window that holds [begin, end). It also starts to read the next window, and drops
        earlier ones."""
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
