"""ShardedGroup: several tables of which each rank owns a range.

Every table is exchanged by itself, as a `ShardedTable` is, over the same lanes: all ranks go
through the tables in their order, so that what one sends for a table meets what the others expect
for it. A rank's range is the same in all tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import Any

from paddlebox.config import TableConfig
from paddlebox.config.ranks import RanksConfig
from paddlebox.ranks.many_ranks import ManyRanks
from paddlebox.ranks.nodes import ranks_per_node
from paddlebox.ranks.plans import Feed, ShardedPass
from paddlebox.ranks.sharded import ShardedTable
from paddlebox.ranks.stepping import with_next
from paddlebox.ranks.traffic import Traffic
from paddlebox.ranks.world import World
from paddlebox.store.group import StagedGroup, TableGroup
from paddlebox.store.options import TableOptions
from paddlebox.store.staged import StagedPass


class ShardedGroup(ManyRanks, TableGroup):
    """As `TableGroup`, for the rank's own range of each table.

    Args:
        world: which every rank has joined. exchange: how. The rest as `TableGroup`.
    """

    def __init__(
        self,
        configs: Sequence[TableConfig],
        options: TableOptions | None = None,
        *,
        world: World,
        exchange: RanksConfig | None = None,
        **arguments: Any,
    ) -> None:
        self.world = world
        self._exchange = exchange or RanksConfig()
        #: Of all tables.
        self.traffic = Traffic(world.rank, ranks_per_node(world.size, self._exchange.per_node))
        self._sharded: list[ShardedTable] = []
        super().__init__(configs, options, **arguments)

    def _open(
        self, number: int, config: TableConfig, options: TableOptions, **arguments: Any
    ) -> ShardedTable:
        inputs = f"_{config.name}" if number else ""
        table = ShardedTable(
            config,
            options,
            world=self.world,
            exchange=self._exchange,
            traffic=self.traffic,
            inputs=inputs,
            **arguments,
        )
        self._sharded.append(table)
        return table

    def gather(self, mine: bytes) -> list[bytes]:
        return self._sharded[0].gather(mine)

    # ---- each batch

    def feeds(
        self,
        staged: StagedPass,
        count: int,
        batches: Iterable[Feed],
        nobody: Callable[[], Feed],
    ) -> Iterator[Feed]:
        """As `ShardedTable.feeds`, with what the step exchanges of each table."""
        assert isinstance(staged, StagedGroup)
        parts = [part for part in staged.parts if isinstance(part, ShardedPass)]
        asking = [table.asking for table in self._sharded]
        changes = [of_table.changes_of(part) for of_table, part in zip(asking, parts, strict=True)]

        def ask(own: list[Feed], fill: list[Feed]) -> list[Feed]:
            for of_table, part, changed in zip(asking, parts, changes, strict=True):
                feeds = of_table.ask(part, changed, own, fill)
            return feeds

        feeds = asking[0].planned(asking[0].agree_steps(count), batches, nobody, ask)
        yield from with_next([table.stepping for table in self._sharded], feeds, staged.train)

    @contextmanager
    def step(self, feed: Feed) -> Iterator[int | None]:
        """As `ShardedTable.step`, in each table."""
        with ExitStack() as steps:
            counts = [steps.enter_context(table.step(feed)) for table in self._sharded]
            yield counts[0]

    # ---- commit

    def commit_in_background(self, **arguments: Any) -> Future[int]:
        """As `ShardedTable.commit_in_background`."""
        self.wait_commit()
        self.world.wait("committed")
        return super().commit_in_background(**arguments)

    def counters(self) -> dict[str, Any]:
        """Sums over the tables, but for exchanges: the lanes are those of all."""
        of_lanes = {
            name: value
            for name, value in self._sharded[0].counters().items()
            if name.startswith("exchange_")
        }
        return {**super().counters(), **of_lanes}
