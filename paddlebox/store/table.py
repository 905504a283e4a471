"""Table: the sparse parameters, in three tiers, and the commits that make them durable.

A store folder holds the manifest, the SSD tier's segments and the dense state of each version
(docs/formats/manifest.md). Without a folder everything stays in memory and nothing is committed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.closing import Closing
from paddlebox.config import Slots, TableConfig
from paddlebox.config.dates import date_of
from paddlebox.errors import ConfigError, PassError, StoreError
from paddlebox.store import life
from paddlebox.store.background import Background
from paddlebox.store.ended import EndedPasses
from paddlebox.store.history import ADMISSION, OWN, GroupLink, History
from paddlebox.store.housekeeping import Housekeeping
from paddlebox.store.key_counts import KeyCounts
from paddlebox.store.life import SaveFilter
from paddlebox.store.manifest import VersionRecord
from paddlebox.store.merging import Merging
from paddlebox.store.one_rank import OneRank
from paddlebox.store.options import TableOptions
from paddlebox.store.staged import StagedPass, sorted_unique_keys

__all__ = ["PassError", "StagedPass", "Table", "sorted_unique_keys"]

log = logging.getLogger("paddlebox")
core = _native.core
_CHUNK_ROWS = 1 << 17  # handed to a visitor at a time


def _open_native(fields: Mapping[str, Any], segments: Sequence[Any]) -> Any:
    """Raises: ConfigError for settings that the store, or the machine, does not go with."""
    try:
        return core.Table(fields, segments)
    except ValueError as error:
        raise ConfigError(str(error)) from error


class Table(OneRank, Closing):
    """Opens a table, and the store in `TableOptions.folder` with it.

    Args:
        config: layout, accessor and rules.
        options: how it is opened; default: `TableOptions()`.
        slot_rates: of slot 0, 1, ...: what the learning rates of its rows are multiplied by;
            `config.slot_learning_rates` by the order of slots. Empty: 1 for all.
        link: of a table of a group; None: it stands alone.
        history: with read_only, versions that are open already; operators do not find the table.
            None: it opens those in the folder.
        changes: fields of `TableOptions` that differ from options.

    Raises: StoreLockedError when another process writes the store; ConfigError when the store was
        written with another layout or seed; CorruptionError; ValueError for a budget too small.
    """

    def __init__(
        self,
        config: TableConfig,
        options: TableOptions | None = None,
        *,
        slot_rates: Sequence[float] = (),
        link: GroupLink | None = None,
        history: History | None = None,
        **changes: Any,
    ) -> None:
        self.config = config
        self.options = options = replace(options or TableOptions(), **changes)
        # (K) ascending keys to (K) bool: the rows that evaluation sees. None: all.
        self.shown: Callable[[np.ndarray], np.ndarray] | None = None
        self.compaction_wait_s = 0.0  # that begin waited for merges, in all
        #: Called after each commit of a pass, on its thread, with the version's record.
        self.after_commit: Callable[[VersionRecord], None] | None = None
        self._abandoned = False
        self._refused_for: BaseException | None = None  # see refuse_passes
        self._settle_commit = (link and link.settle) or self.wait_commit
        self._background = Background("paddlebox-commit")
        self._native: Any = None
        self._housekeeping: Housekeeping | None = None
        described = config.model_dump(mode="json")
        layout = {"seed": options.seed, **described}
        self._history = history or History(options, layout, link or GroupLink())
        try:
            last = self._history.last
            fields = {
                **described,
                **options.of_native(),
                "slot_rates": list(slot_rates),
                "events": last.events,
                "registered": history is None,
            }
            self._native = _open_native(fields, last.segments)
            self._counts = KeyCounts(self._native)
            counted = self.admission_counts()
            if counted is not None:
                self._native.set_admission_state(counted.tobytes())
            self._ended = EndedPasses(
                self._native, self._history, self._counts if self.counts_keys else None
            )
            if self.folder is not None and not self.read_only:
                self._housekeeping = Housekeeping(self._native, self._history, options)
        except BaseException:
            self.close()
            raise

    # ---- life of a pass

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def folder(self) -> Path | None:
        return self.options.store

    @property
    def read_only(self) -> bool:
        return self.options.read_only

    @property
    def members(self) -> tuple[Table, ...]:
        """Itself; of a `TableGroup` its tables."""
        return (self,)

    def slot_tables(self, slots: Slots) -> tuple[int, ...]:
        """(S) the member that each sparse slot belongs to; empty: all to one.

        Raises: ConfigError for a slot of a table that is not there.
        """
        slots.tables([self.name])
        return ()

    @property
    def counts_keys(self) -> bool:
        """Whether training passes go through `count_keys`."""
        return self.config.admission.min_count > 1

    @property
    def max_pass_rows(self) -> int:
        """Most rows that a pass may have under hbm_budget_bytes."""
        return int(self._native.max_pass_rows)

    @property
    def pass_bytes_per_row(self) -> int:
        return int(self._native.pass_bytes_per_row)

    def set_counted(self, slots: Sequence[bool]) -> None:
        """Whether pushes to rows of slot 0, 1, ... count shows and clicks from now on; empty: all
        do. The others learn alone. Not while a program runs."""
        if self._native is not None:  # batches of a pass that failed may outlive the table
            self._native.set_counted([int(counted) for counted in slots])

    def stage(
        self,
        keys: np.ndarray,
        slots: np.ndarray | None = None,
        *,
        train: bool = True,
        day: int = 0,
    ) -> StagedPass:
        """Brings the rows of these keys up into a pass table.

        Args:
            keys: (K) uint64, ascending, without padding: as `sorted_unique_keys` gives them.
            slots: (K) uint16, of rows that are new.
            train: absent keys get a new row; otherwise none, and nothing is changed anywhere.
            day: days since 1970-01-01, written into rows that are pushed.

        Raises: OutOfSpaceError with the bytes needed when the pass is over the HBM budget;
        PassError
            when another training pass is staged; CorruptionError.
        """
        self._check_not_abandoned()
        if slots is None:
            slots = np.empty(0, np.uint16)
        staged = self._native.stage(
            np.ascontiguousarray(keys, np.uint64),
            np.ascontiguousarray(slots, np.uint16),
            train,
            day,
        )
        hits = {tier: int(staged[tier]) for tier in ("hbm", "mem", "ssd", "new")}
        row_of_key = staged["row_of_key"]
        if self.shown is not None and not train:
            row_of_key = np.where(self.shown(keys), row_of_key, np.int32(-1))
        return StagedPass(
            staged["stamp"], staged["rows"], row_of_key, hits, train, staged["refused"]
        )

    def count_keys(
        self, keys: np.ndarray, counts: np.ndarray, slots: np.ndarray | None = None
    ) -> int:
        """Counts the feasigns of a whole training pass, once, before it is staged.

        For tables with `admission.min_count` above 1: a feasign without a row gets one in the pass
        in which it has occurred that often, this pass included; before that it reads as zeros, and
        its gradients are dropped. `stage` asks what was counted here.

        Args:
            keys: (K) uint64, ascending. counts: (K) uint32, occurrences of each in the pass.
            slots: as of `stage`; a group of tables goes by them.

        Returns: what `commit` is given as `counted`, so that a version has the counts up to its own
            pass, however many passes were counted since.
        """
        del slots
        return self._counts.count(keys, counts)

    def uncount_keys(self, counted: int) -> None:
        """Takes back the last `count_keys`, of a pass that is given up before it began."""
        self._counts.take_back(counted)

    def drop_staged(self, staged: StagedPass) -> None:
        self._native.drop_staged(staged.stamp)

    def begin(self, staged: StagedPass) -> None:
        """Opens the staged pass: operators read and write it from here on. Makes room as
        `make_room`."""
        self.make_room(staged)
        self._native.begin(staged.stamp)

    def make_room(self, staged: StagedPass) -> None:
        """Waits for compaction where segments are too many or take too much room, and says so; and
        for the commit in the background where the disk may not have room for that and this pass.

        Raises: OutOfSpaceError when the disk, or disk_budget_bytes, has no room to commit the pass;
        what went wrong in the background.
        """
        if self._housekeeping is not None and staged.train:
            self.compaction_wait_s += self._housekeeping.merging.make_room()
            self._housekeeping.check_room(staged.rows, self._settle_commit)

    def end(self, pass_number: int = 0) -> None:
        """Ends the open pass. A training pass waits here until the one before it is committed, and
        is frozen until `commit` or `spill` has taken it. With 16-bit rows the chance in rounding is
        a function of pass_number: the same number in a run that is taken up again."""
        self.wait_commit()
        self._native.end(pass_number)

    def abandon(self, *, evaluation: bool = False) -> None:
        """Forgets the open pass; the store stays at its last commit, and this table takes no more
        training: open it again."""
        self._abandoned = self._abandoned or not evaluation
        if not evaluation:
            self._ended.forget_parts()
        if self._native.training:
            self._native.abandon()

    def refuse_passes(self, cause: BaseException | None = None) -> None:
        """Takes no more training, as after `abandon`: what is in memory is not what is stored.

        Args: cause: what `PassError` then tells.
        """
        self._abandoned, self._refused_for = True, cause

    def _check_not_abandoned(self) -> None:
        if self._refused_for is not None:
            raise PassError(
                f"table '{self.name}': takes no more passes, for what went wrong before: "
                f"{self._refused_for}; reopen the table at its last commit"
            ) from self._refused_for
        if self._abandoned:
            raise PassError(
                f"table '{self.name}': a pass was abandoned; reopen the table at its last commit"
            )

    def spill(self) -> None:
        """Writes the ended pass's rows to the SSD tier without a commit: for the parts of a pass
        that was split. The next `commit` names them; after a crash they are dropped with the
        pass."""
        self._check_not_abandoned()
        self._ended.spill()

    # ---- commit

    def commit(
        self,
        *,
        dense: Mapping[str, np.ndarray] | None = None,
        day: int = 0,
        pass_number: int = 0,
        cursor: Mapping[str, Any] | None = None,
        config_hash: str = "",
        config: Mapping[str, Any] | None = None,
        counted: int | None = None,
    ) -> int:
        """Makes the ended pass durable, as one version, with the dense state of the same moment.

        Returns: the version; 0 for a table without a folder.

        Raises: OutOfSpaceError, StoreError: the last version is untouched.
        """
        return self.commit_later(
            dense=dense,
            day=day,
            pass_number=pass_number,
            cursor=cursor,
            config_hash=config_hash,
            config=config,
            counted=counted,
        )()

    def keep(self, **fields: Any) -> None:
        """Takes the ended pass without a commit: its rows go to the SSD tier, and the next `commit`
        names them, or `commit_ended` with these fields. After a crash the pass is lost.

        Args: those of `commit`.
        """
        self.keep_later(**fields)()

    def commit_ended(self) -> int:
        """Commits the passes that `keep` took, also after `abandon`: they had ended. Returns the
        version; 0 where there is nothing to commit.

        Raises: as `commit`.
        """
        self._background.settle()
        version = self._ended.commit_kept()
        if version:
            self._after_commit()
        return version

    def commit_partial(
        self,
        dense: Mapping[str, np.ndarray],
        partial: Mapping[str, Any],
        first: Mapping[str, Any] | None = None,
    ) -> VersionRecord | None:
        """Ends the open pass where it stands and commits its rows so far, with this dense state, as
        a version after the pass before it; waits for the commit of that one. For a table that is
        given up. None where no pass is open.

        Args:
            partial: goes into the version's cursor under this name.
            first: config, config_hash and cursor of a store without a version.

        Raises: as `commit`.
        """
        self.wait_commit()
        if self._abandoned or self.read_only or self.folder is None:
            return None
        head = self._history.last
        if self._native.training:
            self._native.end(head.pass_number + 1)
        self.refuse_passes()
        fields = dict(first or {}) if self.head is None else {}
        for name in ("cursor", "config"):
            fields.setdefault(name, getattr(head, name))
        fields["cursor"] = {**fields["cursor"], "partial": dict(partial)}
        return self._ended.commit_partial(dense, fields)

    def _after_commit(self) -> None:
        with self._history.committing:
            head = self._history.head
            if head is not None and self.after_commit is not None:
                self.after_commit(head)
            self.prune()
        if self._housekeeping is not None:
            self._housekeeping.wake()

    def prune(self) -> None:
        """Forgets versions, and their files, that are no longer to be kept."""
        self._history.prune()

    def committing(self) -> AbstractContextManager[Any]:
        """While it is held no version is made or forgotten but by this thread."""
        return self._history.committing

    def named_versions(self, table: str) -> set[int]:
        """Versions of another table of the group that kept versions of this one name."""
        return self._history.named_versions(table)

    def commit_initial(
        self,
        segments: Sequence[Mapping[str, Any]],
        *,
        dense: Mapping[str, np.ndarray],
        admission: bytes | None,
        day: int,
        events: Sequence[Mapping[str, Any]],
        cursor: Mapping[str, Any],
        config_hash: str,
        config: Mapping[str, Any] | None = None,
    ) -> int:
        """Makes rows that were imported (store/import_rows.py) the first version of a new store.

        Args:
            segments: in no two of which a key is. admission: counts of feasigns without a row.
            day, events: that the rows have seen, of the store they came from.

        Raises: StoreError, OutOfSpaceError: the store is as empty as before.
        """
        return self._ended.commit_initial(
            segments,
            dense=dense,
            admission=admission,
            events=events,
            day=day,
            cursor=cursor,
            config_hash=config_hash,
            config=config,
        )

    def commit_moved(
        self,
        before: VersionRecord,
        segments: Sequence[Mapping[str, Any]],
        *,
        dense: Mapping[str, np.ndarray],
        admission: bytes | None,
        events: Sequence[Mapping[str, Any]],
    ) -> int:
        """As `commit_initial`, of rows of this very model that other stores held (ranks/moving.py):
        the version goes on from `before`, of which it has all else."""
        return self._ended.commit_initial(
            segments,
            dense=dense,
            admission=admission,
            events=events,
            before=before,
            day=before.day,
            cursor=before.cursor,
            config_hash=before.config_hash,
            config=before.config,
        )

    def admission_counts(self) -> np.ndarray | None:
        """What the committed version has counted of feasigns without a row; None: it does not."""
        return self._history.read_dense().get(ADMISSION) if self.counts_keys else None

    def commit_later(self, **arguments: Any) -> Callable[[], int]:
        """`commit` of the pass that has ended now, to be called while the next one trains."""
        commit_ended_pass = self._ended.commit_later(**arguments)

        def commit() -> int:
            version = commit_ended_pass()
            self._after_commit()
            return version

        return commit

    def keep_later(self, **fields: Any) -> Callable[[], None]:
        """`keep` of the pass that has ended now, to be called while the next one trains."""
        return self._ended.keep_later(**fields)

    def commit_in_background(self, **arguments: Any) -> Future[int]:
        """`commit`, while the next pass trains. `wait_commit` raises what went wrong."""
        self.wait_commit()
        return self._background.start(self.commit_later(**arguments))

    def keep_in_background(self, **fields: Any) -> Future[None]:
        """`keep`, while the next pass trains."""
        self.wait_commit()
        return self._background.start(self.keep_later(**fields))

    def wait_commit(self) -> float:
        """Waits for the commit in the background; returns the seconds that took."""
        return self._background.wait()

    @property
    def head(self) -> VersionRecord | None:
        """The newest committed version, or the one that a read-only table reads; None without."""
        return self._history.head

    def load_dense(self) -> dict[str, np.ndarray]:
        """Dense state of the newest version; empty without one."""
        arrays = self._history.read_dense()
        return {name: array for name, array in arrays.items() if not name.startswith(OWN)}

    # ---- life of the table

    def append_events(
        self, events: Sequence[Mapping[str, Any]], until: Callable[[], None] | None = None
    ) -> None:
        """Makes life events happen now, to every row: between passes, and durably.

        Args:
            events: {kind, day, decay, min_score, min_delta_score, max_unseen_days}, in order
                (ops/rule/life.h); what a kind does not use may be left out.
            until: they are durable with the next commit, or `settle_events`, which first waits for
                this; where it raises there is no commit.

        Raises: PassError while a pass is open; ValueError for what is no event.
        """
        self._check_not_abandoned()
        self.wait_commit()
        if self._native.training:
            raise PassError(f"table '{self.name}': a pass is open; end_pass it before a day ends")
        # A day's end without its passes would, after a crash, come before them.
        self.commit_ended()
        with self._history.committing:
            added = life.numbered(events, len(self.events))
            self._history.add_events(added, until)
            self._native.append_events(added)

    def settle_events(self) -> None:
        """Makes events durable that wait for the next commit."""
        self.wait_commit()
        with self._history.committing:
            self._history.settle()

    @property
    def events(self) -> list[dict[str, Any]]:
        """Life events so far, in order (docs/formats/manifest.md)."""
        return self._history.events

    @property
    def day(self) -> int:
        """Of the training pass that was committed, or kept, last, in days since 1970-01-01; 0: no
        date."""
        kept = self._ended.kept_fields
        return self._history.day if kept is None else int(kept.get("day", 0))

    @property
    def pass_number(self) -> int:
        """Of the same pass; 0: none."""
        kept = self._ended.kept_fields
        return self._history.last.pass_number if kept is None else int(kept.get("pass_number", 0))

    def begin_day(self, day: int) -> bool:
        """Says that training goes on with this day: where it is a later one than before, the day
        before ends (`shrink_table`), if ``table.life.auto`` is set. True where it did.

        Raises: as `append_events`; what went wrong in the commit in the background, if that is
        over: it is waited for only where a day ends.
        """
        self._background.raise_error()
        return self.ends_day(day) and self.shrink_table()

    def ends_day(self, day: int) -> bool:
        """Whether `begin_day` of this one ends the day before."""
        return self.config.life.auto and 0 < self._ended.last_day < day

    def shrink_table(self) -> bool:
        """Ends the day that was trained last: rows decay, then those of a low score or long unseen
        are deleted, as ``table.life`` says. A day ends once, also if training was killed and taken
        up again: False where it had ended. Without dates it is the caller who counts.

        Raises: as `append_events`.
        """
        self.wait_commit()
        ended = life.last_day_ended(self.events)
        if 0 < self.day <= ended:
            log.debug("table '%s': day %s has ended already", self.name, date_of(self.day))
            return False
        self.append_events(life.end_of_day(self.config.life, self.day))
        log.debug("table '%s': day %s has ended", self.name, date_of(self.day) or "without date")
        return True

    def end_of_day(self, day: int, decay: float | None = None) -> None:
        """Multiplies shows and clicks of all rows by decay; default: as ``table.life`` says.

        Args:
            day: since 1970-01-01. It counts as ended from here on.
        """
        self.append_events([life.decay(self.config.life, day, decay)])

    def shrink(
        self, day: int, min_score: float | None = None, max_unseen_days: int | None = None
    ) -> None:
        """Deletes rows whose score is below min_score or that no push touched for more than
        max_unseen_days days; defaults: as ``table.life`` says."""
        self.append_events([life.shrink(self.config.life, day, min_score, max_unseen_days)])

    # ---- what a save for serving holds

    def rows_of_base(
        self, visit: Callable[[np.ndarray, np.ndarray], None], *, day: int | None = None
    ) -> SaveFilter:
        """Shows the rows of a base (PaddleBox's save mode 2) to visit: (n) uint64 feasigns and
        (n, words) float32 rows (docs/formats/row.md) at a time, in the order of keys.

        Args:
            day: of the save; default: `day`.

        Returns: the filter that chose them; give it to `reset_delta` once they are saved.

        Raises: PassError while a pass is open; without a folder also while one is staged.
        """
        return self.visit(visit, life.base_filter(self.config.life, self._save_day(day)))

    def rows_of_delta(
        self, visit: Callable[[np.ndarray, np.ndarray], None], *, day: int | None = None
    ) -> SaveFilter:
        """As `rows_of_base`, of a delta (save mode 1): only what changed enough since a save."""
        return self.visit(visit, self.delta_filter(day))

    @property
    def dated(self) -> bool:
        """Whether passes have dates, or a day has ended by hand: whether rows decay or expire."""
        ends = (life.DECAY, life.SHRINK)
        return self.day > 0 or any(event["kind"] in ends for event in self.events)

    def delta_filter(self, day: int | None = None) -> SaveFilter:
        """Which rows a delta of this day holds."""
        return life.delta_filter(self.config.life, self._save_day(day))

    def visit(
        self, visit: Callable[[np.ndarray, np.ndarray], None], chosen: SaveFilter
    ) -> SaveFilter:
        """As `rows_of_base`, of any filter."""
        self._save_day(None)
        if self._ended.has_parts:
            raise PassError(f"table '{self.name}': a pass that was split is open")
        self._native.visit_chunks(_CHUNK_ROWS, visit, asdict(chosen))
        return chosen

    def lookup(
        self, feasigns: np.ndarray, chosen: Mapping[str, Any] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Committed rows of (n) uint64 feasigns in the order of keys: (n) bool, which have one
        (that a SaveFilter, as a dict, passes), and (n, words) float32.

        Raises: as `rows_of_base`.
        """
        found, rows = self._native.lookup(feasigns, chosen)
        return found.astype(bool), rows

    def reset_delta(self, saved: SaveFilter, until: Callable[[], None] | None = None) -> None:
        """Lets delta_score of the rows in a save start anew: before the next pass, and after the
        save is durable, or `until` it is.

        Raises: as `append_events`.
        """
        self.append_events([life.after_save(saved)], until)

    def _save_day(self, day: int | None) -> int:
        self._check_not_abandoned()
        self.wait_commit()
        return self.day if day is None else day

    def journal(self) -> list[dict[str, Any]]:
        """The latest commits, oldest first (docs/formats/manifest.md); none without a folder."""
        return self._history.journal()

    def open_segments(self, *, after: int) -> list[Any]:
        """The newest version's segments of a higher sequence, open: whatever a merge removes
        meanwhile, they can be read."""
        with self._history.committing:
            return [
                core.SegmentFile(str(self.folder / "ssd" / segment["file"]), segment)
                for segment in self._history.last.segments
                if self.folder is not None and segment["sequence"] > after
            ]

    # ---- compaction and room

    def compact(self, *, full: bool = False) -> None:
        """Merges what is due, or (full) until no two segments overlap.

        Raises: StoreError for a table that is read-only or has no folder; OutOfSpaceError.
        """
        self.wait_commit()
        self._merging.compact(full=full)

    def rewrite_old_formats(self) -> int:
        """Rewrites segments of earlier formats; returns how many there were."""
        return self._merging.rewrite_old_formats()

    @property
    def _merging(self) -> Merging:
        if self._housekeeping is None:
            raise StoreError(f"table '{self.name}' has no store of its own to compact")
        return self._housekeeping.merging

    def free_bytes(self) -> int:
        """What the disk and disk_budget_bytes leave for new files of the store."""
        assert self._housekeeping is not None
        return self._housekeeping.room.free_bytes()

    # ---- the whole table

    def digest(self) -> str:
        """Canonical digest of all (key, row) pairs: equal for equal content, however it came about.

        Raises: PassError while a pass is staged, open or being committed.
        """
        self._check_not_abandoned()
        self.wait_commit()
        return str(self._native.digest())

    def read_all(self) -> tuple[np.ndarray, np.ndarray]:
        """All rows, in memory: (n) uint64 feasigns and (n, words) float32 rows
        (docs/formats/row.md)."""
        self._check_not_abandoned()
        self.wait_commit()
        feasigns, rows = self._native.read_all()
        return feasigns, rows

    def counters(self) -> dict[str, int]:
        """Sums since the table was opened; sizes of the tiers as they are now."""
        return dict(self._native.counters())

    @property
    def row_bytes(self) -> int:
        return int(self._native.row_bytes)

    @property
    def layout(self) -> dict[str, Any]:
        """What the rows mean, as a version's record has it."""
        return dict(self._history.layout)

    @property
    def row_layout(self) -> dict[str, int]:
        """Widths of a row's parts, and the fingerprint of rows in float32."""
        return dict(self._native.layout)

    def close(self) -> None:
        """Waits for the commit in the background and gives the store free. May be called twice."""
        try:
            self.wait_commit()
        finally:
            self._background.close()
            if self._housekeeping is not None:
                self._housekeeping.close()
                self._housekeeping = None
            if self._native is not None:
                self._native.unregister()
                self._native = None
            self._history.close()
