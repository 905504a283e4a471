"""Sources: find and read the files of a pass, on local disk or by URI.

``pyarrow.fs`` opens the URIs: hdfs://, s3://, gs://, file://. A request to a URI that fails is
repeated up to ``retries`` times, and the wait doubles each time. Local reads are not repeated.
"""

from __future__ import annotations

import fnmatch
import glob
import io
import logging
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from pyarrow import fs

from paddlebox.errors import DataError

log = logging.getLogger(__name__)

RETRIES = 3
_FIRST_WAIT_S = 0.5
_NEVER_RETRIED = (FileNotFoundError, PermissionError, IsADirectoryError)
T = TypeVar("T")


class NothingThereError(DataError):
    """There is no file at a path or in a folder, or none matches a glob."""


def is_uri(path: str) -> bool:
    return "://" in path


def is_temporary(name: str) -> bool:
    """Whether this is the name of a hidden or temporary file that a writer left next to the
    data."""
    return name.startswith((".", "_")) or name.endswith((".tmp", ".crc"))


def expand(patterns: Sequence[str], retries: int = RETRIES) -> list[str]:
    """Expand paths, folders, globs and URIs of them into files, in the given order.

    A folder is expanded into all files below it, a glob into the files that match it, both sorted.
    Hidden and temporary files (`.x`, `_x`, `x.tmp`, `x.crc`) are left out and listed in the log,
    unless the file name in the glob has one of these forms itself.

    Raises: NothingThereError, a DataError, that names a pattern without files.
    """
    files: list[str] = []
    for pattern in patterns:
        files += _remote_files(pattern, retries) if is_uri(pattern) else _local_files(pattern)
    return files


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
    system, inside = _retried(path, retries, lambda: filesystem_of(path))
    info = _retried(path, retries, lambda: system.get_file_info(inside))
    if info.type == fs.FileType.NotFound:
        return None
    return float(info.mtime.timestamp()) if info.mtime is not None else 0.0


def open_source(path: str, retries: int = RETRIES) -> Source:
    """Open a file. Raises: DataError if it cannot be opened."""
    return RemoteSource(path, retries) if is_uri(path) else LocalSource(path)


def filesystem_of(uri: str) -> tuple[Any, str]:
    """The pyarrow filesystem of a URI, and the path in it."""
    found: tuple[Any, str] = fs.FileSystem.from_uri(uri)
    return found


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
        self._system, self._inside = _retried(uri, retries, lambda: filesystem_of(uri))
        info = _retried(uri, retries, lambda: self._system.get_file_info(self._inside))
        if info.type != fs.FileType.File:
            raise DataError(f"{uri}: expected a file, found {_kind(info)}")
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

        data = _retried(self.path, self._retries, once)
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def size_now(self) -> int | None:
        info = _retried(self.path, self._retries, lambda: self._system.get_file_info(self._inside))
        return info.size if info.type == fs.FileType.File else None

    def close(self) -> None:
        self._drop()
        super().close()

    def _drop(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _retried(uri: str, retries: int, request: Callable[[], T]) -> T:
    for failures in range(retries + 1):
        try:
            return request()
        except _NEVER_RETRIED as error:
            raise _unreadable(uri, error) from error
        except OSError as error:
            if failures == retries:
                raise DataError(
                    f"{uri}: cannot be read, {failures + 1} attempts failed; the last: {error}"
                ) from error
            wait = _FIRST_WAIT_S * 2**failures
            log.warning("%s: %s; trying again in %g s", uri, error, wait)
            time.sleep(wait)
        except ValueError as error:  # pyarrow.ArrowInvalid: a URI that no filesystem takes
            raise DataError(f"{uri}: {error}") from error
    raise AssertionError("unreachable")


def _unreadable(path: str, error: OSError) -> DataError:
    return DataError(f"{path}: cannot be read: {error.strerror or error}")


def _local_files(pattern: str) -> list[str]:
    path = Path(pattern)
    if path.is_file():
        return [pattern]
    if path.is_dir():
        below = sorted(p for p in path.rglob("*") if p.is_file())
        return _kept(pattern, [(str(p), p.relative_to(path).parts) for p in below])
    if not glob.has_magic(pattern):
        raise NothingThereError(
            f"{pattern}: no such file; expected a file, a folder or a glob of files, looked for in "
            f"{Path.cwd()}: correct the path, or start the command in the folder that the path is "
            "relative to; the first lines of a config in configs/ tell how to make its data"
        )
    matches = sorted(glob.glob(pattern, recursive=True, include_hidden=True))
    return _kept(pattern, [(m, (Path(m).name,)) for m in matches if Path(m).is_file()])


def _remote_files(uri: str, retries: int) -> list[str]:
    address, mark, query = uri.partition("?")
    fixed, star, _ = address.partition("*")
    folder = fixed.rpartition("/")[0] if star else address.rstrip("/")
    system, inside = _retried(uri, retries, lambda: filesystem_of(folder + mark + query))
    inside = inside.rstrip("/")
    info = _retried(uri, retries, lambda: system.get_file_info(inside))
    if info.type == fs.FileType.File and not star:
        return [uri]
    if info.type != fs.FileType.Directory:
        error = NothingThereError if info.type == fs.FileType.NotFound else DataError
        raise error(f"{uri}: expected a file, a folder or a glob of files, found {_kind(info)}")
    below = fs.FileSelector(inside, recursive=True)
    infos = _retried(uri, retries, lambda: system.get_file_info(below))
    wanted = inside + address[len(folder) :]
    names = sorted(found.path for found in infos if found.type == fs.FileType.File)
    if star:
        names = [n for n in names if fnmatch.fnmatchcase(n, wanted) and _same_depth(n, wanted)]
    return _kept(
        uri,
        [
            (folder + quote(name[len(inside) :], safe="/=+,:@~") + mark + query, tuple(rest))
            for name in names
            for rest in [name[len(inside) :].strip("/").split("/")]
        ],
    )


def _same_depth(name: str, pattern: str) -> bool:
    return name.count("/") == pattern.count("/")


def _kept(pattern: str, found: list[tuple[str, tuple[str, ...]]]) -> list[str]:
    """The found files without hidden and temporary ones.

    Args:
        found: pairs of a path, and its parts below the folder.
    """
    asked_for = glob.has_magic(pattern) and is_temporary(Path(pattern).name)
    left_out = [path for path, parts in found if not asked_for and any(map(is_temporary, parts))]
    if left_out:
        some = ", ".join(left_out[:3]) + (", …" if len(left_out) > 3 else "")
        log.info("%s: %d hidden or temporary files are left out: %s", pattern, len(left_out), some)
    dropped = set(left_out)
    files = [path for path, _ in found if path not in dropped]
    if not files:
        only = f"; {len(left_out)} hidden or temporary ones are left out" if left_out else ""
        what = "no file matches" if glob.has_magic(pattern) else "no file in this folder"
        raise NothingThereError(
            f"{pattern}: {what}{only}; expected one or more, looked for in {Path.cwd()}: correct "
            "the path, or make the data first"
        )
    return files


def _kind(info: Any) -> str:
    return {fs.FileType.NotFound: "no such file", fs.FileType.Directory: "a folder"}.get(
        info.type, "something else"
    )
