"""Imports rows and dense parameters into a run: as the first version of a new run, or as the next
version of one. An import is one commit, or none (docs/rows.md).

Letters: n = rows of a batch, W = words of a row of the table.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from paddlebox._native import core
from paddlebox.config import Config, HbmPlace, Slots
from paddlebox.errors import DataError, StoreError
from paddlebox.ranks.adopt_stores import change_as_one
from paddlebox.saves.reader import Cursor
from paddlebox.store import run_config
from paddlebox.store.group import key_ranges
from paddlebox.store.import_rows import (
    AddedRows,
    FirstVersion,
    commit_added,
    commit_initial,
    import_chunks,
)
from paddlebox.store.life import last_seq
from paddlebox.store.locks import KeptLock
from paddlebox.store.rank_stores import ranks_of
from paddlebox.store.table_set import TableSet
from paddlebox.store.tiered_table import TieredTable
from paddlebox.store.version_store import VersionStore
from paddlebox.tools.rows.given import Counted, Given, in_order
from paddlebox.training.config_changes import description
from paddlebox.training.opening import table_options
from paddlebox.training.run import begin
from paddlebox.training.runner import Runners

SCRATCH = "import.tmp"  # in the run dir, while an import sorts
_READ_ROWS = 1 << 16  # of the store, at a time, while rows are deleted


@dataclass(frozen=True)
class Target:
    """The run that receives rows."""

    config: Config
    slots: Slots
    table: TieredTable
    counted: Counted

    @property
    def layout(self) -> dict[str, int]:
        """Widths of the parts of a row."""
        return dict(self.table.native.layout)

    @property
    def names(self) -> list[str]:
        return [slot.name for slot in self.slots.sparse]

    @property
    def tables(self) -> list[str]:
        """The names of all tables of the run, the first one first."""
        return [table.name for table in self.config.tables]

    @cached_property
    def own(self) -> frozenset[str]:
        """The slots that the run looks up in this table."""
        place = self.tables.index(self.table.name)
        pairs = zip(self.names, self.slots.tables(self.tables), strict=True)
        return frozenset(name for name, table in pairs if table == place)


@dataclass(frozen=True)
class TableRows:
    """What a source has for one table."""

    batches: Iterable[Given] = ()
    rows: int | None = 0  # at least as many; None: unknown, and not in the order of keys
    #: (n) uint64 keys, ascending, whose rows go.
    deleted: Iterable[np.ndarray] = ()
    deletes: bool = False  # whether `deleted` has keys
    #: Of the first version of a new table.
    events: Sequence[Mapping[str, Any]] = ()
    day: int = 0


class RowSource(Protocol):
    """What is imported. The methods, and the iterators that they return, raise DataError,
    StoreError or ConfigError that name file and object if the source is damaged, or does not fit
    the target."""

    place: str

    @property
    def network(self) -> Mapping[str, Any] | None:
        """The sections of a stored config that describe the network of the dense parameters."""

    def of_table(self, target: Target) -> TableRows:
        """Called once for each table of the run, the first one first."""

    def dense(self, fresh: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The arrays of a dense state that the source has. fresh: the dense state of the run."""


@dataclass
class Imported(Counted):
    run: str = ""
    source: str = ""
    version: int = 0
    dense: list[str] = field(default_factory=list)  # names of the arrays that it replaced


def into_new(config: Config, run_dir: Path, source: RowSource) -> Imported:
    """Creates a run whose first version has the rows and the dense parameters of a source. What the
    source lacks is as in a run that starts from nothing. `paddlebox train` continues it.

    Raises: StoreError if the folder holds a run already; as `RowSource`; OutOfSpaceError. Nothing
    is committed then.
    """
    imported = Imported(run=str(run_dir), source=source.place)

    def fill(
        config: Config, slots: Slots, tables: TableSet, runners: Runners, _run_dir: Path
    ) -> None:
        of_each = [
            FirstVersion(one.write(), day=one.rows.day, events=one.rows.events)
            for one in _writings(config, slots, tables, source, imported)
        ]
        dense = _dense_of(source, runners.dense_state())
        runners.load_dense_state({**runners.dense_state(), **dense})
        of_each[0] = replace(
            of_each[0],
            dense=runners.dense_state(),
            cursor={"pass": 0, "epoch": 0, "ranks": 1, "imported_from": source.place},
            config_hash=config.fingerprint(),
            config=description(config, slots),
        )
        imported.version = commit_initial(tables, of_each)
        imported.dense = sorted(dense)

    try:
        begin(config, run_dir, fill, source.network)
    finally:
        shutil.rmtree(run_dir / SCRATCH, ignore_errors=True)
    return imported


def into_existing(run_dir: Path, source: RowSource) -> Imported:
    """Adds the rows and the dense parameters of a source to a run that is not being trained. What
    the source gives of a row replaces what the run has; the rest of the row stays. The rows of
    several ranks become those of one rank; training with several ranks distributes them again.

    Raises: StoreLockedError while the run is trained; as `into_new`; the last commit stands then.
    """
    imported = Imported(run=str(run_dir), source=source.place)
    with KeptLock(run_dir / "store"):
        config, slots, ranks, kept = _described(run_dir)

        def add(store: Path) -> int:
            options = replace(
                table_options(config),
                folder=store,
                hbm_place=HbmPlace.HOST,
                compaction=None,
                keep_versions=kept + 1,
            )
            of_tables = slots if config.extra_tables else None
            with TableSet(config.tables, options, slots=of_tables) as tables:
                writings = _writings(config, slots, tables, source, imported)
                of_each = [one.add() for one in writings]
                dense = _dense_of(source, tables.first.load_dense())
                imported.version = commit_added(tables, of_each, dense)
            imported.dense = sorted(dense)
            return imported.version

        try:
            if ranks > 1:
                change_as_one(run_dir, config, add)
            if not imported.version:  # one rank, also if a killed import had moved the rows
                add(run_dir / "store")
        finally:
            shutil.rmtree(run_dir / SCRATCH, ignore_errors=True)
    return imported


