"""The folder that a supervisor watches, in the one for temporary files.

FOLDER/LOCK    held while the supervisor lives
FOLDER/<n>/    heartbeats of its n-th start (heartbeat.py)
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "paddlebox-watch-"


@contextmanager
def watch_folder() -> Iterator[Path]:
    """A new one, removed at the end. Removes those of this user's supervisors that were killed."""
    _remove_left()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    held = os.open(folder / "LOCK.new", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        (folder / "LOCK.new").rename(folder / "LOCK")  # under its name it is held from the start
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _remove_left() -> None:
    for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/LOCK"):
        with suppress(OSError), open(lock, "rb") as file:
            if os.fstat(file.fileno()).st_uid == os.getuid():
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an OSError while it lives
                shutil.rmtree(lock.parent, ignore_errors=True)
