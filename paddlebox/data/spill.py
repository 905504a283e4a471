"""SpillingInstances: the instances of a pass within a budget, whatever the size of the pass.

What is over the budget lies in a nameless file on local disk, as pieces of a parsed file
(docs/formats/parsed_cache.md). The pass is gone through in *windows*: instances that follow each
other, a whole number of batches, each an `Instances` of its own that is read ahead of its use.

Letters: N = instances, U = unique keys of the pass, u = those of a window.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paddlebox import _native
from paddlebox.data.spill_order import DonorPool, SpillOrder
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
        self._sparse_slots = sparse_slots
        self._dense_width = dense_width
        self._dedup = dedup
        self._tables = tables
        self._shared = np.zeros(3, np.int64)  # as native `shared`
        self._batch_size = batch_size
        self._held_bytes = -1 if to_disk else int(budget_bytes * _HELD_SHARE)
        self._window_bytes = int(budget_bytes * _WINDOW_SHARE)
        self._folder = folder or Path(tempfile.gettempdir())
        self._held: list[Any] = []  # chunks, until there are too many
        self._bytes = 0  # of all chunks, as they lay in memory
        self._size = 0
        self._occurrences = 0
        self._whole: Any = None  # native Instances of a pass that fits, once it is indexed
        self._first_order = ("file", 0, 0)  # by, seed and slot, until it is indexed
        self._order = SpillOrder(sparse_slots, budget_bytes)
        self._views_a_batch = 0  # 0: not in page views
        self._donors: DonorPool | None = None
        self._file: Any = None  # native SpillFile of a pass that does not fit, as it was read
        self._arranged: Any = None  # another, in windows, of one in another order
        self._pieces: list[_Piece] = []
        self._bounds = np.zeros(0, np.int64)  # windows are [bounds[i], bounds[i + 1])
        self._shuffled: list[list[tuple[int, np.ndarray]]] = []  # by window: pieces, their places
        self._key_bounds = [0, 0]  # (T + 1) as of native Instances
        self._keys = np.zeros(0, np.uint64)
        self._slots = np.zeros(0, np.uint16)
        self._pool: Any = None
        self._lock = threading.Lock()  # guards _windows, _waiting
        self._waiting: Counter[int] = Counter()  # threads, by the window they wait for
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
        return sum(int(file.bytes) for file in (self._file, self._arranged) if file is not None)

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
        self.arrange_by("instance", seed)

    def arrange_by(self, by: str, seed: int, slot: int = 0) -> None:
        """As of native `Instances`; before the pass is indexed and at any time after, between
        batches. Raises: PassError when the instances lack the tag that it takes."""
        if self._whole is not None:
            self._whole.arrange_by(by, seed, slot)
        elif self._size and len(self._keys) == 0:
            self._first_order = (by, seed, slot)
        elif self._size:
            self._arrange(by, seed, slot)

    def cut_views(self, views_a_batch: int) -> None:
        """Batches are from now on so many page views, after arrange_by("page_views")."""
        if self._file is not None and views_a_batch != self._views_a_batch:
            self._scatter(views_a_batch)

    def index(self, pool: Any) -> None:
        self._pool = pool
        if self._file is None:
            whole = self._new_instances()
            for chunk in self._held:
                whole.append(chunk)
            self._held.clear()
            if self._first_order[0] != "file":
                whole.arrange_by(*self._first_order)
            whole.index(pool)
            self._whole = whole
            self._shared += whole.shared
            return
        self._arrange(*self._first_order)
        self._index_windows()

    def _new_instances(self) -> Any:
        return _native_instances(self._sparse_slots, self._dense_width, self._dedup, self._tables)

    def _new_file(self) -> Any:
        """One without a name. Where others write, as in /tmp, they could guess a name and put a
        link there, or open what is spilled, so it is born in a folder that is nobody else's."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            own = tempfile.mkdtemp(prefix="paddlebox-spill-", dir=self._folder)
        except OSError as error:
            raise StoreError(
                f"feeder.spill_dir {self._folder}: cannot be made, or written: {error.strerror}"
            ) from error
        try:
            return core.SpillFile(os.path.join(own, "spill"))
        finally:
            shutil.rmtree(own, ignore_errors=True)

    def _spill(self, chunk: Any) -> None:
        self._order.take_tags(chunk)
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

    def _arrange(self, by: str, seed: int, slot: int) -> None:
        if by != "file" and self._size > _MOST_INSTANCES:
            raise DataError(
                f"a pass of {self._size} instances over feeder.budget_bytes is put into another "
                f"order; expected at most {_MOST_INSTANCES}: use fewer files a pass"
            )
        self._order.arrange(by, seed, slot, self._size, self._chunks())
        if by == "file":
            self._drop_windows()
            self._arranged, self._shuffled, self._views_a_batch = None, [], 0
            self._bounds = self._cut_by_pieces()
        else:
            self._scatter(1 if by == "page_views" else 0)

    def _chunks(self) -> Iterator[Any]:
        """All of them, as they were read."""
        return (self._file.read(piece.number) for piece in self._pieces)

    def _scatter(self, views_a_batch: int) -> None:
        """Writes the instances anew, those of a window together. Their order within it is made when
        it is read."""
        self._drop_windows()
        self._arranged = None  # its room on disk is the next one's
        assert self._order.numbers is not None
        place = np.empty(self._size, np.uint32)  # of each instance, as it was read
        place[self._order.numbers] = np.arange(self._size, dtype=np.uint32)
        windows = max(1, -(-self._bytes // self._window_bytes))
        batches = np.arange(0, self._size, self._batch_size)  # where they begin
        if views_a_batch:
            batches = np.array(self.page_view_starts()[:-1:views_a_batch], np.int64)
        self._views_a_batch = views_a_batch
        bounds = batches[:: max(1, -(-len(batches) // windows))]
        self._bounds = np.append(bounds, self._size).astype(np.int64)
        self._shuffled = [[] for _ in bounds]
        arranged = self._new_file()
        for group in self._groups():
            begin, end = group[0].begin, group[-1].begin + group[-1].rows
            places = place[begin:end]
            window_of = np.searchsorted(bounds, places, side="right").astype(np.uint32) - 1
            chunks = [self._file.read(piece.number) for piece in group]
            parts = core.scatter_rows(chunks, self._sparse_slots, window_of, len(bounds))
            del chunks
            for window, part in enumerate(parts):
                if part.instances:
                    within = places[window_of == window] - np.uint32(bounds[window])
                    self._shuffled[window].append((arranged.add(part), within))
        self._arranged = arranged

    def replace_slots(self, slots: list[int], pool_size: int, seed: int) -> None:
        """As of native `Instances`. Raises: OutOfSpaceError when the pool is over a window."""
        if self._whole is not None:
            self._whole.replace_slots(slots, pool_size, seed)
            return
        self._drop_windows()
        self._donors = None
        if slots and self._size:
            self._donors = DonorPool(
                slots,
                pool_size,
                seed,
                size=self._size,
                sparse_slots=self._sparse_slots,
                chunks=self._chunks(),
                room_bytes=self._window_bytes,
            )

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
        """The instances of a window, indexed by themselves; donors, where there are, behind
        them."""
        instances = self._new_instances()
        begin, end = int(self._bounds[number]), int(self._bounds[number + 1])
        order = []
        if self._shuffled:
            for in_file, within in self._shuffled[number]:
                instances.append(self._arranged.read(in_file))
                order.append(within)
        else:
            for piece in self._pieces:
                if piece.begin + piece.rows > begin and piece.begin < end:
                    instances.append(self._slice(piece, begin, end))
        if self._donors is not None:
            self._donors.add_to(instances)
        if order:
            places = np.concatenate([*order, np.arange(end - begin, instances.size)])
            inverse = np.empty(len(places), np.uint32)
            inverse[places] = np.arange(len(places), dtype=np.uint32)
            instances.arrange(inverse)
        instances.index(self._pool)
        if self._donors is not None:
            self._donors.feed(instances, self._order.numbers_of(begin, end))
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
                + (f", or {self._views_a_batch} page views" if self._views_a_batch else "")
            )
        with self._lock:
            self._waiting[number] += 1
            # Threads that pack are at neighbouring batches, so perhaps in several windows: none
            # takes away what another waits for, or has just asked for.
            for old in set(self._windows) - {number, number + 1, number + 2} - set(+self._waiting):
                self._windows.pop(old).cancel()
            for wanted in (number, number + 1):
                if wanted < len(self._bounds) - 1 and wanted not in self._windows:
                    self._windows[wanted] = self._reader.submit(self._load, wanted)
            future = self._windows[number]
        try:
            return future.result()
        finally:
            with self._lock:
                self._waiting[number] -= 1

    def _drop_windows(self) -> None:
        with self._lock:
            dropped = list(self._windows.values())
            self._windows.clear()
        for future in dropped:
            future.cancel()
        wait(dropped)  # none is read from files that are replaced

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
        return self._whole if self._whole is not None else self._order.tags(call)

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
