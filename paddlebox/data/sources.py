"""Sources: read the files of a pass, or parts of them, on local disk or by URI; tell whether a file
has changed since it was trained.

``pyarrow.fs`` opens the URIs: hdfs://, s3://, gs://, file://. A request to a URI that fails is
repeated up to ``retries`` times, and the wait doubles each time. Local reads are not repeated.
"""

from __future__ import annotations

import hashlib
import io
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from pyarrow import fs

from paddlebox.errors import DataError
from paddlebox.store import remote
from paddlebox.store.remote import is_uri

RETRIES = 3
_FIRST_WAIT_S = 0.5
_BLOCKS, _BLOCK_BYTES = 8, 4096  # of `FileState.sample`
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError)
T = TypeVar("T")


def written_at(path: str) -> float | None:
    """The modification time of a file, in seconds since 1970; None if there is no file. Raises:
    DataError if the file system does not answer."""
    if not is_uri(path):
        try:
            return os.stat(path).st_mtime
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _unreadable(path, error) from error
    system, inside = filesystem_of(path, RETRIES)
    info = request(path, RETRIES, lambda: system.get_file_info(inside))
    if info.type == fs.FileType.NotFound:
        return None
    return float(info.mtime.timestamp()) if info.mtime is not None else 0.0


def open_source(path: str, retries: int = RETRIES) -> Source:
    """Raises: DataError if the file cannot be opened."""
    return RemoteSource(path, retries) if is_uri(path) else LocalSource(path)


def request(uri: str, retries: int, work: Callable[[], T]) -> T:
    """What `work`, a request to the file system of a URI, returns. Raises: DataError after the last
    attempt."""
    waits = [_FIRST_WAIT_S * 2**n for n in range(retries)]
    return remote.retry(remote.shown(uri), "read", work, waits, time.sleep, DataError, _FINAL)


def filesystem_of(uri: str, retries: int) -> tuple[Any, str]:
    """The pyarrow file system of a URI, and the path in it. Raises: DataError."""
    return request(uri, retries, lambda: remote.filesystem_of(uri))


class Source(io.RawIOBase):
    """The bytes of one file, whose size must not change meanwhile. Each method raises a DataError
    that names it."""

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
        """None: the file has been removed."""

    def check_unchanged(self) -> None:
        """Call it after the last read. Raises: DataError if the file has changed since it was
        opened, for example because it is still being written."""
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


@dataclass(frozen=True)
class FilePart:
    """Part `number` of `parts` of a file, which one of several ranks reads. Of text these are the
    lines that begin in that part of the bytes. Of Parquet and Arrow they are each `parts`-th row
    group or record batch, from `number` on."""

    path: str
    number: int = 0
    parts: int = 1

    @property
    def is_whole(self) -> bool:
        return self.parts == 1

    @property
    def label(self) -> str:
        return self.path if self.is_whole else f"{self.path} (part {self.number + 1}/{self.parts})"

    def blocks(
        self, source: Source, block_bytes: int, head_lines: int
    ) -> Iterator[tuple[int, bytes]]:
        """The lines of the part, in blocks of at most block_bytes, each with the position at which
        it begins. The source is at its beginning, and not compressed. head_lines: lines that belong
        to the first part, whatever their size. Raises: DataError if the file cannot be read, or
        changes while it is read."""
        head = _bytes_of_lines(source, head_lines, block_bytes) if head_lines else 0
        begin, end = (
            head + (source.size - head) * number // self.parts
            for number in (self.number, self.number + 1)
        )
        yield from _lines_within(source, begin if self.number else 0, end, block_bytes)
        source.check_unchanged()


def _bytes_of_lines(source: Source, lines: int, block_bytes: int) -> int:
    source.seek(0)
    at = 0
    while lines and (block := source.read(block_bytes)):
        begin = 0
        while lines and (end := block.find(b"\n", begin) + 1):
            begin, lines = end, lines - 1
        at += begin if not lines else len(block)
    return at


def _lines_within(
    source: Source, begin: int, end: int, block_bytes: int
) -> Iterator[tuple[int, bytes]]:
    """The bytes of the lines that begin in [begin, end), in blocks with their positions."""
    at = max(0, begin - 1)  # a line begins at `begin` if a line break is before it
    source.seek(at)
    inside = begin == 0
    while begin < end and (block := source.read(block_bytes)):
        first, at = at, at + len(block)
        if not inside:
            cut = block.find(b"\n") + 1
            if cut == 0 and at < end:
                continue
            if cut == 0 or first + cut >= end:
                return  # the line that contains byte `begin` is longer than the part
            first, block, inside = first + cut, block[cut:], True
        if at >= end:
            stop = block.find(b"\n", max(0, end - 1 - first)) + 1
            if stop:
                yield first, block[:stop]
                return
        yield first, block


class FileState(NamedTuple):
    """The size of a local file and a hash of some of its bytes. A copy has another modification
    time, so that is not used."""

    bytes: int
    # Hash of 8 blocks of 4 KiB, spread evenly from the beginning to the end of the file. A file of
    # at most 32 KiB is hashed as a whole.
    sample: str

    def change_to(self, now: FileState) -> str:
        """Says how a file has changed, for a log line."""
        if self.bytes != now.bytes:
            return f"had {self.bytes} bytes when it was trained, and has {now.bytes} now"
        return f"has {now.bytes} bytes as when it was trained, but other content"


def state_of(path: str) -> FileState | None:
    """The state of a file; None if it is remote or cannot be read."""
    if is_uri(path):
        return None
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            digest = hashlib.sha256()
            for offset in _offsets(size):
                digest.update(os.pread(file.fileno(), _BLOCK_BYTES, offset))
            return FileState(size, digest.hexdigest()[:16])
    except OSError:
        return None


def states_of(files: Sequence[str]) -> dict[str, FileState]:
    return {file: state for file in files if (state := state_of(file)) is not None}


def changed(before: Mapping[str, FileState]) -> dict[str, FileState]:
    """The files whose state has changed, with their new state, without missing files."""
    now = states_of([*before])
    return {file: state for file, state in now.items() if state != before[file]}


def _offsets(size: int) -> Sequence[int]:
    if size <= _BLOCKS * _BLOCK_BYTES:
        return range(0, size, _BLOCK_BYTES)
    last = size - _BLOCK_BYTES
    return [last * block // (_BLOCKS - 1) for block in range(_BLOCKS)]
