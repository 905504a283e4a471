"""An export file: its environment and its records (docs/formats/export.md)."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import errno
import functools
import itertools
import json
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lmdb

from paddlebox._native import core
from paddlebox.closing import Closing
from paddlebox.config.arguments import AnyPath, as_path
from paddlebox.errors import CorruptionError, OutOfSpaceError, PaddleBoxError, StoreError
from paddlebox.store.files import guard_map, lmdb_text, seal, unseal

FORMAT = 6
MAP_BYTES = 1 << 40  # address space only: so large that the file never has to be mapped again
_READERS = 1024
_READ_TRIES = 100  # of a reader, while a writer ends transactions
_REPLACED = (
    "expected it as it was opened: another process wrote over it or replaced it. Restart what "
    "reads it, and replace a file only by renaming a whole one, while nothing has it open"
)

HEAD = b"head"


def generation_key(number: int) -> bytes:
    return f"generation/{number:012d}".encode()


def model_key(number: int, part: str) -> bytes:
    return f"model/{number:012d}/{part}".encode()


def layer_key(number: int, part: str) -> bytes:
    return f"layer/{number:012d}/{part}".encode()


def block_key(layer: int, number: int) -> bytes:
    return layer_key(layer, f"block/{number:012d}")


_now = functools.partial(datetime.datetime.now, datetime.UTC)


@dataclass(frozen=True)
class Head:
    """The root record: the generation that readers use, and where a writer continues."""

    current: int = 0  # number of the generation that readers use; 0: none yet
    newest: int = 0  # number of the newest generation; 0: none yet
    pinned: bool = False
    next: int = 1  # number of the next generation, model or layer
    format: int = FORMAT


@dataclass(frozen=True)
class Part:
    """The rows of one table in a generation."""

    name: str  # name of the table; "" for the first table, whatever its name
    layers: list[int]  # newest first; the last is a base
    embedx_dim: int
    slots: int  # slots of the table
    rows: int = 0  # live rows


@dataclass(frozen=True)
class Generation:
    """The record of one version in the file."""

    generation: int
    version: int
    layers: list[int]  # as in Part, for the first table
    model: int
    embedx_dim: int  # of the first table
    counts: bool  # rows keep show and click
    precision: str
    slots: int  # S, of all tables
    dense_width: int  # W
    day: int = 0
    pass_number: int = 0
    dense_version: int = 0
    rows: int = 0  # as in Part, for the first table
    save: dict[str, Any] | None = None  # {name, crc32c} of the save it comes from; None: no save
    created_at: str = field(default_factory=lambda: _now().isoformat(timespec="microseconds"))
    tables: list[dict[str, Any]] = field(default_factory=list)  # Parts of the other tables
    members: list[dict[str, Any]] = field(default_factory=list)  # of an ensemble; see `models`
    filters: list[dict[str, Any]] | None = None  # ServeFilters of the tables; None: unknown
    more_counts: int = 0  # counts that rows keep after show and click
    event_time: float | None = None  # Unix time of the newest event of a stream; None: not known

    @property
    def parts(self) -> list[Part]:
        """One Part for each table, in the order of the tables."""
        others = [Part(**fields) for fields in self.tables]
        slots = self.slots - sum(part.slots for part in others)
        return [Part("", self.layers, self.embedx_dim, slots, self.rows), *others]

    @property
    def models(self) -> list[Generation]:
        """This record, and that of each further model of an ensemble. Of the others, only what
        describes the model and its rows has a meaning."""
        return [self, *(Generation(**fields) for fields in self.members)]

    def of(self, parts: Sequence[Part]) -> Generation:
        first, *others = parts
        return dataclasses.replace(
            self,
            layers=first.layers,
            embedx_dim=first.embedx_dim,
            rows=first.rows,
            tables=[dataclasses.asdict(part) for part in others],
        )


def sealed_json(value: Any) -> bytes:
    return seal(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())


@contextlib.contextmanager
def system_errors(path: Path, what: str) -> Iterator[None]:
    """Turn errors of LMDB and the system into a StoreError, CorruptionError or OutOfSpaceError that
    names the file."""
    try:
        yield
    except (lmdb.Error, OSError) as error:
        if isinstance(error, StoreError):
            raise
        text = lmdb_text(error, os.path.abspath(path))
        full = isinstance(error, lmdb.MapFullError) or os.strerror(errno.ENOSPC) in text
        kind: type[StoreError] = OutOfSpaceError if full else StoreError
        if isinstance(error, lmdb.InvalidError):
            text += "; expected an export file: `paddlebox export RUN_DIR --out FILE` makes one"
        if isinstance(error, (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError)):
            kind = CorruptionError
        raise kind(f"{path}: cannot {what}: {text}") from error


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever the content of a file causes into a CorruptionError, also values with sound
    checksums that contradict each other."""
    try:
        with system_errors(path, "read"):
            yield
    except PaddleBoxError:
        raise
    except (TypeError, ValueError, LookupError, ArithmeticError, RuntimeError) as error:
        raise CorruptionError(
            f"{path}: its records contradict each other: {error}; export it again"
        ) from error


