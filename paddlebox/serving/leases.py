"""Leases of generations by readers without LMDB (ops/serve/lmdb_reader.h).

LMDB knows nothing of such a reader. It holds a shared lock on one byte far behind the end of the
export file, that of its generation, which the kernel ends with it. A writer removes a generation
only while it alone holds that lock. Open file description locks belong to a descriptor, so neither
LMDB nor another descriptor of the process can end one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

_FIRST = 1 << 60  # the byte of generation 0
_FLOCK = struct.Struct("@hhqqi4x")  # type, whence, start, length, pid


@contextlib.contextmanager
def unleased(path: Path, generations: Sequence[int]) -> Iterator[list[int]]:
    """Those of the generations that no reader leases. None of them can be leased before the block
    ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        yield [number for number in generations if _lock(descriptor, number)]
    finally:
        os.close(descriptor)


def _lock(descriptor: int, generation: int) -> bool:
    wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _FIRST + generation, 1, 0)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, wanted)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        return False
    return True
