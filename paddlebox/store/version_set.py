"""VersionSet: the committed versions of one table; the newest is its head."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox.errors import ConfigError, StoreError
from paddlebox.store import files
from paddlebox.store.dense import read_dense, write_dense
from paddlebox.store.life import DECAY, SHRINK
from paddlebox.store.manifest import NOTHING_COMMITTED, Manifest, VersionRecord
from paddlebox.store.options import TableOptions
from paddlebox.store.record import newly_written

log = logging.getLogger("paddlebox")

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


class VersionSet:
    """Without a folder there are no versions; only events and days are kept, in memory.

    Args:
        layout: stored in each version. Tools open the store with it, and training can continue
            only with a layout in which rows have the same meaning.
        options: it uses folder, read_only, version, keep_versions and keep_daily.
        link: the set of the table; `VersionLink()`: the table stands alone.

    Raises: StoreLockedError, ConfigError, CorruptionError, as `Table`.
    """

    def __init__(self, options: TableOptions, layout: Mapping[str, Any], link: VersionLink) -> None:
        self.folder = folder = options.store
        self.layout = dict(layout)
        self._options = options
        self.head: VersionRecord | None = None  # as committed or read by this table
        #: For a new store that continues others: the version that its first version follows.
        self.before: VersionRecord | None = None
        self.committing = threading.RLock()  # one writer of versions at a time
        self._link = link
        self._events: list[dict[str, Any]] = []  # not in a version yet
        self._until: Callable[[], None] | None = None  # see add_events
        self._day = 0
        self.manifest: Manifest | None = None
        if folder is None:
            return
        if options.read_only:
            self.manifest = Manifest.open_reader(folder)
        else:
            self.manifest = Manifest.open_writer(folder)
        try:
            self.head = self._read(options.version) if options.read_only else self._resume()
            self._check_layout()
        except BaseException:
            self.close()
            raise

    # ---- opening

    def _read(self, version: int | None) -> VersionRecord:
        assert self.manifest is not None
        head = self.manifest.pin(version)
        if head is None:
            raise StoreError(f"{self.folder}: {NOTHING_COMMITTED}")
        return head

    def _resume(self) -> VersionRecord | None:
        assert self.manifest is not None
        if self._link.version is not None:
            dropped = self.manifest.rewind(self._link.version)
            if dropped:
                log.info("%s: versions %s belong to no commit", self.folder, dropped)
        self.manifest.remove_unreferenced()
        return self.manifest.head()

    def _check_layout(self) -> None:
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

    @property
    def dated(self) -> bool:
        """Whether rows decay or expire: passes have dates, or the caller ended a day."""
        return self.day > 0 or any(event["kind"] in (DECAY, SHRINK) for event in self.events)

    def read_dense(self, wanted: Callable[[str], bool]) -> dict[str, np.ndarray]:
        """Arrays of the dense state of the head; empty without a head.

        Args:
            wanted: whether to read the array of a name. The table's own ones begin with OWN.
        """
        if self.head is None:
            return {}
        folder = Path(files.dense_folder(str(self.folder), self.head.dense_version))
        return read_dense(folder, self.head.dense, wanted)

    def journal(self) -> list[dict[str, Any]]:
        return self.manifest.journal() if self.manifest is not None else []

    def named_versions(self, table: str) -> set[int]:
        """The versions of another table of the set that are named by kept versions of this one."""
        if self.manifest is None:
            return set()
        kept = self.manifest.records()  # of one moment: merges of the other table call this too
        return {record.tables[table] for record in kept if table in record.tables}

    # ---- writing

    def commit(
        self, kind: str, *, dense: Mapping[str, np.ndarray] | None = None, **changes: Any
    ) -> VersionRecord:
        """Commits the next version: the newest one with `changes`, and the events added since it.

        Args:
            dense: the whole dense state; None: as in the newest version.
            changes: fields of the record with new values. `events` are all events, including those
                added since the newest version.

        Raises: OutOfSpaceError, StoreError. The head is then unchanged.
        """
        assert self.manifest is not None
        with self.committing:
            if self._until is not None:
                self._until()
            # The newest settings, for tools that open the store without a config.
            last, changes = self.last, {"events": self.events, "layout": self.layout, **changes}
            if dense is not None:
                folder = Path(files.dense_folder(str(self.folder), last.version + 1))
                changes |= {
                    "dense": write_dense(folder, dense),
                    "dense_version": last.version + 1,
                }
            record = last.following(kind, **changes)
            self.manifest.commit(record)
            self.head = record
            self._events, self._until = [], None
        return record

    def commit_rows(
        self, kind: str, parts: Sequence[Mapping[str, Any]], **changes: Any
    ) -> VersionRecord:
        """As `commit`. The version has the rows of the last version and those of these parts.

        Args:
            parts: as the core's `write_frozen` returned them.
        """
        with self.committing:
            last = self.last
            written = newly_written(segment for part in parts for segment in part["segments"])
            return self.commit(
                kind,
                segments=[*last.segments, *written],
                live_rows=last.live_rows + sum(part["new_rows"] for part in parts),
                bytes_written=added_bytes(last, kind, written),
                digest=None,
                tables=self.others(),
                **changes,
            )

    def others(self) -> dict[str, int]:
        """The versions of the other tables that the next version names."""
        if self._link.others is not None:
            return dict(self._link.others())
        return self.last.tables

    def add_events(
        self, added: Sequence[Mapping[str, Any]], until: Callable[[], None] | None = None
    ) -> None:
        """Adds events, durably. With `until`, they become durable with the next version, whose
        commit first calls `until`. If that raises, or the process dies before, the events never
        happened."""
        if self._until is not None:
            self._until()
        self._events += [dict(event) for event in added]
        self._until = until
        if until is None:
            self.settle()

    def settle(self) -> None:
        """Makes events durable that are not in a version yet."""
        with self.committing:
            if self._events and self.manifest is not None:
                self.commit("life", tables=self.others())
                self.prune()

    def pass_without_folder(self, day: int, events: Sequence[Mapping[str, Any]]) -> None:
        """Notes the day and the events of a pass whose rows stay in memory."""
        self._day = day
        self._events += [dict(event) for event in events]

    def prune(self) -> None:
        """Drops versions that need not be kept, with their files."""
        if self.manifest is None:
            return
        with self.committing:
            if self._link.named is not None:
                self.manifest.prune(self._options.keep_versions, named=self._link.named())
            elif not files.is_of_set(str(self.folder)):  # in a set, the first table decides
                self.manifest.prune(self._options.keep_versions, self._options.keep_daily)

    def close(self) -> None:
        if self.manifest is not None:
            self.manifest.close()
            self.manifest = None


def added_bytes(
    last: VersionRecord, kind: str, segments: Sequence[Mapping[str, Any]]
) -> dict[str, int]:
    """`bytes_written` of the version that adds these segments to the last one."""
    count = sum(segment["bytes"] for segment in segments)
    return {**last.bytes_written, kind: last.bytes_written.get(kind, 0) + count}


def _meaning(layout: Mapping[str, Any]) -> dict[str, Any]:
    """The settings on which the meaning of a row's bytes depends. Rates and thresholds may
    change."""
    return {
        **{name: layout[name] for name in ("seed", "embedx_dim", "row_precision", "expand_dim")},
        **{f"{part}.rule": layout[part]["rule"] for part in ("embed", "embedx")},
        "counts": list(layout["counts"]),
    }
