"""TieredTable: the rows of one table in three tiers, its versions, and its compaction. Without a
folder everything stays in memory and nothing is committed.

Letters: K = keys of a pass.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.closing import Closing, on_error
from paddlebox.config import TableConfig
from paddlebox.config.check import validate
from paddlebox.config.table import CLICK_COEFF, NONCLK_COEFF, RULE_CONSTANTS
from paddlebox.errors import ConfigError, PassError, StoreError
from paddlebox.store import life
from paddlebox.store.committer import UnnamedPasses
from paddlebox.store.compactor import Compactor
from paddlebox.store.life import SaveFilter
from paddlebox.store.options import LEAST_MEM_BYTES, TableOptions
from paddlebox.store.record import VersionRecord
from paddlebox.store.version_store import ADMISSION, OWN, VersionLink, VersionStore

core = _native.core
_CHUNK_ROWS = 1 << 17  # handed to a visitor at a time


@dataclass(frozen=True)
class StagedPass:
    stamp: int  # identifies the pass; batches carry it
    rows: int
    row_of_key: np.ndarray  # (K) int32, -1 if the key has no row (evaluation)
    hits: Mapping[str, int]  # rows found in "hbm", "mem", "ssd", and created as "new"
    train: bool = True
    refused: int = 0  # keys that get no row yet: see TableSet.count_keys
    slots: np.ndarray | None = None  # (K) uint16, the sparse slot of each key; None: 0

    @property
    def slot_of_row(self) -> np.ndarray:
        """(rows) uint16, the sparse slot of each row."""
        found = np.zeros(self.rows, np.uint16)
        if self.slots is not None:
            has_row = self.row_of_key >= 0
            found[self.row_of_key[has_row]] = self.slots[has_row]
        return found

    @property
    def own(self) -> StagedPass:
        """The pass in the table of this rank's own range."""
        return self


def sorted_unique_keys(feasigns: np.ndarray) -> np.ndarray:
    """(K) uint64 keys, ascending, of feasigns (any shape, uint64 or int64 bits) without padding."""
    flat = np.ascontiguousarray(feasigns).reshape(-1)
    if flat.dtype not in (np.dtype(np.int64), np.dtype(np.uint64)):
        raise ValueError(f"feasigns have dtype {flat.dtype}, expected uint64 or int64")
    return np.asarray(core.sorted_unique_keys(flat.view(np.uint64)))


class KeyCounts:
    """Several passes may be counted before the first is committed; each commit gets the counts up
    to its own pass.

    Args:
        native: the core's table, which has the filter that counts.
        passes: number of the last training pass before this process.
    """

    def __init__(self, native: Any, passes: int) -> None:
        self._native, self._passes = native, passes
        self._mutex = threading.Lock()
        self._counted = 0  # calls of count
        self._before: dict[int, bytes] = {}  # count not committed yet -> the filter before it

    def count(self, keys: np.ndarray, counts: np.ndarray) -> int:
        """Returns the number of this count, for `after` and `take_back`."""
        with self._mutex:
            self._before[self._counted + 1] = self._native.admission_state()
            self._native.count_keys(
                np.ascontiguousarray(keys, np.uint64),
                np.ascontiguousarray(counts, np.uint32),
                self._passes + self._counted + 1,
            )
            self._counted += 1
            return self._counted

    @property
    def last(self) -> int:
        """The number of the last count; 0 before the first."""
        with self._mutex:
            return self._counted

    def take_back(self, counted: int) -> None:
        """Undoes a count. Raises: PassError if it is not the last one."""
        with self._mutex:
            if counted != self._counted:
                raise PassError(
                    f"count {counted} is not the last one, {self._counted}: counts are taken back "
                    "in the reverse order"
                )
            self._native.set_admission_state(self._before.pop(counted))
            self._counted -= 1

    def after(self, counted: int) -> np.ndarray:
        """The filter after a count. The states before it are dropped."""
        with self._mutex:
            following = counted + 1
            state = self._before.get(following)
            if state is None:
                state = self._native.admission_state()
            for done in [number for number in self._before if number < following]:
                del self._before[done]
            return np.frombuffer(state, np.uint8)


def _open_native(fields: Mapping[str, Any], segments: Sequence[Any]) -> Any:
    """Raises: ConfigError for settings that do not fit the store or the machine."""
    try:
        return core.Table(fields, segments)
    except ValueError as error:
        raise ConfigError(str(error)) from error


