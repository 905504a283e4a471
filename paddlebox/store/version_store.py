"""VersionStore: the committed versions of a table, and their files (docs/formats/manifest.md)."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paddlebox.closing import Closing, on_error
from paddlebox.errors import ConfigError, CorruptionError, StoreError
from paddlebox.store import files, life
from paddlebox.store.files import crc32c, read_dense, write_dense
from paddlebox.store.locks import Lease, StoreLock
from paddlebox.store.manifest_db import (
    HEAD,
    REBUILD,
    ManifestDb,
    Values,
    check_not_open,
    head_payload,
    journal_entry,
    journal_key,
    parse_head,
    version_key,
)
from paddlebox.store.record import VersionRecord, frame, unframe, with_stamps
from paddlebox.store.retention import Retention

if TYPE_CHECKING:  # the options import Paddle, which tools that only read versions need not
    from paddlebox.store.options import TableOptions

log = logging.getLogger("paddlebox")

_JOURNAL_LENGTH = 4096  # commits

NOTHING_COMMITTED = "no version has been committed yet, expected one: train until a pass has ended"
# Prefix of arrays in a version's dense state that belong to the table, not to the program.
OWN = "paddlebox."
ADMISSION = OWN + "admission"
HISTORY = OWN + "history."  # then the name of an array of data/history.py


@dataclass(frozen=True)
class VersionLink:
    """The link between a table and the others of its `TableSet`."""

    #: For the first table: the versions of the others that its next version names.
    others: Callable[[], Mapping[str, int]] | None = None
    #: For another table: its versions that are named by kept versions of the first table.
    named: Callable[[], Collection[int]] | None = None
    #: For another table that is trained: the version to go back to; 0: an empty table.
    version: int | None = None


class VersionStore(Closing):
    """The versions of one writer or of a reader. Thread safe; not to be used after a fork. Without
    a folder there are none: the store holds events and days in memory. Every method raises
    StoreError if the store is closed or was opened before a fork, or if LMDB or the system reports
    an error, and CorruptionError if bytes differ from those that were written."""

    def __init__(self, folder: str = "", lock: StoreLock | None = None) -> None:
        """Private: use open_writer, open_reader or of_table."""
        self.folder = folder  # "": in memory
        self.head: VersionRecord | None = None  # at the opening; then as appended or chosen here
        #: For a new store that continues others: the version that its first version follows.
        self.before: VersionRecord | None = None
        self.layout: dict[str, Any] = {}  # stored in each version
        self.committing = threading.RLock()  # one writer of versions at a time
        self.retention = Retention(self)
        self._link = VersionLink()
        self._events: list[dict[str, Any]] = []  # not in a version yet
        self._until: Callable[[], None] | None = None  # see add_events
        self._day = 0
        self._lock = lock
        self._lease: Lease | None = None
        self._opened = ManifestDb(folder, writable=lock is not None) if folder else None

    @property
    def _db(self) -> ManifestDb:
        if self._opened is None:
            raise StoreError(f"{self.folder or 'a store in memory'}: has no versions here")
        return self._opened

    # ---- opening

    @classmethod
    def open_writer(cls, folder: str | os.PathLike[str]) -> VersionStore:
        """Opens the store, or creates it, as its only writer. Raises: StoreLockedError with the pid
        of another writer; CorruptionError if the newest version is damaged, with the next step."""
        folder = os.fspath(folder)
        check_not_open(folder)
        files.make_folder(folder)
        lock = StoreLock(os.path.join(folder, "LOCK"))
        with on_error(lock.release):
            for name in ("ssd", "dense", "manifest", "leases"):
                if os.path.islink(path := os.path.join(folder, name)):
                    raise StoreError(f"{path}: expected a folder, found a link: mount a disk there")
                files.make_folder(path)
            try:
                store = cls(folder, lock)
            except CorruptionError:
                # The power failed while the store was created: nothing was ever committed.
                if files.manifest_versions(folder) or os.listdir(os.path.join(folder, "ssd")):
                    raise
                os.unlink(os.path.join(folder, "manifest", "data.mdb"))
                store = cls(folder, lock)
        with on_error(store.close):
            store.head = store.newest()
            if store.head is None:
                store._db.put([(HEAD, head_payload(0, {}))])
            with files.store_errors(folder, "open"):
                files.sync_folder(store._db.path)
        return store

    @classmethod
    def open_reader(cls, folder: str | os.PathLike[str]) -> VersionStore:
        """Opens the store for reading, also while a writer has it open; changes no byte. Raises:
        StoreError if there is none; CorruptionError, as `open_writer`."""
        folder = os.fspath(folder)
        data = os.path.join(folder, "manifest", "data.mdb")
        if not os.path.isfile(data) or os.path.getsize(data) == 0:
            if files.manifest_versions(folder):
                raise CorruptionError(f"{data}: is missing or empty" + REBUILD)
            raise StoreError(f"{folder}: no store here ({data} is missing)")
        store = cls(folder)
        with on_error(store.close):
            store.head = store.newest()
        return store

    @classmethod
    def of_table(
        cls, options: TableOptions, layout: Mapping[str, Any], link: VersionLink
    ) -> VersionStore:
        """Opens the store of a table; its head is then the version to start from. layout: stored in
        each version. Tools open the store with it; training continues only with one in which rows
        have the same meaning. Raises: as `open_writer` and `open_reader`; ConfigError for another
        layout; StoreError if a reader finds no version."""
        if options.store is None:
            store = cls()
        else:
            store = (cls.open_reader if options.read_only else cls.open_writer)(options.store)
        store.layout, store._link = dict(layout), link
        store.retention.options, store.retention.named = options, link.named
        with on_error(store.close):
            if options.store is not None:
                store._choose(options)
        return store

    def _choose(self, options: TableOptions) -> None:
        """Sets the head: the version that the options or the set of tables ask for, else the newest
        one."""
        if options.read_only:
            self.head = self.pin(options.version)
            if self.head is None:
                raise StoreError(f"{self.folder}: {NOTHING_COMMITTED}")
        else:
            if self._link.version is not None:
                dropped = self.retention.rewind(self._link.version)
                if dropped:
                    log.info("%s: versions %s belong to no commit", self.folder, dropped)
            self.retention.remove_unreferenced()
            self.head = self.newest()
        if self.head is None:
            return
        stored, wanted = _meaning(self.head.layout), _meaning(self.layout)
        differing = sorted(key for key in stored if stored[key] != wanted[key])
        if differing:
            raise ConfigError(
                f"{self.folder}: version {self.head.version} was written with "
                f"{ {key: stored[key] for key in differing} }, the config says "
                f"{ {key: wanted[key] for key in differing} }: the rows would be misread; use the "
                "values of the store, in the config or by -o, or start a new folder with these "
                "rows, by --init-from"
            )

    # ---- reading

    def pin(self, version: int | None = None) -> VersionRecord | None:
        """Keeps a version (None: the newest) and its files until this reader is closed. None in a
        new store. Raises: StoreError if it is not kept, or no lease can be taken."""
        self._lease = self._lease or Lease(self.folder)
        while True:
            record = self.newest() if version is None else self.version(version)
            if record is None:
                return None
            self._lease.pin(record.version)
            # If the version is still kept now, it stays: the writer reads leases before it drops
            # a version.
            if record.version in self.numbers():
                return record

    def journal(self) -> list[dict[str, Any]]:
        """The latest commits, oldest first, as `journal_entry` describes them."""
        if not self.folder:
            return []
        return self._db.read(
            lambda values: [json.loads(values.payload(k)) for k in values.keys(b"journal/")]
        )

    def newest(self) -> VersionRecord | None:
        """The newest version, checked against its MANIFEST file; None in a new store."""

        def read(values: Values) -> VersionRecord | None:
            version, _ = self._named(values)
            return self._record(values, version) if version > 0 else None

        return self._db.read(read)

    def numbers(self) -> list[int]:
        """The kept versions, oldest first."""
        return self._db.read(self._kept)

    def version(self, number: int) -> VersionRecord:
        """A kept version, checked against its MANIFEST file; StoreError if it is not kept."""

        def read(values: Values) -> VersionRecord:
            if not values.has(version_key(number)):
                raise StoreError(
                    f"{self.folder}: version {number} is not kept; kept are {self._kept(values)}"
                )
            return self._record(values, number)

        return self._db.read(read)

    def records(self) -> list[VersionRecord]:
        """All kept versions of one moment, oldest first, each checked as `version` does."""
        return self._db.read(lambda values: [self._record(values, n) for n in self._kept(values)])

    def named_versions(self, table: str) -> set[int]:
        """The versions of another table of the set that kept versions of this one name."""
        # Of one moment, because merges of the other table call this too.
        kept = self.records() if self.folder else []
        return {record.tables[table] for record in kept if table in record.tables}

    @property
    def last(self) -> VersionRecord:
        """The head; without one, the version that the first commit will follow."""
        return self.head or self.before or VersionRecord(0, 0, [], self.layout, 0)

    @property
    def events(self) -> list[dict[str, Any]]:
        return [*(self.head.events if self.head is not None else []), *self._events]

    @property
    def day(self) -> int:
        return self.head.day if self.head is not None else self._day

    def read_dense(self, wanted: Callable[[str], bool]) -> dict[str, np.ndarray]:
        """Arrays of the head's dense state, if there is one. The table's own ones begin with
        OWN."""
        if self.head is None:
            return {}
        folder = Path(files.dense_folder(self.folder, self.head.dense_version))
        return read_dense(folder, self.head.dense, wanted)

    # ---- writing

    def record(
        self,
        kind: str,
        *,
        parts: Sequence[Mapping[str, Any]] | None = None,
        dense: Mapping[str, np.ndarray] | None = None,
        **changes: Any,
    ) -> VersionRecord:
        """Makes the next version durable: the newest with `changes` and the events added since it.
        parts: as the core's `write_frozen` returned them: the version also has their rows. dense:
        the whole dense state; None: as in the newest version. changes: fields of the record;
        `events` are all events, with those added since. Raises: OutOfSpaceError, StoreError: the
        head is then unchanged."""
        with self.committing:
            if self._until is not None:
                self._until()
            # The newest settings, for tools that open the store without a config.
            last, changes = self.last, {"events": self.events, "layout": self.layout, **changes}
            changes["events"] = life.folded(changes["events"])
            if parts is not None:
                written = with_stamps(segment for part in parts for segment in part["segments"])
                changes |= {
                    "segments": [*last.segments, *written],
                    "live_rows": last.live_rows + sum(part["new_rows"] for part in parts),
                    "bytes_written": last.bytes_with(kind, written),
                    "digest": None,
                    "tables": self.others(),
                }
            if dense is not None:
                folder = Path(files.dense_folder(self.folder, last.version + 1))
                changes |= {
                    "dense": write_dense(folder, dense),
                    "dense_version": last.version + 1,
                }
            record = last.following(kind, **changes)
            self.append(record)
            self._events, self._until = [], None
        return record

    def append(self, record: VersionRecord) -> None:
        """Adds the newest version, durably. The files of its record are durable already. Raises:
        StoreError if it does not follow the newest one, or a file is missing; OutOfSpaceError: the
        last commit stands."""
        with self.writing():
            head = self.newest()
            # If a store continues other stores, its first version follows their last version.
            parent = head.version if head is not None else record.parent
            if record.parent != parent or record.version != parent + 1:
                raise StoreError(
                    f"{self.folder}: commit of version {record.version} after {record.parent}, "
                    f"expected {parent + 1} after {parent}"
                )
            missing = record.first_missing(self.folder)
            if missing is not None:
                raise StoreError(f"{self.folder}: version {record.version} names {missing}")
            payload = record.to_payload()
            files.write_durably(files.manifest_path(self.folder, record.version), frame(payload))
            _, crcs = self._db.read(self._named)
            kept = {**crcs, record.version: crc32c(payload)}
            # If this fails, the MANIFEST file stays: it is unknown whether the transaction reached
            # the disk, and an unreferenced file does no harm.
            self._db.put(
                [
                    (version_key(record.version), payload),
                    (journal_key(record.version), journal_entry(record, head)),
                    (journal_key(record.version - _JOURNAL_LENGTH), None),
                    (HEAD, head_payload(record.version, kept)),
                ]
            )
            self.head = record

    def forget(self, gone: Collection[int], kept: Sequence[VersionRecord]) -> None:
        """Removes the names of versions, durably. kept: all others, oldest first."""
        _, crcs = self._db.read(self._named)
        newest = kept[-1].version if kept else 0
        self._db.put(
            [
                *((version_key(number), None) for number in gone),
                *((journal_key(number), None) for number in range(newest + 1, max(gone) + 1)),
                (HEAD, head_payload(newest, {n: crc for n, crc in crcs.items() if n not in gone})),
            ]
        )
        self.head = kept[-1] if kept else None

    def others(self) -> dict[str, int]:
        """The versions of the other tables that the next version names."""
        if self._link.others is not None:
            return dict(self._link.others())
        return self.last.tables

    def add_events(
        self, added: Sequence[Mapping[str, Any]], until: Callable[[], None] | None = None
    ) -> None:
        """Adds events, durably; with `until`, only with the next version, whose commit first calls
        it. If that raises, or the process dies before, the events never happened."""
        if self._until is not None:
            self._until()
        self._events += [dict(event) for event in added]
        self._until = until
        if until is None:
            self.settle()

    def settle(self) -> None:
        """Makes events durable that are not in a version yet."""
        with self.committing:
            if self._events and self.folder:
                self.record("life", tables=self.others())
                self.retention.drop_old()

    def pass_without_folder(self, day: int, events: Sequence[Mapping[str, Any]]) -> None:
        """Notes the day and the events of a pass whose rows stay in memory."""
        self._day = day
        self._events = life.folded([*self._events, *events])

    def close(self) -> None:
        """Lets the next writer in. May be called twice."""
        if self._opened is not None:
            self._opened.close()
        if self._lock is not None:
            self._lock.release()
        if self._lease is not None:
            self._lease.release()

    # ---- implementation

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Lets one thread at a time change the manifest. Raises: StoreError for a reader."""
        with self._db.mutex:
            self._db.check_usable()
            if self._lock is None:
                raise StoreError(f"{self.folder}: opened for reading; open it with open_writer")
            yield

    def _named(self, values: Values) -> tuple[int, dict[int, int]]:
        """The newest version, and the CRC32C of the record of each kept version."""
        # A store gets its head before its first MANIFEST file, so a file without a head is damage.
        if not values.has(HEAD) and not files.manifest_versions(self.folder):
            return 0, {}
        return parse_head(values.payload(HEAD), f"{self._db.path}: value of 'head'")

    def _record(self, values: Values, version: int) -> VersionRecord:
        key = version_key(version)
        payload = values.payload(key)
        _, kept = self._named(values)
        if kept.get(version) != crc32c(payload):
            raise CorruptionError(
                f"{self._db.path}: value of {key.decode()!r}: is not the one that 'head' names"
            )
        path = files.manifest_path(self.folder, version)
        try:
            same = unframe(files.read(path), path) == payload
        except FileNotFoundError:
            raise CorruptionError(f"{path}: is missing") from None
        if not same:
            raise CorruptionError(f"{path}: differs from the record in {self._db.path}")
        return VersionRecord.from_payload(payload, path)

    def _kept(self, values: Values) -> list[int]:
        found = [int(key.partition(b"/")[2]) for key in values.keys(b"version/")]
        _, kept = self._named(values)
        if sorted(kept) != found:
            raise CorruptionError(
                f"{self._db.path}: holds the versions {found}, 'head' names {sorted(kept)}"
            )
        return found


def _meaning(layout: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a row's bytes depend on. Rates and thresholds may change."""
    return {
        **{name: layout[name] for name in ("seed", "embedx_dim", "row_precision", "expand_dim")},
        **{f"{part}.rule": layout[part]["rule"] for part in ("embed", "embedx")},
        "counts": list(layout["counts"]),
    }
