"""A committed version, read in the process that goes on training: its rows and its dense state stay
what they were, whatever is committed meanwhile."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from paddlebox.closing import Closing
from paddlebox.errors import StoreError
from paddlebox.store.leases import leased
from paddlebox.store.options import LEAST_MEM_BYTES, TableOptions
from paddlebox.store.table_set import TableSet
from paddlebox.store.tiered_table import TieredTable
from paddlebox.store.version_set import VersionLink, VersionSet


class _Version:
    """The newest version of a table, whose files a lease keeps."""

    def __init__(self, table: TieredTable) -> None:
        if table.folder is None or table.head is None:
            raise StoreError(f"table '{table.name}' has no committed version to keep")
        self.folder, self.config = table.folder, table.config
        self.name, self.layout = table.name, table.layout
        with table.versions.committing:  # else it might be forgotten before it is leased
            self.record = table.head
            self.journal = table.journal()
            self.lease = leased(str(table.folder), self.record.version)


class _SnapshotVersions(VersionSet):
    """One version. The manifest stays with the table that it was taken of."""

    def __init__(self, of: _Version) -> None:
        super().__init__(TableOptions(read_only=True), of.layout, VersionLink())
        self.folder, self.head = of.folder, of.record
        self._journal = of.journal

    def journal(self) -> list[dict[str, Any]]:
        return self._journal


class SnapshotTable(TieredTable):
    """Operators do not find it: a program that names no table means the one that it was taken
    of."""

    def __init__(self, of: _Version) -> None:
        self._of = of
        super().__init__(
            # When it is closed the name is taken from the operators: not that of the other.
            of.config.model_copy(update={"name": f"{of.name} at version {of.record.version}"}),
            TableOptions(
                folder=of.folder,
                seed=int(of.layout["seed"]),
                mem_budget_bytes=LEAST_MEM_BYTES,
                read_only=True,
            ),
            versions=_SnapshotVersions(of),
        )

    @property
    def name(self) -> str:
        return self._of.name


class Snapshot(Closing):
    """The last commit of a set of tables, kept until `close`. Rows are opened by `open`, which
    another thread may call: filters and fences are read then, 2 bytes a row.

    Raises: StoreError for a table without a folder, or without a commit; OutOfSpaceError.
    """

    def __init__(self, tables: TableSet) -> None:
        tables.commit_ended()
        self._versions: list[_Version] = []
        self._opened = ExitStack()
        try:
            for table in tables.members:
                self._versions.append(_Version(table))
        except BaseException:
            self.close()
            raise

    def open(self) -> list[SnapshotTable]:
        """Of each table. Raises: CorruptionError, StoreError."""
        tables = []
        for of in self._versions:
            tables.append(SnapshotTable(of))
            self._opened.callback(tables[-1].close)
        return tables

    def close(self) -> None:
        """May be called twice."""
        self._opened.close()
        for of in self._versions:
            of.lease.release()
