"""The order of a spilled pass. Kept in memory: the tags, and the number of the instance at each
place.

Instances are numbered in the order of the files. N = instances.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.errors import OutOfSpaceError, PassError

core = _native.core

_MISSING = {
    "ins_id": "set_parse_ins_id(True)",
    "search_id": "set_parse_logkey(True)",
    "page_views": "set_parse_logkey(True)",
}


class SpillOrder:
    """The order of a spilled pass, and the tags of its instances in that order.

    Args:
        budget_bytes: the most memory for the tags.
    """

    def __init__(self, sparse_slots: int, budget_bytes: int) -> None:
        self._sparse_slots = sparse_slots
        self._budget_bytes = budget_bytes
        self._taken: list[Any] = []  # native chunks with only the tags, until the first `arrange`
        self._taken_rows, self._taken_bytes = 0, 0
        self._tags: Any = None  # native Instances without slots
        self.numbers: np.ndarray | None = None  # (N) uint32; None: the order of the files

    def take_tags(self, chunk: Any) -> None:
        """Take the tags out of a chunk. Call it for each chunk in order, before it is written.

        Raises: OutOfSpaceError if the tags take more than the budget.
        """
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
        """Put the tags of the chunk that was number order[i] at place i."""
        self._taken = [self._taken[at] for at in order] if self._taken else []

    def _seal(self) -> None:
        """Make Instances of the tags."""
        for taken in self._taken:
            if self._tags is None:
                self._tags = core.Instances(0, 0)
            self._tags.append(taken)
        self._taken = []

    def arrange(self, by: str, seed: int, slot: int, size: int, chunks: Iterable[Any]) -> None:
        """Set the order that native `Instances.arrange_by` would give.

        Args:
            size: N.
            chunks: all chunks, in the order of the files. Only by="slot" reads them.

        Raises: PassError if the instances lack the tag.
        """
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
        """(end - begin) the numbers of the instances at places [begin, end)."""
        if self.numbers is None:
            return np.arange(begin, end, dtype=np.uint32)
        return self.numbers[begin:end]

    def tags(self, call: str) -> Any:
        """Native Instances that hold only the tags, in this order."""
        if self._tags is None:
            raise PassError(
                f"{call}: the instances have no tags: set_parse_logkey(True) is missing"
            )
        return self._tags


class PlacesOf:
    """The places of the instances of an order in which an instance may have several, or none.

    Args:
        numbers: (M) the number of the instance at each place.
        size: N.
    """

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


class DonorPool:
    """A pool of instances whose values replace those of others in some slots, as in native
    `replace_slots`.

    Args:
        size: N.
        chunks: all chunks, in the order of the files.
        room_bytes: the most bytes of the pool in a window.

    Raises: OutOfSpaceError if the pool is larger.
    """

    def __init__(
        self,
        slots: list[int],
        pool_size: int,
        seed: int,
        *,
        size: int,
        sparse_slots: int,
        chunks: Iterable[Any],
        room_bytes: int,
    ) -> None:
        self._slots = slots
        self._sparse_slots = sparse_slots
        pool, of = core.draw_donors(size, pool_size, seed)
        wanted = np.sort(pool)
        self._of = np.searchsorted(wanted, pool).astype(np.uint32)[of]  # (N) rows of the pool
        parts, begin = [], 0
        for chunk in chunks:
            chosen = np.zeros(chunk.instances, np.uint32)
            first, last = np.searchsorted(wanted, [begin, begin + chunk.instances])
            chosen[wanted[first:last] - begin] = 1
            parts.append(core.scatter_rows([chunk], sparse_slots, chosen, 2)[1])
            begin += chunk.instances
        self._parts = [part for part in parts if part.instances]
        self._size = len(pool)
        held = sum(int(core.chunk_bytes(part)) for part in self._parts)
        if held > room_bytes:
            raise OutOfSpaceError(
                f"slots_shuffle: the pass is on disk, and a pool of {self._size} instances takes "
                f"{held} bytes in each of its windows, expected at most {room_bytes}: multiply "
                f"feeder.budget_bytes by {held / max(1, room_bytes):.1f}, or lower "
                "record_candidate_size"
            )

    def add_to(self, window: Any) -> None:
        """Append the pool to a window that is not indexed yet."""
        zeros = np.zeros(self._size, np.uint32)
        window.append(core.scatter_rows(self._parts, self._sparse_slots, zeros, 1)[0])

    def feed(self, window: Any, numbers: np.ndarray) -> None:
        """Replace the values in a window with a pool, once it is indexed.

        Args:
            numbers: the numbers of the instances of the window, without the pool after them.
        """
        own = np.uint32(len(numbers))
        donors = np.concatenate([own + self._of[numbers], own + np.arange(self._size)])
        window.feed_from(self._slots, donors.astype(np.uint32))
