"""Table: the sparse parameters, in three tiers, and the commits that make them durable.

A store folder holds the manifest, the SSD tier's segments and the dense state of each version
(docs/formats/manifest.md). Without a folder everything stays in memory and nothing is committed.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.config import Slots, TableConfig
from paddlebox.config.dates import date_of
from paddlebox.errors import ConfigError, OutOfSpaceError, PassError, StoreError
from paddlebox.store import compaction, files, life
from paddlebox.store.background import Background
from paddlebox.store.compaction import Merge, Policy
from paddlebox.store.compactor import Compactor
from paddlebox.store.dense import read_dense, write_dense
from paddlebox.store.life import SaveFilter
from paddlebox.store.manifest import Manifest, VersionRecord
from paddlebox.store.parity import Keeper
from paddlebox.store.record import newly_written

log = logging.getLogger("paddlebox")
core = _native.core
_MIB = 1 << 20
# Of the arrays of a version's dense state those that are the table's own, not the program's.
_OWN = "paddlebox."
_ADMISSION = _OWN + "admission"
_CHUNK_ROWS = 1 << 17  # handed to a visitor at a time


@dataclass(frozen=True)
class StagedPass:
    """A pass whose rows are up. K = keys it was staged with."""

    stamp: int  # names the pass; batches carry it
    rows: int
    row_of_key: np.ndarray  # (K) int32, -1 where the key has no row (evaluation)
    hits: Mapping[str, int]  # rows found in "hbm", "mem", "ssd", and made "new"
    train: bool = True
    refused: int = 0  # keys that get no row yet: see Table.count_keys

    @property
    def stamps(self) -> tuple[int, ...]:
        """Of each table that the pass has rows in."""
        return (self.stamp,)

    @property
    def hits_of(self) -> Mapping[str, Mapping[str, int]]:
        """`hits` by the name of the table, where there are several."""
        return {}


@dataclass(frozen=True)
class GroupLink:
    """What ties a table to the others of its `TableGroup` (store/group.py)."""

    #: Of the first table: the versions of the others that its next version names.
    others: Callable[[], Mapping[str, int]] | None = None
    #: Of another: its versions that kept versions of the first one name.
    named: Callable[[], Collection[int]] | None = None
    #: Of another that is opened for training: the version to go back to; 0: an empty table.
    version: int | None = None


class Table:
    """Opens a table, and the store in ``folder`` with it.

    Args:
        config: layout, accessor and rules.
        seed: of new rows; the same for the table's whole life.
        folder: of the store; made when absent. None: in memory only.
        hbm_budget_bytes: for the three pass tables that may live at once.
        mem_budget_bytes: rows kept near between passes, at least 1 MiB.
        threads: of staging, pull and push.
        read_only: takes passes for evaluation only, and changes no byte of the store.
        keep_versions: passes whose newest version is kept, besides named versions and those that
            are being read. keep_daily: days whose newest version is kept too.
        compaction: when segments are merged in the background; None: never.
        disk_budget_bytes: of all files of the store; 0: no limit but the disk's.
        version: with read_only, the version to read instead of the newest.
        parity: segments that one parity file protects (docs/formats/parity.md); 0: there shall be
            none; None: those that are there stay, and none is written.
        slot_rates: of slot 0, 1, ...: what the learning rates of its rows are multiplied by;
            `config.slot_learning_rates` by the order of slots. Empty: 1 for all.
        link: of a table of a group; None: it stands alone.

    Raises: StoreLockedError when another process writes the store; ConfigError when the store was
        written with another layout or seed; CorruptionError; ValueError for a budget too small.
    """

    _registered = True  # operators find it, by its name or as the only one

    def __init__(
        self,
        config: TableConfig,
        *,
        seed: int = 1,
        folder: Path | str | None = None,
        hbm_budget_bytes: int = 2048 * _MIB,
        mem_budget_bytes: int = 1024 * _MIB,
        max_segment_bytes: int = 256 * _MIB,
        threads: int = 1,
        read_only: bool = False,
        keep_versions: int = 2,
        keep_daily: int = 0,
        compaction: Policy | None = Policy(),  # noqa: B008  frozen
        disk_budget_bytes: int = 0,
        version: int | None = None,
        slot_rates: Sequence[float] = (),
        parity: int | None = None,
        link: GroupLink | None = None,
    ) -> None:
        self.config = config
        self.folder = Path(folder) if folder is not None else None
        self.read_only = read_only
        self.keep_versions = keep_versions
        self.keep_daily = keep_daily
        self.disk_budget_bytes = disk_budget_bytes
        self.policy = compaction
        self._link = link or GroupLink()
        self.compaction_wait_s = 0.0  # that begin waited for merges, in all
        # Goes into each version: tools open the store with it, and whoever trains it on must agree
        # on what of it gives the rows' bytes their meaning.
        self._layout: dict[str, Any] = {"seed": seed, **config.model_dump(mode="json")}
        self._manifest: Manifest | None = None
        self._abandoned = False
        self._unnamed: list[dict[str, Any]] = []  # parts of a pass that no version names yet
        self._ended: list[dict[str, Any]] = []  # of passes that `keep` took, and what the last said
        self._ended_fields: dict[str, Any] | None = None
        #: Called after each commit of a pass, on its thread, with the version's record.
        self.after_commit: Callable[[VersionRecord], None] | None = None
        self._background = Background("paddlebox-commit")
        self._counting = threading.Lock()
        self._counted = 0  # calls of count_keys
        self._counts_before: dict[int, bytes] = {}  # the filter before each that no commit has
        self._events: list[dict[str, Any]] = []  # of a table without a folder; and its day:
        self._day = 0
        self._native: Any = None
        self._compactor: Compactor | None = None
        self._parity: Keeper | None = None
        self._committing = threading.RLock()  # one writer of versions at a time
        self._head: VersionRecord | None = None  # as committed or read by this table
        try:
            ssd_folder = ""
            if self.folder is not None:
                self._open_store(version)
                ssd_folder = str(self.folder / "ssd")
            head = self._head or self._empty_record()
            self._native = core.Table(
                {
                    **config.model_dump(mode="json"),
                    "seed": seed,
                    "slot_rates": list(slot_rates),
                    "hbm_budget_bytes": hbm_budget_bytes,
                    "mem_budget_bytes": mem_budget_bytes,
                    "ssd_folder": ssd_folder,
                    "max_segment_bytes": max_segment_bytes,
                    "threads": threads,
                    "read_only": read_only,
                    "events": head.events,
                    "registered": self._registered,
                },
                head.segments,
            )
            if self._head is not None and config.admission.min_count > 1:
                counters = self._read_dense(self._head).get(_ADMISSION)
                if counters is not None:
                    self._native.set_admission_state(counters.tobytes())
            if self.folder is not None and not read_only and parity is not None:
                self._parity = Keeper(
                    self.folder, parity, lambda: self._head.segments if self._head else []
                )
                self._parity.wake()
            if self.policy is not None and self._manifest is not None and not read_only:
                self._compactor = Compactor(
                    self._plan_merges, self._merge, self._commit_merges, self._native.cancel_merges
                )
                self._compactor.wake()
        except BaseException:
            self.close()
            raise

    def _open_store(self, version: int | None) -> None:
        assert self.folder is not None
        if self.read_only:
            self._manifest = Manifest.open_reader(self.folder)
            head = self._manifest.pin(version)
        else:
            self._manifest = Manifest.open_writer(self.folder)
            if self._link.version is not None:
                forgotten = self._manifest.rewind(self._link.version)
                if forgotten:
                    log.info("%s: versions %s belong to no commit", self.folder, forgotten)
            self._manifest.remove_unreferenced()
            head = self._manifest.head()
        if head is None:
            if self.read_only:
                raise StoreError(f"{self.folder}: no version has been committed yet")
            return
        stored, wanted = _meaning(head.layout), _meaning(self._layout)
        differing = sorted(key for key in stored if stored[key] != wanted[key])
        if differing:
            raise ConfigError(
                f"{self.folder}: version {head.version} was written with "
                f"{ {key: stored[key] for key in differing} }, the config says "
                f"{ {key: wanted[key] for key in differing} }: rows of one would be misread by the "
                "other"
            )
        self._head = head

    # ---- life of a pass

    @property
    def name(self) -> str:
        return self.config.name

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
        return StagedPass(
            staged["stamp"], staged["rows"], staged["row_of_key"], hits, train, staged["refused"]
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
        with self._counting:
            self._counts_before[self._counted + 1] = self._native.admission_state()
            self._native.count_keys(
                np.ascontiguousarray(keys, np.uint64), np.ascontiguousarray(counts, np.uint32)
            )
            self._counted += 1
            return self._counted

    def uncount_keys(self, counted: int) -> None:
        """Takes back the last `count_keys`, of a pass that is given up before it began."""
        with self._counting:
            if counted != self._counted:
                raise PassError(
                    f"count {counted} is not the last one, {self._counted}: passes are given up in "
                    "the reverse order"
                )
            self._native.set_admission_state(self._counts_before.pop(counted))
            self._counted -= 1

    def _counts_after(self, counted: int | None) -> np.ndarray:
        """The filter as of a `count_keys`; None: the last."""
        with self._counting:
            following = (self._counted if counted is None else counted) + 1
            state = self._counts_before.get(following)
            if state is None:
                state = self._native.admission_state()
            for done in [number for number in self._counts_before if number < following]:
                del self._counts_before[done]
            return np.frombuffer(state, np.uint8)

    def drop_staged(self, staged: StagedPass) -> None:
        self._native.drop_staged(staged.stamp)

    def begin(self, staged: StagedPass) -> None:
        """Opens the staged pass: operators read and write it from here on. Makes room as
        `make_room`."""
        self.make_room(staged)
        self._native.begin(staged.stamp)

    def make_room(self, staged: StagedPass) -> None:
        """Waits for compaction where segments are too many or take too much room, and says so.

        Raises: OutOfSpaceError when the disk, or disk_budget_bytes, has no room to commit the pass;
        what went wrong in the background.
        """
        if self._compactor is not None and staged.train:
            self._compactor.raise_error()
            self.compaction_wait_s += self._compactor.wait_until(
                lambda: not self._over_ceiling(), self._describe
            )
        if self._manifest is not None and staged.train:
            self._check_room(staged.rows)

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
            self._unnamed = []  # of the pass's earlier parts: no later commit may name them
        if self._native.training:
            self._native.abandon()

    def refuse_passes(self) -> None:
        """Takes no more training, as after `abandon`: what is in memory is not what is stored."""
        self._abandoned = True

    def _check_not_abandoned(self) -> None:
        if self._abandoned:
            raise PassError(
                f"table '{self.name}': a pass was abandoned; reopen the table at its last commit"
            )

    def spill(self) -> None:
        """Writes the ended pass's rows to the SSD tier without a commit: for the parts of a pass
        that was split. The next `commit` names them; after a crash they are dropped with the
        pass."""
        self._check_not_abandoned()
        written = self._native.write_frozen()
        self._native.publish(written["segments"])
        self._unnamed.append(written)

    def keep(self, **fields: Any) -> None:
        """Takes the ended pass without a commit: its rows go to the SSD tier, and the next `commit`
        names them, or `commit_ended` with these fields. After a crash the pass is lost.

        Args: those of `commit`.
        """
        self._keep(self._take_parts(), fields)

    def _keep(self, parts: list[dict[str, Any]], fields: dict[str, Any]) -> None:
        fields = dict(fields)
        counted, dense = fields.pop("counted", None), dict(fields.pop("dense", None) or {})
        if self.config.admission.min_count > 1:
            dense[_ADMISSION] = self._counts_after(counted)
        with self._given_back(parts):
            written = self._native.write_frozen()
            self._native.publish(written["segments"])
        self._ended += [*parts, written]
        self._ended_fields = {**fields, "dense": dense}

    def _take_parts(self) -> list[dict[str, Any]]:
        """The parts of the pass that has ended: whoever commits it holds them, so that a later pass
        which is abandoned meanwhile forgets only its own."""
        parts, self._unnamed = self._unnamed, []
        return parts

    @contextmanager
    def _given_back(self, parts: list[dict[str, Any]]) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._unnamed = [*parts, *self._unnamed]  # the commit may be tried again
            raise

    def commit_ended(self) -> int:
        """Commits the passes that `keep` took, also after `abandon`: they had ended. Returns the
        version; 0 where there is nothing to commit.

        Raises: as `commit`.
        """
        self._background.settle()
        fields = self._ended_fields
        if fields is None or self._manifest is None:
            return 0
        with self._committing:
            version = self._commit_pass([], **fields)
        self._after_commit()
        return version

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
        fields: dict[str, Any] = {"day": day, "pass_number": pass_number, "cursor": cursor}
        fields |= {"config_hash": config_hash, "config": config}
        return self.commit_later(dense=dense, counted=counted, **fields)()

    def _commit_frozen(
        self,
        parts: list[dict[str, Any]],
        dense: Mapping[str, np.ndarray] | None,
        counted: int | None,
        fields: Mapping[str, Any],
    ) -> int:
        with self._given_back(parts):
            written = self._native.write_frozen()
        if self.config.admission.min_count > 1:
            dense = {**(dense or {}), _ADMISSION: self._counts_after(counted)}
        version = 0
        if self._manifest is not None and self.folder is not None:
            with self._committing:  # until published: no merge may be planned of what is not there
                with self._given_back(parts):
                    version = self._commit_pass([*parts, written], dense or {}, **fields)
                self._native.publish(written["segments"])
        else:
            self._day = fields["day"]
            self._native.publish(written["segments"])
        self._after_commit()
        return version

    def _after_commit(self) -> None:
        if self._manifest is not None:
            with self._committing:
                assert self._head is not None
                if self.after_commit is not None:
                    self.after_commit(self._head)
                self.prune()
        if self._parity is not None:
            self._parity.wake()
        if self._compactor is not None:
            self._compactor.wake()

    def prune(self) -> None:
        """Forgets versions, and their files, that are no longer to be kept."""
        if self._manifest is None or self.folder is None:
            return
        with self._committing:
            if self._link.named is not None:
                self._manifest.prune(self.keep_versions, named=self._link.named())
            elif not files.is_of_group(str(self.folder)):  # else nobody says which are named
                self._manifest.prune(self.keep_versions, self.keep_daily)

    def committing(self) -> AbstractContextManager[Any]:
        """While it is held no version is made or forgotten but by this thread."""
        return self._committing

    def _others(self) -> dict[str, int]:
        """What the next version names of the other tables."""
        if self._link.others is not None:
            return dict(self._link.others())
        return self._head.tables if self._head is not None else {}

    def named_versions(self, table: str) -> set[int]:
        """Versions of another table of the group that kept versions of this one name."""
        if self._manifest is None:
            return set()
        kept = [self._manifest.version(number) for number in self._manifest.versions()]
        return {record.tables[table] for record in kept if table in record.tables}

    def _commit_pass(
        self,
        parts: Sequence[Mapping[str, Any]],
        dense: Mapping[str, np.ndarray],
        *,
        cursor: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> int:
        """Names these parts, and those of the passes that `keep` took."""
        assert self._manifest is not None
        assert self.folder is not None
        head = self._head or self._empty_record()
        parts = [*self._ended, *parts]
        written = newly_written(segment for part in parts for segment in part["segments"])
        version = head.version + 1
        names = write_dense(Path(files.dense_folder(str(self.folder), version)), dense)
        record = head.following(
            "pass",
            segments=[*head.segments, *written],
            live_rows=head.live_rows + sum(part["new_rows"] for part in parts),
            bytes_written=_add(head.bytes_written, "pass", sum(s["bytes"] for s in written)),
            dense=names,
            dense_version=version,
            digest=None,
            cursor=dict(cursor or {}),
            config=dict(config or {}),
            tables=self._others(),
            **fields,
        )
        self._manifest.commit(record)
        self._head = record
        self._ended, self._ended_fields = [], None
        return version

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
        assert self._manifest is not None
        assert self.folder is not None
        if admission is not None:
            self._native.set_admission_state(admission)
        if self.config.admission.min_count > 1:
            dense = {**dense, _ADMISSION: self._counts_after(None)}
        with self._committing:
            record = self._empty_record()
            record = record.following(
                "init",
                segments=newly_written(segments),
                live_rows=sum(s["rows"] for s in segments),
                bytes_written={"init": sum(s["bytes"] for s in segments)},
                dense=write_dense(Path(files.dense_folder(str(self.folder), 1)), dense),
                dense_version=1,
                day=day,
                events=list(events),
                cursor=dict(cursor),
                config_hash=config_hash,
                config=dict(config or {}),
                tables=self._others(),
            )
            self._manifest.commit(record)
            self._head = record
            self._native.append_events(list(events))
            self._native.replace_segments([], list(segments))
        return record.version

    def _empty_record(self) -> VersionRecord:
        return VersionRecord(version=0, parent=0, segments=[], layout=self._layout, pass_number=0)

    def commit_later(self, **arguments: Any) -> Callable[[], int]:
        """`commit` of the pass that has ended now, to be called while the next one trains."""
        parts, dense = self._take_parts(), arguments.pop("dense", None)
        counted = arguments.pop("counted", None)
        fields = {"day": 0, "pass_number": 0, **arguments}
        return lambda: self._commit_frozen(parts, dense, counted, fields)

    def keep_later(self, **fields: Any) -> Callable[[], None]:
        """`keep` of the pass that has ended now, to be called while the next one trains."""
        parts = self._take_parts()
        return lambda: self._keep(parts, fields)

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
        return self._head

    def load_dense(self) -> dict[str, np.ndarray]:
        """Dense state of the newest version; empty without one."""
        head = self.head
        if head is None or self.folder is None:
            return {}
        arrays = self._read_dense(head)
        return {name: array for name, array in arrays.items() if not name.startswith(_OWN)}

    def _read_dense(self, head: VersionRecord) -> dict[str, np.ndarray]:
        return read_dense(
            Path(files.dense_folder(str(self.folder), head.dense_version)), head.dense
        )

    # ---- life of the table

    def append_events(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Makes life events happen now, to every row: between passes, and durably.

        Args:
            events: {kind, day, decay, min_score, min_delta_score, max_unseen_days}, in order
                (ops/rule/life.h); what a kind does not use may be left out.

        Raises: PassError while a pass is open; ValueError for what is no event.
        """
        self._check_not_abandoned()
        self.wait_commit()
        if self._native.training:
            raise PassError(f"table '{self.name}': a pass is open; end_pass it before a day ends")
        # A day's end without its passes would, after a crash, come before them.
        self.commit_ended()
        with self._committing:
            known = self.events
            added = life.numbered(events, len(known))
            if self._manifest is not None:
                record = (self._head or self._empty_record()).following(
                    "life", events=[*known, *added], tables=self._others()
                )
                self._manifest.commit(record)
                self._head = record
                self.prune()
            else:
                self._events = [*known, *added]
            self._native.append_events(added)

    @property
    def events(self) -> list[dict[str, Any]]:
        """Life events so far, in order (docs/formats/manifest.md)."""
        return self._head.events if self._head is not None else self._events

    @property
    def day(self) -> int:
        """Of the training pass that was committed, or kept, last, in days since 1970-01-01; 0: no
        date."""
        if self._ended_fields is not None:
            return int(self._ended_fields.get("day", 0))
        return self._head.day if self._head is not None else self._day

    @property
    def pass_number(self) -> int:
        """Of the same pass; 0: none."""
        if self._ended_fields is not None:
            return int(self._ended_fields.get("pass_number", 0))
        return self._head.pass_number if self._head is not None else 0

    def begin_day(self, day: int) -> bool:
        """Says that training goes on with this day: where it is a later one than before, the day
        before ends (`shrink_table`), if ``table.life.auto`` is set. True where it did.

        Raises: as `append_events`; what went wrong in the commit in the background.
        """
        self.wait_commit()
        return self.config.life.auto and 0 < self.day < day and self.shrink_table()

    def shrink_table(self) -> bool:
        """Ends the day that was trained last: rows decay, then those of a low score or long unseen
        are deleted, as ``table.life`` says. A day ends once, also if training was killed and taken
        up again: False where it had ended. Without dates it is the caller who counts.

        Raises: as `append_events`.
        """
        self.wait_commit()
        ended = life.last_day_ended(self.events)
        if 0 < self.day <= ended:
            log.info("table '%s': day %s has ended already", self.name, date_of(self.day))
            return False
        self.append_events(life.end_of_day(self.config.life, self.day))
        log.info("table '%s': day %s has ended", self.name, date_of(self.day) or "without date")
        return True

    def end_of_day(self, day: int, decay: float | None = None) -> None:
        """Multiplies shows and clicks of all rows by decay; default: as ``table.life`` says.

        Args:
            day: since 1970-01-01. It counts as ended from here on.
        """
        if decay is None:
            decay = self.config.life.show_click_decay_rate
        self.append_events([{"kind": life.DECAY, "day": day, "decay": decay}])

    def shrink(
        self, day: int, min_score: float | None = None, max_unseen_days: int | None = None
    ) -> None:
        """Deletes rows whose score is below min_score or that no push touched for more than
        max_unseen_days days; defaults: as ``table.life`` says."""
        settings = self.config.life
        if min_score is None:
            min_score = settings.delete_threshold
        if max_unseen_days is None:
            max_unseen_days = settings.delete_after_unseen_days
        self.append_events(
            [
                {
                    "kind": life.SHRINK,
                    "day": day,
                    "min_score": min_score,
                    "max_unseen_days": max_unseen_days,
                }
            ]
        )

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

    def delta_filter(self, day: int | None = None) -> SaveFilter:
        """Which rows a delta of this day holds."""
        return life.delta_filter(self.config.life, self._save_day(day))

    def visit(
        self, visit: Callable[[np.ndarray, np.ndarray], None], chosen: SaveFilter
    ) -> SaveFilter:
        """As `rows_of_base`, of any filter."""
        self._save_day(None)
        if self._unnamed:
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

    def reset_delta(self, saved: SaveFilter) -> None:
        """Lets delta_score of the rows in a save start anew: after it is durable, before the next
        pass.

        Raises: as `append_events`.
        """
        self.append_events([life.after_save(saved)])

    def _save_day(self, day: int | None) -> int:
        self._check_not_abandoned()
        self.wait_commit()
        return self.day if day is None else day

    def journal(self) -> list[dict[str, Any]]:
        """The latest commits, oldest first (docs/formats/manifest.md); none without a folder."""
        return self._manifest.journal() if self._manifest is not None else []

    def open_segments(self, *, after: int) -> list[Any]:
        """The newest version's segments of a higher sequence, open: whatever a merge removes
        meanwhile, they can be read."""
        with self._committing:
            return [
                core.SegmentFile(str(self.folder / "ssd" / segment["file"]), segment)
                for segment in (self._head.segments if self._head is not None else ())
                if self.folder is not None and segment["sequence"] > after
            ]

    # ---- compaction and room

    def compact(self, *, full: bool = False) -> None:
        """Merges what is due, or (full) until no two segments overlap.

        Raises: StoreError for a table that is read-only or has no folder; OutOfSpaceError.
        """
        if self._manifest is None or self.read_only:
            raise StoreError(f"table '{self.name}' has no store of its own to compact")
        self.wait_commit()
        if self._compactor is not None:
            self._compactor.wait_idle()  # it looks at nothing before the next commit
        while merges := self._plan_merges(1 << 62):
            self._commit_merges([(merge, self._merge(merge, True)) for merge in merges])
        if full and self._head is not None:
            for merge in compaction.plan_all(self._head.segments):
                self._commit_merges([(merge, self._merge(merge, True))])

    def rewrite_old_formats(self) -> int:
        """Rewrites segments of earlier formats; returns how many there were."""
        assert self._head is not None
        assert self.folder is not None
        old = []
        for segment in self._head.segments:
            path = self.folder / "ssd" / segment["file"]
            if core.SegmentFile(str(path), segment).shape["version"] < core.SEGMENT_VERSION:
                old.append(Merge((segment["id"],), segment["bytes"], "format"))
        for merge in old:
            self._commit_merges([(merge, self._merge(merge, True))])
        return len(old)

    def _plan_merges(self, limit: int) -> list[Merge]:
        with self._committing:
            head = self._head
        if head is None:
            return []
        return compaction.plan(head.segments, head.live_rows, self.policy or Policy(), limit)

    def _merge(self, merge: Merge, urgent: bool) -> dict[str, Any]:
        free = self._free_bytes()
        if merge.bytes > free:
            raise OutOfSpaceError(
                f"{self.folder}: a merge of {len(merge.inputs)} segments needs {merge.bytes} "
                f"bytes, {free} are free"
            )
        return dict(self._native.merge(list(merge.inputs), urgent))

    def _commit_merges(self, finished: list[tuple[Merge, dict[str, Any]]]) -> None:
        assert self._manifest is not None
        gone = {id_ for merge, _ in finished for id_ in merge.inputs}
        made = newly_written(s for _, result in finished for s in result["segments"])
        with self._committing:
            head = self._head
            assert head is not None
            segments = [*(s for s in head.segments if s["id"] not in gone), *made]
            live_rows = head.live_rows - sum(r["keys_gone"] for _, r in finished)
            record = head.following(
                "compaction",
                segments=segments,
                live_rows=compaction.live_rows_within(segments, live_rows),
                bytes_written=_add(head.bytes_written, "compaction", sum(s["bytes"] for s in made)),
            )
            self._manifest.commit(record)
            self._head = record
            self._native.replace_segments(sorted(gone), made)
            self.prune()
        if self._parity is not None:
            self._parity.wake()

    def _shape(self) -> compaction.Shape:
        if self._head is None:
            return compaction.Shape(0, 0, 0)
        return compaction.shape(self._head.segments, self._head.live_rows)

    def _over_ceiling(self) -> bool:
        policy = self.policy
        shape = self._shape()
        return policy is not None and (
            shape.depth > policy.max_depth
            or (shape.bytes >= policy.min_bytes and shape.space_ratio > policy.space_ceiling)
        )

    def _describe(self) -> str:
        shape = self._shape()
        policy = self.policy or Policy()
        return (
            f"{self.folder}: {shape.bytes} bytes for {shape.live_bytes} of live rows (ceiling "
            f"{policy.space_ceiling:g} times), up to {shape.depth} segments over a key (ceiling "
            f"{policy.max_depth})"
        )

    def _free_bytes(self) -> int:
        """What the disk and the budget leave for new files."""
        assert self.folder is not None
        stat = os.statvfs(self.folder)
        free = stat.f_bavail * stat.f_frsize
        if self.disk_budget_bytes:
            free = min(free, self.disk_budget_bytes - files.used_bytes(str(self.folder)))
        return max(0, free)

    def _check_room(self, rows: int) -> None:
        """A pass of so many rows can be committed, and a merge made beside it."""
        stored = rows * (self._native.stored_row_bytes + 8) * 11 // 10  # keys, filters, fences
        reserve = self._shape().bytes // 64  # a merge of one range
        free = self._free_bytes()
        if stored + reserve > free:
            budget = f", disk_budget_bytes {self.disk_budget_bytes}" * bool(self.disk_budget_bytes)
            raise OutOfSpaceError(
                f"{self.folder}: a pass of {rows} rows needs {stored} bytes to be committed and a "
                f"merge {reserve}, {free} are free{budget}; the pass is not begun. Make room"
                f"{' or raise ssd.disk_budget_bytes' * bool(budget)}, and start again: the last "
                "commit stands"
            )
        if self.disk_budget_bytes and free < self.disk_budget_bytes // 5:
            log.warning(
                "%s: %d of disk_budget_bytes %d are left",
                self.folder,
                free,
                self.disk_budget_bytes,
            )

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
        return dict(self._layout)

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
            if self._compactor is not None:
                self._compactor.close()
                self._compactor = None
            if self._parity is not None:
                self._parity.close()
                self._parity = None
            if self._native is not None:
                self._native.unregister()
                self._native = None
            if self._manifest is not None:
                self._manifest.close()
                self._manifest = None

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _add(sums: Mapping[str, int], kind: str, count: int) -> dict[str, int]:
    return {**sums, kind: sums.get(kind, 0) + count}


def sorted_unique_keys(feasigns: np.ndarray) -> np.ndarray:
    """(K) uint64 keys, ascending, of feasigns (any shape, uint64 or int64 bits), padding left
    out."""
    flat = np.ascontiguousarray(feasigns).reshape(-1)
    if flat.dtype not in (np.dtype(np.int64), np.dtype(np.uint64)):
        raise ValueError(f"feasigns have dtype {flat.dtype}, expected uint64 or int64")
    return np.asarray(core.sorted_unique_keys(flat.view(np.uint64)))


__all__ = ["PassError", "StagedPass", "Table", "sorted_unique_keys"]


def _meaning(layout: Mapping[str, Any]) -> dict[str, Any]:
    """What of a table's config a row's bytes depend on; rates and thresholds may change."""
    return {
        "seed": layout.get("seed"),
        "embedx_dim": layout.get("embedx_dim"),
        "row_precision": layout.get("row_precision", "float32"),  # before there was a choice
        "embed.rule": layout.get("embed", {}).get("rule"),
        "embedx.rule": layout.get("embedx", {}).get("rule"),
        "expand_dim": layout.get("expand_dim", 0),
        "expand.rule": layout.get("expand", {}).get("rule") if layout.get("expand_dim") else None,
    }
