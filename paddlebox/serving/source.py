"""Sources of versions for a writer of export files: runs, and saves (docs/formats/save.md)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from paddlebox._native import core
from paddlebox.closing import Closing
from paddlebox.config import Config, Phase, Slots, TableConfig, load_slots
from paddlebox.config.arguments import AnyConfig, AnyPath, as_config, as_path
from paddlebox.config.stored import read_config
from paddlebox.config.trainer import state_of
from paddlebox.errors import ConfigError, StoreError
from paddlebox.saves import Save, chain_of, open_save
from paddlebox.saves.meta import BASE, BATCH, META
from paddlebox.saves.reader import Served
from paddlebox.store import run_config
from paddlebox.store.files import table_folder
from paddlebox.store.life import SaveFilter, ServeFilter, filters_text, saved_rows, serve_filter
from paddlebox.store.options import TableOptions
from paddlebox.store.rank_stores import rank_versions, store_in
from paddlebox.store.record import VersionRecord
from paddlebox.store.table_set import TableSet
from paddlebox.store.tiered_table import TieredTable

Visit = Callable[[np.ndarray, np.ndarray], None]


class Part(Protocol):
    """The rows of one table. Letters: n = rows of a chunk."""

    layout: Mapping[str, Any]  # as in `VersionRecord.layout`

    def visit(self, callback: Visit) -> None:
        """Call with each chunk: (n) uint64 feasigns in key order and (n, words) float32 rows
        (docs/formats/row.md)."""

    def deleted(self) -> Iterable[np.ndarray]:
        """Chunks of (n) uint64 feasigns that a delta deletes; none for a base."""


class Source(Protocol):
    """A base or a delta to write into an export file.

    `meta` has:
        kind: "base" or "delta".
        version, day, pass_number.
        follows: optional, for a delta: the version that it changes.
        save: for a save: {name, crc32c}.
        follows_save: for a save: the {name, crc32c} of a delta's parent; None for a base.
        filters: optional: for each table, the `ServeFilter` that chose the rows of the source.

    A source with a new model has `config` and `slots`. The first source of a file must have them.
    """

    @property
    def meta(self) -> Mapping[str, Any]: ...

    @property
    def parts(self) -> Mapping[str, Any]:
        """Table name -> its `Part`, in the order of `Config.tables`."""

    def dense(self) -> Mapping[str, np.ndarray]:
        """The dense state, variable name -> array."""


class _TableRows:
    """The rows of one table that a filter keeps. of_ranks: the table of each rank, in key order."""

    def __init__(self, of_ranks: Sequence[TieredTable], chosen: ServeFilter) -> None:
        self.layout = of_ranks[0].versions.layout
        self._of_ranks = of_ranks
        self._kept = chosen
        self.live = self.left_out = 0  # rows in the last visit

    def visit(self, callback: Visit) -> None:
        self.live = self.left_out = 0
        everything = ServeFilter()
        for table in self._of_ranks:
            chosen = self._kept.at(table.day)
            take = partial(self._take, callback, chosen)
            table.visit(take, everything.at(table.day))

    def _take(
        self, callback: Visit, chosen: SaveFilter, feasigns: np.ndarray, rows: np.ndarray
    ) -> None:
        keep = saved_rows(chosen, rows)
        self.live += len(keep)
        self.left_out += len(keep) - int(keep.sum())
        if keep.all():
            callback(feasigns, rows)
        elif keep.any():
            callback(feasigns[keep], rows[keep])

    def deleted(self) -> Iterable[np.ndarray]:
        return ()


class RunSource(Closing):
    """A base from the store of a run: the rows of a commit that `serve_filter` keeps; of several
    ranks, after the newest pass that all have committed.

    Args:
        version: a kept version; None: the newest one.
        threshold: for `serve_filter`; 0: all rows. None: those of `filters`.
        filters: one for each table; None: all rows.
        config: the config that trained the run; None: that of the version's record, or else
            RUN_DIR/config.json, with the overrides.

    Raises: StoreError, ConfigError.
    """

    def __init__(
        self,
        run_dir: AnyPath,
        *,
        version: int | None = None,
        threshold: float | None = None,
        filters: Sequence[ServeFilter] | None = None,
        config: AnyConfig | None = None,
        overrides: Sequence[str] = (),
    ) -> None:
        run_dir = as_path(run_dir, "run_dir")
        store = store_in(run_dir)
        (_, head), *others = rank_versions(store, version)
        if config is None:
            self.config, self.slots = run_config.of_version(run_dir, head, overrides)
        else:
            self.config = as_config(config)
            slots = load_slots(self.config.data.slots)
            self.slots = slots.with_exact_values(self.config.data.exact_values)
        fields = list(self.config.tables)
        options = TableOptions(
            folder=store,
            seed=self.config.seed,
            threads=min(4, len(os.sched_getaffinity(0))),
            read_only=True,
            version=head.version,
        )
        self._table = TableSet(fields, options, slots=self.slots if len(fields) > 1 else None)
        self._others = ExitStack()
        try:
            of_others = [self._open_rank(fields, *other, options) for other in others]
        except BaseException:
            self.close()
            raise
        members = self._table.members
        if threshold is not None or filters is None or len(filters) != len(members):
            filters = [serve_filter(table.config.life, threshold) for table in members]
        self.parts = {
            table.name: _TableRows([table, *(of_rank[number] for of_rank in of_others)], chosen)
            for number, (table, chosen) in enumerate(zip(members, filters, strict=True))
        }
        self.head = head
        self._phase = Phase.UPDATE
        self.meta: Mapping[str, Any] = {
            "kind": "base",
            "version": head.version,
            "day": self._table.day,
            "pass_number": head.pass_number,
            "dense_version": head.dense_version,
            "event_time": head.cursor.get("event_time"),
            "filters": filters,
        }

    def choose(self, phase: Phase) -> None:
        """Choose the phase whose program to serve, by default update. Raises: ConfigError if the
        run has no phases, or the program reads page views, which a request does not have."""
        if phase is Phase.UPDATE:
            return
        if not self.config.phases:
            raise ConfigError("--phase join: the run has one model and no phases: omit --phase")
        chosen = self.config.of_phase(phase)
        if chosen.model.page_views:
            raise ConfigError(
                f"--phase join: phases.join.model.type {chosen.model.type.value} reads page views, "
                "and a request has single instances: omit --phase to export update"
            )
        self.config, self._phase = chosen, phase

    def _open_rank(
        self,
        fields: Sequence[TableConfig],
        store: Path,
        record: VersionRecord,
        options: TableOptions,
    ) -> list[TieredTable]:
        tables = []
        for number, table in enumerate(fields):
            folder = Path(table_folder(str(store), table.name)) if number else store
            version = record.tables[table.name] if number else record.version
            # The names of the tables in a process must be unique.
            named = table.model_copy(update={"name": f"{table.name} of {folder}"})
            tables.append(TieredTable(named, replace(options, folder=folder, version=version)))
            self._others.callback(tables[-1].close)
        return tables

    def summary(self) -> str:
        """A sentence about the rows that the last visit left out."""
        live = sum(part.live for part in self.parts.values())
        left_out = sum(part.left_out for part in self.parts.values())
        if not left_out:
            return f"kept all {live:,} rows"
        filters = filters_text(self.meta["filters"])
        return (
            f"left out {left_out:,} of {live:,} rows ({filters}). --threshold 0 keeps all rows; "
            "paddlebox evaluate --threshold measures the difference"
        )

    def visit(self, callback: Visit) -> None:
        """Visit the rows of the first table."""
        next(iter(self.parts.values())).visit(callback)

    def dense(self) -> Mapping[str, np.ndarray]:
        return state_of(self._phase, self._table.load_dense())

    def close(self) -> None:
        self._others.close()
        self._table.close()


def is_save(path: Path) -> bool:
    return (path / META).is_file()


class _SavedRows:
    """The rows of one table: those of a single save, or those that a chain serves."""

    def __init__(self, chain: list[Save], is_base: bool) -> None:
        self.layout = chain[-1].meta["layout"]
        self._chain, self._is_base = chain, is_base

    def visit(self, callback: Visit) -> None:
        rows_of = self._chain[0] if len(self._chain) == 1 else Served(self._chain)
        for keys, rows in rows_of.chunks():
            callback(core.feasigns_of(keys), rows)

    def deleted(self) -> Iterable[np.ndarray]:
        return () if self._is_base else self._chain[-1].deleted()


class SaveSource:
    """A base or a delta. whole: whether to present the save with its chain as a base, so that a new
    file can start with a delta. Raises: StoreError for a batch, which has rows that must not be
    served, or if a save of the chain is missing; CorruptionError."""

    def __init__(self, path: AnyPath, *, whole: bool = False) -> None:
        path = as_path(path, "path")
        self._save: Save = open_save(path)
        save = self._save.meta
        if save["kind"] == BATCH:
            raise StoreError(
                f"{path}: is a batch, which is for further training; expected a base or a delta"
            )
        chain = chain_of(self._save) if whole else [self._save]
        filters = [part.meta["filter"] for part in self._save.parts.values()]
        self.meta: Mapping[str, Any] = {
            "kind": BASE if whole else save["kind"],
            "version": save["version"],
            "day": save["day"],
            "pass_number": save["pass_number"],
            "event_time": save.get("event_time"),
            "save": {"name": save["name"], "crc32c": save["crc32c"]},
            "follows_save": None if whole else save["parent"],
            "filters": [ServeFilter(of["min_score"], of["max_unseen_days"]) for of in filters],
        }
        is_base = self.meta["kind"] == BASE
        self.parts = {
            table: _SavedRows([of_chain.parts[table] for of_chain in chain], is_base)
            for table in self._save.parts  # as in Config.tables: the other tables by name
        }
        self.config: Config | None = None
        self.slots: Slots | None = None
        if (model := self._save.model()) is not None:
            self.config = read_config(model[0], str(path / "config.json"))
            self.slots = load_slots(model[1]).with_exact_values(self.config.data.exact_values)
        elif is_base:
            raise StoreError(
                f"{path}: was saved without config.json and slots.yaml, which describe the model "
                "to serve; saves of save.out have them"
            )

    def dense(self) -> Mapping[str, np.ndarray]:
        return self._save.dense()
