"""The folder that a supervisor watches. It is in the folder for temporary files.

FOLDER/LOCK    locked while the supervisor lives
FOLDER/<n>/    heartbeats of the ranks of the n-th start (heartbeat.py)
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
    """Create a folder, and remove it at the end. It also removes the folders of supervisors of this
    user that were killed."""
    _remove_left()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    held = os.open(folder / "LOCK.new", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        (folder / "LOCK.new").rename(folder / "LOCK")  # so that LOCK exists only when locked
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _remove_left() -> None:
    for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/LOCK"):
        with suppress(OSError), open(lock, "rb") as file:
            if os.fstat(file.fileno()).st_uid == os.getuid():
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an OSError while it is locked
                shutil.rmtree(lock.parent, ignore_errors=True)
