"""Copies the commits of a run to another place (`checkpoint.copy_to`)."""

from __future__ import annotations

from pathlib import Path

from paddlebox.config import Config
from paddlebox.store.coordinator import Coordinator
from paddlebox.store.copies import Copier
from paddlebox.store.table_set import TableSet
from paddlebox.train.hooks.hook import Hook
from paddlebox.train.run_dir import copies_of


class Copy(Hook):
    """Copies each version in the background after its commit."""

    def __init__(self, config: Config, table: TableSet, store: Path, world: Coordinator) -> None:
        uri = copies_of(config, world.rank)
        # With several ranks, each copies every version, so that all have some pass in common.
        every_one = world.size > 1
        self._table = table
        self._copier = Copier(str(store), uri, every_one=every_one)
        table.queue.after_commit.append(self._copier.offer)

    def end(self) -> None:
        self._copier.finish(self._table.head)

    def close(self, error: BaseException | None) -> None:
        self._copier.close()
