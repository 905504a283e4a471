"""Guards this process's map of a file against another process that cuts the file short."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any


def guard_map(path: str | os.PathLike[str]) -> Any:
    """Guard this process's map of a file (ops/base/map_guard.h). Returns a MapGuard; None if the
    file is not mapped, or this process has not loaded the extension: tools open files briefly, and
    loading it takes seconds."""
    native = sys.modules.get("paddlebox._native")
    if native is None:
        return None
    wanted = os.path.realpath(path)
    for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
        addresses, _, _, _, _, *name = line.split(maxsplit=5)
        if name and name[0].replace("\\012", "\n") == wanted:
            begin, end = (int(address, 16) for address in addresses.split("-"))
            return native.core.MapGuard(begin, end - begin)
    return None
