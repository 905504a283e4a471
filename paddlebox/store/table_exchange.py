"""TableExchange: what ranks exchange for their open tables. This class is the form of one rank.

Each rank has the rows of its own key range. `Group.connect` gives a set of open tables its
exchange; `paddlebox.ranks.shared_tables` has the form of several ranks. A single rank exchanges
nothing: all rows are in its own tables.

    once a pass     stage, count_keys, finish_staging, begin, end, drop
    once a part     sum_at_owners, from_owners
    in a pass       feeds, step
    reports         exchanged

All methods except `drop`, `exchanged` and `close` are collective (group.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from paddlebox.store.tiered_table import StagedPass, TieredTable

Feed = dict[str, Any]
#: Prefix of inputs that a feed has only for the exchange between ranks.
BESIDE = "ranks:"


class Exchanged:
    """What was exchanged up to now. One rank has exchanged nothing."""

    #: Times and waits of exchanges since the ranks joined, by channel.
    counters: Mapping[str, Any] = {}

    def report(
        self, dense_bytes: int, steps: int, samples: int, instances: int
    ) -> Mapping[str, Any]:
        """The entry "ranks" in the line of a pass: what was exchanged since this object was made,
        at the start of the pass; empty on one rank. Collective.

        Args:
            dense_bytes: sent for dense parameters by this rank since the process started.
            steps, samples: of the pass, on all ranks. instances: on this rank.
        """
        return {}


class TableExchange:
    def stage(
        self,
        table: TieredTable,
        keys: np.ndarray,
        slots: np.ndarray | None,
        *,
        train: bool,
        day: int,
    ) -> StagedPass:
        """`TieredTable.stage`. keys: (K) the keys of this rank's instances, from all key ranges."""
        return table.stage(keys, slots, train=train, day=day)

    def count_keys(self, table: TieredTable, keys: np.ndarray, counts: np.ndarray) -> int:
        """`TieredTable.count_keys`, with the keys of all ranks."""
        return table.count_keys(keys, counts)

    def finish_staging(self, wait: Callable[[], None]) -> None:
        """Wait until the next pass is staged, before another pass is read: both would exchange rows
        at the same time. A single rank exchanges none, and does not call `wait`."""

    def begin(self, staged: StagedPass) -> None:
        """Start a pass that the tables have begun."""

    def sum_at_owners(self, staged: StagedPass, values: np.ndarray) -> np.ndarray:
        """The sums over all ranks of values by row of the first table, added in the order of ranks.

        Args:
            values: (rows of `staged`, ...) float32, by row id of this rank's batches.

        Returns: (rows of `staged.parts[0].own`, ...) float32, by row id of this rank's own range.
        """
        return values

    def from_owners(self, staged: StagedPass, values: np.ndarray) -> np.ndarray:
        """The values of the rows that this rank's batches read, 0 for a key without a row. Takes
        what `sum_at_owners` returns, and returns what that takes."""
        return values

    def feeds(
        self,
        staged: StagedPass,
        count: int,
        batches: Iterable[Feed],
        idle_batch: Callable[[], Feed],
    ) -> Iterable[Feed]:
        """The batches of an open part of a pass. Run each of them within `step`.

        Args:
            count: number of the batches on this rank.
            idle_batch: makes a batch with one instance and no feature, for a rank that has none
                left.
        """
        return batches

    @contextmanager
    def step(self, feed: Feed) -> Iterator[int | None]:
        """Wrap the run of a batch. Yields the number of instances that count; None: all."""
        yield None

    def end(self) -> None:
        """Send the owners of rows the remaining gradients. The tables then end the pass."""

    def drop(self) -> None:
        """Forget the rows and gradients of the open pass that are in transit."""

    def exchanged(self) -> Exchanged:
        return Exchanged()

    def close(self) -> None:
        """Disconnect the tables. May be called twice."""
