"""SpillLayout: where the instances of a pass lie on disk, and which of them make a window.

N = instances, W = windows. Numbers of instances are places in the order that the pass has now.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.data.spill_order import DonorPool, SpillOrder
from paddlebox.errors import DataError, StoreError

core = _native.core

_MOST_INSTANCES = (1 << 32) - 1


@dataclass
class _Piece:
    number: int  # in the spill file
    begin: int  # its instances are [begin, begin + rows)
    rows: int
    bytes: int  # in memory


class SpillLayout:
    """The file of a pass as it was read, and another one, in windows, where it has another order.

    Args:
        batch_size: windows begin at multiples of it. tag_bytes: that ids and log keys may take.
        window_bytes: about what a window takes in memory. folder: of the files.
    """

    def __init__(
        self, sparse_slots: int, batch_size: int, tag_bytes: int, window_bytes: int, folder: Path
    ) -> None:
        self._sparse_slots = sparse_slots
        self._batch_size = batch_size
        self._window_bytes = window_bytes
        self._folder = folder
        self._size = 0  # N
        self._bytes = 0  # of all pieces in memory
        self._order = SpillOrder(sparse_slots, tag_bytes)
        self._donors: DonorPool | None = None
        self._file: Any = None  # native SpillFile of the pass as it was read
        self._arranged: Any = None  # another, in windows, of one in another order
        self._pieces: list[_Piece] = []
        self._shuffled: list[list[tuple[int, np.ndarray]]] = []  # by window: pieces, their places
        self.bounds = np.zeros(0, np.int64)  # (W + 1) windows are [bounds[i], bounds[i + 1])
        self.views_a_batch = 0  # 0: not in page views

    @property
    def windows(self) -> int:
        """W"""
        return len(self.bounds) - 1

    @property
    def spilled(self) -> bool:
        """Whether the pass lies on disk."""
        return self._file is not None

    @property
    def file_bytes(self) -> int:
        return sum(int(file.bytes) for file in (self._file, self._arranged) if file is not None)

    def batch(self) -> str:
        """What a batch is, for errors."""
        views = f", or {self.views_a_batch} page views" if self.views_a_batch else ""
        return f"a batch that begins at a multiple of {self._batch_size}{views}"

    def tags(self, call: str) -> Any:
        """Native Instances of the tags alone. call: who needs them, for the PassError."""
        return self._order.tags(call)

    # ---- what is written

    def open(self) -> None:
        """Makes the file. Raises: StoreError when the folder cannot be written."""
        self._file = self._new_file()

    def add(self, chunk: Any) -> None:
        """Writes a chunk behind the others. Raises: OutOfSpaceError when its tags take too much."""
        self._order.take_tags(chunk)
        rows, size = int(chunk.instances), int(core.chunk_bytes(chunk))
        self._pieces.append(_Piece(self._file.add(chunk), self._size, rows, size))
        self._size += rows
        self._bytes += size

    def arrange(self, by: str, seed: int, slot: int) -> None:
        """As of native `Instances.arrange_by`. No window may be held or on its way."""
        if by != "file" and self._size > _MOST_INSTANCES:
            raise DataError(
                f"a pass of {self._size} instances over feeder.budget_bytes is put into another "
                f"order; expected at most {_MOST_INSTANCES}: use fewer files a pass"
            )
        self._order.arrange(by, seed, slot, self._size, self._chunks())
        if by == "file":
            self._arranged, self._shuffled, self.views_a_batch = None, [], 0
            self.bounds = self._cut_by_pieces()
        else:
            self.scatter(1 if by == "page_views" else 0)

    def scatter(self, views_a_batch: int) -> None:
        """Writes the instances anew, those of a window together. Their order within it is made when
        it is read. No window may be held or on its way."""
        self._arranged = None  # its room on disk is the next one's
        assert self._order.numbers is not None
        place = np.empty(self._size, np.uint32)  # of each instance, as it was read
        place[self._order.numbers] = np.arange(self._size, dtype=np.uint32)
        self.views_a_batch = views_a_batch
        bounds = self._cut_evenly()
        self.bounds = np.append(bounds, self._size).astype(np.int64)
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

    def choose_donors(self, slots: list[int], pool_size: int, seed: int) -> None:
        """Windows that are read from now on have values of other instances in these slots.

        Raises: OutOfSpaceError when the pool is over a window.
        """
        self._donors = None
        if slots:
            self._donors = DonorPool(
                slots,
                pool_size,
                seed,
                size=self._size,
                sparse_slots=self._sparse_slots,
                chunks=self._chunks(),
                room_bytes=self._window_bytes,
            )

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

    def _chunks(self) -> Iterator[Any]:
        """All of them, as they were read."""
        return (self._file.read(piece.number) for piece in self._pieces)

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

    def _cut_evenly(self) -> np.ndarray:
        """(W) where windows of about as many batches begin."""
        windows = max(1, -(-self._bytes // self._window_bytes))
        batches = np.arange(0, self._size, self._batch_size)  # where they begin
        if self.views_a_batch:
            starts = self.tags("page views").page_view_starts()
            batches = np.array(starts[: -1 : self.views_a_batch], np.int64)
        return batches[:: max(1, -(-len(batches) // windows))]

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

    # ---- what is read

    def read_into(self, instances: Any, number: int, pool: Any) -> None:
        """Fills empty native Instances with a window and indexes them by themselves; donors, where
        there are, follow its instances."""
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
            self._donors.feed(instances, self._order.numbers_of(begin, end))

    def _slice(self, piece: _Piece, begin: int, end: int) -> Any:
        chunk = self._file.read(piece.number)
        if begin <= piece.begin and piece.begin + piece.rows <= end:
            return chunk
        numbers = np.arange(piece.begin, piece.begin + piece.rows)
        inside = ((numbers >= begin) & (numbers < end)).astype(np.uint32)
        return core.scatter_rows([chunk], self._sparse_slots, inside, 2)[1]
