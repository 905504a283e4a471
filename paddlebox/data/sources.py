"""Sources: read the files of a pass, on local disk or by URI.

``pyarrow.fs`` opens the URIs: hdfs://, s3://, gs://, file://. A request to a URI that fails is
repeated up to ``retries`` times, and the wait doubles each time. Local reads are not repeated.
"""

from __future__ import annotations

import io
import os
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from pyarrow import fs

from paddlebox.errors import DataError
from paddlebox.store import remote
from paddlebox.store.remote import is_uri

RETRIES = 3
_FIRST_WAIT_S = 0.5
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError)
T = TypeVar("T")


def written_at(path: str, retries: int = RETRIES) -> float | None:
    """The modification time of a file, in seconds since 1970; None if there is no file.

    Raises: DataError if it cannot be found out.
    """
    if not is_uri(path):
        try:
            return os.stat(path).st_mtime
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _unreadable(path, error) from error
    system, inside = filesystem_of(path, retries)
    info = request(path, retries, lambda: system.get_file_info(inside))
    if info.type == fs.FileType.NotFound:
        return None
    return float(info.mtime.timestamp()) if info.mtime is not None else 0.0


def open_source(path: str, retries: int = RETRIES) -> Source:
    """Open a file. Raises: DataError if it cannot be opened."""
    return RemoteSource(path, retries) if is_uri(path) else LocalSource(path)


def request(uri: str, retries: int, work: Callable[[], T]) -> T:
    """What `work`, a request to the file system of a URI, returns.

    Raises: DataError after the last attempt.
    """
    waits = [_FIRST_WAIT_S * 2**n for n in range(retries)]
    return remote.retry(remote.shown(uri), "read", work, waits, time.sleep, DataError, _FINAL)


def filesystem_of(uri: str, retries: int) -> tuple[Any, str]:
    """The pyarrow file system of a URI, and the path in it. Raises: DataError."""
    return request(uri, retries, lambda: remote.filesystem_of(uri))


class Source(io.RawIOBase):
    """The bytes of one file. The size of the file must not change while it is open.

    Every method raises a DataError that names the file.
    """

    def __init__(self, path: str, size: int) -> None:
        super().__init__()
        self.path = path
        self.size = size  # when it was opened

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    @abstractmethod
    def size_now(self) -> int | None:
        """The current size of the file; None if it has been removed."""

    def check_unchanged(self) -> None:
        """Call it after the last read. Raises: DataError if the file has changed, for example
        because it is still being written."""
        now = self.size_now()
        if now is None:
            raise DataError(
                f"{self.path}: disappeared while it was read; it had {self.size} bytes when it was "
                "opened"
            )
        if now != self.size:
            raise DataError(
                f"{self.path}: changed while it was read: {self.size} bytes when it was opened, "
                f"{now} now; list files only when they are complete"
            )


class LocalSource(Source):
    def __init__(self, path: str) -> None:
        try:
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115, closed by close
        except OSError as error:
            raise _unreadable(path, error) from error
        super().__init__(path, os.fstat(self._file.fileno()).st_size)

    def read(self, size: int = -1) -> bytes:
        try:
            return self._file.read(size) or b""
        except OSError as error:
            raise _unreadable(self.path, error) from error

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def size_now(self) -> int | None:
        try:
            return os.stat(self.path).st_size
        except FileNotFoundError:
            return None

    def close(self) -> None:
        self._file.close()
        super().close()


class RemoteSource(Source):
    """A file behind a URI. After a failed read it is opened again and read at the same offset."""

    def __init__(self, uri: str, retries: int) -> None:
        self._retries = retries
        self._at = 0
        self._file: Any = None
        self._system, self._inside = filesystem_of(uri, retries)
        info = request(uri, retries, lambda: self._system.get_file_info(self._inside))
        if info.type != fs.FileType.File:
            raise DataError(f"{uri}: expected a file, found {kind_of(info)}")
        super().__init__(uri, info.size)

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            size = max(0, self.size - self._at)

        def once() -> bytes:
            try:
                if self._file is None:
                    self._file = self._system.open_input_file(self._inside)
                data: bytes = self._file.read_at(size, self._at)
                return data
            except OSError:
                self._drop()
                raise

        data = request(self.path, self._retries, once)
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def size_now(self) -> int | None:
        info = request(self.path, self._retries, lambda: self._system.get_file_info(self._inside))
        return info.size if info.type == fs.FileType.File else None

    def close(self) -> None:
        self._drop()
        super().close()

    def _drop(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _unreadable(path: str, error: OSError) -> DataError:
    return DataError(f"{path}: cannot be read: {error.strerror or error}")


def kind_of(info: Any) -> str:
    return {fs.FileType.NotFound: "no such file", fs.FileType.Directory: "a folder"}.get(
        info.type, "something else"
    )
