"""Files as one sequence of bytes: how ranks send the files of stores to each other."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import IO

from paddlebox.closing import Closing
from paddlebox.errors import CorruptionError
from paddlebox.store import files

File = tuple[str, int]  # path inside a store, bytes


class Stream(Closing):
    """Reads files of a folder as one sequence of bytes."""

    def __init__(self, folder: Path, of: Sequence[File]) -> None:
        self._folder, self._files = folder, of
        self._ends = list(accumulate(size for _, size in of))
        self._open: tuple[int, IO[bytes]] | None = None

    def read(self, begin: int, size: int) -> bytes:
        """Raises: CorruptionError if a file is shorter than its version says; StoreError."""
        parts = []
        for number, offset, count in _pieces(self._ends, begin, size):
            path = self._folder / self._files[number][0]
            with files.store_errors(str(path), "read"):
                found = os.pread(self._file(number, path).fileno(), count, offset)
            if len(found) != count:
                raise CorruptionError(
                    f"{path}: expected {self._files[number][1]} bytes, found fewer"
                )
            parts.append(found)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def names(self, begin: int, size: int) -> list[str]:
        return [self._files[number][0] for number, _, _ in _pieces(self._ends, begin, size)]

    def _file(self, number: int, path: Path) -> IO[bytes]:
        if self._open is None or self._open[0] != number:
            self.close()
            self._open = (number, open(path, "rb", buffering=0))  # noqa: SIM115
        return self._open[1]

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None


class StreamWriter(Closing):
    """Writes the files of a stream below a folder, durably, as bytes arrive. wanted: None: all
    files."""

    def __init__(self, folder: Path, of: Sequence[File], wanted: set[str] | None) -> None:
        self._folder, self._files, self._wanted = folder, of, wanted
        self._ends = list(accumulate(size for _, size in of))
        self._written = 0
        self._open: tuple[int, files.NewFile] | None = None
        self.names = {name for name, _ in of if wanted is None or name in wanted}

    def append(self, data: bytes) -> None:
        """Raises: OutOfSpaceError, StoreError."""
        at = 0
        for number, _, count in _pieces(self._ends, self._written, len(data)):
            if self._files[number][0] in self.names:
                self._file(number).write(memoryview(data)[at : at + count])
            at += count
        self._written += len(data)

    def _file(self, number: int) -> files.NewFile:
        if self._open is None or self._open[0] != number:
            self.close()
            path = self._folder / self._files[number][0]
            files.make_folder(str(path.parent))
            self._open = (number, files.NewFile(path))
        return self._open[1]

    def finish(self) -> None:
        """Make the files durable, empty ones too. Raises: as `append`."""
        self.close()
        for name, size in self._files:
            if name in self.names and not size:
                files.make_folder(str((self._folder / name).parent))
                files.write_durably(str(self._folder / name), b"")

    def close(self) -> None:
        """Sync the open file. Raises: as `append`."""
        if self._open is not None:
            (_, file), self._open = self._open, None
            with file:
                file.sync()


def _pieces(ends: Sequence[int], begin: int, size: int) -> list[tuple[int, int, int]]:
    """(file, offset in it, bytes) of a range of a stream. ends: where each file ends in it."""
    found = []
    number, last = bisect_right(ends, begin), begin + size
    while begin < last and number < len(ends):
        start = ends[number - 1] if number else 0
        count = min(last, ends[number]) - begin
        if count:
            found.append((number, begin - start, count))
        begin, number = begin + count, number + 1
    return found
