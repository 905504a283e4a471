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
from paddlebox.ranks.nodes import ranks_per_node
from paddlebox.ranks.sharded import Feed, ShardedPass, ShardedTable, with_next
from paddlebox.ranks.traffic import Traffic
from paddlebox.ranks.two_level import sharded_table
from paddlebox.ranks.world import World
from paddlebox.store.group import StagedGroup, TableGroup
from paddlebox.store.staged import StagedPass


class ShardedGroup(TableGroup):
    """As `TableGroup`, for the rank's own range of each table.

    Args:
        world: which every rank has joined. options: how ranks exchange. The rest as `TableGroup`.
    """

    def __init__(
        self,
        configs: Sequence[TableConfig],
        *,
        world: World,
        options: RanksConfig | None = None,
        **arguments: Any,
    ) -> None:
        self.world = world
        self.options = options or RanksConfig()
        #: Of all tables.
        self.traffic = Traffic(world.rank, ranks_per_node(world.size, self.options.per_node))
        self._sharded: list[ShardedTable] = []
        super().__init__(configs, **arguments)

    def _open(self, number: int, config: TableConfig, **arguments: Any) -> ShardedTable:
        inputs = f"_{config.name}" if number else ""
        table = sharded_table(
            config, world=self.world, options=self.options, inputs=inputs, **arguments
        )
        table.traffic = self.traffic
        self._sharded.append(table)
        return table

    @property
    def ranks(self) -> int:
        return self.world.size

    @property
    def rank(self) -> int:
        return self.world.rank

    @property
    def key_range(self) -> tuple[int, int]:
        return self._sharded[0].key_range

    def agree_parts(self, parts: int) -> int:
        return self._sharded[0].agree_parts(parts)

    def meet(self, what: str, mine: bytes = b"") -> list[bytes]:
        return self._sharded[0].meet(what, mine)

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
        changes = [table.changes_of(part) for table, part in zip(self._sharded, parts, strict=True)]

        def ask(own: list[Feed], fill: list[Feed]) -> list[Feed]:
            for table, part, of_table in zip(self._sharded, parts, changes, strict=True):
                feeds = table.ask(part, of_table, own, fill)
            return feeds

        feeds = self._sharded[0].planned(count, batches, nobody, ask, staged.train)
        yield from with_next(self._sharded, feeds, staged.train)

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
