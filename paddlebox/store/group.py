"""Group: the ranks that train a model together. This class is a group of one rank.

A job has R ranks, numbered from 0. Each rank owns a key range and has a store for it. Code outside
`paddlebox.ranks` calls the group and need not know R: a single rank waits for no other and
exchanges nothing, and its own value is the answer. `paddlebox.ranks.World` is a group of several
ranks. A group knows no table. What ranks exchange for open tables is in table_exchange.py.

    agreement       gather, wait, any, all, first
    bulk            gather_bytes, arrays_of_others, exchange
    end of a rank   commits_alone, is_from_others, why_gone, leave, close
    tables          connect

A *collective* method exchanges data with all ranks: every rank must call it, and all ranks must
make their collective calls in the same order. The methods of agreement and bulk are collective. The
first argument of `gather` and its relatives names the question. Threads may ask different questions
at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from paddlebox.config.trainer import RanksConfig
from paddlebox.heartbeat import SILENT, Heartbeat
from paddlebox.store.table_exchange import TableExchange
from paddlebox.store.tiered_table import TieredTable

ALL_KEYS = (0, (1 << 64) - 1)


def key_ranges(size: int) -> list[tuple[int, int]]:
    """(size) first and last key of each rank: equal shares of the hash order."""
    starts = [-(-(rank << 64) // size) for rank in range(size + 1)]
    return [(start, following - 1) for start, following in pairwise(starts)]


class Group:
    """One rank. heartbeat: reports the progress of this rank."""

    rank: int = 0  # number of this rank
    size: int = 1  # R, the number of ranks

    def __init__(self, heartbeat: Heartbeat = SILENT) -> None:
        self.heartbeat = heartbeat

    @property
    def key_range(self) -> tuple[int, int]:
        """The first and the last key (mixed feasign) that can have a row on this rank."""
        return key_ranges(self.size)[self.rank]

    # ---- agreement

    def gather(self, what: str, mine: Any) -> list[Any]:
        """(R) the values of all ranks, in the order of ranks. Waits for all, without a time limit.

        Args:
            what: name of the question. mine: small, as in JSON.
        """
        return [mine]

    def wait(self, what: str) -> None:
        """Wait until every rank has called this."""
        self.gather(what, None)

    def any(self, what: str, mine: bool) -> bool:
        return any(self.gather(what, mine))

    def all(self, what: str, mine: bool) -> bool:
        return all(self.gather(what, mine))

    def first(self, what: str, mine: Any) -> Any:
        """The value of rank 0. The values of other ranks are ignored."""
        return self.gather(what, mine)[0]

    # ---- bulk

    def gather_bytes(self, mine: bytes) -> list[bytes]:
        """(R) as `gather`, for large values. Call it on the training thread, with open tables."""
        return [mine]

    def arrays_of_others(
        self, make: Callable[[], Mapping[str, np.ndarray]]
    ) -> dict[int, dict[str, np.ndarray]]:
        """The arrays that `make` returns on each other rank, by rank and name. Otherwise as
        `gather_bytes`. One rank has no others, and does not call `make`."""
        return {}

    def exchange(self, out: Sequence[np.ndarray]) -> list[np.ndarray]:
        """(R) what each rank sends to this one. out: (R) uint8 arrays, by receiver. Call it on the
        thread that loads a pass, or while no pass is loaded."""
        return list(out)

    # ---- the end of a rank

    @property
    def commits_alone(self) -> bool:
        """Whether a rank that ends with an error commits the passes that ended before the error.
        Several ranks do not, because the others may not know of the error and would not commit."""
        return True

    def is_from_others(self, error: BaseException) -> bool:
        """Whether an error on this rank may be the consequence of the end of another rank."""
        return False

    def why_gone(self) -> list[str]:
        """Why other ranks of this host have ended or left the job, one line each."""
        return []

    def leave(self, error: BaseException) -> None:
        """Leave the job because of an error. Waiting ranks of this host get the error."""

    def close(self) -> None:
        """Close the connections to other ranks."""

    # ---- tables

    def connect(self, tables: Sequence[TieredTable], options: RanksConfig) -> TableExchange:
        """Connect the tables of this rank's key range with those of the other ranks, one set at a
        time. Raises: ConfigError if the options do not fit the number of ranks."""
        return TableExchange()


ONE_RANK = Group()
