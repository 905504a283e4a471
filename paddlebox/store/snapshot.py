"""Snapshot: a committed version, read in the process that continues to train. Its rows and its
dense state stay the same, whatever is committed."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from paddlebox.closing import Closing, on_error
from paddlebox.config import TableConfig
from paddlebox.errors import StoreError
from paddlebox.store.locks import take_lease
from paddlebox.store.options import LEAST_MEM_BYTES, TableOptions
from paddlebox.store.record import VersionRecord
from paddlebox.store.table_set import TableSet
from paddlebox.store.tiered_table import TieredTable, stored_config
from paddlebox.store.version_store import VersionStore


class LeasedVersion(VersionStore):
    """A version whose files a lease keeps. Its manifest is not open here, because a process can
    open it only once. REQUIRES: nothing drops the version while this is made."""

    def __init__(self, versions: VersionStore, head: VersionRecord, config: TableConfig) -> None:
        super().__init__()
        self.folder, self.layout = versions.folder, versions.layout or head.layout
        self.config, self.head = config, head
        self._journal = versions.journal()
        self.lease = take_lease(self.folder, head.version)

    @classmethod
    def newest_of(cls, table: TieredTable) -> LeasedVersion:
        """The newest version of an open table. Raises: StoreError without a folder or a commit."""
        if table.folder is None or table.head is None:
            raise StoreError(f"table '{table.name}' has no committed version to keep")
        with table.versions.committing:  # otherwise it might be dropped before the lease
            return cls(table.versions, table.versions.last, table.config)

    @classmethod
    def stored(cls, folder: Path, version: int) -> LeasedVersion:
        """A kept version of a store. Raises: as `VersionStore.pin` and `stored_config`."""
        with VersionStore.open_reader(folder) as versions:
            head = versions.pin(version)
            assert head is not None
            return cls(versions, head, stored_config(folder, head))

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
        self._versions: list[LeasedVersion] = []
        self._opened = ExitStack()
        with on_error(self.close):
            for table in tables.members:
                self._versions.append(LeasedVersion.newest_of(table))

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
