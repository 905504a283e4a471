"""Partial recovery: a pass that another rank's death ended is committed where it stands
(docs/ranks.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from paddlebox.store.record import VersionRecord, newly_written
from paddlebox.store.table_set import TableSet
from paddlebox.store.tiered_table import TieredTable
from paddlebox.store.version_set import ADMISSION, added_bytes


def commit_partial(
    tables: TableSet,
    dense: Mapping[str, np.ndarray],
    partial: Mapping[str, Any],
    first: Mapping[str, Any] | None = None,
) -> VersionRecord | None:
    """Ends the open pass of a single table where it stands and commits its rows so far, with this
    dense state, as a version after the pass before it. The table takes no more passes.

    Waits for the commit of the pass before. No other rank is asked: gradients that have not arrived
    are lost, and so is what rounding has left of others.

    Args:
        partial: goes into the version's cursor under this name.
        first: config, config_hash and cursor of a store without a version.

    Returns: None where no pass is open.

    Raises: as `TableSet.commit`.
    """
    (table,) = tables.members
    tables.peers.drop()
    tables.queue.wait()
    if not table.takes_passes or table.read_only or table.folder is None:
        return None
    last = table.versions.last
    if table.native.training:
        table.native.end(last.pass_number + 1)
    table.refuse_passes()
    fields = dict(first or {}) if table.head is None else {}
    cursor = {**fields.pop("cursor", last.cursor), "partial": dict(partial)}
    config = dict(fields.pop("config", last.config))
    return _commit(table, dense, {**fields, "cursor": cursor, "config": config})


def _commit(
    table: TieredTable, dense: Mapping[str, np.ndarray], fields: Mapping[str, Any]
) -> VersionRecord | None:
    """The version counts the feasigns of the pass before: the pass is counted again when it is
    trained on."""
    versions, parts = table.versions, table.parts.take()
    if table.native.has_frozen:
        parts.append(table.native.write_frozen())
    if not parts:
        return None
    with versions.committing:
        last = versions.last
        counts = versions.read_dense().get(ADMISSION)
        written = newly_written(segment for part in parts for segment in part["segments"])
        return versions.commit(
            "partial",
            segments=[*last.segments, *written],
            live_rows=last.live_rows + sum(part["new_rows"] for part in parts),
            bytes_written=added_bytes(last, "partial", written),
            dense={**dense, **({} if counts is None else {ADMISSION: counts})},
            digest=None,
            tables=versions.others(),
            **fields,
        )
