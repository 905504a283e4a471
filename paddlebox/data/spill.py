"""SpillingInstances: the instances of a pass within a budget, whatever the size of the pass.

What is over the budget lies in a nameless file on local disk, as pieces of a parsed file
(docs/formats/parsed_cache.md). The pass is gone through in *windows*: instances that follow each
other, a whole number of batches, each an `Instances` of its own that is read ahead of its use.

Letters: N = instances, U = unique keys of the pass, u = those of a window.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paddlebox import _native
from paddlebox.errors import DataError, PassError, StoreError

core = _native.core

# Of the budget: two passes live at once, and one that is indexed in memory takes twice what its
# columns take.
_HELD_SHARE = 1 / 4
# A pass that trains holds a window and reads the next, one that loads holds one and its index, and
# the allocator keeps about as much again: two shuffled passes of five budgets, one packed while the
# other loads, took 0.85 of the budget at most.
_WINDOW_SHARE = 1 / 12
_MOST_INSTANCES = (1 << 32) - 1
_numbers = itertools.count()


def new_instances(
    sparse_slots: int,
    dense_width: int,
    batch_size: int,
    budget_bytes: int = 0,
    folder: Path | None = None,
    dedup: bool | Sequence[int] = False,
    tables: Sequence[int] = (),
) -> Any:
    """Native Instances, or with a budget what does the same within it.

    Args:
        budget_bytes: 0: none. folder: of what is over it; None: the system's for temporary files.
        dedup: whether lists that repeat are held once, or the places of the slots that may.
        tables: (S) the table of each slot; empty: one.
    """
    if budget_bytes == 0:
        return _native_instances(sparse_slots, dense_width, dedup, tables)
    return SpillingInstances(
        sparse_slots, dense_width, batch_size, budget_bytes, folder, dedup, tables
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


@dataclass
class _Window:
    """Instances [begin, end) in memory, indexed."""

    begin: int
    end: int
    instances: Any  # native Instances
    positions: np.ndarray  # (u) int32 among the keys of the pass
    rows_of: np.ndarray | None = None  # the row ids that `rows` was made of
    rows: np.ndarray | None = None  # (u) int32


@dataclass
class _Piece:
    number: int  # in the spill file
    begin: int  # its instances are [begin, begin + rows)
    rows: int
    bytes: int  # in memory


class _SlottedKeys(NamedTuple):
    """Keys with their lowest slots, by table: those of table t are [bounds[t], bounds[t + 1])."""

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


class SpillingInstances:
    """Does what native `Instances` does, with the same results, and holds at most the budget: but
    for 10 bytes a unique key, and 12 an instance when it is shuffled.

    Batches are packed at multiples of `batch_size`. The life is that of `Instances`.
    """

    def __init__(
        self,
        sparse_slots: int,
        dense_width: int,
        batch_size: int,
        budget_bytes: int,
        folder: Path | None = None,
        dedup: bool | Sequence[int] = False,
        tables: Sequence[int] = (),
    ) -> None:
        self._sparse_slots = sparse_slots
        self._dense_width = dense_width
        self._dedup = dedup
        self._tables = tables
        self._shared = np.zeros(3, np.int64)  # as native `shared`
        self._batch_size = batch_size
        self._held_bytes = int(budget_bytes * _HELD_SHARE)
        self._window_bytes = int(budget_bytes * _WINDOW_SHARE)
        self._folder = folder or Path(tempfile.gettempdir())
        self._held: list[Any] = []  # chunks, until there are too many
        self._bytes = 0  # of all chunks, as they lay in memory
        self._size = 0
        self._occurrences = 0
        self._whole: Any = None  # native Instances of a pass that fits, once it is indexed
        self._seed: int | None = None
        self._file: Any = None  # native SpillFile of a pass that does not fit
        self._pieces: list[_Piece] = []
        self._bounds = np.zeros(0, np.int64)  # windows are [bounds[i], bounds[i + 1])
        self._shuffled: list[list[tuple[int, np.ndarray]]] = []  # by window: pieces, their places
        self._key_bounds = [0, 0]  # (T + 1) as of native Instances
        self._keys = np.zeros(0, np.uint64)
        self._slots = np.zeros(0, np.uint16)
        self._pool: Any = None
        self._lock = threading.Lock()  # guards _windows
        self._windows: dict[int, Future[_Window]] = {}
        self._reader = ThreadPoolExecutor(
            1, "paddlebox-spill", initializer=core.release_thread_affinity
        )

    # ---- what Instances tells

    @property
    def size(self) -> int:
        return self._size

    @property
    def occurrences(self) -> int:
        return self._occurrences

    @property
    def unique_keys(self) -> int:
        return int(self._whole.unique_keys) if self._whole is not None else len(self._keys)

    @property
    def key_bounds(self) -> list[int]:
        return list(self._whole.key_bounds) if self._whole is not None else self._key_bounds

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
        return int(self._file.bytes) if self._file is not None else 0

    # ---- loading

    def append(self, chunk: Any) -> None:
        rows, size = int(chunk.instances), int(core.chunk_bytes(chunk))
        if rows == 0:
            return
        self._held.append(chunk)
        self._bytes += size
        self._size += rows
        self._occurrences += chunk.occurrences
        if self._file is None and self._bytes > self._held_bytes:
            self._file = self._new_file()
        if self._file is not None:
            for held in self._held:
                self._spill(held)
            self._held.clear()

    def shuffle(self, seed: int) -> None:
        """The order of `Instances.shuffle`."""
        self._seed = seed

    def index(self, pool: Any) -> None:
        self._pool = pool
        if self._file is None:
            whole = self._new_instances()
            for chunk in self._held:
                whole.append(chunk)
            self._held.clear()
            if self._seed is not None:
                whole.shuffle(self._seed)
            whole.index(pool)
            self._whole = whole
            self._shared += whole.shared
            return
        if self._seed is None:
            self._bounds = self._cut_by_pieces()
        else:
            self._scatter(self._seed)
        self._index_windows()

    def _new_instances(self) -> Any:
        return _native_instances(self._sparse_slots, self._dense_width, self._dedup, self._tables)

    def _new_file(self) -> Any:
        name = f"paddlebox-spill-{os.getpid()}-{next(_numbers)}"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"feeder.spill_dir {self._folder}: cannot be made: {error.strerror}"
            ) from error
        return core.SpillFile(str(self._folder / name))

    def _spill(self, chunk: Any) -> None:
        last = self._pieces[-1] if self._pieces else _Piece(0, 0, 0, 0)
        rows, size = int(chunk.instances), int(core.chunk_bytes(chunk))
        self._pieces.append(_Piece(self._file.add(chunk), last.begin + last.rows, rows, size))

    def _cut_by_pieces(self) -> np.ndarray:
        """Bounds of windows at multiples of the batch size, about window_bytes apart."""
        bounds, held = [0], 0
        for piece in self._pieces:
            at = piece.begin // self._batch_size * self._batch_size
            if held + piece.bytes > self._window_bytes and at > bounds[-1]:
                bounds.append(at)
                held = 0
            held += piece.bytes
        return np.array([*bounds, self._size], np.int64)

    def _scatter(self, seed: int) -> None:
        """Writes the instances anew, those of a window together. Their order within it is made when
        it is read."""
        if self._size > _MOST_INSTANCES:
            raise DataError(
                f"a pass of {self._size} instances over feeder.budget_bytes is shuffled; expected "
                f"at most {_MOST_INSTANCES}: use fewer files a pass"
            )
        place = np.empty(self._size, np.uint32)  # of each instance, as it was read
        place[core.shuffled_order(self._size, seed)] = np.arange(self._size, dtype=np.uint32)
        windows = max(1, -(-self._bytes // self._window_bytes))
        batches = -(-self._size // self._batch_size)
        rows = max(1, -(-batches // windows)) * self._batch_size
        bounds = np.arange(0, self._size, rows, dtype=np.int64)
        self._bounds = np.append(bounds, self._size)
        self._shuffled = [[] for _ in bounds]
        source, self._file = self._file, self._new_file()
        for group in self._groups():
            begin, end = group[0].begin, group[-1].begin + group[-1].rows
            places = place[begin:end]
            window_of = places // np.uint32(rows)
            chunks = [source.read(piece.number) for piece in group]
            parts = core.scatter_rows(chunks, self._sparse_slots, window_of, len(bounds))
            del chunks
            for window, part in enumerate(parts):
                if part.instances:
                    within = places[window_of == window] - np.uint32(bounds[window])
                    self._shuffled[window].append((self._file.add(part), within))

    def _groups(self) -> list[list[_Piece]]:
        """Pieces that follow each other, half a window together: scattered one by one they would
        become crumbs."""
        groups: list[list[_Piece]] = [[]]
        held = 0
        for piece in self._pieces:
            if groups[-1] and held + piece.bytes > self._window_bytes // 2:
                groups.append([])
                held = 0
            groups[-1].append(piece)
            held += piece.bytes
        return groups

    def _index_windows(self) -> None:
        # Merged in pairs of about the same size, so that a key is moved log(windows) times.
        merged: list[_SlottedKeys] = []
        for number in range(len(self._bounds) - 1):
            instances = self._read(number)
            self._shared += instances.shared
            keys, slots, _ = instances.select(core.InstanceRange(0, instances.size))
            merged.append(_SlottedKeys(keys, slots, instances.key_bounds))
            while len(merged) > 1 and len(merged[-2].keys) < 2 * len(merged[-1].keys):
                right, left = merged.pop(), merged.pop()
                merged.append(left.merged(right))
        while len(merged) > 1:
            right, left = merged.pop(), merged.pop()
            merged.append(left.merged(right))
        self._keys, self._slots, self._key_bounds = merged[0]
        if len(self._keys) >= 1 << 31:
            raise DataError(
                f"{len(self._keys)} unique feasigns in one load, expected at most 2^31 - 1; load "
                "fewer files"
            )

    # ---- windows

    def _read(self, number: int) -> Any:
        """The instances of a window, indexed by themselves."""
        instances = self._new_instances()
        if self._shuffled:
            order = []
            for in_file, within in self._shuffled[number]:
                instances.append(self._file.read(in_file))
                order.append(within)
            places = np.concatenate(order)
            inverse = np.empty(len(places), np.uint32)
            inverse[places] = np.arange(len(places), dtype=np.uint32)
            instances.arrange(inverse)
        else:
            begin, end = int(self._bounds[number]), int(self._bounds[number + 1])
            for piece in self._pieces:
                if piece.begin + piece.rows > begin and piece.begin < end:
                    instances.append(self._slice(piece, begin, end))
        instances.index(self._pool)
        return instances

    def _slice(self, piece: _Piece, begin: int, end: int) -> Any:
        chunk = self._file.read(piece.number)
        if begin <= piece.begin and piece.begin + piece.rows <= end:
            return chunk
        numbers = np.arange(piece.begin, piece.begin + piece.rows)
        inside = ((numbers >= begin) & (numbers < end)).astype(np.uint32)
        return core.scatter_rows([chunk], self._sparse_slots, inside, 2)[1]

    def _load(self, number: int) -> _Window:
        instances = self._read(number)
        keys, _, _ = instances.select(core.InstanceRange(0, instances.size))
        begin, end = int(self._bounds[number]), int(self._bounds[number + 1])
        places = []
        for table, low in enumerate(self._key_bounds[:-1]):
            own = keys[slice(*instances.key_bounds[table : table + 2])]
            among = self._keys[low : self._key_bounds[table + 1]]
            places.append(core.positions_of_sorted(own, among) + np.int32(low))
        return _Window(begin, end, instances, np.concatenate(places))

    def _window_of(self, begin: int, end: int) -> _Window:
        """The window that holds [begin, end); the next one is on its way afterwards, and those
        before it are let go."""
        if self._file is None:
            raise PassError("batches before the pass is indexed")
        number = int(np.searchsorted(self._bounds, begin, side="right")) - 1
        number = max(0, min(number, len(self._bounds) - 2))
        if not self._bounds[number] <= begin <= end <= self._bounds[number + 1]:
            raise ValueError(
                f"instances [{begin}, {end}) of a spilled pass of {self._size}: expected a batch "
                f"that begins at a multiple of {self._batch_size}"
            )
        with self._lock:
            for old in [n for n in self._windows if n not in (number, number + 1)]:
                self._windows.pop(old)  # not cancelled: another thread may be waiting for it
            for wanted in (number, number + 1):
                if wanted < len(self._bounds) - 1 and wanted not in self._windows:
                    self._windows[wanted] = self._reader.submit(self._load, wanted)
            future = self._windows[number]
        return future.result()

    # ---- the pass

    def split(self, max_rows: Sequence[int], batch_size: int) -> list[Any]:
        """As of native Instances. max_rows: (T)."""
        if self._whole is not None:
            return list(self._whole.split(list(max_rows), batch_size))
        most = np.array(max_rows, np.int64)
        if np.all(np.diff(self._key_bounds) <= most):
            return [core.InstanceRange(0, self._size)] if self._size else []
        seen_in = np.zeros(len(self._keys), np.uint32)  # number of the last range with the key
        ranges: list[Any] = []
        begin = 0
        rows = np.zeros(len(most), np.int64)  # of the range, by table
        for at in range(0, self._size, batch_size):
            end = min(at + batch_size, self._size)
            positions = self._positions(at, end)
            new = positions[seen_in[positions] != len(ranges) + 1]
            rows += self._by_table(new)
            if np.any(rows > most) and at > begin:  # this batch begins a range of its own
                ranges.append(core.InstanceRange(begin, at))
                begin, new, rows = at, positions, self._by_table(positions)
            if np.any(rows > most):
                over = int(np.argmax(rows > most))
                raise ValueError(
                    f"the batch of instances [{at}, {end}) alone needs {rows[over]} rows, the pass "
                    f"table holds {most[over]}; raise its budget or lower the batch size"
                )
            seen_in[new] = len(ranges) + 1
        return [*ranges, core.InstanceRange(begin, self._size)]

    def _by_table(self, positions: np.ndarray) -> np.ndarray:
        """(T) how many of these ascending positions are of each table's keys."""
        return np.diff(np.searchsorted(positions, self._key_bounds))

    def _positions(self, begin: int, end: int) -> np.ndarray:
        """(n) int32: of the unique keys of instances [begin, end), within one window."""
        window = self._window_of(begin, end)
        chosen = core.InstanceRange(begin - window.begin, end - window.begin)
        _, _, positions = window.instances.select(chosen)
        among: np.ndarray = window.positions[positions]
        return among

    def key_counts(self) -> np.ndarray:
        """(U) uint32 as of native Instances. Reads the whole pass once more."""
        if self._whole is not None:
            return np.asarray(self._whole.key_counts())
        counts = np.zeros(len(self._keys), np.uint32)
        for number in range(len(self._bounds) - 1):
            window = self._load(number)
            counts[window.positions] += window.instances.key_counts()
        return counts

    def select(self, chosen: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if self._whole is not None:
            keys, slots, positions = self._whole.select(chosen)
            return keys, slots, positions
        if (chosen.begin, chosen.end) == (0, self._size):
            return self._keys, self._slots, np.arange(len(self._keys), dtype=np.int32)
        used = np.zeros(len(self._keys), bool)
        bounds = self._bounds[(self._bounds > chosen.begin) & (self._bounds < chosen.end)].tolist()
        for begin, end in itertools.pairwise([chosen.begin, *bounds, chosen.end]):
            used[self._positions(begin, end)] = True
        positions = np.flatnonzero(used).astype(np.int32)
        return self._keys[positions], self._slots[positions], positions

    def within(
        self, begin: int, end: int, row_of_position: np.ndarray
    ) -> tuple[Any, int, int, np.ndarray]:
        """The native Instances that hold [begin, end), their numbers there, and the rows of its
        keys: all inputs of a batch are packed from it at once."""
        if self._whole is not None:
            return self._whole, begin, end, row_of_position
        window = self._window_of(begin, end)
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
        window = self._window_of(begin, end)
        feasigns, offsets = window.instances.pack_feasigns(begin - window.begin, end - window.begin)
        return feasigns, offsets
