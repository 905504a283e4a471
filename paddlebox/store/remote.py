"""A folder in a file system of pyarrow, on local disk or at a URI such as hdfs:// or s3://."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import fs

from paddlebox.errors import StoreError
from paddlebox.store import files

log = logging.getLogger("paddlebox")
T = TypeVar("T")

BLOCK_BYTES = 8 << 20
WAITS_S = (1.0, 5.0)  # before the second and the third attempt


def open_filesystem(place: str) -> tuple[Any, str]:
    """The pyarrow file system of a URI or local path, and the path in it.

    Raises: StoreError if it cannot be opened.
    """
    if "://" not in place:
        return fs.LocalFileSystem(), os.path.abspath(place)
    try:
        system, base = fs.FileSystem.from_uri(place)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise StoreError(f"{place}: cannot be opened: {error}") from error
    return system, base.rstrip("/")


class RemoteFolder:
    """The files below a folder. Names are relative to it.

    A method whose call of the file system fails tries it three times. Then it raises a StoreError
    that names the file by its full place.

    Args:
        place: URI or local path. The folder need not exist.
        stop: if it is set, methods give up and raise a StoreError.
    """

    def __init__(self, place: str, stop: threading.Event | None = None) -> None:
        self.place = place.rstrip("/")
        self._stop = stop
        self._system, self._base = open_filesystem(place)

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if there is no such file."""

        def read() -> bytes | None:
            if self._system.get_file_info(self._path(name)).type != fs.FileType.File:
                return None
            with self._system.open_input_stream(self._path(name)) as stream:
                return bytes(stream.read())

        return self._tried(name, "read", read)

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

        return self._tried(folder, "list", listed)

    def put(self, local: Path, name: str) -> None:
        """Copy a local file here. After an error there may be a part of it."""

        def put() -> None:
            with open(local, "rb") as source, self._new_file(name) as sink:
                while block := source.read(BLOCK_BYTES):
                    self._check_stop(name)
                    sink.write(block)
            self._check_size(name, local.stat().st_size)

        self._tried(name, "copy", put)

    def write(self, name: str, content: bytes) -> None:
        """Write a file as a whole: after an error it has its earlier content, or none."""

        def write() -> None:
            with self._new_file(f"{name}.tmp") as sink:
                sink.write(content)
            self._check_size(f"{name}.tmp", len(content))
            self._move(f"{name}.tmp", name)

        self._tried(name, "write", write)

    def get(self, name: str, local: Path) -> None:
        """Copy a file to local disk, durably."""

        def get() -> None:
            with (
                self._system.open_input_stream(self._path(name)) as source,
                open(local, "wb") as sink,
            ):
                shutil.copyfileobj(source, sink, BLOCK_BYTES)
                sink.flush()
                os.fsync(sink.fileno())

        files.make_folder(str(local.parent))
        self._tried(name, "copy", get)

    def remove(self, folder: str) -> None:
        """Remove a folder with its content, if there is one."""

        def remove() -> None:
            if self._system.get_file_info(self._path(folder)).type == fs.FileType.Directory:
                self._system.delete_dir(self._path(folder))

        self._tried(folder, "remove", remove)

    def _path(self, name: str) -> str:
        return f"{self._base}/{name}"

    def _new_file(self, name: str) -> Any:
        path = self._path(name)
        self._system.create_dir(os.path.dirname(path), recursive=True)
        return self._system.open_output_stream(path)

    def _check_size(self, name: str, expected: int) -> None:
        found = self._system.get_file_info(self._path(name)).size
        if found != expected:
            raise OSError(f"{name} has {found} bytes there, expected {expected}")

    def _move(self, name: str, to: str) -> None:
        try:
            self._system.move(self._path(name), self._path(to))
        except OSError:  # HDFS does not replace a file
            if self._system.get_file_info(self._path(to)).type != fs.FileType.File:
                raise
            self._system.delete_file(self._path(to))
            self._system.move(self._path(name), self._path(to))

    def _tried(self, name: str, action: str, work: Callable[[], T]) -> T:
        """What `work` returns, from the first attempt that succeeds."""
        where = f"{self.place}/{name}"
        for attempt, wait_s in enumerate((*WAITS_S, None), 1):
            self._check_stop(name)
            try:
                return work()
            except (OSError, pa.ArrowException) as error:
                if wait_s is None:
                    raise StoreError(
                        f"{where}: cannot {action}, after {attempt} attempts: {error}"
                    ) from error
                log.warning("%s: cannot %s, trying again: %s", where, action, error)
                self._pause(wait_s)
        raise AssertionError

    def _pause(self, wait_s: float) -> None:
        if self._stop is None:
            time.sleep(wait_s)
        else:
            self._stop.wait(wait_s)

    def _check_stop(self, name: str) -> None:
        if self._stop is not None and self._stop.is_set():
            raise StoreError(f"{self.place}/{name}: the copy was given up")
