"""ParsedCache: keeps the columns of parsed files on local disk, so that a file is parsed once.

One file of the cache holds the columns of one input file (docs/formats/parsed_cache.md). It is
written while the input is parsed for the first time, and renamed once it is complete. Processes may
share a folder.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pyarrow import fs

from paddlebox import _native
from paddlebox.errors import DataError, StoreError
from paddlebox.store.files import store_errors
from paddlebox.store.remote import filesystem_of, is_uri

core = _native.core
log = logging.getLogger(__name__)

_SUFFIX = ".pbxparsed"
_PART = ".part"  # in the names of files that are being written
# A file that was modified less than this ago may change again without a new modification time.
_SETTLED_S = 0.1
_AGAIN = "parsing the file again, its parsed cache cannot be used: %s"
_ABANDONED_S = 24 * 3600.0  # the writer of a partial file that is older than this has died


class Parsable(Protocol):
    """A part of one file. Any thread may parse it."""

    @property
    def path(self) -> str: ...

    def parse(self, schema: Any, /) -> Any: ...


class _Part(NamedTuple):
    path: str
    parse: Callable[[Any], Any]


Parts = Callable[[], Iterator[Parsable]]  # reads the input file from its beginning


def default_folder() -> Path:
    """$XDG_CACHE_HOME/paddlebox/parsed, or ~/.cache/paddlebox/parsed."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "paddlebox" / "parsed"


def open_cache(folder: Path | str, budget_bytes: int) -> ParsedCache | None:
    """The cache in a folder, by default `default_folder`; None if the budget is 0. Raises: as
    ParsedCache."""
    if budget_bytes == 0:
        return None
    return ParsedCache(Path(folder) if folder else default_folder(), budget_bytes)