def _described(run_dir: Path) -> tuple[Config, Slots, int, int]:
    """The config, slots and ranks of the newest version, and the number of kept versions. They
    stay: how many do is a setting of the next start of the run."""
    with VersionStore.open_reader(run_dir / "store") as manifest:
        record, kept = manifest.newest(), len(manifest.numbers())
    if record is None:
        raise StoreError(f"{run_dir}: no version has been committed yet: give its config with -c")
    return *run_config.of_version(run_dir, record), ranks_of(record), kept


def _dense_of(source: RowSource, state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the source gives of a dense state. Averages that it lacks start at their parameters."""
    given = source.dense(state)
    for name, array in given.items():
        if not np.isfinite(array).all():
            raise DataError(
                f"{source.place}: dense parameter {name!r}: expected finite numbers, found others"
            )
    averages = {f"{name}_average": array for name, array in given.items()}
    return {name: array for name, array in averages.items() if name in state} | given


def _writings(
    config: Config, slots: Slots, tables: TableSet, source: RowSource, imported: Imported
) -> list[_Writing]:
    """Of each table."""
    targets = [Target(config, slots, table, imported) for table in tables.members]
    scratch = Path(imported.run) / SCRATCH
    return [
        _Writing(target, source.of_table(target), source.place, scratch / target.table.name)
        for target in targets
    ]


class _Writing:
    """Writes the rows of a source as segments of one table. scratch: a folder for sorted rows."""

    def __init__(self, target: Target, rows: TableRows, place: str, scratch: Path) -> None:
        self._target, self.rows, self._place, self._scratch = target, rows, place, scratch
        table = target.table
        self._live = table.head.live_rows if table.head is not None else 0
        is_new = table.head is None
        self._events = last_seq(rows.events if is_new else table.events)
        self._day = rows.day if is_new else table.day

    def write(self) -> list[dict[str, Any]]:
        """The segments of a new table."""
        most, given = self._in_order()
        return import_chunks(self._target.table, self._completed(given), most)

    def add(self) -> AddedRows:
        counted, table = self._target.counted, self._target.table
        new = counted.new
        most, given = self._in_order()
        if not self.rows.deletes:
            segments = import_chunks(table, self._completed(given), most)
            return AddedRows(segments, self._live + counted.new - new)
        segments = import_chunks(table, self._merged(given), self._live + most)
        live = sum(segment["rows"] for segment in segments)
        return AddedRows(segments, live, replaces=True)

    def _in_order(self) -> tuple[int, Iterable[Given]]:
        """At least as many rows, and the batches."""
        if self.rows.rows is not None:
            return self.rows.rows, self.rows.batches
        return in_order(self.rows.batches, self._scratch, self._target.table.row_bytes // 4)

    def _completed(self, given: Iterable[Given]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        last = np.uint64(0)
        table, counted = self._target.table, self._target.counted
        for batch in given:
            if not len(batch.keys):
                continue
            last = self._ascending(batch.keys, last)
            found, existing = table.native.lookup(core.feasigns_of(batch.keys), None)
            rows = np.require(batch.rows, np.float32, ["C", "W"])  # it is of this batch alone
            since = self._day, self._events
            core.complete_rows(table.native, batch.keys, batch.parts, found, existing, rows, *since)
            replaced = int(found.sum())
            counted.replaced += replaced
            counted.new += len(batch.keys) - replaced
            yield batch.keys, rows

    def _ascending(self, keys: np.ndarray, last: np.uint64) -> np.uint64:
        """The last key of a batch. last: that of the batch before; 0: none. Raises: DataError."""
        before = np.concatenate([[last], keys[:-1]])
        wrong = keys <= before
        if wrong.any():
            at = int(np.argmax(wrong))
            how = "there twice" if keys[at] == before[at] else "not in the order of keys"
            raise DataError(
                f"{self._place}: feasign {core.feasigns_of(keys[at : at + 1])[0]} is {how} for "
                f"table {self._target.table.name!r}, expected each once, in the order of keys"
            )
        return np.uint64(keys[-1])

    def _deleted(self) -> Iterator[tuple[np.ndarray, None]]:
        last = np.uint64(0)
        for keys in self.rows.deleted:
            if len(keys):
                last = self._ascending(keys, last)
                yield keys, None

    def _merged(self, batches: Iterable[Given]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """All rows of the table after the import, in the order of keys."""
        table, counted = self._target.table, self._target.counted
        given, gone = Cursor(self._completed(batches)), Cursor(self._deleted())
        for low, high in key_ranges(max(1, -(-self._live // _READ_ROWS))):
            feasigns, rows = table.native.read_all(low, high)
            keys = core.keys_of(feasigns)
            dropped = _concatenated([k for k, _ in gone.take(np.uint64(high))])
            counted.deleted += int(np.isin(keys, dropped, assume_unique=True).sum())
            taken = [pair for pair in given.take(np.uint64(high)) if pair[1] is not None]
            added = _concatenated([k for k, _ in taken])
            kept = ~np.isin(keys, np.concatenate([dropped, added]))
            keys = np.concatenate([keys[kept], added])
            order = np.argsort(keys)
            yield keys[order], np.concatenate([rows[kept], *(r for _, r in taken)])[order]


def _concatenated(keys: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(keys) if keys else np.empty(0, np.uint64)
