"""The saves of a BoxWrapper: in local folders, or at URIs by way of a local folder, the spool."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from paddlebox.errors import ConfigError, StoreError
from paddlebox.saves import donefile
from paddlebox.saves.load import load_save, merge_saves
from paddlebox.saves.meta import BASE, BATCH, DELTA, check_name
from paddlebox.saves.reader import Save, open_save
from paddlebox.saves.remote import RemoteSaves
from paddlebox.saves.saver import Saver
from paddlebox.store.remote import shown
from paddlebox.store.table_set import TableSet


@dataclass(frozen=True)
class _Place:
    """Where a save is, or will be."""

    out: Path  # OUT, or the folder of the spool that stands for it
    name: str  # <day>/<name>
    remote: RemoteSaves | None  # of a URI


class _Found(StrEnum):
    """Where a save is that an earlier call wrote."""

    NOWHERE = "nowhere"
    IN_SPOOL = "in the spool"
    AT_URI = "at the URI"


class BoxSaves:
    """Writes and reads the saves of a table, with the arguments of `BoxWrapper`."""

    def __init__(self, table: TableSet, extra: Mapping[str, bytes] | None, spool: str) -> None:
        self._table, self._extra = table, extra
        self._spool = Path(os.path.abspath(spool)) if spool else None

    def check(self, path: str) -> None:
        """Raises: ValueError if path is not OUT/<day>/<name>; ConfigError for a URI without a
        spool."""
        self._place(path)

    def write(self, path: str, kind: str, write: Callable[[Saver, str], Save]) -> str:
        """Write a save of a kind with `write`, which gets the saver of OUT and the name. It is
        complete at path, which is returned absolute.

        If the copy to a URI fails, the save is in the spool, and the same call copies it, if no
        pass has ended since. A batch of the last pass that is at the URI already is not written
        again.
        """
        place = self._place(path)
        saver = self._saver(place)
        if place.remote is None:
            return str(write(saver, place.name).folder)
        if kind == DELTA:
            self._take_up(place)
        found = self._found(place, place.remote, kind, saver)
        if found is _Found.NOWHERE:
            write(saver, place.name)
        if found is not _Found.AT_URI:
            self._put(place, place.remote)
        return f"{place.remote.place}/{place.name}"

    def _found(self, place: _Place, remote: RemoteSaves, kind: str, saver: Saver) -> _Found:
        """Where this save, of the last pass, is already, because an earlier call failed.

        Raises: StoreError if there is another save of this name at the URI.
        """
        number = saver.pass_number  # of a commit for which all ranks wait

        def is_same(meta: Mapping[str, Any]) -> bool:
            same = (meta["kind"], meta["pass_number"]) == (kind, number)
            return same and saver.is_own(meta)

        def find() -> _Found:
            # `save_base` writes a batch first; if its base fails, the call is repeated.
            there = remote.meta(place.name) if kind == BATCH else None
            if there is not None and is_same(there):
                return _Found.AT_URI
            remote.check_free(place.name)
            begun = saver.is_done(kind, place.name) and is_same(
                open_save(place.out / place.name).meta
            )
            return _Found.IN_SPOOL if begun else _Found.NOWHERE

        return _Found(self._on_first("save exists", find))

    def _put(self, place: _Place, remote: RemoteSaves) -> None:
        """Copy a save, and what is missing of the newest chain, from the spool to its URI."""

        def put() -> None:
            remote.put_chain(place.out)
            remote.put(open_save(place.out / place.name))

        self._on_first("save is copied", put)
        self._clear(place)

    def _on_first(self, what: str, work: Callable[[], Any]) -> Any:
        """What `work` returns on the first rank, which alone runs it, as in JSON. If it fails, all
        ranks raise its error, as a StoreError on the others. what: name of the question."""
        world, found, failed = self._table.world, None, None
        if world.rank == 0:
            try:
                found = work()
            except Exception as error:
                failed = error
        found, why = world.first(what, [found, str(failed) if failed is not None else None])
        if failed is not None:
            raise failed
        if why is not None:
            raise StoreError(f"the first rank failed: {why}")
        return found

    def last(self, out: str) -> Save | None:
        """The save in out that the next delta will extend; None before the first base."""
        place = self._place(f"{out}/00000000/none")
        self._take_up(place)
        return self._saver(place).last()

    def open(self, path: str) -> Save:
        """The save at path, and its chain. A save at a URI is copied into the spool."""
        place = self._place(path)
        remote = place.remote

        def fetch() -> None:
            if remote is not None:
                remote.get(place.name, place.out)

        self._on_first("save is fetched", fetch)
        return open_save(place.out / place.name)

    def load(self, path: str) -> int:
        """Fill an empty table from the save at path. Returns: the number of rows."""
        rows = load_save(self.open(path), self._table)
        self._clear(self._place(path))
        return rows

    def merge(self, paths: Sequence[str], out_path: str) -> str:
        """Merge the saves at the paths into a base at out_path. Returns: out_path, absolute."""
        place = self._place(out_path)
        remote = place.remote
        try:
            sources = [self.open(path) for path in paths]

            def merge() -> None:
                if remote is not None:
                    remote.check_free(place.name)
                merge_saves(sources, place.out, place.name)

            self._on_first("saves are merged", merge)
            if remote is None:
                return str(place.out / place.name)
            self._put(place, remote)
            return f"{remote.place}/{place.name}"
        finally:
            for path in paths:
                self._clear(self._place(path))

    def _place(self, path: str) -> _Place:
        scheme, found, rest = path.partition("://")
        whole = Path(rest.partition("?")[0] if found else os.path.abspath(path))
        name = f"{whole.parent.name}/{whole.name}"
        check_name(name)
        if not found:
            return _Place(whole.parents[1], name, None)
        if "?" in rest:
            raise ConfigError(
                f"{shown(path)}: found options after '?', expected none: set the options of a file "
                "system in its environment variables or configuration files"
            )
        if self._spool is None:
            raise ConfigError(
                f"{shown(path)}: a save at a URI needs a local folder, in which it is written "
                "before it is copied: BoxWrapper(table, dataset, spool=FOLDER)"
            )
        out = f"{scheme}://{whole.parents[1]}"
        return _Place(self._spool / quote(shown(out), safe=""), name, RemoteSaves(out))

    def _saver(self, place: _Place) -> Saver:
        return Saver(self._table, place.out, extra=self._extra)

    def _take_up(self, place: _Place) -> None:
        """Copy what the spool does not have of the newest chain at a URI."""
        remote = place.remote
        if remote is None:
            return

        def take_up() -> None:
            known = {done for kind in (BASE, DELTA) for done in donefile.read(place.out, kind)}
            for done in remote.newest_chain():
                if done not in known:
                    donefile.append(place.out, remote.get(done.name, place.out).meta)

        self._on_first("chain is in the spool", take_up)

    def _clear(self, place: _Place) -> None:
        """Remove the saves from the spool that are at the URI and do not belong to the newest
        chain."""
        remote = place.remote
        if remote is None:
            return

        def clear() -> None:
            own = donefile.newest_chain(partial(donefile.read, place.out))
            chain = {done.name for done in own}
            there = remote.names()
            for folder in place.out.glob("*/*"):
                name = f"{folder.parent.name}/{folder.name}"
                if folder.name.startswith(".") or (name in there and name not in chain):
                    _remove(folder)

        self._table.world.wait("spool is read")
        self._on_first("spool is cleared", clear)


def _remove(folder: Path) -> None:
    """Remove a save. Its new name marks it as incomplete, in case the removal is interrupted."""
    doomed = folder
    if not folder.name.startswith("."):
        doomed = folder.with_name(f".{folder.name}.tmp")
        shutil.rmtree(doomed, ignore_errors=True)
        folder.rename(doomed)
    shutil.rmtree(doomed)
