"""ManyRanks: the exchanges of several tables of which each rank owns a range.

Every table is exchanged by itself (sharded.py), over the same lanes: all ranks go through the
tables in their order, so that what one sends for a table meets what the others expect for it. A
rank's range is the same in all tables.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from paddlebox.config.ranks import RanksConfig
from paddlebox.ranks.nodes import ranks_per_node
from paddlebox.ranks.plans import Feed, ShardedPass
from paddlebox.ranks.sharded import ShardedTable
from paddlebox.ranks.stepping import Progress, with_next
from paddlebox.ranks.traffic import Traffic
from paddlebox.ranks.two_level import exchange_of
from paddlebox.ranks.world import World
from paddlebox.store.one_rank import OneRank, key_ranges
from paddlebox.store.rank_stores import sum_of_digests
from paddlebox.store.staged import StagedPass
from paddlebox.store.table_set import StagedSet
from paddlebox.store.tiered_table import TieredTable


class ManyRanks(OneRank):
    """Args:
    world: which every rank has joined. options: how ranks exchange.

    Raises: ConfigError for options that do not go with so many ranks.
    """

    def __init__(self, world: World, options: RanksConfig | None = None) -> None:
        self.world, self._options = world, options or RanksConfig()
        self._exchange_of = exchange_of(self._options, world.size)
        #: Of all tables.
        self.traffic = Traffic(world.rank, ranks_per_node(world.size, self._options.per_node))
        self.shards: dict[str, ShardedTable] = {}  # by the table's name

    @property
    def ranks(self) -> int:
        return self.world.size

    @property
    def rank(self) -> int:
        return self.world.rank

    @property
    def key_range(self) -> tuple[int, int]:
        return key_ranges(self.world.size)[self.world.rank]

    @property
    def progress(self) -> Progress:
        """Of the steps of the open pass."""
        return self._first.stepping.progress

    @property
    def _first(self) -> ShardedTable:
        return next(iter(self.shards.values()))

    # ---- once a run

    def open(self, tables: Sequence[TieredTable]) -> None:
        for number, table in enumerate(tables):
            exchange = self._exchange_of(
                table.native, table.config, self.world, self._options, self.traffic
            )
            inputs = f"_{table.name}" if number else ""
            self.shards[table.name] = ShardedTable(table, self.world, exchange, inputs)

    def close(self) -> None:
        for shard in self.shards.values():
            shard.close()

    # ---- once a pass

    def agree_parts(self, parts: int) -> int:
        """How many parts a pass is split into: as many as any rank needs."""
        return max(int(found) for found in self.world.gather("parts", str(parts).encode()))

    def stage(
        self,
        table: TieredTable,
        keys: np.ndarray,
        slots: np.ndarray | None,
        *,
        train: bool,
        day: int,
    ) -> ShardedPass:
        return self.shards[table.name].stage(keys, slots, train=train, day=day)

    def count_keys(self, table: TieredTable, keys: np.ndarray, counts: np.ndarray) -> int:
        return self.shards[table.name].count_keys(keys, counts)

    def begin(self, staged: StagedPass) -> None:
        for shard, part in zip(self.shards.values(), _parts(staged), strict=True):
            shard.exchange.begin(part)

    def end(self) -> None:
        for shard in self.shards.values():
            shard.end()

    def drop(self) -> None:
        for shard in self.shards.values():
            shard.drop()

    def committed(self) -> None:
        self.world.wait("committed")

    # ---- each batch

    def feeds(
        self, staged: StagedPass, count: int, batches: Iterable[Feed], nobody: Callable[[], Feed]
    ) -> Iterator[Feed]:
        """Each batch with what its step exchanges of each table, made ahead of it. A rank that has
        fewer than others feeds `nobody`, whose share is 0, so that all make the same steps."""
        parts = _parts(staged)
        asking = [shard.asking for shard in self.shards.values()]
        changes = [of_table.changes_of(part) for of_table, part in zip(asking, parts, strict=True)]

        def ask(own: list[Feed], fill: list[Feed]) -> list[Feed]:
            for of_table, part, changed in zip(asking, parts, changes, strict=True):
                feeds = of_table.ask(part, changed, own, fill)
            return feeds

        steps = asking[0].agree_steps(count)
        passed = self.progress.leave_out(steps) if staged.train else 0
        batches = itertools.islice(batches, passed, None)
        feeds = asking[0].planned(steps - passed, batches, nobody, ask)
        yield from with_next([s.stepping for s in self.shards.values()], feeds, staged.train)

    @contextmanager
    def step(self, feed: Feed) -> Iterator[int | None]:
        """Brings the rows of a batch, and takes what its push has merged to their owners when the
        program has run."""
        with ExitStack() as steps:
            shards = self.shards.values()
            counts = [steps.enter_context(shard.stepping.step(feed)) for shard in shards]
            yield counts[0]

    # ---- small things

    def meet(self, what: str, mine: bytes = b"") -> list[bytes]:
        return self.world.gather(what, mine)

    def gather(self, mine: bytes) -> list[bytes]:
        return self._first.gather(mine)

    def digest(self, mine: str) -> str:
        return sum_of_digests([text.decode() for text in self.meet("digest", mine.encode())])

    def counters(self) -> dict[str, Any]:
        return {  # bytes are counted by what they are, not by lane (traffic.py)
            f"exchange_{name}": value
            for name, value in self.world.counters().items()
            if not name.startswith("sent_bytes")
        }


def _parts(staged: StagedPass) -> list[ShardedPass]:
    """(T) of each table."""
    assert isinstance(staged, StagedSet)
    return [part for part in staged.parts if isinstance(part, ShardedPass)]
