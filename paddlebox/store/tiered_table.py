"""TieredTable: the rows of one table in three tiers, its versions, and its compaction.

A store folder holds the manifest, the SSD tier's segments and the dense state of each version
(docs/formats/manifest.md). Without a folder everything stays in memory and nothing is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.closing import Closing
from paddlebox.config import TableConfig
from paddlebox.errors import ConfigError, PassError, StoreError
from paddlebox.store import life
from paddlebox.store.compactor import Compactor
from paddlebox.store.key_counts import KeyCounts
from paddlebox.store.life import SaveFilter
from paddlebox.store.manifest import VersionRecord
from paddlebox.store.options import TableOptions
from paddlebox.store.pass_parts import PassFields, PassParts
from paddlebox.store.staged import StagedPass
from paddlebox.store.version_set import ADMISSION, OWN, VersionLink, VersionSet

core = _native.core
_CHUNK_ROWS = 1 << 17  # handed to a visitor at a time


def _open_native(fields: Mapping[str, Any], segments: Sequence[Any]) -> Any:
    """Raises: ConfigError for settings that the store, or the machine, does not go with."""
    try:
        return core.Table(fields, segments)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _nothing_to_wait_for() -> None:
    pass


class TieredTable(Closing):
    """Opens a table, and the store in `TableOptions.folder` with it.

    Args:
        config: layout, accessor and rules.
        options: how it is opened; the budgets are this table's own.
        slot_rates: of slot 0, 1, ...: what the learning rates of its rows are multiplied by;
            `config.slot_learning_rates` by the order of slots. Empty: 1 for all.
        link: of a table of a set; None: it stands alone.
        settle: waits for the commit of the set in the background.
        versions: with read_only, versions that are open already; operators do not find the table.
            None: it opens those in the folder.

    Raises: StoreLockedError when another process writes the store; ConfigError when the store was
        written with another layout or seed, or for a budget too small; CorruptionError.
    """

    def __init__(
        self,
        config: TableConfig,
        options: TableOptions,
        *,
        slot_rates: Sequence[float] = (),
        link: VersionLink | None = None,
        settle: Callable[[], object] = _nothing_to_wait_for,
        versions: VersionSet | None = None,
    ) -> None:
        self.config, self.options = config, options
        #: (K) ascending keys to (K) bool: the rows that evaluation sees. None: all.
        self.shown: Callable[[np.ndarray], np.ndarray] | None = None
        self.compaction_wait_s = 0.0  # that make_room waited for merges, in all
        self.takes_passes = True
        self._refused_for: BaseException | None = None  # see refuse_passes
        self._settle = settle
        self.native: Any = None
        self._compactor: Compactor | None = None
        described = config.model_dump(mode="json")
        layout = {"seed": options.seed, **described}
        self.versions = versions or VersionSet(options, layout, link or VersionLink())
        try:
            last = self.versions.last
            fields = {
                **described,
                **options.of_native(),
                "slot_rates": list(slot_rates),
                "events": last.events,
                "registered": versions is None,
            }
            self.native = _open_native(fields, last.segments)
            self._counts = KeyCounts(self.native)
            counted = self.admission_counts()
            if counted is not None:
                self.native.set_admission_state(counted.tobytes())
            counts = self._counts if self.counts_keys else None
            self.parts = PassParts(self.native, self.versions, counts)
            if self.folder is not None and not self.read_only:
                self._compactor = Compactor(self.native, self.versions, options)
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def folder(self) -> Path | None:
        return self.options.store

    @property
    def read_only(self) -> bool:
        return self.options.read_only

    # ---- life of a pass

    @property
    def counts_keys(self) -> bool:
        """Whether training passes go through `count_keys`."""
        return self.config.admission.min_count > 1

    @property
    def max_pass_rows(self) -> int:
        """Most rows that a pass may have under hbm_budget_bytes."""
        return int(self.native.max_pass_rows)

    @property
    def pass_bytes_per_row(self) -> int:
        return int(self.native.pass_bytes_per_row)

    def set_counted(self, slots: Sequence[bool]) -> None:
        """Whether pushes to rows of slot 0, 1, ... count shows and clicks from now on; empty: all
        do. The others learn alone. Not while a program runs."""
        if self.native is not None:  # batches of a pass that failed may outlive the table
            self.native.set_counted([int(counted) for counted in slots])

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
            PassError when another training pass is staged; CorruptionError.
        """
        self.check_usable()
        if slots is None:
            slots = np.empty(0, np.uint16)
        staged = self.native.stage(
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

    def count_keys(self, keys: np.ndarray, counts: np.ndarray) -> int:
        """Counts the feasigns of a whole training pass, once, before it is staged.

        For tables with `admission.min_count` above 1: a feasign without a row gets one in the pass
        in which it has occurred that often, this pass included; before that it reads as zeros, and
        its gradients are dropped. `stage` asks what was counted here.

        Args:
            keys: (K) uint64, ascending. counts: (K) uint32, occurrences of each in the pass.

        Returns: what `commit` is given as `counted`, so that a version has the counts up to its own
            pass, however many passes were counted since.
        """
        return self._counts.count(keys, counts)

    def uncount_keys(self, counted: int) -> None:
        """Takes back the last `count_keys`, of a pass that is given up before it began."""
        self._counts.take_back(counted)

    def drop_staged(self, staged: StagedPass) -> None:
        self.native.drop_staged(staged.stamp)

    def make_room(self, staged: StagedPass) -> None:
        """Waits for compaction where segments are too many or take too much room, and says so; and
        for the commit in the background where the disk may not have room for that and this pass.

        Raises: OutOfSpaceError when the disk, or disk_budget_bytes, has no room to commit the pass;
        what went wrong in the background.
        """
        if self._compactor is not None and staged.train:
            self.compaction_wait_s += self._compactor.make_room()
            self._compactor.check_room(staged.rows, self._settle)

    def begin(self, staged: StagedPass) -> None:
        """Opens the staged pass, once there is room: operators read and write it from here on."""
        self.native.begin(staged.stamp)

    def end(self, pass_number: int) -> None:
        """Ends the open pass. A training pass is frozen until a commit, or `spill`, has taken it.
        With 16-bit rows the chance in rounding is a function of pass_number."""
        self.native.end(pass_number)

    def abandon(self, *, evaluation: bool = False) -> None:
        """Forgets the open pass; the store stays at its last commit, and this table takes no more
        training: open it again."""
        self.takes_passes = self.takes_passes and evaluation
        if not evaluation:
            self.parts.forget()
        if self.native.training:
            self.native.abandon()

    def refuse_passes(self, cause: BaseException | None = None) -> None:
        """Takes no more training, as after `abandon`: what is in memory is not what is stored.

        Args: cause: what `PassError` then tells.
        """
        self.takes_passes, self._refused_for = False, cause

    def check_usable(self) -> None:
        """Raises: PassError where the rows in memory are not those of the last commit."""
        if self._refused_for is not None:
            raise PassError(
                f"table '{self.name}': takes no more passes, for what went wrong before: "
                f"{self._refused_for}; reopen the table at its last commit"
            ) from self._refused_for
        if not self.takes_passes:
            raise PassError(
                f"table '{self.name}': a pass was abandoned; reopen the table at its last commit"
            )

    def spill(self) -> None:
        """As `TableSet.spill`."""
        self.check_usable()
        self.parts.spill()

    # ---- commits, of which `CommitQueue` says when

    def to_commit(
        self, fields: PassFields, after: Callable[[VersionRecord], None] | None
    ) -> Callable[[], int]:
        """The call that makes the pass that has ended now durable.

        Args:
            after: called with the version.
        """
        name_pass = self.parts.to_commit(fields)

        def commit() -> int:
            version = name_pass()
            self._committed(after)
            return version

        return commit

    def commit_kept(self, after: Callable[[VersionRecord], None] | None) -> int:
        """Names the passes that were kept; 0 where there is nothing to name."""
        version = self.parts.commit_kept()
        if version:
            self._committed(after)
        return version

    def _committed(self, after: Callable[[VersionRecord], None] | None) -> None:
        with self.versions.committing:
            head = self.versions.head
            if head is not None and after is not None:
                after(head)
            self.versions.prune()
        if self._compactor is not None:
            self._compactor.wake()

    @property
    def head(self) -> VersionRecord | None:
        """The newest committed version, or the one that a read-only table reads; None without."""
        return self.versions.head

    def load_dense(self) -> dict[str, np.ndarray]:
        """Dense state of the newest version; empty without one."""
        arrays = self.versions.read_dense()
        return {name: array for name, array in arrays.items() if not name.startswith(OWN)}

    def admission_counts(self) -> np.ndarray | None:
        """What the committed version has counted of feasigns without a row; None: it does not."""
        return self.versions.read_dense().get(ADMISSION) if self.counts_keys else None

    def journal(self) -> list[dict[str, Any]]:
        """The latest commits, oldest first (docs/formats/manifest.md); none without a folder."""
        return self.versions.journal()

    # ---- life of the table

    @property
    def events(self) -> list[dict[str, Any]]:
        """Life events so far, in order (docs/formats/manifest.md)."""
        return self.versions.events

    @property
    def day(self) -> int:
        """Of the training pass that was committed, or kept, last, in days since 1970-01-01; 0: no
        date."""
        kept = self.parts.kept
        return self.versions.day if kept is None else kept.day

    @property
    def pass_number(self) -> int:
        """Of the same pass; 0: none."""
        kept = self.parts.kept
        return self.versions.last.pass_number if kept is None else kept.pass_number

    def ends_day(self, day: int) -> bool:
        """Whether the day before ends when training goes on with this one."""
        return self.config.life.auto and 0 < self.parts.last_day < day

    def add_events(
        self, added: Sequence[Mapping[str, Any]], until: Callable[[], None] | None = None
    ) -> None:
        """Makes events happen to every row.

        Args:
            added: as `life.numbered` gives them. until: as of `TableSet.append_events`.
        """
        with self.versions.committing:
            self.versions.add_events(added, until)
            self.native.append_events(list(added))

    def settle_events(self) -> None:
        """Makes events durable that wait for the next commit."""
        with self.versions.committing:
            self.versions.settle()

    # ---- what a save for serving holds

    def rows_of_base(
        self, visit: Callable[[np.ndarray, np.ndarray], None], *, day: int | None = None
    ) -> SaveFilter:
        """Shows the rows of a base (PaddleBox's save mode 2) to visit: (n) uint64 feasigns and
        (n, words) float32 rows (docs/formats/row.md) at a time, in the order of keys.

        Args:
            day: of the save; default: `day`.

        Returns: the filter that chose them; give it to `TableSet.reset_delta` once they are saved.

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
        if self.parts.has_parts:
            raise PassError(f"table '{self.name}': a pass that was split is open")
        self.native.visit_chunks(_CHUNK_ROWS, visit, asdict(chosen))
        return chosen

    def lookup(
        self, feasigns: np.ndarray, chosen: Mapping[str, Any] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Committed rows of (n) uint64 feasigns in the order of keys: (n) bool, which have one
        (that a SaveFilter, as a dict, passes), and (n, words) float32.

        Raises: as `rows_of_base`.
        """
        found, rows = self.native.lookup(feasigns, chosen)
        return found.astype(bool), rows

    def _save_day(self, day: int | None) -> int:
        self.check_usable()
        self._settle()
        return self.day if day is None else day

    def open_segments(self, *, after: int) -> list[Any]:
        """The newest version's segments of a higher sequence, open: whatever a merge removes
        meanwhile, they can be read."""
        with self.versions.committing:
            return [
                core.SegmentFile(str(self.folder / "ssd" / segment["file"]), segment)
                for segment in self.versions.last.segments
                if self.folder is not None and segment["sequence"] > after
            ]

    # ---- compaction and room

    def compact(self, *, full: bool = False) -> None:
        """Merges what is due, or (full) until no two segments overlap.

        Raises: StoreError for a table that is read-only or has no folder; OutOfSpaceError.
        """
        self._settle()
        self.compactor.compact(full=full)

    def rewrite_old_formats(self) -> int:
        """Rewrites segments of earlier formats; returns how many there were."""
        return self.compactor.rewrite_old_formats()

    @property
    def compactor(self) -> Compactor:
        """Raises: StoreError for a table that is read-only or has no folder."""
        if self._compactor is None:
            raise StoreError(f"table '{self.name}' has no store of its own to compact")
        return self._compactor

    def free_bytes(self) -> int:
        """What the disk and disk_budget_bytes leave for new files of the store."""
        return self.compactor.budget.free_bytes()

    # ---- the whole table

    def digest(self) -> str:
        """Canonical digest of all (key, row) pairs: equal for equal content, however it came about.

        Raises: PassError while a pass is staged, open or being committed.
        """
        self.check_usable()
        self._settle()
        return str(self.native.digest())

    def read_all(self) -> tuple[np.ndarray, np.ndarray]:
        """All rows, in memory: (n) uint64 feasigns and (n, words) float32 rows
        (docs/formats/row.md)."""
        self.check_usable()
        self._settle()
        feasigns, rows = self.native.read_all()
        return feasigns, rows

    def counters(self) -> dict[str, int]:
        """Sums since the table was opened; sizes of the tiers as they are now."""
        return dict(self.native.counters())

    @property
    def row_bytes(self) -> int:
        return int(self.native.row_bytes)

    @property
    def layout(self) -> dict[str, Any]:
        """What the rows mean, as a version's record has it."""
        return dict(self.versions.layout)

    @property
    def row_layout(self) -> dict[str, int]:
        """Widths of a row's parts, and the fingerprint of rows in float32."""
        return dict(self.native.layout)

    def close(self) -> None:
        """Gives the store free. May be called twice."""
        if self._compactor is not None:
            self._compactor.close()
            self._compactor = None
        if self.native is not None:
            self.native.unregister()
            self.native = None
        self.versions.close()
