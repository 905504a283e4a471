"""The saves of a BoxWrapper: in local folders, or at URIs by way of a local folder, the spool."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from paddlebox.errors import ConfigError
from paddlebox.saves import donefile
from paddlebox.saves.load import load_save
from paddlebox.saves.merge import merge_saves
from paddlebox.saves.meta import BASE, DELTA
from paddlebox.saves.reader import Save, chain_of, open_save
from paddlebox.saves.remote import RemoteSaves
from paddlebox.saves.saver import Saver
from paddlebox.store.table_set import TableSet


@dataclass(frozen=True)
class _Place:
    """Where a save is, or will be."""

    out: Path  # OUT, or the folder of the spool that stands for it
    name: str  # <day>/<name>
    remote: RemoteSaves | None  # of a URI


class BoxSaves:
    """Writes and reads the saves of a table.

    Args:
        table: the table, or set of tables.
        extra: files to put into each save, name -> content.
        spool: a local folder, which all ranks share, for saves at URIs; "": there are none. It
            keeps the newest chain of each URI, which the next delta needs.
    """

    def __init__(self, table: TableSet, extra: Mapping[str, bytes] | None, spool: str) -> None:
        self._table, self._extra = table, extra
        self._spool = Path(os.path.abspath(spool)) if spool else None

    def check(self, path: str) -> None:
        """Raises: ValueError if path is not OUT/<day>/<name>; ConfigError for a URI without a
        spool."""
        self._place(path)

    def write(self, path: str, write: Callable[[Saver, str], Save], *, extends: bool) -> str:
        """Write a save. It is complete at path when this returns.

        If the copy to a URI fails, the save is in the spool, and the same call copies it.

        Args:
            path: OUT/<day>/<name>.
            write: writes the save, with the saver of OUT and the name.
            extends: whether it extends the newest chain in OUT.

        Returns: path, absolute.
        """
        place = self._place(path)
        if place.remote is None:
            return str(write(self._saver(place), place.name).folder)
        if extends:
            self._take_up(place)
        saver = self._saver(place)
        begun = self._begun(place, saver)
        save = open_save(place.out / place.name) if begun else write(saver, place.name)
        if self._table.world.rank == 0:
            place.remote.put_chain(place.out)
            place.remote.put(save)
        self._clear(place)
        return f"{place.remote.place}/{place.name}"

    def _begun(self, place: _Place, saver: Saver) -> bool:
        """Whether the spool has this save, of the last pass, because an earlier copy failed.

        Raises: StoreError if there is a save of this name at the URI.
        """
        number, begun = saver.pass_number, False
        if self._table.world.rank == 0 and place.remote is not None:
            place.remote.check_free(place.name)
            known = {
                done.name for kind in donefile.NAMES for done in donefile.read(place.out, kind)
            }
            begun = (
                place.name in known
                and open_save(place.out / place.name).meta["pass_number"] == number
            )
        return bool(self._table.world.first("save in the spool", begun))

    def last(self, out: str) -> Save | None:
        """The save in out that the next delta will extend; None before the first base."""
        place = self._place(f"{out}/00000000/none")
        self._take_up(place)
        return self._saver(place).last()

    def open(self, path: str) -> Save:
        """The save at path, and its chain. A save at a URI is copied into the spool."""
        place = self._place(path)
        if place.remote is not None:
            if self._table.world.rank == 0:
                place.remote.get(place.name, place.out)
            self._table.world.wait("save is copied")
        return open_save(place.out / place.name)

    def load(self, path: str) -> int:
        """Fill an empty table from the save at path. Returns: the number of rows."""
        rows = load_save(self.open(path), self._table)
        self._clear(self._place(path))
        return rows

    def merge(self, paths: Sequence[str], out_path: str) -> str:
        """Merge the saves at the paths into a base at out_path. Returns: out_path, absolute."""

        def merged(saver: Saver, name: str) -> Save:
            return merge_saves([self.open(path) for path in paths], saver.out, name)

        written = self.write(out_path, merged, extends=False)
        for path in paths:
            self._clear(self._place(path))
        return written

    def _place(self, path: str) -> _Place:
        scheme, found, rest = path.partition("://")
        whole = Path(rest if found else os.path.abspath(path))
        name = f"{whole.parent.name}/{whole.name}"
        donefile.check_name(name)
        if not found:
            return _Place(whole.parents[1], name, None)
        if self._spool is None:
            raise ConfigError(
                f"{path}: a save at a URI needs a local folder, in which it is written before it "
                "is copied: BoxWrapper(table, dataset, spool=FOLDER)"
            )
        out = f"{scheme}://{whole.parents[1]}"
        return _Place(self._spool / quote(out, safe=""), name, RemoteSaves(out))

    def _saver(self, place: _Place) -> Saver:
        return Saver(self._table, place.out, extra=self._extra)

    def _take_up(self, place: _Place) -> None:
        """Copy what the spool does not have of the newest chain at a URI."""
        if place.remote is None:
            return
        if self._table.world.rank == 0:
            known = {done for kind in (BASE, DELTA) for done in donefile.read(place.out, kind)}
            for done in place.remote.newest_chain():
                if done not in known:
                    donefile.append(place.out, place.remote.get(done.name, place.out).meta)
        self._table.world.wait("chain is in the spool")

    def _clear(self, place: _Place) -> None:
        """Remove the saves of a URI from the spool that do not belong to its newest chain."""
        if place.remote is None:
            return
        self._table.world.wait("spool is read")
        if self._table.world.rank > 0:
            return
        last = donefile.last(place.out)
        chain = chain_of(open_save(place.out / last)) if last is not None else []
        kept = {save.folder for save in chain}
        for folder in place.out.glob("*/*"):
            if folder not in kept:
                shutil.rmtree(folder)
