"""Coordinator: the ranks that train a model together. This class is the case of one rank.

A job has R ranks, numbered from 0. Each rank owns a key range and has a store for it. The other
code calls the coordinator and need not know R. A single rank waits for no other and exchanges
nothing: its own value is the answer. `paddlebox.ranks.World` overrides the methods for several
ranks.

    agreement       gather, wait, any, all, min, max, first
    end of a rank   commits_alone, is_from_others, why_gone, leave, close
    work            check_config, share_files, loads, exchange_instances, finish_staging, merge
    tables          connect, stage, count_keys, begin, feeds, step, end, drop, disconnect
    reports         counters, exchanged, report

A *collective* method exchanges data with all ranks: every rank must call it, and all ranks must
make their collective calls in the same order. The first argument of `gather` and its relatives
names the question. Threads may ask different questions at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from paddlebox.config import Config
from paddlebox.config.trainer import RanksConfig
from paddlebox.heartbeat import SILENT, Heartbeat
from paddlebox.store.tiered_table import StagedPass, TieredTable

Feed = dict[str, Any]
T = TypeVar("T")
ALL_KEYS = (0, (1 << 64) - 1)
#: Prefix of inputs that a feed has only for the exchange between ranks.
BESIDE = "ranks:"


def key_ranges(size: int) -> list[tuple[int, int]]:
    """(size) first and last key of each rank: equal shares of the hash order."""
    starts = [-(-(rank << 64) // size) for rank in range(size + 1)]
    return [(start, following - 1) for start, following in pairwise(starts)]


class Coordinator:
    """One rank. heartbeat: reports the progress of this rank."""

    rank: int = 0  # number of this rank
    size: int = 1  # R, the number of ranks

    def __init__(self, heartbeat: Heartbeat = SILENT) -> None:
        self.heartbeat = heartbeat

    @property
    def key_range(self) -> tuple[int, int]:
        """The first and the last key (mixed feasign) that can have a row on this rank."""
        return key_ranges(self.size)[self.rank]

    # ---- agreement: collective

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

    def min(self, what: str, mine: int) -> int:
        return int(min(self.gather(what, mine)))

    def max(self, what: str, mine: int) -> int:
        return int(max(self.gather(what, mine)))

    def first(self, what: str, mine: Any) -> Any:
        """The value of rank 0. The values of other ranks are ignored."""
        return self.gather(what, mine)[0]

    def gather_bytes(self, mine: bytes) -> list[bytes]:
        """(R) as `gather`, for large values. Call it on the training thread, with open tables."""
        return [mine]

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

    # ---- work

    def check_config(self, config: Config, back_to: str = "") -> None:
        """Raises: ConfigError if the config, or the version `back_to` to go back to, works on one
        rank only."""

    def sizes_of(self, files: Sequence[str]) -> list[int]:
        """The bytes of each file as the first rank finds them, 0 if it does not know. One rank
        needs no sizes, and gets none. Collective."""
        del files
        return []

    def share_files(self, files: Sequence[str], sizes: Sequence[int] = ()) -> list[str]:
        """The files of a pass that this rank reads, in the order of the pass. sizes: bytes of each
        file, equal on all ranks; if empty, local files are looked up."""
        return list(files)

    def loads(self, files: Sequence[str], sizes: Sequence[int] = ()) -> list[int]:
        """(R) the bytes of the files that each rank reads, if they are shared by `share_files`."""
        return [0]

    def exchange_instances(self, out: Sequence[np.ndarray]) -> list[np.ndarray]:
        """(R) what each rank sends to this one. out: (R) uint8 arrays, by receiver. Collective, on
        the thread that loads a pass."""
        return list(out)

    def finish_staging(self, wait: Callable[[], None]) -> None:
        """Wait until the next pass is staged, before another pass is read: both would exchange rows
        at the same time. A single rank exchanges none, and does not call `wait`."""

    def merge(
        self, mine: T, encode: Callable[[T], bytes], merged: Callable[[T, list[bytes]], T]
    ) -> T:
        """The measurements of all ranks: `merged` gets `mine` and the bytes of all ranks, in the
        order of ranks. Collective, like `gather_bytes`."""
        return mine

    # ---- tables: one set at a time. All methods except `drop` and `disconnect` are collective.

    def connect(self, tables: Sequence[TieredTable], options: RanksConfig) -> None:
        """Connect the tables of this rank's key range with those of the other ranks. Raises:
        ConfigError if the options do not fit the number of ranks."""

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

    def begin(self, staged: StagedPass) -> None:
        """Start a pass that the tables have begun."""

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

    def disconnect(self) -> None:
        """Disconnect the tables. May be called twice, and without `connect`."""

    # ---- reports

    def counters(self) -> dict[str, Any]:
        """Times and waits of exchanges since the ranks joined, by channel."""
        return {}

    def exchanged(self) -> Any:
        """The state of all counts at the start of a pass, for `report`."""
        return None

    def report(
        self, before: Any, dense_bytes: int, steps: int, samples: int, instances: int
    ) -> Mapping[str, Any]:
        """The entry "ranks" in the line of a pass; empty on one rank. Collective.

        Args:
            before: `exchanged` at the start of the pass.
            dense_bytes: sent for dense parameters by this rank since the process started.
            steps, samples: of the pass, on all ranks. instances: on this rank.
        """
        return {}


ONE_RANK = Coordinator()
