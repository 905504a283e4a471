"""Saver: writes the base, the deltas and the batches of a table (docs/formats/save.md)."""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.config.dates import date_of
from paddlebox.errors import ConfigError, StoreError
from paddlebox.saves import donefile
from paddlebox.saves.meta import BASE, BATCH, DELTA, NO_DATE
from paddlebox.saves.reader import Save, chain_of, open_save
from paddlebox.saves.served import Served
from paddlebox.saves.touched import Index, keys_in, touched
from paddlebox.saves.writer import SaveWriter
from paddlebox.store.life import SaveFilter
from paddlebox.store.table import Table

log = logging.getLogger("paddlebox")
core = _native.core
_DELTA_SCORE, _LIFE_SEQ = 3, 5  # words of a row (docs/formats/row.md)


class Saver:
    """Saves a table's committed rows below OUT. Not while a pass is open.

    Args:
        out: the folder of days, donefiles in it.
        extra: files that go into each save, name -> content: slots.yaml, config.json.
        dense: the dense state; None: that of the table's newest commit.
    """

    def __init__(
        self,
        table: Table,
        out: Path | str,
        *,
        extra: Mapping[str, bytes] | None = None,
        dense: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self._table = table
        self.out = Path(out).absolute()
        self._extra = dict(extra or {})
        self._dense = dense

    # ---- the three kinds

    def base(self, name: str = "", *, day: int | None = None) -> Save:
        """Saves the rows of a base: a new chain.

        Args:
            name: default `<day>/base`.
            day: up to which unseen days are counted; default: the table's.

        Raises: StoreError where a save of this name is done; OutOfSpaceError; PassError while a
        pass is open.
        """
        name = name or f"{self.date}/base"
        writer = self._writer(name)
        try:
            chosen = self._table.rows_of_base(
                lambda feasigns, rows: writer.add(core.keys_of(feasigns), _own(rows)), day=day
            )
            fields = {
                "key": donefile.new_key(self.out),
                "base": name,
                "parent": None,
                "filter": asdict(chosen),
            }
            save = self._finish(writer, BASE, name, fields)
        except BaseException:
            writer.drop()
            raise
        self._begin_anew(chosen)
        return save

    def delta(self, name: str = "") -> Save:
        """Saves what changed since the last save of the chain, and what is to be deleted. name:
        default `<day>/delta-<pass>`.

        Raises: as `base`; StoreError before the first base; ConfigError where the rows of the chain
        have another layout.
        """
        parent = self.last()
        if parent is None:
            raise StoreError(f"{self.out}: has no base that a delta could change: save one first")
        name = name or f"{self.date}/delta-{self.pass_number}"
        self._check_layout(parent)
        writer = self._writer(name)
        try:
            chosen = self._changes(chain_of(parent), writer)
            fields = {
                "key": parent.meta["key"],
                "base": parent.meta["base"],
                "parent": {"name": parent.name, "crc32c": parent.meta["crc32c"]},
                "filter": asdict(chosen),
            }
            save = self._finish(writer, DELTA, name, fields)
        except BaseException:
            writer.drop()
            raise
        self._begin_anew(chosen)
        return save

    def batch(self, name: str = "") -> Save:
        """Saves every row, with its delta_score: a model to go on from, not to serve. name: default
        `<day>/<pass>`.

        Raises: as `base`.
        """
        name = name or f"{self.date}/{self.pass_number}"
        writer = self._writer(name)
        try:
            everything = SaveFilter(self._table.day, float("-inf"), float("-inf"), 2**32 - 1)
            self._table.visit(
                lambda f, rows: writer.add(core.keys_of(f), _own(rows, _LIFE_SEQ)), everything
            )
            fields = {"key": int(time.time()), "base": name, "parent": None, "filter": None}
            return self._finish(writer, BATCH, name, fields)
        except BaseException:
            writer.drop()
            raise

    # ---- where things stand

    def last(self) -> Save | None:
        """The save that the next delta is made upon."""
        name = donefile.last(self.out)
        return open_save(self.out / name) if name is not None else None

    def of_last_pass(self) -> Save | None:
        """The save of the table's last pass, if one is done. Its writer may have died between the
        donefile and the event that lets delta_score start anew; then that is done now."""
        last, head = self.last(), self._table.head
        if last is None or head is None or last.meta["pass_number"] != self.pass_number:
            return None
        if last.meta["commit"] not in self._table.journal():  # of another store
            return None
        if last.meta["events"] == len(head.events):
            log.info("%s: delta_score starts anew after it, as it had not yet", last.folder)
            self._begin_anew(SaveFilter(**last.meta["filter"]))
        return last

    def is_done(self, kind: str, name: str) -> bool:
        return any(done.name == name for done in donefile.read(self.out, kind))

    @property
    def date(self) -> str:
        """Of the last pass that ended, YYYYMMDD; waits for the commit in the background."""
        self._table.wait_commit()
        return date_of(self._table.day) or NO_DATE

    @property
    def pass_number(self) -> int:
        """Of the last pass that ended; waits as `date`."""
        self._table.wait_commit()
        return self._table.pass_number

    # ---- how

    def _changes(self, chain: list[Save], writer: SaveWriter) -> SaveFilter:
        """Compares what a base would hold with what the chain serves."""
        chosen = self._table.delta_filter()
        segments = touched(self._table, chain[-1], chosen)
        if segments is not None:
            of_base = asdict(replace(chosen, min_delta_score=0.0))
            index = Index(chain)
            for keys in keys_in(segments):
                found, rows = self._table.lookup(core.feasigns_of(keys), of_base)
                _write_changes(writer, chosen, keys[found], rows[found], *index.lookup(keys))
            return chosen
        served = Served(chain)

        def visit(feasigns: np.ndarray, rows: np.ndarray) -> None:
            keys = core.keys_of(feasigns)
            _write_changes(writer, chosen, keys, rows, *served.take(keys[-1]))

        self._table.rows_of_base(visit)
        writer.delete(served.take()[0])
        return chosen

    def _writer(self, name: str) -> SaveWriter:
        self._table.commit_ended()  # a save is of what is durable
        target = donefile.claim(self.out, name)
        layout = self._table.row_layout
        return SaveWriter(
            target,
            words=self._table.row_bytes // 4,
            fingerprint=int(layout["fingerprint"]),
        )

    def _finish(self, writer: SaveWriter, kind: str, name: str, fields: Mapping[str, Any]) -> Save:
        head, journal = self._table.head, self._table.journal()
        complete = {
            **fields,
            "kind": kind,
            "name": name,
            "version": head.version if head is not None else 0,
            "day": self._table.day,
            "date": date_of(self._table.day),
            "pass_number": self.pass_number,
            "layout": self._table.layout,
            "events": len(self._table.events),
            "sequence": max((s["sequence"] for s in head.segments), default=0) if head else 0,
            "commit": journal[-1] if journal else None,
            "created_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        dense = self._dense if self._dense is not None else self._table.load_dense()
        save = open_save(writer.finish(complete, dense, self._extra))
        donefile.append(self.out, save.meta)
        log.info(
            "saved %s: %d rows, %d deleted", save.folder, save.meta["rows"], save.meta["deleted"]
        )
        return save

    def _begin_anew(self, saved: SaveFilter) -> None:
        # After the donefile: should it not come to this, the next delta only holds more.
        if not self._table.read_only:
            self._table.reset_delta(saved)

    def _check_layout(self, parent: Save) -> None:
        expected, found = (
            int(self._table.row_layout["fingerprint"]),
            parent.meta["layout_fingerprint"],
        )
        if found != expected:
            raise ConfigError(
                f"{parent.folder}: rows have layout {found:#018x}, the table's {expected:#018x}: "
                "save a base"
            )


def _write_changes(
    writer: SaveWriter,
    chosen: SaveFilter,
    keys: np.ndarray,
    rows: np.ndarray,
    known: np.ndarray,
    as_served: np.ndarray,
) -> None:
    """keys, rows: of the table, in a base; known, as_served: of the chain, in the same range."""
    # At 0 every change counts, also one that took score away.
    grown = np.full(len(keys), chosen.min_delta_score <= 0)
    grown |= rows[:, _DELTA_SCORE] >= np.float32(chosen.min_delta_score)
    rows = _own(rows)
    same = np.zeros(len(keys), bool)
    if len(known):
        at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
        found = known[at] == keys
        same[found] = _equal(rows[found], as_served[at[found]])
    changed = grown & ~same
    writer.add(keys[changed], rows[changed])
    writer.delete(known[~_in(known, keys)])


def _own(rows: np.ndarray, *words: int) -> np.ndarray:
    """Rows without what means nothing outside the table: default life_seq and delta_score."""
    rows = rows.copy()
    rows[:, list(words or (_DELTA_SCORE, _LIFE_SEQ))] = 0
    return rows


def _equal(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(n) bool: of equal bits. NaNs are compared too."""
    same: np.ndarray = (rows.view(np.uint32) == others.view(np.uint32)).all(axis=1)
    return same


def _in(values: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """(n) bool: which values are among the keys; both ascend."""
    if len(keys) == 0:
        return np.zeros(len(values), bool)
    at = np.minimum(np.searchsorted(keys, values), len(keys) - 1)
    found: np.ndarray = keys[at] == values
    return found
