"""Saver writes bases, deltas and batches of a table (docs/formats/save.md). BackgroundSaves are the
saves that a run makes while its next passes train. The donefiles name the saves that exist, so a
resumed run continues its chain."""

from __future__ import annotations

import datetime
import itertools
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.config.arguments import AnyPath, as_path
from paddlebox.config.checkpoint import SaveConfig
from paddlebox.config.dates import date_of
from paddlebox.errors import PaddleBoxError, StoreError
from paddlebox.saves import donefile
from paddlebox.saves.changes import LIFE_SEQ, as_saved, write_changes
from paddlebox.saves.meta import BASE, BATCH, DELTA, NO_DATE
from paddlebox.saves.reader import Save, chain_of, check_layout, open_save
from paddlebox.saves.writer import PartWriter, SaveWriter, Shape
from paddlebox.store.life import (
    DELTA_RESET,
    RESET_ROWS,
    WEIGHT_DECAY,
    SaveFilter,
    events_after,
    last_day_ended,
    last_seq,
)
from paddlebox.store.snapshot import Snapshot
from paddlebox.store.table_set import TableSet
from paddlebox.store.tiered_table import TieredTable

log = logging.getLogger("paddlebox")
core = _native.core


class Saver:
    """Saves the committed rows of a set of tables in OUT, the folder with the donefiles and one
    folder for each day. No pass may be open. extra: files to put into each save, name -> content.
    dense: the dense state, name -> array; None: that of the newest commit."""

    def __init__(
        self,
        table: TableSet,
        out: AnyPath,
        *,
        extra: Mapping[str, bytes] | None = None,
        dense: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self._table = table
        self._members: Sequence[TieredTable] = table.members
        self.out = as_path(out, "out").absolute()
        self._extra = dict(extra or {})
        self._dense = dense

    # ---- the three kinds

    def base(self, name: str = "", *, day: int | None = None) -> Save:
        """Save a base, which starts a new chain. name: default `<day>/base`. day: up to which
        unseen days count, in days since 1970-01-01; default: that of each table. Raises: StoreError
        if a save of this name exists; OutOfSpaceError; PassError while a pass is open."""
        name = name or f"{self.date}/base"

        def write(table: TieredTable, part: PartWriter) -> SaveFilter:
            return table.visit(partial(_add, part), table.save_filter(day=day))

        fields = {"key": donefile.new_key(self.out), "base": name, "parent": None}
        return self._save(BASE, name, fields, write)

    def delta(self, name: str = "") -> Save:
        """Save a delta: the rows that changed since the last save of the chain, and the deletions.
        name: default `<day>/delta-<pass>`. Raises: the errors of `base`; StoreError before the
        first base, or if all rows have changed since the last save; ConfigError if the chain has
        other tables, or rows of another layout."""
        parent = self.last()
        if parent is None:
            raise StoreError(f"{self.out}: has no base for a delta: save a base first")
        name = name or f"{self.date}/delta-{self.pass_number}"
        check_layout(parent, layouts_of(self._members), "the table", "save a base")
        for table in self._members:
            _check_all_rows_same(table, parent)
        chain = chain_of(parent)

        def write(table: TieredTable, part: PartWriter) -> SaveFilter:
            of_table = [save.parts[table.name] for save in chain]
            return write_changes(table, of_table, part, self._table.world)

        fields = {field: parent.meta[field] for field in ("key", "base")}
        fields["parent"] = {"name": parent.name, "crc32c": parent.meta["crc32c"]}
        return self._save(DELTA, name, fields, write)

    def batch(self, name: str = "") -> Save:
        """Save every row, with its delta_score. A batch is for further training, not for serving.
        name: default `<day>/<pass>`. Raises: the errors of `base`."""
        name = name or f"{self.date}/{self.pass_number}"

        def write(table: TieredTable, part: PartWriter) -> SaveFilter:
            everything = SaveFilter(table.day, float("-inf"), float("-inf"), 2**32 - 1)
            return table.visit(partial(_add, part, words=(LIFE_SEQ,)), everything)

        return self._save(
            BATCH, name, {"key": int(time.time()), "base": name, "parent": None}, write
        )

    # ---- in parallel with training

    def later(self, kind: str, name: str) -> Callable[[], Save]:
        """Prepare a `base` or `delta` of the newest commit, to run while the next pass trains. Call
        the result once, because the files of the version are kept until it ends, and `reset_delta`.
        Raises: StoreError if a save of this name exists, or a table has no commit."""
        snapshot = Snapshot(self._table)
        try:
            if self._table.world.rank == 0:
                donefile.claim(self.out, name)
        except BaseException:
            snapshot.close()
            raise

        def save() -> Save:
            with snapshot:
                saver = copy(self)
                saver._members = snapshot.open()
                if saver._dense is None:
                    saver._dense = saver._members[0].load_dense()
                return saver.base(name) if kind == BASE else saver.delta(name)

        return save

    def reset_delta(self, kind: str, until: Callable[[], None] | None = None) -> None:
        """Set delta_score to 0 in the rows that a save of this kind, of the newest commit, holds.
        Call it before the next pass opens. until: the next commit calls it, to wait until the save
        is durable, before it makes the change durable. None: commit the change at once."""
        chosen = [table.save_filter(delta=kind == DELTA) for table in self._members]
        self._table.life.reset_delta(chosen, until)

    def has_reset_delta(self, save: Save) -> bool:
        first = self._members[0]
        later = events_after(first.events, save.parts[first.name].meta["events"])
        return any(event["kind"] == DELTA_RESET for event in later)

    def settle(self) -> None:
        """Make the reset of delta_score durable after the last save of a run."""
        self._table.life.settle()

    # ---- state of the chain and the table

    def last(self) -> Save | None:
        """The save that the next delta will extend; None before the first base."""
        name = self.as_first(donefile.last(self.out) if self._table.world.rank == 0 else None)
        return open_save(self.out / name) if name is not None else None

    def as_first(self, mine: Any) -> Any:
        """Return the first rank's value on every rank. Only the first rank reads the donefiles."""
        return self._table.world.first("save asked", mine)

    def of_last_pass(self) -> Save | None:
        last, head = self.last(), self._members[0].head
        is_of_it = (
            last is not None
            and head is not None
            and last.meta["pass_number"] == self.pass_number
            and self.is_own(last.meta)
        )
        return last if self.as_first(is_of_it) else None

    def is_own(self, meta: Mapping[str, Any]) -> bool:
        """Whether a save, by its meta.json, is of a version in the history of the table's newest
        one, and not of another store, or of a version that a rollback discarded."""
        return meta["commit"] in self._members[0].versions.journal()

    @property
    def is_first(self) -> bool:
        """Whether this rank writes the donefiles."""
        return self._table.world.rank == 0

    def is_done(self, kind: str, name: str) -> bool:
        return any(done.name == name for done in donefile.read(self.out, kind))

    def free_name(self, name: str) -> str:
        """`name`, or `<name>-2`, … after those that saves have. A save of a discarded version keeps
        its name, because it may be served."""
        done = [d.name for kind in donefile.NAMES for d in donefile.read(self.out, kind)]
        alike = [re.fullmatch(f"{re.escape(name)}(?:-([0-9]+))?", one) for one in done]
        last = max((int(found[1] or 1) for found in alike if found), default=0)
        return f"{name}-{last + 1}" if last else name

    @property
    def date(self) -> str:
        """Date of the last pass that ended, YYYYMMDD. Waits for its commit."""
        self.commit_ended()
        return date_of(self._members[0].day) or NO_DATE

    @property
    def pass_number(self) -> int:
        """Number of the last pass that ended. Waits for its commit."""
        self.commit_ended()
        return self._members[0].pass_number

    def _event_time(self) -> float | None:
        """Unix time of the newest event of a stream that is trained; None if it is not known."""
        head = self._members[0].head
        return head.cursor.get("event_time") if head is not None else None

    def commit_ended(self) -> None:
        """Wait for the commit of the last pass, because saves contain only durable state."""
        if not self._members[0].read_only:
            self._table.commit_ended()

    # ---- implementation

    def _save(
        self,
        kind: str,
        name: str,
        fields: Mapping[str, Any],
        write: Callable[[TieredTable, PartWriter], SaveFilter],
    ) -> Save:
        """Write a save. Then, unless it is a batch, set delta_score to 0 in the rows of its filter.
        write: writes the rows of a table, and returns the filter that chose them."""
        self.commit_ended()
        target, world = self.out / name, self._table.world
        if world.rank == 0:
            target = donefile.claim(self.out, name)
        shapes = [
            Shape(table.name, table.row_bytes // 4, int(table.native.layout["fingerprint"]))
            for table in self._members
        ]
        with SaveWriter(target, shapes, world) as writer:
            chosen = [write(*each) for each in zip(self._members, writer.parts, strict=True)]
            complete = {
                **fields,
                "kind": kind,
                "name": name,
                "day": self._members[0].day,
                "date": date_of(self._members[0].day),
                "pass_number": self.pass_number,
                "created_at": datetime.datetime.now(datetime.UTC).isoformat(),
            }
            filters = chosen if kind != BATCH else itertools.repeat(None)
            if (event_time := self._event_time()) is not None:
                complete["event_time"] = event_time
            of_tables = list(map(_of_table, self._members, filters))
            dense = self._dense if self._dense is not None else self._table.load_dense()
            save = open_save(writer.finish(complete, of_tables, dense, self._extra))
            if world.rank == 0:
                donefile.append(self.out, save.meta)
            world.wait("save is done")
        log.debug("saved %s: %d rows, %d deleted", save.folder, save.rows, save.deletions)
        # This comes after the donefile is written. If the process dies in between, the next delta
        # is larger but correct.
        if kind != BATCH and not self._members[0].read_only:
            self._table.life.reset_delta(chosen)
        return save


def layouts_of(tables: Sequence[TieredTable]) -> dict[str, dict[str, Any]]:
    """The layouts of tables, in the form that `check_layout` expects."""
    return {
        table.name: {
            "layout_fingerprint": int(table.native.layout["fingerprint"]),
            "layout": table.versions.layout,
        }
        for table in tables
    }


def _of_table(table: TieredTable, chosen: SaveFilter | None) -> dict[str, Any]:
    """The fields of meta.json that each table has."""
    head, journal = table.head, table.versions.journal()
    return {
        "version": head.version if head is not None else 0,
        "filter": asdict(chosen) if chosen is not None else None,
        "layout": table.versions.layout,
        "events": last_seq(table.events),
        "day_ended": last_day_ended(table.events),
        "sequence": max((s["sequence"] for s in head.segments), default=0) if head else 0,
        "commit": journal[-1] if journal else None,
    }


def _check_all_rows_same(table: TieredTable, parent: Save) -> None:
    """Raises: StoreError if an event has changed all rows since a save, which a delta with a
    threshold does not have, because their delta_score has not grown."""
    later = events_after(table.events, parent.parts[table.name].meta["events"])
    kinds = {event["kind"] for event in later} & {RESET_ROWS, WEIGHT_DECAY}
    if kinds and table.config.life.delta_threshold > 0:
        raise StoreError(
            f"table '{table.name}': {' and '.join(sorted(kinds))} changed all rows since "
            f"{parent.name}, but a delta has only rows of passes: save a base"
        )


def _add(part: PartWriter, feasigns: np.ndarray, rows: np.ndarray, words: Any = ()) -> None:
    part.add(core.keys_of(feasigns), as_saved(rows, *words))


#: Each delta reads the chain before it, with 1 ms of processor time a save. So a run begins a new
#: chain once the deltas of a long one have as many rows as the base, or after the longest.
LONG_CHAIN, LONGEST_CHAIN = 100, 1000


def _is_long(chain: Sequence[donefile.Done]) -> bool:
    as_many = sum(delta.rows for delta in chain[1:]) >= chain[0].rows
    return len(chain) >= LONGEST_CHAIN or (as_many and len(chain) >= LONG_CHAIN)


def _is_delta_due(number: int, config: SaveConfig) -> bool:
    return config.delta_every > 0 and number % config.delta_every == 0


class BackgroundSaves:
    """Writes the due saves in the background, one at a time. End it with `finish`, or `close`.

    The commit after a pass waits until the save of the pass before is complete. So a run that is
    killed and resumed finds the version to save, and writes the save again: saves and rows do not
    depend on where a run was interrupted. The waiting commit, the next call of `due`, or `finish`
    raises the error of a save. done: called after each complete save, in the thread that wrote it.
    daily: whether the two newest chains of each date are kept; else the two newest of all.
    """

    def __init__(
        self,
        saver: Saver,
        config: SaveConfig,
        done: Callable[[], None] = lambda: None,
        *,
        daily: bool = True,
    ) -> None:
        self._saver, self._config, self._done, self._daily = saver, config, done, daily
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="paddlebox-save")
        self._running: Future[None] | None = None
        self._date_of_base: str | None = None  # on this date only deltas can still be due
        if saver.is_first:  # what an earlier, killed run did not drop, or not remove
            self._drop_earlier()
            donefile.remove_dropped(saver.out, daily=daily)

    def due(self, number: int = 0, date: str = "") -> dict[str, Any] | None:
        """Start the save that is due after the last pass. Call it before the next pass begins. It
        waits for the previous save, and for the commit of the pass, unless its number and date show
        that no save is due. Returns: name, kind and `waited_s` in seconds; None: no save."""
        started = time.perf_counter()
        self._wait()
        if number and date == self._date_of_base and not _is_delta_due(number, self._config):
            return None
        self._date_of_base = date if number else None
        self._saver.commit_ended()
        done = self._saver.of_last_pass()
        due = (done.meta["kind"], done.name) if done is not None else self._due()
        if due is None:
            return None
        if done is None:
            running = self._running = self._thread.submit(self._timed, self._saver.later(*due))
            self._saver.reset_delta(due[0], until=lambda: running.result())
        elif not self._saver.has_reset_delta(done):
            self._saver.reset_delta(due[0])
        return {"name": due[1], "kind": due[0], "waited_s": time.perf_counter() - started}

    def _due(self) -> tuple[str, str] | None:
        """Kind and name of the save that is due after a pass without a save, as the first rank
        decides for all."""
        saver, due = self._saver, None
        last, first = saver.last(), f"{saver.date}/base"
        base = saver.free_name(first)
        # If the last save is of a discarded version, delta_score does not show which rows differ
        # from the save, so only a base is correct.
        if last is None or not saver.is_own(last.meta) or base == first:
            due = BASE, base
        elif _is_delta_due(saver.pass_number, self._config):
            chain = donefile.newest_chain(partial(donefile.read, saver.out))
            delta = saver.free_name(f"{saver.date}/delta-{saver.pass_number}")
            due = (BASE, base) if chain and _is_long(chain) else (DELTA, delta)
        due = saver.as_first(due)
        return tuple(due) if due is not None else None

    def finish(self) -> None:
        """Wait for the last save. Raises: the errors of `Saver.base`."""
        self._wait()
        self._saver.settle()

    def _timed(self, write: Callable[[], Save]) -> None:
        started = time.perf_counter()
        save = write()
        if save.meta["kind"] == BASE and self._saver.is_first:
            self._drop_earlier()
        figures = save.name, time.perf_counter() - started, save.rows, save.deletions
        log.info("saved %s in %.2f s: %d rows, %d deleted", *figures)
        self._done()

    def _drop_earlier(self) -> None:
        """Drop the chains that the newest save makes superfluous."""
        last = donefile.last(self._saver.out)
        if last is not None:
            donefile.drop_earlier(self._saver.out, last.split("/")[0] if self._daily else "*")

    def _wait(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def close(self) -> None:
        """Wait for a save in progress. Its errors are logged, not raised."""
        try:
            self._wait()
        except PaddleBoxError as error:
            log.error("a save failed: %s", error)
        finally:
            self._thread.shutdown()
