"""Tells whether a data file has changed since it was trained."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from paddlebox.store.remote import is_uri

_BLOCKS, _BLOCK_BYTES = 8, 4096


class FileState(NamedTuple):
    """The size of a local file and a hash of some of its bytes.

    The modification time is not used, because a copy of the same bytes has a different one.
    """

    bytes: int
    # Hash of 8 blocks of 4 KiB, spread evenly from the beginning to the end of the file. A file of
    # at most 32 KiB is hashed as a whole.
    sample: str

    def change_to(self, now: FileState) -> str:
        """Text for a log line about a file that had this state and now has the state `now`."""
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
    """The states of the files that are local and can be read."""
    found = {file: state_of(file) for file in files}
    return {file: state for file, state in found.items() if state is not None}


def changed(before: Mapping[str, FileState]) -> dict[str, FileState]:
    """The files whose state has changed, with their new state. Missing files are left out."""
    now = states_of([*before])
    return {file: state for file, state in now.items() if state != before[file]}


def _offsets(size: int) -> Sequence[int]:
    if size <= _BLOCKS * _BLOCK_BYTES:
        return range(0, size, _BLOCK_BYTES)
    last = size - _BLOCK_BYTES
    return [last * block // (_BLOCKS - 1) for block in range(_BLOCKS)]
