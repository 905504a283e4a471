"""The first version of a new store that starts with rows: imported from another run or a save, or
resharded from the stores of another number of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from paddlebox.store.committer import with_counts
from paddlebox.store.record import VersionRecord, newly_written
from paddlebox.store.table_set import TableSet
from paddlebox.store.tiered_table import TieredTable


@dataclass(frozen=True)
class FirstVersion:
    """The first version of one table. Without segments the table has no rows."""

    #: From `import_rows` or `import_chunks`. Segments have no keys in common.
    segments: Sequence[Mapping[str, Any]] = ()
    dense: Mapping[str, np.ndarray] = field(default_factory=dict)
    #: The filter that counts feasigns without a row.
    admission: bytes | None = None
    #: The life events of the store from which the rows come.
    events: Sequence[Mapping[str, Any]] = ()
    day: int = 0
    cursor: Mapping[str, Any] = field(default_factory=dict)
    config_hash: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)


def commit_initial(tables: TableSet, of_each: Sequence[FirstVersion]) -> int:
    """Makes imported rows the first version of new stores. Returns the first table's version.

    Args:
        of_each: the content of each table.

    Raises: StoreError, OutOfSpaceError: a single table is empty as before; several tables are empty
        again when they are reopened.
    """
    calls = [
        partial(_commit, table, "init", own)
        for table, own in zip(tables.members, of_each, strict=True)
    ]
    return tables.committer.change_all(calls)


def commit_resharded(table: TieredTable, before: VersionRecord, own: FirstVersion) -> int:
    """As `commit_initial`, with rows of the same model from other stores (ranks/reshard.py). The
    version follows `before` and takes all other fields from it."""
    table.versions.before = before
    return _commit(table, "ranks", own)


def _commit(table: TieredTable, kind: str, own: FirstVersion) -> int:
    if own.admission is not None:
        table.native.set_admission_state(own.admission)
    with table.versions.committing:
        record = table.versions.record(
            kind,
            segments=newly_written(own.segments),
            live_rows=sum(segment["rows"] for segment in own.segments),
            bytes_written={kind: sum(segment["bytes"] for segment in own.segments)},
            dense=with_counts(table, own.dense),
            events=list(own.events),
            tables=table.versions.others(),
            day=own.day,
            cursor=dict(own.cursor),
            config_hash=own.config_hash,
            config=dict(own.config),
        )
        table.native.append_events(list(own.events))
        table.native.replace_segments([], list(own.segments))
    return record.version
