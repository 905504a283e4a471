"""Versions with rows that no pass trained: those of a store, a save or another system
(ops/table/import.h)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.store.committer import with_counts
from paddlebox.store.compactor import segment_bytes
from paddlebox.store.group import ALL_KEYS
from paddlebox.store.record import VersionRecord, with_stamps
from paddlebox.store.table_set import TableSet
from paddlebox.store.tiered_table import TieredTable, stored_table
from paddlebox.store.version_store import ADMISSION, VersionStore

_SORT_BYTES = 256 << 20  # of rows to sort in memory at a time, if keys change


@dataclass(frozen=True)
class Imported:
    segments: list[dict[str, Any]]  # durable, not named by a version yet, without common keys
    rows: int
    with_embedx: int  # rows
    dropped: list[int]  # rows left out, for each slot of the source


def open_source(folder: Path, version: int | None) -> TieredTable:
    """Opens a store's newest version, or another one, for reading. It stays until the table is
    closed, also while the store is trained. Raises: StoreError, CorruptionError."""
    with VersionStore.open_reader(folder) as manifest:
        record = manifest.head if version is None else manifest.version(version)
    record = record or VersionRecord(0, 0, [], {"seed": 1}, 0)  # the table reports what is missing
    name = f"{record.layout['name']} of {folder}"
    return stored_table(folder, record, name, read_only=True, version=version)


def import_rows(
    sources: Sequence[TieredTable],
    target: TieredTable,
    *,
    slots: Sequence[int],
    keyed_by_slot: bool,
    key_slots: Sequence[tuple[int, int]] = (),
    progress: Callable[[int], None],
    key_range: tuple[int, int] = ALL_KEYS,
    sort_bytes: int = _SORT_BYTES,
) -> Imported:
    """Writes the rows of some stores as segments of target, a new store: see `commit_initial`.

    Args:
        sources: the table, or its ranks in order.
        key_range: the first and the last key of target; rows with other keys are left out.
        slots: for each slot of the source, its index in target; -1: its rows are left out.
        keyed_by_slot: data.key_space is per_slot, so feasigns contain the number of their slot.
        key_slots: for each slot of the source, its number in feasigns, in the source and in target;
            empty: the slots' indices.
        progress: called repeatedly with the rows read so far.
        sort_bytes: of rows that are sorted in memory at a time, if keys change.

    Raises: OutOfSpaceError before a row is written; CorruptionError; StoreError.
    """
    assert target.folder is not None
    native = target.native
    pairs = key_slots or list(enumerate(slots))
    moves = keyed_by_slot and any(
        new >= 0 and before != after for new, (before, after) in zip(slots, pairs, strict=True)
    )
    rows = sum(_share(source, key_range) for source in sources)
    _check_room(target, rows * (2 if moves else 1), f"{rows} rows of {sources[0].folder} need")
    found = _native.core.import_rows(
        [source.native for source in sources],
        native,
        list(slots),
        keyed_by_slot,
        list(key_slots),
        [_index(sources[0].config.counts, name) for name in target.config.counts],
        sort_bytes,
        *key_range,
        progress,
    )
    segments = found["segments"]
    if found["runs"] > 1:
        runs = {segment["id"]: segment["file"] for segment in segments}
        native.replace_segments([], segments)
        segments = native.merge(list(runs), True)["segments"]
        native.replace_segments(list(runs), [])
        for name in runs.values():
            os.unlink(target.folder / "ssd" / name)
    return Imported(segments, found["rows"], found["with_embedx"], found["dropped"])


def _index(names: Sequence[str], name: str) -> int:
    return names.index(name) if name in names else -1


def import_chunks(
    target: TieredTable, chunks: Iterator[tuple[np.ndarray, np.ndarray]], most_rows: int
) -> list[dict[str, Any]]:
    """As `import_rows`; target may have rows, of which those with the same keys become older ones:
    see `commit_added`. chunks: (n) uint64 keys, ascending over all chunks, and (n, words) float32
    rows (docs/formats/row.md) of target's layout."""
    _check_room(target, most_rows, f"{most_rows} rows to be loaded need")
    there = target.versions.last.segments
    first_id = max((segment["id"] for segment in there), default=0) + 1
    sequence = max((segment["sequence"] for segment in there), default=0) + 1
    return list(
        _native.core.import_chunks(target.native, most_rows, iter(chunks), first_id, sequence)
    )


