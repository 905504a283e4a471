"""Where a writer takes a version from."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from paddlebox.closing import Closing
from paddlebox.config import Config, Phase, TableConfig, load_slots
from paddlebox.config.phases import state_of
from paddlebox.errors import ConfigError, StoreError
from paddlebox.store import run_config
from paddlebox.store.files import table_folder
from paddlebox.store.life import SaveFilter, ServeFilter, filters_text, saved_rows, serve_filter
from paddlebox.store.manifest import VersionRecord
from paddlebox.store.options import TableOptions
from paddlebox.store.rank_stores import rank_versions
from paddlebox.store.table_set import TableSet
from paddlebox.store.tiered_table import TieredTable

Visit = Callable[[np.ndarray, np.ndarray], None]


class Source(Protocol):
    """A base, or what a delta changes. Letters: n = rows of a chunk.

    meta: kind ("base" or "delta"), version, day, pass_number, layout as `VersionRecord.layout`;
        of a delta also `follows`, the version it was made against, if it says so. Of a save
        `save`, {name, crc32c}, and of a delta among them `follows_save`, that of its parent.
        `filters`, where it says which rows it keeps: a `ServeFilter` of each table.

    Its rows come in chunks, (n) uint64 feasigns in the order of keys and (n, words) float32 rows
    (docs/formats/row.md): it is iterated, or has `visit(callback)`. One that brings another model
    has `config` and `slots`; the first of a file must. One of several tables has `parts`, of each
    table in the order of `Config.tables` its name and what has its `layout`, its rows and
    `deleted()`.
    """

    @property
    def meta(self) -> Mapping[str, Any]: ...

    def deleted(self) -> Iterable[np.ndarray]:
        """(n) uint64 feasigns that are gone; none of a base."""

    def dense(self) -> Mapping[str, np.ndarray]:
        """The dense state, by variable name."""


class _Whole:
    """A source of one table as its only part."""

    def __init__(self, source: Source) -> None:
        self.layout = source.meta["layout"]
        self.deleted = source.deleted
        self.visit = lambda visit: each_chunk(source, visit)


def parts_of(source: Any) -> Mapping[str, Any]:
    """What has the rows of each table, by name; of the first, "" where it is the only one."""
    parts: Mapping[str, Any] | None = getattr(source, "parts", None)
    return parts if parts is not None and len(parts) > 1 else {"": _Whole(source)}


def each_chunk(source: Any, visit: Visit) -> None:
    if hasattr(source, "visit"):
        source.visit(visit)
        return
    for feasigns, rows in source:
        visit(feasigns, rows)


class _TableRows:
    """The rows of one table that a filter keeps, as a part.

    Args: of_ranks: of each rank that has some of them, in the order of their keys.
    """

    def __init__(self, of_ranks: Sequence[TieredTable], kept: ServeFilter) -> None:
        self.layout = of_ranks[0].layout
        self._of_ranks = of_ranks
        self._kept = kept
        self.live = self.left_out = 0  # rows, of the last visit

    def visit(self, callback: Visit) -> None:
        self.live = self.left_out = 0
        everything = ServeFilter()
        for table in self._of_ranks:
            chosen = self._kept.at(table.day)
            take = partial(self._take, callback, table.config, chosen)
            table.visit(take, everything.at(table.day))

    def _take(
        self,
        callback: Visit,
        config: TableConfig,
        chosen: SaveFilter,
        feasigns: np.ndarray,
        rows: np.ndarray,
    ) -> None:
        keep = saved_rows(config, chosen, rows)
        self.live += len(keep)
        self.left_out += len(keep) - int(keep.sum())
        if keep.all():
            callback(feasigns, rows)
        elif keep.any():
            callback(feasigns[keep], rows[keep])

    def deleted(self) -> Iterable[np.ndarray]:
        return ()


class RunSource(Closing):
    """The base of a run: the rows of its newest commit, or of one kept, that `serve_filter` keeps.
    Where several ranks trained it is that of the newest pass which all have committed.

    Args:
        threshold: of `serve_filter`, in place of base_threshold of the tables' `life`; 0: all rows.
        filters: of each table, in place of `serve_filter` where there is no threshold.
        config: that trained the run; None: what the version's record says, or else
            RUN_DIR/config.json, with the overrides ("key.path=value").

    Raises: StoreError, ConfigError.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        version: int | None = None,
        threshold: float | None = None,
        filters: Sequence[ServeFilter] | None = None,
        config: Config | None = None,
        overrides: Sequence[str] = (),
    ) -> None:
        store = run_dir / "store"
        if not store.is_dir():
            raise StoreError(
                f"{run_dir}: is no run dir: expected a folder with a store, found none in it: give "
                "the --run-dir of a training run"
            )
        (_, head), *others = rank_versions(store, version)
        if config is None:
            self.config, self.slots = run_config.of_version(run_dir, head, overrides)
        else:
            self.config, self.slots = config, load_slots(config.data.slots)
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
        self.default_filters = [serve_filter(t.config.life, t.dated) for t in members]
        if threshold is not None:
            filters = [serve_filter(t.config.life, t.dated, threshold) for t in members]
        if filters is None or len(filters) != len(members):
            filters = self.default_filters
        self.parts = {
            table.name: _TableRows([table, *(of_rank[number] for of_rank in of_others)], kept)
            for number, (table, kept) in enumerate(zip(members, filters, strict=True))
        }
        self.head = head
        self._phase = Phase.UPDATE
        self.meta: Mapping[str, Any] = {
            "kind": "base",
            "version": head.version,
            "day": self._table.day,
            "pass_number": head.pass_number,
            "layout": head.layout,
            "dense_version": head.dense_version,
            "filters": filters,
        }

    def choose(self, phase: Phase) -> None:
        """Makes the program of a phase the one that serves; update's is unless this is called.

        Raises: ConfigError where there is none, or it reads whole pages, which a request has not.
        """
        if phase is Phase.UPDATE:
            return
        if not self.config.phases:
            raise ConfigError("--phase join: the run has no phases, and one model: leave it out")
        chosen = self.config.of_phase(phase)
        if chosen.model.page_views:
            raise ConfigError(
                f"--phase join: phases.join.model.type {chosen.model.type.value} reads page views, "
                "and a request has single instances: export update, as is done without --phase"
            )
        self.config, self._phase = chosen, phase

    def _open_rank(
        self,
        fields: Sequence[TableConfig],
        store: Path,
        record: VersionRecord,
        options: TableOptions,
    ) -> list[TieredTable]:
        """The tables of another rank."""
        tables = []
        for number, one in enumerate(fields):
            folder = Path(table_folder(str(store), one.name)) if number else store
            version = record.tables[one.name] if number else record.version
            # Tables of one process go by their names.
            named = one.model_copy(update={"name": f"{one.name} of {folder}"})
            tables.append(TieredTable(named, replace(options, folder=folder, version=version)))
            self._others.callback(tables[-1].close)
        return tables

    def told(self) -> str:
        """Once the rows were visited: how many were left out, and what that changes."""
        live = sum(part.live for part in self.parts.values())
        left_out = sum(part.left_out for part in self.parts.values())
        if not left_out:
            return f"kept all {live:,} rows"
        filters = filters_text(self.meta["filters"])
        return (
            f"left out {left_out:,} of {live:,} rows ({filters}): predictions for their features "
            "differ from the evaluation. --threshold 0 keeps all rows; tools/evaluate.py "
            "--as-served measures the difference"
        )

    def visit(self, callback: Visit) -> None:
        """Of the first table."""
        next(iter(self.parts.values())).visit(callback)

    def deleted(self) -> Iterable[np.ndarray]:
        return ()

    def dense(self) -> Mapping[str, np.ndarray]:
        return state_of(self._phase, self._table.load_dense())

    def close(self) -> None:
        self._others.close()
        self._table.close()


# docs/formats/row.md, for an embedding of one float.
_EMBED_STATE = {
    "naive": 0,
    "adagrad": 1,
    "std_adagrad": 1,
    "adagrad_v2": 1,
    "adam": 4,
    "shared_adam": 4,
    "ftrl": 2,
}


def embed_state_words(layout: Mapping[str, Any]) -> int:
    """Words of state behind embed_w in the rows of a layout."""
    return _EMBED_STATE[layout["embed"]["rule"]]
