"""VersionSet: the committed versions of one table, of which the newest is its head."""

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
from paddlebox.store.manifest import NOTHING_COMMITTED, Manifest, VersionRecord
from paddlebox.store.options import TableOptions

log = logging.getLogger("paddlebox")

# Of the arrays of a version's dense state those that are the table's own, not the program's.
OWN = "paddlebox."
ADMISSION = OWN + "admission"


@dataclass(frozen=True)
class VersionLink:
    """What ties a table to the others of its `TableSet` (store/table_set.py)."""

    #: Of the first table: the versions of the others that its next version names.
    others: Callable[[], Mapping[str, int]] | None = None
    #: Of another: its versions that kept versions of the first one name.
    named: Callable[[], Collection[int]] | None = None
    #: Of another that is opened for training: the version to go back to; 0: an empty table.
    version: int | None = None


class VersionSet:
    """Without a folder there are no versions; only events and days are remembered.

    Args:
        layout: goes into each version: tools open the store with it, and whoever trains it on must
            agree on what of it gives the rows' bytes their meaning.
        options: read are folder, read_only, version, keep_versions and keep_daily.
        link: as of `Table`.

    Raises: StoreLockedError, ConfigError, CorruptionError, as `Table`.
    """

    def __init__(self, options: TableOptions, layout: Mapping[str, Any], link: VersionLink) -> None:
        self.folder = folder = options.store
        self.layout = dict(layout)
        self._options = options
        self.head: VersionRecord | None = None  # as committed or read by this table
        #: Of a new store: the version of others that its first one goes on from.
        self.before: VersionRecord | None = None
        self.committing = threading.RLock()  # one writer of versions at a time
        self._link = link
        self._events: list[dict[str, Any]] = []  # that no version has; all of them without a folder
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
            self.head = self._read(options.version) if options.read_only else self._take_up()
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

    def _take_up(self) -> VersionRecord | None:
        assert self.manifest is not None
        if self._link.version is not None:
            forgotten = self.manifest.rewind(self._link.version)
            if forgotten:
                log.info("%s: versions %s belong to no commit", self.folder, forgotten)
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
                f"{ {key: wanted[key] for key in differing} }: rows of one would be misread by the "
                "other; say what it was written with, in the config or by -o, or begin another "
                "folder, by --init-from with these rows"
            )

    # ---- what there is

    @property
    def last(self) -> VersionRecord:
        """The head, or a version without rows."""
        return self.head or self.before or VersionRecord(0, 0, [], self.layout, 0)

    @property
    def events(self) -> list[dict[str, Any]]:
        return [*(self.head.events if self.head is not None else []), *self._events]

    @property
    def day(self) -> int:
        return self.head.day if self.head is not None else self._day

    def read_dense(self) -> dict[str, np.ndarray]:
        """Of the head, the table's own arrays too; empty without one."""
        if self.head is None:
            return {}
        folder = Path(files.dense_folder(str(self.folder), self.head.dense_version))
        return read_dense(folder, self.head.dense)

    def journal(self) -> list[dict[str, Any]]:
        return self.manifest.journal() if self.manifest is not None else []

    def named_versions(self, table: str) -> set[int]:
        """Versions of another table of the group that kept versions of this one name."""
        if self.manifest is None:
            return set()
        kept = self.manifest.records()  # at one moment: the other table's merges ask for them, too
        return {record.tables[table] for record in kept if table in record.tables}

    # ---- what is added

    def commit(
        self, kind: str, *, dense: Mapping[str, np.ndarray] | None = None, **changes: Any
    ) -> VersionRecord:
        """Makes one more version, of what the last one had but for the changes, and with the events
        that have happened since.

        Args:
            dense: the whole dense state; None: it is that of the version before.

        Raises: OutOfSpaceError, StoreError: the head is untouched.
        """
        assert self.manifest is not None
        with self.committing:
            if self._until is not None:
                self._until()
            last, changes = self.last, {"events": self.events, **changes}
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

    def others(self) -> dict[str, int]:
        """What the next version names of the other tables."""
        if self._link.others is not None:
            return dict(self._link.others())
        return self.last.tables

    def add_events(
        self, added: Sequence[Mapping[str, Any]], until: Callable[[], None] | None = None
    ) -> None:
        """Events that happen now, durably; with `until` they are durable with the next version,
        which waits for it: where that raises, or the process dies before, they never happened."""
        if self._until is not None:
            self._until()
        self._events += [dict(event) for event in added]
        self._until = until
        if until is None:
            self.settle()

    def settle(self) -> None:
        """Makes the events durable that no version has yet."""
        if self._events and self.manifest is not None:
            self.commit("life", tables=self.others())
            self.prune()

    def pass_without_folder(self, day: int) -> None:
        """A pass has ended whose rows stay in memory."""
        self._day = day

    def prune(self) -> None:
        """Forgets versions, and their files, that are no longer to be kept."""
        if self.manifest is None:
            return
        with self.committing:
            if self._link.named is not None:
                self.manifest.prune(self._options.keep_versions, named=self._link.named())
            elif not files.is_of_group(str(self.folder)):  # else nobody says which are named
                self.manifest.prune(self._options.keep_versions, self._options.keep_daily)

    def close(self) -> None:
        if self.manifest is not None:
            self.manifest.close()
            self.manifest = None


def added_bytes(
    last: VersionRecord, kind: str, segments: Sequence[Mapping[str, Any]]
) -> dict[str, int]:
    """`bytes_written` of a version that these new segments make of the last one."""
    count = sum(segment["bytes"] for segment in segments)
    return {**last.bytes_written, kind: last.bytes_written.get(kind, 0) + count}


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
