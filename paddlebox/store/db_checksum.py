"""DbChecksum: the checksum of LMDB's file (docs/formats/manifest.md).

LMDB does not check the pages that it reads, and a damaged one can end the process.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator

from paddlebox.errors import CorruptionError
from paddlebox.store import files
from paddlebox.store.crc import crc32c

_DATA, _NAME = "data.mdb", "data.sha256"
_MAGIC = "PBXSHA256 1"
_UNKNOWN = (0, "0" * 64)  # while a transaction changes the file


class DbChecksum:
    """Size and SHA-256 of ``data.mdb`` in a file beside it.

    Only the writer of the environment calls `transaction`. `check` may be called at any time, by
    any process, and before LMDB opens the file.
    """

    def __init__(self, folder: str) -> None:
        """folder: of the LMDB environment."""
        self._data, self._path = os.path.join(folder, _DATA), os.path.join(folder, _NAME)

    def check(self) -> None:
        """Checks every byte of the file, if there is a checksum. There is none in a new store,
        during a transaction or after one that failed, and if the power failed before the checksum
        of the last transaction was on the disk.

        Raises: CorruptionError.
        """
        while True:
            line = self._line()
            expected = self._parse(line)
            if expected == _UNKNOWN:
                return
            found = self._found()
            if found == expected:
                return
            if self._line() == line:  # otherwise a transaction came between
                raise CorruptionError(
                    f"{self._data}: expected {expected[0]} bytes with SHA-256 {expected[1]}, found "
                    f"{found[0]} with {found[1]}"
                )

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Lets the caller change the file, and then stores its new checksum. If the caller fails or
        the process dies, there is no checksum until the next transaction.

        Raises: OSError, OutOfSpaceError.
        """
        self._write(_UNKNOWN, durably=True)
        yield
        # Not synced: until this line is on the disk, the disk has the line of `_UNKNOWN`.
        self._write(self._found(), durably=False)

    def write(self) -> None:
        """Stores the checksum of a file that LMDB has closed, durably."""
        self._write(self._found(), durably=True)

    def _write(self, of: tuple[int, str], *, durably: bool) -> None:
        line = _line(*of)
        if not os.path.exists(self._path):
            files.write_durably(self._path, line)
            return
        # In place, within one sector: a power cut leaves the old line or the new one.
        fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(fd, line, 0)
            if durably:
                os.fdatasync(fd)
        finally:
            os.close(fd)

    def _line(self) -> bytes:
        try:
            return files.read(self._path)
        except FileNotFoundError:
            return _line(*_UNKNOWN)

    def _parse(self, line: bytes) -> tuple[int, str]:
        words = line.decode(errors="replace").split()
        with contextlib.suppress(ValueError, IndexError):
            found = int(words[2]), words[3]
            if line == _line(*found):
                return found
        raise CorruptionError(
            f"{self._path}: expected a line '{_MAGIC} bytes sha256 crc32c', found {line[:120]!r}"
        )

    def _found(self) -> tuple[int, str]:
        try:
            content = files.read(self._data)
        except FileNotFoundError:
            content = b""
        return len(content), hashlib.sha256(content).hexdigest()


def _line(size: int, digest: str) -> bytes:
    text = f"{_MAGIC} {size:020d} {digest}"
    return f"{text} {crc32c(text.encode()):08x}\n".encode()
