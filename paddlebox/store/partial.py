"""Partial recovery: commits an open pass as far as it was trained, when another rank has died
(docs/ranks.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from paddlebox.store.record import VersionRecord
from paddlebox.store.table_set import TableSet
from paddlebox.store.version_store import ADMISSION


def commit_partial(
    tables: TableSet,
    dense: Mapping[str, np.ndarray],
    partial: Mapping[str, Any],
    first: Mapping[str, Any] | None = None,
) -> VersionRecord | None:
    """Ends the open pass of a single table and commits its rows so far, with this dense state, as
    a version that follows the previous pass. The table takes no more passes.

    Waits for the commit of the previous pass, but for no other rank. Gradients that have not
    arrived are lost, and so are the rounding errors that later gradients would have included.

    Args:
        partial: goes into the version's cursor under this name.
        first: config, config_hash and cursor, for a store without a version.

    Returns: None if no pass is open. Raises: as `TableSet.commit`.
    """
    (table,) = tables.members
    tables.world.drop()
    tables.committer.wait()
    if not table.takes_passes or table.read_only or table.folder is None:
        return None
    last = table.versions.last
    if table.native.training:
        table.native.end(last.pass_number + 1)
    table.refuse_passes()
    parts = table.unnamed.take()
    if table.native.has_frozen:
        parts.append(table.native.write_frozen())
    if not parts:
        return None
    fields = dict(first or {}) if table.head is None else {}
    cursor = {**fields.pop("cursor", last.cursor), "partial": dict(partial)}
    config = dict(fields.pop("config", last.config))
    # The pass is counted again when training continues, so the version has the counts before it.
    counts = table.versions.read_dense(ADMISSION.__eq__).get(ADMISSION)
    own = {} if counts is None else {ADMISSION: counts}
    return table.versions.record(
        "partial", parts=parts, dense={**dense, **own}, cursor=cursor, config=config, **fields
    )