@dataclass
class _Open:
    env: Any
    write: bool
    pages: Any  # native LmdbReader
    guard: Any
    checked: Any = None  # the state whose pages were checked last
    bytes: int = 0  # the largest size of the file that was found
    users: int = 0

    def close(self) -> None:
        self.guard = None  # before its map goes
        self.env.close()
        self.pages = None


# By (pid, real path), because LMDB forbids a second environment of a file in one process.
_open: dict[tuple[int, str], _Open] = {}
_lock = threading.Lock()


class ExportFile(Closing):
    """An open export file. The readers of a process share one LMDB environment. Raises: StoreError
    if there is no file, or this process has it open and one of the two opens is for writing."""

    def __init__(self, path: AnyPath, *, write: bool = False, create: bool = False):
        self.path = as_path(path, "path")
        self._key = (os.getpid(), os.path.realpath(path))
        if not create and not self.path.is_file():
            raise StoreError(
                f"{self.path}: expected an export file, found none: `paddlebox export RUN_DIR "
                "--out FILE` makes one"
            )
        with _lock:
            shared = _open.get(self._key)
            if shared is not None and (write or shared.write):
                raise StoreError(
                    f"{self.path}: is already open in this process; write to it from another one"
                )
            if shared is None:
                shared = _open[self._key] = self._opened(write, create)
            shared.users += 1
            self._held: _Open | None = shared

    def _opened(self, write: bool, create: bool) -> _Open:
        with system_errors(self.path, "open"):
            if self.path.exists():
                core.LmdbReader(os.fspath(self.path))  # LMDB reads two pages when it opens it
            env = lmdb.open(
                os.fspath(self.path),
                map_size=MAP_BYTES,
                subdir=False,
                readonly=not write,
                create=create,
                max_readers=_READERS,
                readahead=False,  # lookups are random
                max_dbs=0,
            )
            with contextlib.ExitStack() as on_error:
                on_error.callback(env.close)
                pages = core.LmdbReader(os.fspath(self.path))
                opened = _Open(env, write, pages, guard_map(self.path))
                on_error.callback(opened.close)
                if write:
                    pages.check(pages.newest, free=True)
                on_error.pop_all()
            return opened

    @property
    def env(self) -> Any:
        self.check_process()
        return self._file.env

    @property
    def _file(self) -> _Open:
        if self._held is None:
            raise StoreError(f"{self.path}: is closed")
        return self._held

    def check_process(self) -> None:
        """Raises: StoreError in a process that was forked after the file was opened."""
        if os.getpid() != self._key[0]:
            raise StoreError(f"{self.path}: was opened before a fork; open it in each process")

    def read(self) -> Any:
        """Begin a read transaction. Its values are buffers into the map, valid until it ends.
        Raises: CorruptionError; StoreError."""
        self.check_process()
        file = self._file
        with system_errors(self.path, "read"):
            if file.write:
                return file.env.begin(buffers=True)
            for _ in range(_READ_TRIES):
                self.check_whole()
                txn = file.env.begin(buffers=True)
                try:
                    states = file.pages.states
                    state = next((s for s in states if s.transaction == txn.id()), None)
                    if state is not None:
                        if file.checked is None or state != file.checked:
                            file.pages.check(state, free=False)
                            file.checked = state
                        return txn
                except BaseException:
                    txn.abort()
                    raise
                txn.abort()  # two transactions have ended since it began
        raise CorruptionError(f"{self.path}: {_REPLACED}")

    def check_whole(self) -> None:
        """Raises: CorruptionError if another process has cut the open file short, so that what was
        read from the map may be zeros; StoreError if it was replaced."""
        file = self._file
        size = file.pages.bytes
        if size < file.bytes or (file.guard is not None and file.guard.shrunk):
            raise CorruptionError(
                f"{self.path}: is cut short: expected {file.bytes} bytes, found {size}; {_REPLACED}"
            )
        file.bytes = size
        if not file.pages.is_at(os.fspath(self.path)):
            raise StoreError(f"{self.path}: is not the file that was opened; {_REPLACED}")

    def check_map(self) -> None:
        """Raises: CorruptionError if a read went behind the end of the file, and gave zeros."""
        file = self._file
        if file.guard is not None and file.guard.shrunk:
            self.check_whole()

    def sealed(self, txn: Any, key: bytes) -> bytes:
        """The payload under a key. Raises: CorruptionError if it is missing or damaged."""
        where = f"{self.path}: {key.decode()}"
        with system_errors(self.path, "read"):
            value = txn.get(key)
        if value is None:
            raise CorruptionError(f"{where} is missing")
        return unseal(bytes(value), where)

    def record(self, txn: Any, key: bytes) -> dict[str, Any]:
        """The JSON object under a key. Raises: CorruptionError."""
        payload = self.sealed(txn, key)
        try:
            return dict(json.loads(payload))
        except (ValueError, TypeError) as error:
            raise CorruptionError(f"{self.path}: {key.decode()}: {error}") from error

    def head(self, txn: Any) -> Head:
        with system_errors(self.path, "read"):
            if txn.get(HEAD) is None:
                return Head()
        fields = self.record(txn, HEAD)
        if fields.get("format") != FORMAT:
            raise StoreError(
                f"{self.path}: has format {fields.get('format')}, expected {FORMAT}: serve it with "
                "the version of paddlebox that wrote it, or export into another file"
            )
        return Head(**self._known(Head, fields))

    def generation(self, txn: Any, number: int) -> Generation:
        return Generation(**self._known(Generation, self.record(txn, generation_key(number))))

    def has(self, txn: Any, generation: Generation) -> bool:
        """Whether the file has this very generation, so that it continues the same file."""
        number = generation.generation
        exists = txn.get(generation_key(number)) is not None
        return exists and self.generation(txn, number) == generation

    def generations(self, txn: Any) -> list[Generation]:
        prefix = b"generation/"
        with reading(self.path):
            cursor = txn.cursor()
            keys = cursor.iternext(values=False) if cursor.set_range(prefix) else ()
            names = itertools.takewhile(lambda name: name.startswith(prefix), map(bytes, keys))
            return [self.generation(txn, int(name[len(prefix) :])) for name in names]

    def of_version(self, txn: Any, version: int) -> Generation:
        """The newest generation of a version. Raises: StoreError if the file does not keep it."""
        by_version = {generation.version: generation for generation in self.generations(txn)}
        if version not in by_version:
            raise StoreError(
                f"{self.path}: version {version} is not kept; the kept versions are "
                f"{', '.join(map(str, by_version)) or 'none'}"
            )
        return by_version[version]

    def _known(self, kind: Any, fields: dict[str, Any]) -> dict[str, Any]:
        names = {known.name for known in dataclasses.fields(kind)}
        if names != set(fields):
            raise CorruptionError(
                f"{self.path}: a {kind.__name__.lower()} has the fields {sorted(fields)}, expected "
                f"{sorted(names)}"
            )
        return fields

    def close(self) -> None:
        if self._held is None:
            return
        self._held = None
        if os.getpid() != self._key[0]:
            return
        with _lock:
            shared = _open[self._key]
            shared.users -= 1
            if shared.users == 0:
                shared.close()
                del _open[self._key]