class TieredTable(Closing):
    """Opens a table, and the store in `TableOptions.folder` with it; the budgets are its own.

    Args:
        slot_rates: factors of rows' learning rates by sparse slot. Empty: 1 for all.
        link: for a table of a set; None: it stands alone.
        settle: waits for the set's commit in the background.
        versions: with read_only, open versions instead of those in the folder; operators then do
            not find the table.

    Raises: StoreLockedError if another process writes the store; ConfigError if the store was
        written with another layout or seed, or if a budget is too small; CorruptionError.
    """

    def __init__(
        self,
        config: TableConfig,
        options: TableOptions,
        *,
        slot_rates: Sequence[float] = (),
        link: VersionLink | None = None,
        settle: Callable[[], object] = lambda: None,
        versions: VersionStore | None = None,
    ) -> None:
        self.config, self.options = config, options
        #: Maps (K) ascending keys to (K) bool: whether evaluation sees their rows. None: all.
        self.shown: Callable[[np.ndarray], np.ndarray] | None = None
        self.compaction_wait_s = 0.0  # seconds that make_room has waited for merges, in all
        self.takes_passes = True
        self._refused_for: BaseException | None = None  # see refuse_passes
        self._settle = settle
        self._registered = versions is None
        self.native: Any = None
        self._compactor: Compactor | None = None
        described = config.model_dump(mode="json")
        layout = {"seed": options.seed, **described}
        self.versions = versions or VersionStore.of_table(options, layout, link or VersionLink())
        self.unnamed = UnnamedPasses()
        with on_error(self.close):
            last = self.versions.last
            fields = {
                **described,
                "nonclk_coeff": NONCLK_COEFF,
                "click_coeff": CLICK_COEFF,
                "embed": {**described["embed"], **RULE_CONSTANTS},
                "embedx": {**described["embedx"], **RULE_CONSTANTS},
                "expand": {**described["embedx"], **RULE_CONSTANTS},  # the options of embedx
                **options.of_native(),
                "slot_rates": list(slot_rates),
                "events": last.events,
                "registered": self._registered,
            }
            self.native = _open_native(fields, last.segments)
            self.counts = KeyCounts(self.native, last.pass_number)
            counted = self.admission_counts()
            if counted is not None:
                self.native.set_admission_state(counted.tobytes())
            if self.folder is not None and not self.read_only:
                self._compactor = Compactor(self.native, self.versions, options, settle)

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
        return self.has_counts or self.config.admission.probability < 1

    @property
    def has_counts(self) -> bool:
        """Whether a commit stores counts of feasigns without a row."""
        return self.config.admission.min_count > 1

    def set_counted(self, slots: Sequence[bool]) -> None:
        """Sets whether pushes to rows of slot 0, 1, ... count shows and clicks, or only train;
        empty: all count. Do not call it while a program runs."""
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
        """As `TableSet.stage`, with keys of this table."""
        self.check_usable()
        staged = self.native.stage(
            np.ascontiguousarray(keys, np.uint64),
            np.ascontiguousarray(() if slots is None else slots, np.uint16),
            train,
            day,
        )
        hits = {tier: int(staged[tier]) for tier in ("hbm", "mem", "ssd", "new")}
        row_of_key = staged["row_of_key"]
        if self.shown is not None and not train:
            row_of_key = np.where(self.shown(keys), row_of_key, np.int32(-1))
        return StagedPass(
            staged["stamp"], staged["rows"], row_of_key, hits, train, staged["refused"], slots
        )

    def count_keys(self, keys: np.ndarray, counts: np.ndarray) -> int:
        """As `TableSet.count_keys`, with keys of this table."""
        return self.counts.count(keys, counts)

    def make_room(self, staged: StagedPass) -> None:
        """As `Compactor.make_room`."""
        if self._compactor is not None and staged.train:
            self.compaction_wait_s += self._compactor.make_room(staged.rows)

    def abandon(self, *, evaluation: bool = False) -> None:
        self.takes_passes = self.takes_passes and evaluation
        if not evaluation:
            self.unnamed.take()  # no later commit may name them
        if self.native.training:
            self.native.abandon()

    def spill(self) -> None:
        self.check_usable()
        written = self.native.write_frozen()
        self.native.publish(written["segments"])
        self.unnamed.parts.append(written)

    def refuse_passes(self, cause: BaseException | None = None) -> None:
        """As after `abandon`, because the rows in memory differ from those of the store. cause:
        named by the `PassError`."""
        self.takes_passes, self._refused_for = False, cause

    def check_usable(self) -> None:
        """Raises: PassError if the rows in memory differ from the last commit."""
        if self._refused_for is not None:
            raise PassError(
                f"table '{self.name}': takes no more passes because of an earlier error: "
                f"{self._refused_for}; reopen the table at its last commit"
            ) from self._refused_for
        if not self.takes_passes:
            raise PassError(
                f"table '{self.name}': a pass was abandoned; reopen the table at its last commit"
            )

    @property
    def head(self) -> VersionRecord | None:
        return self.versions.head

    def load_dense(self) -> dict[str, np.ndarray]:
        return self.versions.read_dense(lambda name: not name.startswith(OWN))

    def admission_counts(self) -> np.ndarray | None:
        """The committed version's counts of feasigns without a row; None if it does not count."""
        if not self.has_counts:
            return None
        return self.versions.read_dense(ADMISSION.__eq__).get(ADMISSION)

    @property
    def events(self) -> list[dict[str, Any]]:
        """All life events so far, in order (docs/formats/manifest.md)."""
        return self.versions.events

    @property
    def day(self) -> int:
        kept = self.unnamed.fields
        return self.versions.day if kept is None else kept.day

    @property
    def last_day(self) -> int:
        """Day of the training pass that ended last, even if its commit still runs."""
        last = self.unnamed.last_day
        return self.versions.day if last is None else last

    @property
    def pass_number(self) -> int:
        kept = self.unnamed.fields
        return self.versions.last.pass_number if kept is None else kept.pass_number

    # ---- reading rows

    def save_filter(self, *, delta: bool = False, day: int | None = None) -> SaveFilter:
        """The rows of a base (PaddleBox's save mode 2), or of a delta (save mode 1): those that
        changed enough since a save. day: of the save; default: `day`. Waits for the commit in the
        background."""
        self._wait_usable()
        choose = life.delta_filter if delta else life.base_filter
        return choose(self.config.life, self.day if day is None else day)

    def visit(
        self, visit: Callable[[np.ndarray, np.ndarray], None], chosen: SaveFilter
    ) -> SaveFilter:
        """Calls visit with the rows that the filter chooses, in chunks, in the order of keys: (n)
        uint64 feasigns, (n, words) float32 rows (docs/formats/row.md). Returns the filter. Raises:
        PassError while a pass is open; without a folder also while one is staged."""
        self._wait_usable()
        if self.unnamed.parts:
            raise PassError(f"table '{self.name}': a pass that was split is open")
        self.native.visit_chunks(_CHUNK_ROWS, visit, asdict(chosen))
        return chosen

    def lookup(
        self, feasigns: np.ndarray, chosen: Mapping[str, Any] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The committed rows of (n) uint64 feasigns in the order of keys. chosen: a SaveFilter, as
        a dict; None: all rows.

        Returns: (n) bool, which feasigns have a row that the filter chooses, and (n, words)
            float32, in which only the rows of these feasigns are valid.

        Raises: PassError while a pass is open or being committed, for which it does not wait;
            without a folder also while one is staged; CorruptionError.
        """
        found, rows = self.native.lookup(feasigns, chosen)
        return found.astype(bool), rows

    # ---- the whole table

    @property
    def compactor(self) -> Compactor:
        """Raises: StoreError for a table that is read-only or has no folder."""
        if self._compactor is None:
            raise StoreError(f"table '{self.name}' has no store of its own to compact")
        return self._compactor

    def digest(self) -> str:
        """Canonical digest of all (key, row) pairs. Waits for the commit in the background. Raises:
        PassError while a pass is open, or has ended and was neither committed nor kept; without a
        folder also while one is staged."""
        self._wait_usable()
        return str(self.native.digest())

    def read_all(self) -> tuple[np.ndarray, np.ndarray]:
        """All: (n) uint64 feasigns and (n, words) float32 rows (docs/formats/row.md)."""
        self._wait_usable()
        feasigns, rows = self.native.read_all()
        return feasigns, rows

    def _wait_usable(self) -> None:
        self.check_usable()
        self._settle()

    def counters(self) -> dict[str, int]:
        return dict(self.native.counters())

    @property
    def row_bytes(self) -> int:
        return int(self.native.row_bytes)

    def close(self) -> None:
        if self._compactor is not None:
            self._compactor.close()
            self._compactor = None
        if self.native is not None:
            if self._registered:
                self.native.unregister()
            self.native = None
        self.versions.close()


def stored_config(folder: Path, record: VersionRecord) -> TableConfig:
    """The table that a record describes. Raises: ConfigError if this version of paddlebox cannot
    read the layout."""
    layout = {name: value for name, value in record.layout.items() if name != "seed"}
    return validate(TableConfig, layout, f"{folder}: version {record.version}: layout")


def stored_table(
    folder: Path, record: VersionRecord, name: str = "", **settings: Any
) -> TieredTable:
    """Opens the table that a record describes. name: default: as recorded; tables of one process
    need different names. settings: of `TableOptions`. Raises: as `TieredTable` and
    `stored_config`."""
    config = stored_config(folder, record)
    if name:
        config = config.model_copy(update={"name": name})
    seed = int(record.layout["seed"])
    options = TableOptions(folder=folder, seed=seed, mem_budget_bytes=LEAST_MEM_BYTES, **settings)
    return TieredTable(config, options)
