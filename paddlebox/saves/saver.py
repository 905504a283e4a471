"""Saver: writes the base, the deltas and the batches of a table (docs/formats/save.md)."""

from __future__ import annotations

import datetime
import itertools
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.config.dates import date_of
from paddlebox.errors import StoreError
from paddlebox.saves import donefile
from paddlebox.saves.layout import check_layout
from paddlebox.saves.meta import BASE, BATCH, DELTA, NO_DATE
from paddlebox.saves.reader import Save, chain_of, open_save
from paddlebox.saves.served import Served
from paddlebox.saves.touched import Index, keys_in, touched
from paddlebox.saves.writer import PartWriter, SaveWriter, Shape
from paddlebox.store.frozen import Frozen
from paddlebox.store.group import Tables, reset_delta
from paddlebox.store.life import DELTA_RESET, SaveFilter, base_filter, last_day_ended
from paddlebox.store.one_rank import OneRank
from paddlebox.store.table import Table

log = logging.getLogger("paddlebox")
core = _native.core
_DELTA_SCORE, _LIFE_SEQ = 3, 5  # words of a row (docs/formats/row.md)


class Saver:
    """Saves the committed rows of a table, or of a group of tables, below OUT. Not while a pass is
    open.

    Args:
        out: the folder of days, donefiles in it.
        extra: files that go into each save, name -> content: slots.yaml, config.json.
        dense: the dense state; None: that of the table's newest commit.
    """

    def __init__(
        self,
        table: Tables,
        out: Path | str,
        *,
        extra: Mapping[str, bytes] | None = None,
        dense: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self._table = table
        self._members: Sequence[Table] = table.members
        self.out = Path(out).absolute()
        self._extra = dict(extra or {})
        self._dense = dense

    # ---- the three kinds

    def base(self, name: str = "", *, day: int | None = None) -> Save:
        """Saves the rows of a base: a new chain.

        Args:
            name: default `<day>/base`.
            day: up to which unseen days are counted; default: each table's.

        Raises: StoreError where a save of this name is done; OutOfSpaceError; PassError while a
        pass is open.
        """
        name = name or f"{self.date}/base"
        writer = self._writer(name)
        try:
            chosen = [
                table.rows_of_base(partial(_add, part), day=day)
                for table, part in zip(self._members, writer.parts, strict=True)
            ]
            fields = {"key": donefile.new_key(self.out), "base": name, "parent": None}
            save = self._finish(writer, BASE, name, fields, chosen)
        except BaseException:
            writer.drop()
            raise
        self._begin_anew(chosen)
        return save

    def delta(self, name: str = "") -> Save:
        """Saves what changed since the last save of the chain, and what is to be deleted. name:
        default `<day>/delta-<pass>`.

        Raises: as `base`; StoreError before the first base; ConfigError where the chain has other
        tables, or rows of another layout.
        """
        parent = self.last()
        if parent is None:
            raise StoreError(f"{self.out}: has no base that a delta could change: save one first")
        name = name or f"{self.date}/delta-{self.pass_number}"
        check_layout(parent, layouts_of(self._members), "the table", "save a base")
        writer = self._writer(name)
        chain = chain_of(parent)
        try:
            chosen = [
                _changes(table, [save.parts[table.name] for save in chain], part, self._table)
                for table, part in zip(self._members, writer.parts, strict=True)
            ]
            fields = {
                "key": parent.meta["key"],
                "base": parent.meta["base"],
                "parent": {"name": parent.name, "crc32c": parent.meta["crc32c"]},
            }
            save = self._finish(writer, DELTA, name, fields, chosen)
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
            for table, part in zip(self._members, writer.parts, strict=True):
                everything = SaveFilter(table.day, float("-inf"), float("-inf"), 2**32 - 1)
                table.visit(partial(_add, part, words=(_LIFE_SEQ,)), everything)
            fields = {"key": int(time.time()), "base": name, "parent": None}
            return self._finish(writer, BATCH, name, fields, [None] * len(writer.parts))
        except BaseException:
            writer.drop()
            raise

    # ---- beside training

    def later(self, kind: str, name: str) -> Callable[[], Save]:
        """`base` or `delta` of the commit that there is now, to be called once, while the next pass
        trains: the version's files are kept until then. `begin_anew` is the caller's to call.

        Raises: StoreError where a save of this name is done, or a table has no commit. The call:
            as `base`.
        """
        frozen = Frozen(self._table)
        try:
            if self._table.rank == 0:
                donefile.claim(self.out, name)
        except BaseException:
            frozen.close()
            raise

        def save() -> Save:
            with frozen:
                saver = copy(self)
                saver._members = frozen.open()
                if saver._dense is None:
                    saver._dense = saver._members[0].load_dense()
                return saver.base(name) if kind == BASE else saver.delta(name)

        return save

    def begin_anew(self, kind: str, until: Callable[[], None] | None = None) -> None:
        """Lets delta_score of the rows start anew that a save of this kind holds, of the commit
        that there is now: before the next pass opens. It is durable with the next commit, which
        waits `until` the save is; None: at once."""
        if kind == BASE:
            chosen = [base_filter(t.config.life, t.day) for t in self._members]
        else:
            chosen = [t.delta_filter() for t in self._members]
        reset_delta(self._table, chosen, until)

    def has_begun_anew(self, save: Save) -> bool:
        """Whether delta_score has, after this save of the table."""
        first = self._members[0]
        later = first.events[save.parts[first.name].meta["events"] :]
        return any(event["kind"] == DELTA_RESET for event in later)

    def settle(self) -> None:
        """After the last save of a run: makes durable that delta_score has begun anew."""
        self._table.settle_events()

    # ---- where things stand

    def last(self) -> Save | None:
        """The save that the next delta is made upon."""
        name = self.as_first(donefile.last(self.out) if self._table.rank == 0 else None)
        return open_save(self.out / name) if name is not None else None

    def as_first(self, mine: Any) -> Any:
        """What the first rank gives, on every rank: one reads the donefiles for all."""
        return json.loads(self._table.meet("save asked", json.dumps(mine).encode())[0])

    def of_last_pass(self) -> Save | None:
        """The save of the table's last pass, if one is done."""
        last, head = self.last(), self._members[0].head
        is_of_it = (
            last is not None
            and head is not None
            and last.meta["pass_number"] == self.pass_number
            and self.is_own(last)
        )
        return last if self.as_first(is_of_it) else None

    def is_own(self, save: Save) -> bool:
        """Whether it is of a version that led to the table's: not of another store, nor of one
        that was gone back from."""
        return save.meta["commit"] in self._members[0].journal()

    def is_done(self, kind: str, name: str) -> bool:
        return any(done.name == name for done in donefile.read(self.out, kind))

    def free_name(self, name: str) -> str:
        """`name`, or `<name>-2` (3, …) where a save has that: one of versions that were gone back
        from keeps its name, for it may be served."""
        done = {d.name for kind in donefile.NAMES for d in donefile.read(self.out, kind)}
        others = (f"{name}-{number}" for number in itertools.count(2))
        return next(free for free in itertools.chain([name], others) if free not in done)

    @property
    def date(self) -> str:
        """Of the last pass that ended, YYYYMMDD; waits for the commit in the background."""
        self.commit_ended()
        return date_of(self._members[0].day) or NO_DATE

    @property
    def pass_number(self) -> int:
        """Of the last pass that ended; waits as `date`."""
        self.commit_ended()
        return self._members[0].pass_number

    def commit_ended(self) -> None:
        """A save is of what is durable."""
        if not self._members[0].read_only:
            self._table.commit_ended()

    # ---- how

    def _writer(self, name: str) -> SaveWriter:
        self.commit_ended()
        target = self.out / name
        if self._table.rank == 0:
            target = donefile.claim(self.out, name)
        return SaveWriter(
            target,
            [
                Shape(table.name, table.row_bytes // 4, int(table.row_layout["fingerprint"]))
                for table in self._members
            ],
            self._table,
        )

    def _finish(
        self,
        writer: SaveWriter,
        kind: str,
        name: str,
        fields: Mapping[str, Any],
        chosen: Sequence[SaveFilter | None],
    ) -> Save:
        complete = {
            **fields,
            "kind": kind,
            "name": name,
            "day": self._members[0].day,
            "date": date_of(self._members[0].day),
            "pass_number": self.pass_number,
            "created_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        of_tables = list(map(_of_table, self._members, chosen))
        dense = self._dense if self._dense is not None else self._table.load_dense()
        save = open_save(writer.finish(complete, of_tables, dense, self._extra))
        if self._table.rank == 0:
            donefile.append(self.out, save.meta)
        self._table.meet("save is done")
        log.debug("saved %s: %d rows, %d deleted", save.folder, save.rows, save.deletions)
        return save

    def _begin_anew(self, saved: Sequence[SaveFilter]) -> None:
        # After the donefile: should it not come to this, the next delta only holds more.
        if not self._members[0].read_only:
            reset_delta(self._table, saved)


def layouts_of(tables: Sequence[Table]) -> dict[str, dict[str, Any]]:
    """What `check_layout` compares a save with."""
    return {
        table.name: {
            "layout_fingerprint": int(table.row_layout["fingerprint"]),
            "layout": table.layout,
        }
        for table in tables
    }


def _of_table(table: Table, chosen: SaveFilter | None) -> dict[str, Any]:
    """What meta.json says of one table."""
    head, journal = table.head, table.journal()
    return {
        "version": head.version if head is not None else 0,
        "filter": asdict(chosen) if chosen is not None else None,
        "layout": table.layout,
        "events": len(table.events),
        "day_ended": last_day_ended(table.events),
        "sequence": max((s["sequence"] for s in head.segments), default=0) if head else 0,
        "commit": journal[-1] if journal else None,
    }


def _add(part: PartWriter, feasigns: np.ndarray, rows: np.ndarray, words: Any = ()) -> None:
    part.add(core.keys_of(feasigns), _own(rows, *words))


def _changes(table: Table, chain: list[Save], writer: PartWriter, ranks: OneRank) -> SaveFilter:
    """Compares what a base would hold with what the chain serves of the rank's range."""
    chosen = table.delta_filter()
    segments = touched(table, chain[-1], chosen, ranks)
    if segments is not None:
        of_base = asdict(replace(chosen, min_delta_score=0.0))
        index = Index(chain)
        for keys in keys_in(segments):
            found, rows = table.lookup(core.feasigns_of(keys), of_base)
            _write_changes(writer, chosen, keys[found], rows[found], *index.lookup(keys))
        return chosen
    served = Served(chain, ranks.key_range)

    def visit(feasigns: np.ndarray, rows: np.ndarray) -> None:
        keys = core.keys_of(feasigns)
        _write_changes(writer, chosen, keys, rows, *served.take(keys[-1]))

    table.rows_of_base(visit)
    writer.delete(served.take()[0])
    return chosen


def _write_changes(
    writer: PartWriter,
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
