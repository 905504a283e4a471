"""The file systems of pyarrow: local disk, and URIs such as hdfs:// or s3://. Requests that fail
are repeated."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import fs

from paddlebox.errors import PaddleBoxError, StoreError
from paddlebox.store import files

log = logging.getLogger("paddlebox")
T = TypeVar("T")

BLOCK_BYTES = 8 << 20
WAITS_S = (1.0, 5.0)  # before the second and the third attempt


def is_uri(path: str) -> bool:
    return "://" in path


def filesystem_of(place: str) -> tuple[Any, str]:
    """The pyarrow file system of a URI or local path, and the path in it. Raises: OSError,
    ValueError or ArrowException."""
    if not is_uri(place):
        return fs.LocalFileSystem(), os.path.abspath(place)
    system, base = fs.FileSystem.from_uri(place)
    return system, base.rstrip("/")


def open_filesystem(place: str) -> tuple[Any, str]:
    """As `filesystem_of`. Raises: StoreError."""
    try:
        return filesystem_of(place)
    except (OSError, ValueError, pa.ArrowException) as error:
        why = str(error).replace(place, shown(place))
        raise StoreError(f"{shown(place)}: cannot be opened: {why}") from None


def retry(
    where: str,
    action: str,
    work: Callable[[], T],
    waits_s: Sequence[float],
    pause: Callable[[float], None] = time.sleep,
    raised: Callable[[str], PaddleBoxError] = StoreError,
    final: tuple[type[OSError], ...] = (),
) -> T:
    """What `work` returns, from the first attempt that succeeds. waits_s: before the second, third,
    … one. where, action: object and verb of messages. raised: makes the last error. final: errors
    after which there is no other attempt."""
    for attempt, wait_s in enumerate((*waits_s, None), 1):
        try:
            return work()
        except PaddleBoxError:  # of a local file, or given up
            raise
        except (OSError, ValueError, pa.ArrowException) as error:
            # A ValueError, such as pyarrow.ArrowInvalid, is the same at every attempt.
            if wait_s is None or isinstance(error, (*final, ValueError)):
                after = f", after {attempt} attempts" * (attempt > 1)
                raise raised(f"{where}: cannot {action}{after}: {error}") from error
            log.warning("%s: cannot %s, trying again: %s", where, action, error)
            pause(wait_s)
    raise AssertionError


def shown(place: str) -> str:
    """A place without the parts of a URI that can hold credentials: USER:PASSWORD@ and ?OPTIONS."""
    scheme, found, rest = place.partition("://")
    if not found:
        return place
    host, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


class RemoteFolder:
    """The files below a folder (URI or local path), which need not exist. Names are relative to it.
    A call of the file system is tried three times, then a StoreError names the file by its full
    place. An error of a local file is raised at once, as is a StoreError after `stop` was set."""

    def __init__(self, place: str, stop: threading.Event | None = None) -> None:
        self.place = shown(place).rstrip("/")  # for messages and donefiles
        self.moved_bytes = 0  # by `put` and `get`, repeated attempts included
        self._stop = stop
        self._system, self._base = open_filesystem(place)

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if there is no such file."""

        def read() -> bytes | None:
            # While `write` replaces a file, it may have its old name, and then the new one.
            for path in map(self._path, (name, _old(name), name)):
                if self._is_file(path):
                    with self._system.open_input_stream(path) as stream:
                        return bytes(stream.read())
            return None

        return self._retry(name, "read", read)

    def sizes(self, folder: str) -> dict[str, int]:
        """The files at any depth below a folder: path relative to it -> bytes."""

        def listed() -> dict[str, int]:
            below = self._path(folder)
            selector = fs.FileSelector(below, recursive=True, allow_not_found=True)
            return {
                os.path.relpath(info.path, below): info.size
                for info in self._system.get_file_info(selector)
                if info.type == fs.FileType.File
            }

        return self._retry(folder, "list", listed)

    def put(self, local: Path, name: str) -> None:
        """Copy a local file here. After an error there may be a part of it."""

        def put() -> None:
            size = 0
            with self._new_file(name) as sink:
                for block in _blocks_of(local):
                    self._check_stop(name)
                    sink.write(block)
                    size += len(block)
                    self.moved_bytes += len(block)
            self._check_size(name, size)

        self._retry(name, "copy", put)

    def write(self, name: str, content: bytes) -> None:
        """Write a file as a whole. After an error, `read` returns its earlier or new content."""

        def write() -> None:
            with self._new_file(f"{name}.tmp") as sink:
                sink.write(content)
            self._check_size(f"{name}.tmp", len(content))
            self._move(f"{name}.tmp", name)

        self._retry(name, "write", write)

    def get(self, name: str, local: Path, size: int) -> None:
        """Copy a file of `size` bytes to local disk, durably. Raises: OutOfSpaceError."""

        def get() -> None:
            with self._system.open_input_stream(self._path(name)) as source:
                found = _write_blocks(local, self._blocks_of(name, source))
            _check_bytes(name, found, size)

        files.make_folder(str(local.parent))
        self._retry(name, "copy", get)

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with its content, if there is one."""

        def remove() -> None:
            kind = self._system.get_file_info(self._path(name)).type
            if kind == fs.FileType.Directory:
                self._system.delete_dir(self._path(name))
            elif kind == fs.FileType.File:
                self._system.delete_file(self._path(name))

        self._retry(name, "remove", remove)

    def _path(self, name: str) -> str:
        return f"{self._base}/{name}"

    def _is_file(self, path: str) -> bool:
        return bool(self._system.get_file_info(path).type == fs.FileType.File)

    def _blocks_of(self, name: str, source: Any) -> Iterator[bytes]:
        while block := source.read(BLOCK_BYTES):
            self._check_stop(name)
            self.moved_bytes += len(block)
            yield block

    def _new_file(self, name: str) -> Any:
        path = self._path(name)
        self._system.create_dir(os.path.dirname(path), recursive=True)
        return self._system.open_output_stream(path)

    def _check_size(self, name: str, expected: int) -> None:
        _check_bytes(name, self._system.get_file_info(self._path(name)).size, expected)

    def _move(self, name: str, to: str) -> None:
        new, target, old = map(self._path, (name, to, _old(to)))
        try:
            self._system.move(new, target)
            return
        except OSError:  # HDFS does not replace a file
            if not self._is_file(target):
                raise
        if self._is_file(old):
            self._system.delete_file(old)  # of an earlier call: target has this content or a later
        self._system.move(target, old)  # `read` falls back to it
        self._system.move(new, target)
        self._system.delete_file(old)

    def _retry(self, name: str, action: str, work: Callable[[], T]) -> T:
        def attempt() -> T:
            self._check_stop(name)
            return work()

        return retry(f"{self.place}/{name}", action, attempt, WAITS_S, self._pause)

    def _pause(self, wait_s: float) -> None:
        if self._stop is None:
            time.sleep(wait_s)
        else:
            self._stop.wait(wait_s)

    def _check_stop(self, name: str) -> None:
        if self._stop is not None and self._stop.is_set():
            raise StoreError(f"{self.place}/{name}: the copy was given up")


def _old(name: str) -> str:
    """The name of a file while it is replaced."""
    return f"{name}.old"


def _blocks_of(local: Path) -> Iterator[bytes]:
    with files.store_errors(str(local), "read"), open(local, "rb") as source:
        while block := source.read(BLOCK_BYTES):
            yield block


def _write_blocks(local: Path, blocks: Iterator[bytes]) -> int:
    """Write a local file durably, and return its size. Raises: StoreError; errors of `blocks`."""
    size = 0
    with files.NewFile(local) as sink:
        for block in blocks:
            sink.write(block)
            size += len(block)
        sink.sync()
    return size


def _check_bytes(name: str, found: int, expected: int) -> None:
    if found != expected:
        raise OSError(f"{name} has {found} bytes, expected {expected}")