def add_to_pass(table: TieredTable, segments: Sequence[dict[str, Any]], new_rows: int) -> None:
    """Adds the segments of `import_chunks` to the next pass, whose commit names them.

    Args:
        new_rows: those that the table did not have.

    Raises: PassError while a pass is staged, open or being committed.
    """
    table.check_usable()
    table.native.add_segments(segments)
    table.unnamed.parts.append({"segments": segments, "new_rows": new_rows})


def _share(source: TieredTable, key_range: tuple[int, int]) -> int:
    """Estimates the rows of a table with keys in a range; keys are hashes and spread evenly."""
    head = source.head
    if head is None or not head.segments:
        return 0
    first = min(int(segment["min_key"]) for segment in head.segments)
    last = max(int(segment["max_key"]) for segment in head.segments)
    inside = min(last, key_range[1]) - max(first, key_range[0]) + 1
    return -(-head.live_rows * max(0, inside) // (last - first + 1))


def _check_room(target: TieredTable, rows: int, what: str) -> None:
    needed = segment_bytes(rows, target.native.stored_row_bytes)
    target.compactor.budget.check(needed, what)


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
    Raises: StoreError, OutOfSpaceError: a single table is empty as before; several are after they
    are reopened."""
    calls = [
        partial(_commit, table, "init", own)
        for table, own in zip(tables.members, of_each, strict=True)
    ]
    return tables.committer.change_all(calls)


def commit_resharded(table: TieredTable, before: VersionRecord, own: FirstVersion) -> int:
    """As `commit_initial`, with rows of the same model from other stores (ranks/reshard.py). All
    other fields are those of `before`, which the version follows."""
    table.versions.before = before
    return _commit(table, "ranks", own)


@dataclass(frozen=True)
class AddedRows:
    """What a version adds to one table that has rows."""

    #: From `import_chunks`.
    segments: Sequence[Mapping[str, Any]]
    #: Of the version.
    live_rows: int
    #: The segments hold all rows of the version.
    replaces: bool = False


def commit_added(
    tables: TableSet, of_each: Sequence[AddedRows], dense: Mapping[str, np.ndarray]
) -> int:
    """Makes imported rows a version of stores that have rows. Day, pass and place in the data stay.
    dense: arrays that replace those of the same name. Returns the first table's version. Raises: as
    `commit_initial`; the rows of the last commit stand."""
    calls = [
        partial(_add, table, own, {} if number else dense)
        for number, (table, own) in enumerate(zip(tables.members, of_each, strict=True))
    ]
    return tables.committer.change_all(calls)


def _add(table: TieredTable, own: AddedRows, dense: Mapping[str, np.ndarray]) -> int:
    with table.versions.committing:
        last, added = table.versions.last, with_stamps(own.segments)
        before = table.versions.read_dense(lambda name: name != ADMISSION)
        record = table.versions.record(
            "import",
            segments=[*([] if own.replaces else last.segments), *added],
            live_rows=own.live_rows,
            bytes_written=last.bytes_with("import", added),
            dense=with_counts(table, {**before, **dense}),
            tables=table.versions.others(),
            digest=None,
        )
        replaced = [segment["id"] for segment in last.segments] if own.replaces else []
        table.native.replace_segments(replaced, list(own.segments))
    return record.version


def _commit(table: TieredTable, kind: str, own: FirstVersion) -> int:
    if own.admission is not None:
        table.native.set_admission_state(own.admission)
    with table.versions.committing:
        record = table.versions.record(
            kind,
            segments=with_stamps(own.segments),
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
