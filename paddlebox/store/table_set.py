"""TableSet: tables of different width and rules that are trained and committed as one.

    STORE/                  the store of the first table, which also has the dense state
    STORE/tables/<name>/    the stores of the others, each complete in itself

A single table is a set of one. What the set leaves to the ranks that share it is `peers`.

Letters: K = keys of a pass, T = tables, S = sparse slots.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox.closing import Closing
from paddlebox.config import Slots, TableConfig
from paddlebox.config.dates import date_of
from paddlebox.errors import ConfigError, PassError
from paddlebox.store import files, life
from paddlebox.store.commit_queue import CommitQueue, When
from paddlebox.store.life import SaveFilter
from paddlebox.store.manifest import VersionRecord
from paddlebox.store.one_rank import OneRank
from paddlebox.store.options import LEAST_MEM_BYTES, TableOptions
from paddlebox.store.pass_parts import PassFields
from paddlebox.store.staged import StagedPass
from paddlebox.store.tiered_table import TieredTable
from paddlebox.store.version_set import VersionLink

log = logging.getLogger("paddlebox")


@dataclass(frozen=True)
class StagedSet(StagedPass):
    """A pass whose rows are up in every table; the fields are of all of them together."""

    names: tuple[str, ...] = ()
    parts: tuple[StagedPass, ...] = ()

    @property
    def stamps(self) -> tuple[int, ...]:
        """Of each table."""
        return tuple(part.stamp for part in self.parts)

    @property
    def hits_of(self) -> Mapping[str, Mapping[str, int]]:
        """`hits` by the name of the table, where there are several."""
        if len(self.parts) == 1:
            return {}
        return {name: part.hits for name, part in zip(self.names, self.parts, strict=True)}


class TableSet(Closing):
    """Opens tables, and the store in `TableOptions.folder` with them.

    Args:
        configs: of the tables, each with a name of its own; the first is the default one.
        options: how they are opened; default: `TableOptions()`. A read-only set reads the further
            tables at the versions that the first one's version names.
        slots: whose `table` says what belongs where; None: all belong to a single table.
        slot_rates: of each table, (S) what the learning rates of its rows are multiplied by; empty:
            1 for all.
        peers: the ranks that share the tables; None: there is one.
        changes: fields of `TableOptions` that differ from options.

    Raises: StoreLockedError when another process writes the store; ConfigError when a store was
        written with another layout, seed, or other tables, for slots and tables that do not fit
        each other, and for a budget too small; CorruptionError.
    """

    def __init__(
        self,
        configs: Sequence[TableConfig],
        options: TableOptions | None = None,
        *,
        slots: Slots | None = None,
        slot_rates: Sequence[Sequence[float]] = (),
        peers: OneRank | None = None,
        **changes: Any,
    ) -> None:
        self.options = options = replace(options or TableOptions(), **changes)
        self.names = tuple(config.name for config in configs)
        if len(set(self.names)) != len(self.names):
            raise ConfigError(
                f"tables {', '.join(self.names)}: expected a name of its own for each"
            )
        if len(configs) > 1 and slots is None:
            raise ConfigError(f"tables {', '.join(self.names)}: expected the slots of each")
        self._table_of_slot = slots.tables(self.names) if slots is not None else ()
        self.peers = peers or OneRank()
        self._tables: list[TieredTable] = []
        self.queue = CommitQueue(self._tables, self.peers.committed)
        whole = sum(config.share for config in configs)
        try:
            for number, config in enumerate(configs):
                rates = slot_rates[number] if slot_rates else ()
                self._open(number, config, self._own_options(number, config.share / whole), rates)
            self.peers.open(self._tables)
        except BaseException:
            self.close()
            raise

    # ---- opening

    def _open(
        self, number: int, config: TableConfig, options: TableOptions, rates: Sequence[float]
    ) -> None:
        link = self._link_of(number) if self._several else None
        self._tables.append(
            TieredTable(config, options, slot_rates=rates, link=link, settle=self.queue.wait)
        )
        if number == 0 and self._several:
            self._check_stored_names()

    @property
    def _several(self) -> bool:
        return len(self.names) > 1

    def _own_options(self, number: int, share: float) -> TableOptions:
        options = self.options
        mem = int(options.mem_budget_bytes * share)
        if self._several and mem < LEAST_MEM_BYTES:
            raise ConfigError(
                f"table '{self.names[number]}': its share of mem.budget_bytes "
                f"{options.mem_budget_bytes} is {mem}, expected at least {LEAST_MEM_BYTES}"
            )
        return replace(
            options,
            folder=self._folder_of(number),
            hbm_budget_bytes=int(options.hbm_budget_bytes * share),
            mem_budget_bytes=mem,
            disk_budget_bytes=int(options.disk_budget_bytes * share),
            version=self._version_of(number) if options.read_only else None,
        )

    def _folder_of(self, number: int) -> Path | None:
        if self.options.store is None or number == 0:
            return self.options.store
        own = Path(files.table_folder(str(self.options.store), self.names[number]))
        if not self.options.read_only:
            files.make_folder(str(own.parent))
        return own

    def _version_of(self, number: int) -> int | None:
        if number == 0:
            return self.options.version
        assert self.head is not None  # a store without a version is not opened for reading
        return self.head.tables[self.names[number]]

    def _link_of(self, number: int) -> VersionLink:
        if number == 0:
            return VersionLink(others=self._heads)
        name, first = self.names[number], self.first.versions
        named = self.head.tables.get(name, 0) if self.head is not None else 0
        return VersionLink(
            named=lambda: first.named_versions(name),
            version=None if self.options.read_only else named,
        )

    def _check_stored_names(self) -> None:
        head = self.head
        if head is None:
            return
        configured = set(self.names[1:])
        gone = sorted(set(head.tables) - configured)
        if gone:
            raise ConfigError(
                f"{self.first.folder}: version {head.version} has rows in tables "
                f"{', '.join(gone)}, which extra_tables lacks: they would not be trained on"
            )
        new = sorted(configured - set(head.tables))
        if new and self.options.read_only:
            raise ConfigError(
                f"{self.first.folder}: version {head.version} has no table {', '.join(new)}, which "
                "extra_tables names: nothing was trained in it yet"
            )

    def _heads(self) -> dict[str, int]:
        return {t.name: t.head.version for t in self._tables[1:] if t.head is not None}

    # ---- what there is

    @property
    def members(self) -> tuple[TieredTable, ...]:
        """(T) each table by itself."""
        return tuple(self._tables)

    @property
    def first(self) -> TieredTable:
        """The default table: its version names a commit, its store has the dense state."""
        return self._tables[0]

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def head(self) -> VersionRecord | None:
        """The first table's newest version, or the one that is read; None without."""
        return self.first.head

    def slot_tables(self, slots: Slots) -> tuple[int, ...]:
        """(S) the table that each sparse slot belongs to; empty: all to one.

        Raises: ConfigError for a slot of a table that is not there.
        """
        found = slots.tables(self.names)
        if not self._several:
            return ()
        if found != self._table_of_slot:
            raise ConfigError("the slots' tables are not those that the tables were opened with")
        return found

    @property
    def counts_keys(self) -> bool:
        """Whether training passes go through `count_keys`."""
        return any(table.counts_keys for table in self._tables)

    @property
    def max_pass_rows(self) -> list[int]:
        """(T) most rows that a pass may have in each table under hbm_budget_bytes."""
        return [table.max_pass_rows for table in self._tables]

    @property
    def compaction_wait_s(self) -> float:
        """That `begin` waited for merges, in all."""
        return sum(table.compaction_wait_s for table in self._tables)

    # ---- life of a pass

    def _of_each(self, keys: np.ndarray, slots: np.ndarray | None) -> list[slice]:
        """(T) the keys of each table. slots: (K), of keys that are in the order of tables."""
        if not self._several:
            return [slice(0, len(keys))]
        assert slots is not None
        table_of_key = np.array(self._table_of_slot, np.uint8)[slots]
        bounds = np.searchsorted(table_of_key, np.arange(len(self._tables) + 1))
        return [slice(int(a), int(b)) for a, b in pairwise(bounds)]

    def stage(
        self,
        keys: np.ndarray,
        slots: np.ndarray | None = None,
        *,
        train: bool = True,
        day: int = 0,
    ) -> StagedSet:
        """Brings the rows of these keys up into pass tables.

        Args:
            keys: (K) uint64 by table, in the order of tables, ascending in each, without padding:
                as `sorted_unique_keys` gives them; of several ranks, of this rank's instances.
            slots: (K) uint16, of rows that are new; with several tables they say whose a key is.
            train: absent keys get a new row; otherwise none, and nothing is changed anywhere.
            day: days since 1970-01-01, written into rows that are pushed.

        Raises: OutOfSpaceError with the bytes needed when the pass is over the HBM budget;
            PassError when another training pass is staged; CorruptionError.
        """
        parts: list[StagedPass] = []
        try:
            for table, own in zip(self._tables, self._of_each(keys, slots), strict=True):
                of_slots = None if slots is None else slots[own]
                parts.append(self.peers.stage(table, keys[own], of_slots, train=train, day=day))
        except BaseException:
            for table, part in zip(self._tables, parts, strict=False):
                table.drop_staged(part.own)
            raise
        hits: Counter[str] = Counter()
        for part in parts:
            hits.update(part.hits)
        return StagedSet(
            parts[0].stamp,
            sum(part.rows for part in parts),
            np.concatenate([part.row_of_key for part in parts]),
            dict(hits),
            train,
            sum(part.refused for part in parts),
            self.names,
            tuple(parts),
        )

    def _own_parts(self, staged: StagedPass) -> Iterator[tuple[TieredTable, StagedPass]]:
        assert isinstance(staged, StagedSet)
        return zip(self._tables, (part.own for part in staged.parts), strict=True)

    def count_keys(
        self, keys: np.ndarray, counts: np.ndarray, slots: np.ndarray | None = None
    ) -> int:
        """Counts the feasigns of a whole training pass, once, before it is staged.

        For tables with `admission.min_count` above 1: a feasign without a row gets one in the pass
        in which it has occurred that often, this pass included; before that it reads as zeros, and
        its gradients are dropped. `stage` asks what was counted here.

        Args:
            keys, slots: as of `stage`. counts: (K) uint32, occurrences of each in the pass.

        Returns: what `commit` is given as `counted`, so that a version has the counts up to its own
            pass, however many passes were counted since.
        """
        number = 0
        for table, own in zip(self._tables, self._of_each(keys, slots), strict=True):
            if table.counts_keys:  # each counts every pass, so their numbers agree
                number = self.peers.count_keys(table, keys[own], counts[own])
        return number

    def uncount_keys(self, counted: int) -> None:
        """Takes back the last `count_keys`, of a pass that is given up before it began."""
        for table in self._tables:
            if table.counts_keys:
                table.uncount_keys(counted)

    def drop_staged(self, staged: StagedPass) -> None:
        for table, part in self._own_parts(staged):
            table.drop_staged(part)

    def begin(self, staged: StagedPass) -> None:
        """Opens the staged pass: operators read and write it from here on. No table begins before
        there is room in all.

        Raises: as `TieredTable.make_room`.
        """
        for table, part in self._own_parts(staged):
            table.make_room(part)
        for table, part in self._own_parts(staged):
            table.begin(part)
        self.peers.begin(staged)

    def end(self, pass_number: int = 0) -> None:
        """Ends the open pass. A training pass waits here until the one before it is committed, and
        is frozen until `commit`, `keep` or `spill` has taken it. With 16-bit rows the chance in
        rounding is a function of pass_number: the same number in a run that is resumed."""
        self.peers.end()
        self.wait_commit()
        for table in self._tables:
            table.end(pass_number)

    def abandon(self, *, evaluation: bool = False) -> None:
        """Forgets the open pass; the store stays at its last commit, and the tables take no more
        training: open them again."""
        self.peers.drop()
        for table in self._tables:
            table.abandon(evaluation=evaluation)

    def spill(self) -> None:
        """Writes the ended pass's rows to the SSD tier without a commit: for the parts of a pass
        that was split. The next `commit` names them; after a crash they are dropped with the
        pass."""
        for table in self._tables:
            table.spill()

    # ---- commit

    def commit(self, *, when: When = When.NOW, **fields: Any) -> Future[int]:
        """Makes the pass that has ended durable, as one version, with the dense state of the same
        moment, and the passes that were kept before it.

        Args:
            when: now, or in the background while the next pass trains. With several ranks the
                latter waits until every rank has committed the pass before.
            fields: of `PassFields`.

        Returns: the version of the first table, which names the others'; 0 without a folder.

        Raises: OutOfSpaceError, StoreError: the last version is untouched. What goes wrong in the
            background is raised by `wait_commit`, once, and by the future.
        """
        return self.queue.commit(PassFields(**fields), when)

    def keep(self, *, when: When = When.NOW, **fields: Any) -> Future[None]:
        """Takes the pass that has ended without a commit: its rows go to the SSD tier, and the next
        `commit` names them, or `commit_ended` with these fields. After a crash the pass is lost.

        Args: as of `commit`.
        """
        return self.queue.keep(PassFields(**fields), when)

    def commit_ended(self) -> int:
        """Commits the passes that `keep` took, also after `abandon`: they had ended. Every rank
        calls it. Returns the version; 0 where there is nothing to commit.

        Raises: as `commit`.
        """
        return self.queue.commit_ended()

    def wait_commit(self) -> float:
        """Waits for the commit in the background; returns the seconds that took."""
        return self.queue.wait()

    def load_dense(self) -> dict[str, np.ndarray]:
        """Dense state of the newest version; empty without one."""
        return self.first.load_dense()

    # ---- life of the tables

    @property
    def day(self) -> int:
        """Of the training pass that was committed, or kept, last, in days since 1970-01-01; 0: no
        date."""
        return self.first.day

    @property
    def pass_number(self) -> int:
        """Of the same pass; 0: none."""
        return self.first.pass_number

    def begin_day(self, day: int) -> bool:
        """Says that training goes on with this day: where it is a later one than before, the day
        before ends (`shrink_table`) in each table whose ``life.auto`` is set. True where it did.

        Raises: as `append_events`; what went wrong in the commit in the background, if that is
            over: it is waited for only where a day ends.
        """
        self.queue.raise_error()
        ending = [table for table in self._tables if table.ends_day(day)]
        return bool(ending) and self._end_day(ending)

    def shrink_table(self) -> bool:
        """Ends the day that was trained last: rows decay, then those of a low score or long unseen
        are deleted, as each table's ``life`` says. A day ends once, also if training was killed and
        resumed: False where it had ended. Without dates it is the caller who counts.

        Raises: as `append_events`.
        """
        return self._end_day(self._tables)

    def _end_day(self, tables: Sequence[TieredTable]) -> bool:
        self.wait_commit()
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
        self.append_events(
            [
                life.end_of_day(table.config.life, table.day) if table in ending else []
                for table in self._tables
            ]
        )
        return True

    def end_of_day(self, day: int, decay: float | None = None) -> None:
        """Multiplies shows and clicks of all rows by decay; default: as ``life`` says.

        Args:
            day: since 1970-01-01. It counts as ended from here on.
        """
        self.append_events([[life.decay(t.config.life, day, decay)] for t in self._tables])

    def shrink(
        self, day: int, min_score: float | None = None, max_unseen_days: int | None = None
    ) -> None:
        """Deletes rows whose score is below min_score or that no push touched for more than
        max_unseen_days days; defaults: as ``life`` says."""
        self.append_events(
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
        """Resets delta_score of the rows in a save: before the next pass, and after the save is
        durable, or `until` it is.

        Args:
            saved: (T) the filter of each table; of a single one, its filter.

        Raises: as `append_events`.
        """
        of_each = [saved] if isinstance(saved, SaveFilter) else saved
        self.append_events([[life.after_save(own)] for own in of_each], until)

    def append_events(
        self,
        of_each: Sequence[Sequence[Mapping[str, Any]]],
        until: Callable[[], None] | None = None,
    ) -> None:
        """Makes life events happen now, to every row: between passes, and durably.

        Args:
            of_each: (T) {kind, day, decay, min_score, min_delta_score, max_unseen_days}, in order
                (ops/rule/life.h); what a kind does not use may be left out.
            until: they are durable with the next commit, or `settle_events`, which first waits for
                this; where it raises there is no commit.

        Raises: PassError while a pass is open; ValueError for what is no event.
        """
        for table in self._tables:
            table.check_usable()
        self.wait_commit()
        for table in self._tables:
            if table.native.training:
                raise PassError(
                    f"table '{table.name}': a pass is open; end_pass it before a day ends"
                )
        # A day's end without its passes would, after a crash, come before them.
        self.commit_ended()
        added = [
            life.numbered(events, len(table.events))
            for table, events in zip(self._tables, of_each, strict=True)
        ]

        def adding(table: TieredTable, events: Sequence[Mapping[str, Any]]) -> Callable[[], None]:
            return lambda: table.add_events(events, until) if events else None

        self.queue.change_all(
            [adding(table, events) for table, events in zip(self._tables, added, strict=True)]
        )

    def settle_events(self) -> None:
        """Makes events durable that wait for the next commit."""
        self.wait_commit()
        self.queue.change_all([table.settle_events for table in self._tables])

    # ---- all tables

    def digest(self) -> str:
        """Canonical digest of all (key, row) pairs of all tables and ranks: equal for equal
        content, however it came about.

        Raises: PassError while a pass is staged, open or being committed.
        """
        digests = [self.peers.digest(table.digest()) for table in self._tables]
        if not self._several:
            return digests[0]
        lines = [f"{name} {digest}\n" for name, digest in zip(self.names, digests, strict=True)]
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def counters(self) -> dict[str, Any]:
        """Sums over the tables since they were opened, sizes of the tiers as they are now, and
        what was exchanged with other ranks."""
        sums: dict[str, Any] = {}
        for table in self._tables:
            for name, value in table.counters().items():
                if isinstance(value, dict):
                    sums[name] = dict(Counter(sums.get(name, {})) + Counter(value))
                else:
                    sums[name] = sums.get(name, 0) + value
        return {**sums, **self.peers.counters()}

    def close(self) -> None:
        """Waits for the commit in the background and gives the stores free. May be called twice."""
        with ExitStack() as closing:  # the first one last: merges of the others ask it
            for table in self._tables:
                closing.callback(table.close)
            closing.callback(self.queue.close)
            closing.callback(self.peers.close)
