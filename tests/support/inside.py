"""Access of tests to the inside of datasets and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paddlebox.compat.upstream import UpstreamDataset
    from paddlebox.data.passes import Pass
    from paddlebox.store.record import VersionRecord
    from paddlebox.store.table import Table
    from paddlebox.store.table_set import TableSet
    from paddlebox.store.tiered_table import TieredTable
    from paddlebox.store.version_store import VersionStore


def table_of(dataset: UpstreamDataset) -> Table:
    """The only table of a dataset."""
    from paddlebox.store.table import Table

    assert isinstance(dataset._table, Table)
    return dataset._table


def head_of(table: TableSet | TieredTable) -> VersionRecord:
    """The record of the newest commit."""
    assert table.head is not None
    return table.head


def loaded_pass(dataset: UpstreamDataset) -> Pass:
    """The pass that is loaded and has not begun."""
    assert dataset._stager.next is not None
    return dataset._stager.next


def newest(manifest: VersionStore) -> VersionRecord:
    """The record of the newest version."""
    record = manifest.newest()
    assert record is not None
    return record
