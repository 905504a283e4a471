"""Creates a run dir and writes its JSON files (run.py lists them)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from paddlebox.config import Config
from paddlebox.errors import PaddleBoxError, StoreError


def summary_of(run_dir: Path, passes: int, version: int) -> dict[str, Any] | None:
    """Read summary.json of a run that is complete.

    A merge or a change of the number of ranks may have raised the store's version since the file
    was written. The version in the file is then updated.

    Args:
        run_dir: the run dir.
        passes: number of committed passes.
        version: the newest version of the store.

    Returns: the summary, or None if there is none for so many passes.

    Raises:
        StoreError: the file cannot be updated.
    """
    try:
        summary = json.loads((run_dir / "summary.json").read_text())
    except (OSError, ValueError):
        return None
    if summary.get("passes") != passes:
        return None
    if summary.get("version") != version:
        summary["version"] = version
        write_json(run_dir / "summary.json", summary)
    return dict(summary)


def make_run_dir(run_dir: Path, config: Config) -> None:
    """Create a run dir, if it does not exist, and write its config.json.

    Raises:
        StoreError: the folder cannot be created or written to.
    """
    try:
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(run_dir / "config.json", json.loads(config.canonical_json()))
    except OSError as error:
        if isinstance(error, PaddleBoxError):
            raise
        raise StoreError(
            f"{run_dir}: cannot be used as a run dir: {error.strerror}; expected a folder that can "
            "be created and written to: choose another --run-dir"
        ) from error


def append_json(path: Path, value: Any) -> None:
    """Append a line of JSON to a file and sync it to disk.

    Raises:
        StoreError: the file cannot be written.
    """
    try:
        with open(path, "a") as file:
            file.write(json.dumps(value) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror}") from error


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file under a temporary name, then rename it.

    Raises:
        StoreError: the file cannot be written.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        temporary.write_text(json.dumps(value, indent=1) + "\n")
        temporary.rename(path)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror}") from error