class ParsedCache:
    """A folder of parsed files, created if it does not exist. Thread-safe. budget_bytes: above this
    total size, the least recently used files are removed. Raises: StoreError if the folder cannot
    be used."""

    def __init__(self, folder: Path, budget_bytes: int) -> None:
        self.folder = folder
        self.budget_bytes = budget_bytes
        self.hits = 0  # files whose columns were in the cache
        self.misses = 0
        self._told = False  # whether the log says that the cache cannot be written
        with store_errors(f"{folder}, the cache of parsed files (XDG_CACHE_HOME)", "create it"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def parts(self, path: str, options: Mapping[str, Any], read: Parts) -> Iterator[Parsable]:
        """The parts of one file, in order. If the cache does not have them, they come from `read`
        and are written to the cache. options: everything that affects how a line is parsed.

        Raises: the errors of `read`. Errors of the cache are logged, and the file is parsed.
        """
        identity = _identity(path)
        if identity is None:
            yield from read()
            return
        name = hashlib.sha256(_json({"path": identity["path"], **options}).encode()).hexdigest()
        file = self.folder / f"{name[:32]}{_SUFFIX}"
        key = _json({"version": core.PARSED_FILE_VERSION, **identity, "options": options})
        reader = self._open(file, key)
        if reader is not None:
            self.hits += 1
            yield from _CachedFile(path, file, reader, read).parts()
            return
        self.misses += 1
        settled = time.time() - identity["mtime_ns"] / 1e9 > _SETTLED_S
        recording = self._record(path, file, key, identity) if settled else None
        if recording is None:
            yield from read()
            return
        number = -1
        for number, part in enumerate(read()):
            yield _Part(part.path, partial(recording.parse, part, number))
        recording.read_all(number + 1)

    def _open(self, file: Path, key: str) -> Any:
        if not file.exists():
            return None
        try:
            reader = core.ParsedFileReader(str(file), key)
            os.utime(file)  # `_evict` orders the files by this time
            return reader
        except (StoreError, OSError) as error:
            log.warning(_AGAIN, error)
            return None

    def _record(
        self, path: str, file: Path, key: str, identity: Mapping[str, Any]
    ) -> _Recording | None:
        # A random name, because processes in different containers can have the same number.
        part = file.with_name(f"{file.stem}-{secrets.token_hex(8)}{_PART}")
        try:
            writer = core.ParsedFileWriter(str(part))
        except StoreError as error:
            self.tell(error)
            return None

        def commit() -> None:
            if _identity(path) != identity:
                return  # the input changed while it was read
            writer.commit(key)
            part.rename(file)
            self._evict(file)

        return _Recording(self, writer, commit)

    def tell(self, error: Exception) -> None:
        """Log once that the cache cannot be written."""
        if not self._told:
            log.warning("the parsed cache is not written: %s", error)
        self._told = True

    def _evict(self, newest: Path) -> None:
        """Remove the least recently used files, `newest` last, until the others fit the budget."""
        files = []
        for file in self.folder.iterdir():
            try:
                info = file.stat()
            except FileNotFoundError:
                continue  # another process removed it
            if file.suffix == _SUFFIX:
                files.append((file == newest, info.st_mtime_ns, info.st_size, file))
            elif _PART in file.suffixes and time.time() - info.st_mtime > _ABANDONED_S:
                file.unlink(missing_ok=True)
        held = sum(size for _, _, size, _ in files)
        for _, _, size, file in sorted(files):
            if held <= self.budget_bytes:
                return
            file.unlink(missing_ok=True)
            held -= size


class _Recording:
    """A file of the cache that is being written. It is committed once all its parts are added."""

    def __init__(self, cache: ParsedCache, writer: Any, commit: Callable[[], None]) -> None:
        self._cache = cache
        self._writer = writer
        self._commit: Callable[[], None] | None = commit  # None: committed or given up
        self._lock = threading.Lock()
        self._added = 0
        self._parts: int | None = None

    def parse(self, part: Parsable, number: int, schema: Any) -> Any:
        """Parse a part of the input file, and write its columns to the cache."""
        columns = part.parse(schema)
        self._add(number, columns)
        return columns

    def _add(self, number: int, columns: Any) -> None:
        if self._commit is None:
            return
        try:
            self._writer.add(number, columns)
        except StoreError as error:
            self._give_up(error)
            return
        if self._writer.bytes > self._cache.budget_bytes:
            self._give_up(None)
        with self._lock:
            self._added += 1
        self._commit_if_whole()

    def read_all(self, parts: int) -> None:
        with self._lock:
            self._parts = parts
        self._commit_if_whole()

    def _commit_if_whole(self) -> None:
        with self._lock:
            if self._added != self._parts:
                return
            commit, self._commit = self._commit, None
        if commit is None:
            return
        try:
            commit()
        except OSError as error:  # StoreError is a subclass
            self._cache.tell(error)
        finally:
            self._writer = None

    def _give_up(self, error: Exception | None) -> None:
        with self._lock:
            self._commit = None
        if error is not None:
            self._cache.tell(error)


@dataclass
class _CachedFile:
    path: str
    file: Path  # of the cache
    reader: Any
    read: Parts
    damaged: bool = False

    def parts(self) -> Iterator[Parsable]:
        for number in range(self.reader.pieces):
            if self.damaged:
                yield from islice(self.read(), number, None)
                return
            yield _Part(self.path, partial(self._columns, number))

    def _columns(self, number: int, schema: Any) -> Any:
        try:
            return self.reader.read(number)
        except StoreError as error:
            if not self.damaged:
                log.warning(_AGAIN, error)
            self.damaged = True
            self.file.unlink(missing_ok=True)
        # The input file has not changed, so it has the same parts.
        part = next(islice(self.read(), number, None), None)
        if part is None:
            raise DataError(f"{self.path}: changed while it was read; load it again")
        return part.parse(schema)


def _identity(path: str) -> dict[str, Any] | None:
    """Path, size and modification time of a file; None if they cannot be found out."""
    if not is_uri(path):
        try:
            info = os.stat(path)
        except OSError:
            return None  # the reader reports the error
        return {"path": os.path.abspath(path), "size": info.st_size, "mtime_ns": info.st_mtime_ns}
    try:
        system, inside = filesystem_of(path)
        found = system.get_file_info(inside)
    except (OSError, ValueError):
        return None
    if found.type != fs.FileType.File or found.mtime_ns is None:
        return None
    return {"path": path, "size": found.size, "mtime_ns": found.mtime_ns}


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
