"""TableLife: the ends of days and other life events of a set of tables (docs/life.md)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from paddlebox import _native
from paddlebox.config.dates import date_of
from paddlebox.errors import PassError
from paddlebox.store import erase_requests, life
from paddlebox.store.committer import Committer
from paddlebox.store.life import SaveFilter
from paddlebox.store.tiered_table import TieredTable

if TYPE_CHECKING:  # group.py imports the tables
    from paddlebox.store.group import Group

core = _native.core
log = logging.getLogger("paddlebox")


class TableLife:
    """Letters: T = tables. The list of tables may grow until the first event. world: the ranks of
    the tables; all of them call the methods alike."""

    def __init__(self, tables: Sequence[TieredTable], committer: Committer, world: Group) -> None:
        self._tables, self._committer, self._world = tables, committer, world

    def begin_day(self, day: int) -> bool:
        """Announces the day of the next pass. The earlier day of the last pass ends
        (`shrink_table`) in each table. Returns True if one ended; only then it waits for a commit
        in the background, whose error it raises in any case. Raises: as `append`."""
        self._committer.raise_error()
        ending = [table for table in self._tables if 0 < table.last_day < day]
        return bool(ending) and self._end_day(ending)

    @property
    def resets(self) -> int:
        """How often `reset_rows` was called, also in runs from which rows were taken."""
        return life.resets(self._tables[0].events)

    def reset_rows(self) -> None:
        """Gives all rows the weights of new rows, without embedx if they have none; keeps their
        counts. Pretrained vectors stay."""
        self.append(
            [[] if table.config.pretrained else [life.reset_rows()] for table in self._tables]
        )

    def shrink_table(self) -> bool:
        """Ends the day of the last pass: rows decay, then those with a low score or long unseen are
        deleted, as each table's ``life`` says. A day ends once, also after a kill; without dates,
        with each call. Returns False if it had ended before. Raises: as `append`."""
        return self._end_day(self._tables)

    def _end_day(self, tables: Sequence[TieredTable]) -> bool:
        self._committer.wait()
        ending = [
            table
            for table in tables
            if table.day <= 0 or table.day > life.last_day_ended(table.events)
        ]
        for table in tables:
            what = "ends" if table in ending else "has ended already"
            log.debug("table '%s': day %s %s", table.name, date_of(table.day) or "undated", what)
        if not ending:
            return False
        self.append(
            [
                life.end_of_day(table.config.life, table.day) if table in ending else []
                for table in self._tables
            ]
        )
        return True

    def erase(self, feasigns: np.ndarray, slot: int = -1, request: str = "") -> None:
        """Deletes the rows of (n) uint64 feasigns, in every table, and those that were made for a
        slot, given by its number; -1: none. A row that training makes later for such a feasign
        stays. Merges remove the bytes from the segments of the newest version. Raises: ConfigError
        for too many feasigns; as `append`."""
        keys = np.unique(core.keys_of(np.ascontiguousarray(feasigns, np.uint64)))
        event = life.erase([int(key) for key in keys if key != core.mix(0)], slot, request)
        self.append([[event] for _ in self._tables])
        for table in self._tables:
            if table.folder is not None:
                table.compactor.wake()

    def erase_requested(self) -> None:
        """Carries out the erasures that `paddlebox store erase` has asked for while this run
        trains. Call it between passes."""
        folder = self._tables[0].folder
        here = erase_requests.read(folder) if folder is not None and not self._world.rank else []
        for asked in self._world.first("erase", here):
            self.erase_once(asked)
            self._world.wait("erased")
            if folder is not None and not self._world.rank:
                erase_requests.remove(folder, asked["request"])

    def erase_once(self, asked: Mapping[str, Any]) -> None:
        """Carries out a request (erase_requests.py), unless it is done already."""
        if asked["request"] not in {event.get("request") for event in self._tables[0].events}:
            feasigns = np.array(asked["feasigns"], np.uint64)
            self.erase(feasigns, asked["slot"], asked["request"])

    def end_of_day(self, day: int, decay: float | None = None) -> None:
        """Multiplies shows and clicks by decay; default: as ``life`` says. The day, counted from
        1970-01-01, has then ended."""
        self.append([[life.decay(table.config.life, day, decay)] for table in self._tables])

    def shrink(
        self, day: int, min_score: float | None = None, max_unseen_days: int | None = None
    ) -> None:
        """Deletes rows with a lower score, or without a push for more days; defaults: as ``life``
        says."""
        self.append(
            [
                [life.shrink(table.config.life, day, min_score, max_unseen_days)]
                for table in self._tables
            ]
        )

    def reset_delta(
        self,
        saved: SaveFilter | Sequence[SaveFilter],
        until: Callable[[], None] | None = None,
    ) -> None:
        """Resets delta_score of the rows in a save. Call it before the next pass, and after the
        save is durable, unless `until` waits for that (see `append`). saved: (T), or a single
        table's filter."""
        of_each = [saved] if isinstance(saved, SaveFilter) else saved
        self.append([[life.after_save(own)] for own in of_each], until)

    def append(
        self,
        of_each: Sequence[Sequence[Mapping[str, Any]]],
        until: Callable[[], None] | None = None,
    ) -> None:
        """Applies life events to every row, durably. Call it between passes. of_each: (T) {kind,
        day, decay, min_score, min_delta_score, max_unseen_days}, in order (ops/rule/life.h); fields
        that a kind does not use may be left out. until: the events become durable only with the
        next commit or `settle`, which first call it; if it raises, there is no commit. Raises:
        PassError while a pass is open; ValueError for an invalid event."""
        for table in self._tables:
            table.check_usable()
        self._committer.wait()
        for table in self._tables:
            if table.native.training:
                raise PassError(
                    f"table '{table.name}': a pass is open; end_pass it before a day ends"
                )
        # Commit earlier passes first. Otherwise, after a crash, the events would precede them.
        self._committer.write_kept()
        added = [
            life.numbered(events, life.last_seq(table.events))
            for table, events in zip(self._tables, of_each, strict=True)
        ]
        self._committer.change_all(
            [
                partial(_add_events, table, events, until)
                for table, events in zip(self._tables, added, strict=True)
            ]
        )

    def settle(self) -> None:
        """Commits the events that wait for the next commit."""
        self._committer.wait()
        self._committer.change_all([table.versions.settle for table in self._tables])


def _add_events(
    table: TieredTable, added: Sequence[Mapping[str, Any]], until: Callable[[], None] | None
) -> None:
    if not added:
        return
    with table.versions.committing:
        table.versions.add_events(added, until)
        table.native.append_events(list(added))
