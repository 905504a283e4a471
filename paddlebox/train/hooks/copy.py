"""Copies the commits of a run to another place (`checkpoint.copy_to`)."""

from __future__ import annotations

from pathlib import Path

from paddlebox.config import Config
from paddlebox.ranks import World
from paddlebox.store.copies import Copier
from paddlebox.store.table_set import TableSet
from paddlebox.train import coordination
from paddlebox.train.hooks.hook import Hook


class Copy(Hook):
    """Copies each version in the background after its commit."""

    def __init__(self, config: Config, table: TableSet, store: Path, world: World) -> None:
        uri = coordination.copies_of(config, world.rank)
        every_one = coordination.copies_every_one(world)
        self._table = table
        self._copier = Copier(str(store), uri, config.checkpoint.copy_every, every_one=every_one)
        table.queue.after_commit = self._copier.offer

    def end(self) -> None:
        self._copier.finish(self._table.head)

    def close(self, error: BaseException | None) -> None:
        self._copier.close()
