"""Snapshot: a committed version, read in the process that continues to train. Its rows and its
dense state stay the same, whatever is committed."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from paddlebox.closing import Closing, on_error
from paddlebox.errors import StoreError
from paddlebox.store.locks import take_lease
from paddlebox.store.options import LEAST_MEM_BYTES, TableOptions
from paddlebox.store.table_set import TableSet
from paddlebox.store.tiered_table import TieredTable
from paddlebox.store.version_store import VersionStore


class _LeasedVersion(VersionStore):
    """The newest version of a table, whose files a lease keeps. The table keeps the manifest."""

    def __init__(self, table: TieredTable) -> None:
        if table.folder is None or table.head is None:
            raise StoreError(f"table '{table.name}' has no committed version to keep")
        super().__init__()
        self.folder = str(table.folder)
        self.layout, self.config = table.versions.layout, table.config
        with table.versions.committing:  # otherwise it might be dropped before the lease
            self.head = table.versions.last
            self._journal = table.versions.journal()
            self.lease = take_lease(self.folder, self.head.version)

    def journal(self) -> list[dict[str, Any]]:
        return self._journal

    def open(self) -> TieredTable:
        """Opens it. Operators do not find this table, but the one that is being trained."""
        options = TableOptions(
            folder=self.folder,
            seed=int(self.layout["seed"]),
            mem_budget_bytes=LEAST_MEM_BYTES,
            read_only=True,
        )
        return TieredTable(self.config, options, versions=self)


class Snapshot(Closing):
    """The last commit of a set of tables, kept until `close`. `open`, also from another thread,
    reads 2 bytes per row. Raises: StoreError for a table without a folder or commit;
    OutOfSpaceError."""

    def __init__(self, tables: TableSet) -> None:
        tables.commit_ended()
        self._versions: list[_LeasedVersion] = []
        self._opened = ExitStack()
        with on_error(self.close):
            for table in tables.members:
                self._versions.append(_LeasedVersion(table))

    def open(self) -> list[TieredTable]:
        """Opens each table at the version. Raises: CorruptionError, StoreError."""
        tables = []
        for version in self._versions:
            tables.append(version.open())
            self._opened.callback(tables[-1].close)
        return tables

    def close(self) -> None:
        """May be called twice."""
        self._opened.close()
        for version in self._versions:
            version.lease.release()
