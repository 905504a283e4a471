"""Retention: which versions of a store stay. It drops the others, and the files that only they
name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from paddlebox.errors import StoreError
from paddlebox.store import files
from paddlebox.store.life import without_keys
from paddlebox.store.locks import held_leases
from paddlebox.store.record import VersionRecord, only_in, unreferenced

if TYPE_CHECKING:
    from paddlebox.store.options import TableOptions
    from paddlebox.store.version_store import VersionStore


class Retention:
    """The versions of a store that a writer opened. Methods raise as those of `VersionStore`."""

    def __init__(self, store: VersionStore) -> None:
        self._store = store
        #: For the store of a table: how many versions stay.
        self.options: TableOptions | None = None
        #: For a further table of a set: its versions that kept versions of the first table name.
        self.named: Callable[[], Collection[int]] | None = None

    def drop_old(self) -> None:
        """Drops versions that the table need not keep."""
        folder, options = self._store.folder, self.options
        if options is None or not folder:
            return
        with self._store.committing:
            if self.named is not None:
                self.prune(options.keep_versions, named=self.named())
            elif not files.is_of_set(folder):  # in a set, the first table decides
                self.prune(options.keep_versions, options.keep_daily)

    def prune(self, keep: int = 2, keep_daily: int = 0, named: Collection[int] = ()) -> list[int]:
        """Drops old versions; returns them. It keeps the newest version of each of the newest
        `keep` passes and imports (a compaction makes another version of the same) and of the newest
        `keep_daily` days, versions that have a name or a reader's lease, and `named`."""
        if keep < 1:
            raise ValueError(f"prune must keep at least 1 version, found keep={keep}")
        with self._store.writing():
            leases = held_leases(self._store.folder, remove_stale=True)
            if any(lease.version is None for lease in leases):
                return []  # a reader is choosing its version: try after the next commit
            pinned = {lease.version for lease in leases}
            records = self._store.records()
            of_pass: list[int] = []  # the newest version of each pass
            number = None
            for record in records:
                # A pass may have lost its own version, and still have versions of its merges.
                if record.kind in ("pass", "import") or record.pass_number != number:
                    of_pass.append(record.version)
                of_pass[-1], number = record.version, record.pass_number
            of_day = {record.day: record.version for record in records if record.day > 0}
            daily = [of_day[day] for day in sorted(of_day)[-keep_daily:]] if keep_daily else []
            with_name = files.checkpoints(self._store.folder).values()
            chosen = {*of_pass[-keep:], *daily, *with_name, *pinned, *named}
            return self._drop([r for r in records if r.version not in chosen], records)

    def rewind(self, version: int) -> list[int]:
        """Makes `version` the newest again and drops the later ones, except those that only a merge
        made, with the same rows. 0 drops all. Returns the dropped versions. Raises: StoreError if
        `version` is not kept, or a reader holds a lease on one to drop."""
        with self._store.writing():
            records = self._store.records()
            chosen = self._store.version(version) if version > 0 else None
            last = version
            for record in records:
                if chosen is not None and record.version > version:
                    same = record.dense_version == chosen.dense_version  # no pass came between
                    same = same and without_keys(record.events) == without_keys(chosen.events)
                    last = record.version if same else last
            return self._drop_after(last, records)

    def go_back(self, version: int) -> list[int]:
        """Makes a kept version the newest again and drops all later ones, which it returns; new
        ones use their numbers again. Raises: StoreError if the version is not kept, or a later one
        has a name or is being read."""
        folder = self._store.folder
        with self._store.writing():
            self._store.version(version)
            for name, later in files.checkpoints(folder).items():
                if later > version:
                    raise StoreError(
                        f"{folder}: version {later}, after version {version}, has the name "
                        f"{name!r} and would be lost: `paddlebox store unname` it first, or go "
                        "back in a copy"
                    )
            return self._drop_after(version, self._store.records())

    def remove_unreferenced(self) -> list[str]:
        """Removes data, MANIFEST and temporary files that no kept version names; returns their
        paths inside the store. Call it before files are written: segments that wait for their
        commit are not named either."""
        folder = self._store.folder
        with self._store.writing(), files.store_errors(folder, "remove unreferenced files"):
            names = unreferenced(folder, self._store.records())
            self._remove(names)
            return names

    def _drop_after(self, version: int, records: list[VersionRecord]) -> list[int]:
        """Drops the versions after `version`. No reader may hold a lease on them."""
        folder = self._store.folder
        dropped = [record for record in records if record.version > version]
        numbers = {record.version for record in dropped}
        for lease in held_leases(folder, remove_stale=True) if dropped else ():
            if lease.version is None or lease.version in numbers:
                which = lease.version or f"{min(numbers)} or a later one"
                raise StoreError(
                    f"{folder}: version {which} must be dropped, but process {lease.pid} "
                    "reads it: stop it, or try again when it has ended"
                )
        return self._drop(dropped, records)

    def _drop(self, dropped: list[VersionRecord], records: list[VersionRecord]) -> list[int]:
        """records: all versions."""
        if not dropped:
            return []
        gone = [record.version for record in dropped]
        kept = [record for record in records if record.version not in gone]
        self._store.forget(gone, kept)
        with files.store_errors(self._store.folder, "drop versions"):
            manifests = [os.path.basename(files.manifest_path("", number)) for number in gone]
            self._remove([*manifests, *only_in(dropped, kept)])
        return gone

    def _remove(self, names: Iterable[str]) -> None:
        """Removes files, given as paths inside the store."""
        folder = self._store.folder
        manifests = {name for name in names if os.sep not in name}
        # MANIFEST files first, durably: none may name a segment that is gone.
        for some in (manifests, set(names) - manifests):
            for name in some:
                with contextlib.suppress(FileNotFoundError):
                    files.unlink_inside(folder, name)
            if some is manifests:
                files.sync_folder(folder)
        files.remove_empty_folders(os.path.join(folder, "dense"))
