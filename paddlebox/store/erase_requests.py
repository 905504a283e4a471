"""Requests to erase rows, which wait in a store until the run that trains with it begins a pass.

STORE/erase/<request>.json   {feasigns, request, slot}; written under a temporary name, synced, and
                             renamed. <request>: the time in ns, 16 hex digits.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paddlebox.errors import CorruptionError
from paddlebox.store import checked, files

FOLDER = "erase"
_NAME = re.compile(r"([0-9a-f]{16})\.json")


def add(store: Path, feasigns: Sequence[int], slot: int) -> str:
    """Writes a request, durably, and returns its name. Raises: OutOfSpaceError, StoreError."""
    request = f"{time.time_ns():016x}"
    files.make_folder(str(store / FOLDER))
    asked = {"feasigns": list(feasigns), "request": request, "slot": slot}
    files.write_durably(str(store / FOLDER / f"{request}.json"), json.dumps(asked).encode())
    return request


def read(store: Path) -> list[dict[str, Any]]:
    """The waiting requests, the oldest first. Raises: CorruptionError."""
    try:
        names = sorted(os.listdir(store / FOLDER))
    except FileNotFoundError:
        return []
    return [_read(store / FOLDER / name, match[1]) for name in names if (match := _match(name))]


def remove(store: Path, request: str) -> None:
    (store / FOLDER / f"{request}.json").unlink(missing_ok=True)
    files.sync_folder(str(store / FOLDER))


def _match(name: str) -> re.Match[str] | None:
    return _NAME.fullmatch(name)


def _read(path: Path, request: str) -> dict[str, Any]:
    try:
        asked = json.loads(path.read_bytes())
        for feasign in asked["feasigns"]:
            checked.number(feasign, "a feasign", 2**64 - 1, least=1)
        checked.number(asked["slot"], "slot", 2**16 - 1, least=-1)
        if asked["request"] != request:
            raise ValueError(f"request is {asked['request']!r}")
    except (ValueError, LookupError, TypeError) as error:
        raise CorruptionError(
            f"{path}: not a request to erase rows: {error!r}: remove the file, and repeat "
            "paddlebox store erase"
        ) from error
    return dict(asked)
