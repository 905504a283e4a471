"""What a set of tables leaves to the ranks that share it. One rank has nothing to exchange;
`paddlebox.ranks.ManyRanks` has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np

from paddlebox.store.staged import StagedPass
from paddlebox.store.tiered_table import TieredTable

Feed = dict[str, Any]
ALL_KEYS = (0, (1 << 64) - 1)
#: Begins the names of packed inputs that a feed has for the exchange of ranks alone.
BESIDE = "ranks:"


def key_ranges(size: int) -> list[tuple[int, int]]:
    """(size) first and last key of each of so many ranks: equal shares of the hash order."""
    starts = [-(-(rank << 64) // size) for rank in range(size + 1)]
    return [(start, following - 1) for start, following in pairwise(starts)]


class OneRank:
    """The case of one rank; `ManyRanks` overrides it. What is called on every rank is called by all
    of them in the same order."""

    @property
    def ranks(self) -> int:
        """How many share the tables."""
        return 1

    @property
    def rank(self) -> int:
        """Which of them this is."""
        return 0

    @property
    def key_range(self) -> tuple[int, int]:
        """The first and the last key (mixed feasign) that can have a row here."""
        return ALL_KEYS

    # ---- once a run

    def open(self, tables: Sequence[TieredTable]) -> None:
        """The tables of this rank's own range are open."""

    def close(self) -> None:
        """They are about to be closed. May be called twice, and without `open`."""

    # ---- once a pass

    def agree_parts(self, parts: int) -> int:
        """How many parts a pass is split into, of which this rank would need so many."""
        return parts

    def stage(
        self,
        table: TieredTable,
        keys: np.ndarray,
        slots: np.ndarray | None,
        *,
        train: bool,
        day: int,
    ) -> StagedPass:
        """As `TieredTable.stage`. keys: (K) those of this rank's instances, of every range."""
        return table.stage(keys, slots, train=train, day=day)

    def count_keys(self, table: TieredTable, keys: np.ndarray, counts: np.ndarray) -> int:
        """As `TieredTable.count_keys`, of the keys of every rank."""
        return table.count_keys(keys, counts)

    def begin(self, staged: StagedPass) -> None:
        """The tables have begun this pass."""

    def end(self) -> None:
        """The tables are about to end the pass: gives owners the gradients that they lack."""

    def drop(self) -> None:
        """Forgets what of the open pass is on its way. No other rank is asked."""

    def committed(self) -> None:
        """The commits of this rank are durable: waits until those of every rank are."""

    # ---- each batch

    def feeds(
        self, staged: StagedPass, count: int, batches: Iterable[Feed], nobody: Callable[[], Feed]
    ) -> Iterable[Feed]:
        """The batches of a part that is open, each to be run in a `step`.

        Args:
            staged: of the part. count: of batches. nobody: makes a batch of one instance without a
                feature, for a rank that has run out of its own.
        """
        del staged, count, nobody
        return batches

    @contextmanager
    def step(self, feed: Feed) -> Iterator[int | None]:
        """Around the run of a batch. Gives how many of its instances count, or None: all do."""
        del feed
        yield None

    # ---- small things

    def meet(self, what: str, mine: bytes = b"") -> list[bytes]:
        """As `gather`, of small things, on any thread: waits until each rank has come to `what` as
        often as this one, as long as that takes."""
        del what
        return [mine]

    def gather(self, mine: bytes) -> list[bytes]:
        """What each rank gives, in their order."""
        return [mine]

    def digest(self, mine: str) -> str:
        """Of the rows of all ranks: what one rank with all of them would give. mine: of the rows of
        this one."""
        return mine

    def counters(self) -> dict[str, Any]:
        """What was exchanged."""
        return {}
