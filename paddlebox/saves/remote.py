"""Copies saves to another folder or a URI, and back (docs/formats/save.md).

The files there are those of OUT. A copy writes meta.json after the other files of its save, and the
line of the donefile last, so that an interrupted copy is no save.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

from paddlebox.errors import CorruptionError, PaddleBoxError, StoreError
from paddlebox.heartbeat import SILENT, Heartbeat
from paddlebox.saves import donefile
from paddlebox.saves.meta import BASE, DELTA, META, check_name, parse_meta
from paddlebox.saves.reader import Save, open_save
from paddlebox.store import files
from paddlebox.store.remote import RemoteFolder

log = logging.getLogger("paddlebox")

BEAT_S = 10.0  # from one report to the heartbeat to the next


class RemoteSaves:
    """The saves at a place: OUT there, a URI or a folder. If `stop` is set, a copy is given up.
    Each method raises StoreError if the place cannot be read or written."""

    def __init__(self, place: str, stop: threading.Event | None = None) -> None:
        self._folder = RemoteFolder(place, stop)
        self.place = self._folder.place  # without credentials

    @property
    def moved_bytes(self) -> int:
        """How many bytes of saves were copied, repeated attempts included."""
        return self._folder.moved_bytes

    def done(self, kind: str) -> list[donefile.Done]:
        """The complete saves of a kind, oldest first. Raises: CorruptionError."""
        content = self._folder.read(donefile.NAMES[kind])
        where = f"{self.place}/{donefile.NAMES[kind]}"
        return donefile.parse(content, kind, where) if content is not None else []

    def newest_chain(self) -> list[donefile.Done]:
        """The newest base and its deltas, oldest first; empty without a base."""
        return donefile.newest_chain(self.done)

    def names(self) -> set[str]:
        return {done.name for kind in donefile.NAMES for done in self.done(kind)}

    def meta(self, name: str) -> dict[str, Any] | None:
        """The meta.json of a complete save; None without such a save. Raises: CorruptionError."""
        content = self._folder.read(f"{name}/{META}") if name in self.names() else None
        return parse_meta(content, f"{self.place}/{name}/{META}") if content is not None else None

    def check_free(self, name: str) -> None:
        """Raises: StoreError if a save of this name is complete at the place."""
        if name in self.names():
            raise StoreError(
                f"{self.place}/{name}: is done already, and saves are never overwritten: choose "
                "another name or place"
            )

    def put_chain(self, out: Path) -> None:
        """Copy the saves of the newest chain in OUT, a local folder, that are not there yet.
        Earlier chains were copied before it, or are obsolete. Raises: the errors of `put`."""
        copied = {done for kind in (BASE, DELTA) for done in self.done(kind)}
        for done in donefile.newest_chain(partial(donefile.read, out)):
            if done not in copied:
                self.put(open_save(out / done.name))

    def put(self, save: Save) -> None:
        """Copy a save, unless it is there. Raises: StoreError if another one of its name is."""
        name = save.name
        meta = (save.folder / META).read_bytes()
        is_done = any(done.name == name for done in self.done(save.meta["kind"]))
        if self._folder.read(f"{name}/{META}") != meta:
            if is_done:
                raise StoreError(
                    f"{self.place}/{name}: another save of this name is there, and saves are "
                    "never overwritten: copy to another place"
                )
            self._folder.remove(name)  # what an interrupted copy left
            for path in _files_of(save.folder):
                self._folder.put(save.folder / path, f"{name}/{path}")
            self._folder.write(f"{name}/{META}", meta)
        if not is_done:
            file = donefile.NAMES[save.meta["kind"]]
            before = self._folder.read(file) or b""
            self._folder.write(file, before + donefile.line_of(self.place, save.meta))
            log.info("copied %s to %s", name, self.place)

    def get(self, name: str, out: Path) -> Save:
        """Copy a save and the saves that it extends into OUT, a local folder, unless they are
        there. Donefiles do not change. Raises: StoreError if one is not complete at the place;
        CorruptionError."""
        save = self._get(name, out)
        if save.meta["parent"] is not None:
            self.get(save.meta["parent"]["name"], out)
        return save

    def _get(self, name: str, out: Path) -> Save:
        check_name(name)
        meta = self._folder.read(f"{name}/{META}")
        if meta is None:
            raise StoreError(f"{self.place}/{name}: holds no complete save: it has no {META}")
        target = out / name
        if (target / META).exists():
            if (target / META).read_bytes() != meta:
                raise StoreError(
                    f"{target}: another save than {self.place}/{name}: remove it, or use another "
                    "local folder"
                )
            return open_save(target)
        folder = target.parent / f".{target.name}.tmp"
        shutil.rmtree(folder, ignore_errors=True)
        for path, size in self._folder.sizes(name).items():
            self._folder.get(f"{name}/{path}", folder / path, size)
        with files.store_errors(str(target), "copy the save"):
            for parent, _, _ in os.walk(folder):
                files.sync_folder(parent)
            os.rename(folder, target)
            files.sync_folder(str(target.parent))
        try:
            return open_save(target)
        except CorruptionError as error:
            raise CorruptionError(f"{self.place}/{name}: the copy is damaged: {error}") from error


def _files_of(folder: Path) -> list[str]:
    """The files of a save, relative to its folder, without its meta.json."""
    paths = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return [path for path in paths if path != META]


class SaveCopier:
    """Copies the saves of OUT, a local folder, to a place in the background. An error is logged,
    and the next `offer` copies what is missing; only `finish` raises."""

    def __init__(self, out: Path | str, place: str) -> None:
        self._out, self._stop = Path(out), threading.Event()
        self._saves = RemoteSaves(place, self._stop)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="paddlebox-copy-saves")
        self._waiting: Future[None] | None = None

    def offer(self) -> None:
        """Copy the saves that are done and not copied yet. Thread-safe. Returns at once."""
        if self._waiting is None or self._waiting.running() or self._waiting.done():
            self._waiting = self._thread.submit(self._tried)

    def _tried(self) -> None:
        try:
            self._saves.put_chain(self._out)
        except (PaddleBoxError, OSError) as error:
            if not self._stop.is_set():
                log.warning("%s; the copy continues after the next save", error)

    def finish(self, heartbeat: Heartbeat = SILENT) -> None:
        """Copy the saves that are not copied yet. heartbeat: gets the number of bytes. Raises:
        StoreError, CorruptionError."""
        running, seen = self._thread.submit(self._saves.put_chain, self._out), 0
        while not wait([running], BEAT_S).done:
            if self._saves.moved_bytes > seen:
                seen = self._saves.moved_bytes
                heartbeat.stage("end", f"of the run: copying saves, {seen} bytes so far")
        running.result()

    def close(self) -> None:
        """Give up a copy that is running."""
        self._stop.set()
        self._thread.shutdown()
