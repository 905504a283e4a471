"""The first version of a new store, made of rows that are there already: imported from another run
or a save, or moved from the stores of another number of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from paddlebox.store.manifest import VersionRecord
from paddlebox.store.record import newly_written
from paddlebox.store.table_set import TableSet
from paddlebox.store.tiered_table import TieredTable


@dataclass(frozen=True)
class FirstVersion:
    """Of one table; without segments it begins empty."""

    #: As `import_rows` and `import_chunks` wrote them: no key is in two of them.
    segments: Sequence[Mapping[str, Any]] = ()
    dense: Mapping[str, np.ndarray] = field(default_factory=dict)
    #: Counts of feasigns without a row.
    admission: bytes | None = None
    #: That the rows have seen, of the store they came from.
    events: Sequence[Mapping[str, Any]] = ()
    day: int = 0
    cursor: Mapping[str, Any] = field(default_factory=dict)
    config_hash: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)


def commit_initial(tables: TableSet, of_each: Sequence[FirstVersion]) -> int:
    """Makes imported rows the first version of new stores. Returns the first table's version.

    Args:
        of_each: what each table is given.

    Raises: StoreError, OutOfSpaceError: the stores of one table are as empty as before; several
        tables go back to that when they are opened again.
    """
    calls = [
        partial(_commit, table, "init", own)
        for table, own in zip(tables.members, of_each, strict=True)
    ]
    return tables.queue.change_all(calls)


def commit_moved(table: TieredTable, before: VersionRecord, own: FirstVersion) -> int:
    """As `commit_initial`, of rows of this very model that other stores held
    (ranks/reshard.py): the version goes on from `before`, of which it has all else."""
    table.versions.before = before
    return _commit(table, "ranks", own)


def _commit(table: TieredTable, kind: str, own: FirstVersion) -> int:
    if own.admission is not None:
        table.native.set_admission_state(own.admission)
    with table.versions.committing:
        record = table.versions.commit(
            kind,
            segments=newly_written(own.segments),
            live_rows=sum(segment["rows"] for segment in own.segments),
            bytes_written={kind: sum(segment["bytes"] for segment in own.segments)},
            dense=table.parts.with_counts(own.dense, None),
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
