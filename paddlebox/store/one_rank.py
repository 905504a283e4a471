"""What datasets and loops ask of a table for the sake of other ranks; on one rank nothing is left
to do. `paddlebox.ranks.ShardedTable` is where something is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

Feed = dict[str, Any]
ALL_KEYS = (0, (1 << 64) - 1)
#: Begins the names of packed inputs that a feed has for the exchange of ranks alone.
BESIDE = "ranks:"


def key_ranges(size: int) -> list[tuple[int, int]]:
    """(size) first and last key of each of so many ranks: equal shares of the hash order."""
    starts = [-(-(rank << 64) // size) for rank in range(size + 1)]
    return [(start, following - 1) for start, following in pairwise(starts)]


class OneRank:
    """The part of a table that knows of no other rank."""

    @property
    def ranks(self) -> int:
        """How many share the table."""
        return 1

    @property
    def rank(self) -> int:
        """Which of them this is."""
        return 0

    @property
    def key_range(self) -> tuple[int, int]:
        """The first and the last key (mixed feasign) that can have a row here."""
        return ALL_KEYS

    def agree_parts(self, parts: int) -> int:
        """How many parts a pass is split into, of which this rank would need so many."""
        return parts

    def feeds(
        self, staged: Any, count: int, batches: Iterable[Feed], nobody: Callable[[], Feed]
    ) -> Iterable[Feed]:
        """The batches of a part that is open, each to be run in a `step`.

        Args:
            staged: the part's StagedPass. count: of batches. nobody: makes a batch of one instance
                without a feature, for a rank that has run out of its own.
        """
        del staged, count, nobody
        return batches

    @contextmanager
    def step(self, feed: Feed) -> Iterator[int | None]:
        """Around the run of a batch. Gives how many of its instances count, or None: all do."""
        del feed
        yield None

    def meet(self, what: str, mine: bytes = b"") -> list[bytes]:
        """As `gather`, of small things, on any thread: waits until each rank has come to `what` as
        often as this one, as long as that takes."""
        del what
        return [mine]

    def gather(self, mine: bytes) -> list[bytes]:
        """What each rank gives, in their order."""
        return [mine]
