"""SpillLayout: the files of a pass on disk, its order, and its division into windows.

Instances are numbered in the order of the files. N = instances, W = windows, M = places, which are
N unless `arrange_places` was called. The tags and the number of the instance at each place stay in
memory.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.errors import DataError, OutOfSpaceError, PassError
from paddlebox.store.files import store_errors

core = _native.core

_MOST_INSTANCES = (1 << 32) - 1
_MISSING = {
    "ins_id": "set_parse_ins_id(True)",
    "search_id": "set_parse_logkey(True)",
    "page_views": "set_parse_logkey(True)",
}


@dataclass
class _Piece:
    number: int  # in the spill file
    begin: int  # the instances are [begin, begin + rows)
    rows: int
    bytes: int  # in memory


def _chosen_rows(chunks: Iterable[Any], sparse_slots: int, wanted: np.ndarray) -> Iterator[Any]:
    """Chunks with only the instances of these numbers. wanted: ascending. chunks: of the input."""
    begin = 0
    for chunk in chunks:
        chosen = np.zeros(chunk.instances, np.uint32)
        first, last = np.searchsorted(wanted, [begin, begin + chunk.instances])
        chosen[wanted[first:last] - begin] = 1
        yield core.scatter_rows([chunk], sparse_slots, chosen, 2)[1]
        begin += chunk.instances


def gathered(chunks: Iterable[Any], sparse_slots: int, width: int, numbers: np.ndarray) -> Any:
    """The instances with these numbers, as native `Instances.gather`. chunks: all of the input."""
    wanted, copies = np.unique(numbers, return_inverse=True)
    found = core.Instances(sparse_slots, width)
    for rows in _chosen_rows(chunks, sparse_slots, wanted):
        found.append(rows)
    return found.gather(copies.astype(np.uint32))


class SpillLayout:
    """The file of a pass in the order of its input, and a second file, arranged by windows, if the
    pass has another order. Windows of about window_bytes in memory begin at multiples of the batch
    size. tag_bytes: the most memory for tags."""

    def __init__(
        self, sparse_slots: int, batch_size: int, tag_bytes: int, window_bytes: int, folder: Path
    ) -> None:
        self._sparse_slots = sparse_slots
        self._batch_size = batch_size
        self._window_bytes = window_bytes
        self._folder = folder
        self._size = 0  # N
        self._bytes = 0  # of all pieces in memory
        self.order = _Order(sparse_slots, tag_bytes)
        self._donors: _DonorPool | None = None
        self._file: Any = None  # native SpillFile in the order of the input
        self._arranged: Any = None  # native SpillFile arranged by windows; None: same order
        self._pieces: list[_Piece] = []
        # For each window: its pieces in _arranged, and the places of their instances in the window.
        self._shuffled: list[list[tuple[int, np.ndarray]]] = []
        self.bounds = np.zeros(0, np.int64)  # (W + 1); window i is [bounds[i], bounds[i + 1])
        self.views_a_batch = 0  # 0: not in page views
        self._ends: np.ndarray | None = None  # of the batches; None: multiples of the batch size
        self._repeats = False  # whether an instance may have several places, or none

    @property
    def places(self) -> int:
        """M"""
        numbers = self.order.numbers
        return self._size if numbers is None else len(numbers)

    @property
    def windows(self) -> int:
        """W"""
        return len(self.bounds) - 1

    @property
    def spilled(self) -> bool:
        return self._file is not None

    @property
    def file_bytes(self) -> int:
        return sum(int(file.bytes) for file in (self._file, self._arranged) if file is not None)

    def batch(self) -> str:
        """Where a batch may begin, for errors."""
        views = f", or {self.views_a_batch} page views" if self.views_a_batch else ""
        return f"a batch that begins at a multiple of {self._batch_size}{views}"

    # ---- writing

    def add(self, chunk: Any) -> None:
        """Append a chunk. Raises: OutOfSpaceError if the tags take too much memory; StoreError if
        the folder cannot be written."""
        if self._file is None:
            self._file = self._new_file()
        self.order.take_tags(chunk)
        rows, size = int(chunk.instances), int(core.chunk_bytes(chunk))
        self._pieces.append(_Piece(self._file.add(chunk), self._size, rows, size))
        self._size += rows
        self._bytes += size

    def reorder(self, order: Sequence[int]) -> None:
        """Put at place i the chunk that was added as number order[i]. Call it before `arrange`."""
        pieces, self._pieces, begin = self._pieces, [], 0
        for at in order:
            self._pieces.append(replace(pieces[at], begin=begin))
            begin += pieces[at].rows
        self.order.reorder(order)

    def arrange(self, by: str, seed: int, slot: int) -> None:
        """As native `Instances.arrange_by`. REQUIRES: no window is in memory or being read."""
        self._ends, self._repeats = None, False
        if by != "file":
            self._check_size()
        self.order.arrange(by, seed, slot, self._size, self.chunks())
        if by == "file":
            self._arranged, self._shuffled, self.views_a_batch = None, [], 0
            self.bounds = self._cut_by_pieces()
        else:
            self.scatter(1 if by == "page_views" else 0)

    def arrange_places(self, order: np.ndarray, ends: np.ndarray | None) -> None:
        """As `SpillingInstances.arrange_places`. REQUIRES: as for `arrange`."""
        self._check_size()
        self.order.place(order)
        self._ends, self._repeats = ends, True
        self.scatter(0)

    def _check_size(self) -> None:
        if self._size > _MOST_INSTANCES:
            raise DataError(
                f"cannot change the order of a pass of {self._size} instances, which is over "
                f"feeder.budget_bytes; expected at most {_MOST_INSTANCES}: use fewer files a pass"
            )

    def scatter(self, views_a_batch: int) -> None:
        """Write the instances to a new file, grouped by window. They are put in order when the
        window is read. REQUIRES: as for `arrange`."""
        self._arranged = None  # frees its disk space before the new file is written
        assert self.order.numbers is not None
        self.views_a_batch = views_a_batch
        bounds = self._cut_evenly()
        self.bounds = np.append(bounds, self.places).astype(np.int64)
        self._shuffled = [[] for _ in bounds]
        arranged, rounds = self._new_file(), self._rounds()
        for group in self._groups():
            begin, end = group[0].begin, group[-1].begin + group[-1].rows
            chunks = [self._file.read(piece.number) for piece in group]
            for places, chosen in rounds(begin, end):
                window_of = np.searchsorted(bounds, places, side="right").astype(np.uint32) - 1
                window_of[~chosen] = len(bounds)
                parts = core.scatter_rows(chunks, self._sparse_slots, window_of, len(bounds) + 1)
                if not self._repeats:
                    chunks.clear()  # before the parts are written, to save memory
                for window, part in enumerate(parts[: len(bounds)]):
                    if part.instances:
                        within = places[window_of == window] - np.uint32(bounds[window])
                        self._shuffled[window].append((arranged.add(part), within))
        self._arranged = arranged

    def _rounds(self) -> Callable[[int, int], Iterable[tuple[np.ndarray, np.ndarray]]]:
        numbers = self.order.numbers
        assert numbers is not None
        if self._repeats:
            return _PlacesOf(numbers, self._size).rounds
        place = np.empty(self._size, np.uint32)  # the place of each instance of the input
        place[numbers] = np.arange(self._size, dtype=np.uint32)
        return lambda begin, end: [(place[begin:end], np.ones(end - begin, bool))]

    def choose_donors(self, slots: list[int], pool_size: int, seed: int) -> None:
        """Replace the values of these slots with those of other instances, in windows that are read
        from now on. Raises: OutOfSpaceError if the pool is larger than a window."""
        self._donors = None
        if slots:
            pool, of = core.draw_donors(self._size, pool_size, seed)
            self._donors = _DonorPool(slots, pool, of, self._sparse_slots, self.chunks())
            self._donors.check_fits(self._window_bytes)

    def _new_file(self) -> Any:
        """Create a file without a name, in a private folder: in a shared one, such as /tmp, other
        users could guess its name and put a link there, or open it."""
        with store_errors(f"{self._folder}: spilled instances (TMPDIR)", "create or write it"):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            own = tempfile.mkdtemp(prefix="paddlebox-spill-", dir=self._folder)
        try:
            return core.SpillFile(os.path.join(own, "spill"))
        finally:
            shutil.rmtree(own, ignore_errors=True)

    def chunks(self) -> Iterator[Any]:
        return (self._file.read(piece.number) for piece in self._pieces)

    def _cut_by_pieces(self) -> np.ndarray:
        """(W + 1) bounds of windows, at multiples of the batch size, about window_bytes apart."""
        bounds, held = [0], 0
        for piece in self._pieces:
            at = piece.begin // self._batch_size * self._batch_size
            if held + piece.bytes > self._window_bytes and at > bounds[-1]:
                bounds.append(at)
                held = 0
            held += piece.bytes
        return np.array([*bounds, self._size], np.int64)

    def _cut_evenly(self) -> np.ndarray:
        """(W) the first instances of windows with about the same number of batches, or of places if
        `_ends` are set. A batch over the size of a window is a window by itself."""
        bytes_ = self._bytes * self.places // max(1, self._size)
        windows = max(1, -(-bytes_ // self._window_bytes))
        batches = np.arange(0, self.places, self._batch_size)  # where they begin
        if self._ends is not None and len(self._ends):
            batches = np.append(0, self._ends[:-1])
            targets = np.arange(windows) * self.places // windows
            chosen = np.unique(np.searchsorted(batches, targets))
            return batches[chosen[chosen < len(batches)]]
        if self.views_a_batch:
            starts = self.order.tags("page views").page_view_starts()
            batches = np.array(starts[: -1 : self.views_a_batch], np.int64)
        return batches[:: max(1, -(-len(batches) // windows))]

    def _groups(self) -> list[list[_Piece]]:
        """Consecutive pieces in half windows: single ones would be scattered into tiny pieces."""
        groups: list[list[_Piece]] = [[]]
        held = 0
        for piece in self._pieces:
            if groups[-1] and held + piece.bytes > self._window_bytes // 2:
                groups.append([])
                held = 0
            groups[-1].append(piece)
            held += piece.bytes
        return groups

    # ---- reading

    def read_into(self, instances: Any, number: int, pool: Any) -> None:
        """Read a window, then its donors, into empty native Instances, and index them."""
        begin, end = int(self.bounds[number]), int(self.bounds[number + 1])
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
        instances.index(pool)
        if self._donors is not None:
            self._donors.feed(instances, self.order.numbers_of(begin, end))

    def _slice(self, piece: _Piece, begin: int, end: int) -> Any:
        chunk = self._file.read(piece.number)
        if begin <= piece.begin and piece.begin + piece.rows <= end:
            return chunk
        numbers = np.arange(piece.begin, piece.begin + piece.rows)
        inside = ((numbers >= begin) & (numbers < end)).astype(np.uint32)
        return core.scatter_rows([chunk], self._sparse_slots, inside, 2)[1]


class _Order:
    """The order of a spilled pass, and the tags of its instances in that order."""

    def __init__(self, sparse_slots: int, budget_bytes: int) -> None:
        self._sparse_slots = sparse_slots
        self._budget_bytes = budget_bytes
        self._taken: list[Any] = []  # native chunks with only the tags, until the first `arrange`
        self._taken_rows, self._taken_bytes = 0, 0
        self._tags: Any = None  # native Instances without slots
        self.numbers: np.ndarray | None = None  # (N) uint32; None: the order of the files

    def take_tags(self, chunk: Any) -> None:
        """Take the tags out of a chunk, before it is written. Raises: OutOfSpaceError if the tags
        take more than the budget."""
        taken = core.take_tags(chunk)
        if taken is None:
            return
        self._taken.append(taken)
        self._taken_rows += taken.instances
        self._taken_bytes += taken.tag_bytes
        if self._taken_bytes > self._budget_bytes:
            raise OutOfSpaceError(
                f"the ids and log keys of a pass on disk stay in memory: those of the first "
                f"{self._taken_rows} instances take {self._taken_bytes} bytes, feeder.budget_bytes "
                f"is {self._budget_bytes}: raise it, or use fewer files a pass"
            )

    def reorder(self, order: Sequence[int]) -> None:
        self._taken = [self._taken[at] for at in order] if self._taken else []

    def _seal(self) -> None:
        for taken in self._taken:
            if self._tags is None:
                self._tags = core.Instances(0, 0)
            self._tags.append(taken)
        self._taken = []

    def arrange(self, by: str, seed: int, slot: int, size: int, chunks: Iterable[Any]) -> None:
        """As native `Instances.arrange_by`, for N = size instances. chunks: all of them, which only
        by="slot" reads. Raises: PassError if the instances lack the tag."""
        self._seal()
        if by in _MISSING and self._tags is None:
            raise PassError(f"order by {by}: the instances have no tags: {_MISSING[by]} is missing")
        if by == "file":
            self.numbers = None
        elif by == "instance":
            self.numbers = core.shuffled_order(size, seed)
        elif by == "slot":
            first = core.Instances(1, 0)
            for chunk in chunks:
                first.append(core.first_of_slot(chunk, self._sparse_slots, slot))
            first.arrange_by("slot", seed, 0)
            self.numbers = first.numbers()
        else:
            self._tags.arrange_by(by, seed, 0)
            self.numbers = self._tags.numbers()
        if self._tags is not None:
            self._tags.arrange(np.arange(size, dtype=np.uint32) if by == "file" else self.numbers)

    def place(self, order: np.ndarray) -> None:
        """Give each place the instance with this number. order: (M) uint32."""
        self.numbers = order
        if self._tags is not None:
            self._tags.arrange_places(order)

    def numbers_of(self, begin: int, end: int) -> np.ndarray:
        """(end - begin) uint32 the numbers of the instances at places [begin, end)."""
        if self.numbers is None:
            return np.arange(begin, end, dtype=np.uint32)
        return self.numbers[begin:end]

    def tags(self, call: str) -> Any:
        """Native Instances that hold only the tags, in this order. Raises: PassError, naming the
        call, if there are none."""
        if self._tags is None:
            raise PassError(
                f"{call}: the instances have no tags: set_parse_logkey(True) is missing"
            )
        return self._tags


class _PlacesOf:
    """The places of N = size instances, which may have several, or none. numbers: (M) the number of
    the instance at each place."""

    def __init__(self, numbers: np.ndarray, size: int) -> None:
        self._places = np.argsort(numbers, kind="stable").astype(np.uint32)  # by number
        counts = np.bincount(numbers, minlength=size)
        self._starts = np.concatenate([[0], np.cumsum(counts)])

    def rounds(self, begin: int, end: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """For instances [begin, end): their first places, then their second places, and so on. Each
        item is the places, and a mask of the instances that have such a place."""
        starts, counts = self._starts[begin:end], np.diff(self._starts[begin : end + 1])
        for number in range(int(counts.max(initial=0))):
            at = np.minimum(starts + number, len(self._places) - 1)
            yield self._places[at], counts > number


class _DonorPool:
    """Instances whose values replace those of others in some slots, as in native `replace_slots`.

    Args:
        pool: the numbers of the instances in the pool.
        of: (N) the place in the pool of the donor of each instance.
        chunks: all, in the order of the files.
    """

    def __init__(
        self,
        slots: list[int],
        pool: np.ndarray,
        of: np.ndarray,
        sparse_slots: int,
        chunks: Iterable[Any],
    ) -> None:
        self._slots = slots
        self._sparse_slots = sparse_slots
        wanted = np.sort(pool)
        self._of = np.searchsorted(wanted, pool).astype(np.uint32)[of]  # (N) rows of the pool
        parts = _chosen_rows(chunks, sparse_slots, wanted)
        self._parts = [part for part in parts if part.instances]
        self._size = len(pool)

    def check_fits(self, room_bytes: int) -> None:
        """Raises: OutOfSpaceError if the pool is larger."""
        held = sum(int(core.chunk_bytes(part)) for part in self._parts)
        if held > room_bytes:
            raise OutOfSpaceError(
                f"slots_shuffle: the pass is on disk, and a pool of {self._size} instances takes "
                f"{held} bytes in each of its windows, expected at most {room_bytes}: multiply "
                f"feeder.budget_bytes by {held / max(1, room_bytes):.1f}, or lower "
                "record_candidate_size"
            )

    def add_to(self, window: Any) -> None:
        zeros = np.zeros(self._size, np.uint32)
        window.append(core.scatter_rows(self._parts, self._sparse_slots, zeros, 1)[0])

    def feed(self, window: Any, numbers: np.ndarray) -> None:
        """Replace the values in an indexed window. numbers: of its instances, without the pool
        after them."""
        own = np.uint32(len(numbers))
        donors = np.concatenate([own + self._of[numbers], own + np.arange(self._size)])
        window.feed_from(self._slots, donors.astype(np.uint32))
