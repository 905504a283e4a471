"""The files of a run dir that tell of the run (run.py lists them)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from paddlebox.config import Config
from paddlebox.errors import PaddleBoxError, StoreError


def summary_of(run_dir: Path, passes: int, version: int) -> dict[str, Any] | None:
    """summary.json of a run that is done with so many passes; the store's version is that of now,
    which a merge or a move to another number of ranks has raised since."""
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
    try:
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(run_dir / "config.json", json.loads(config.canonical_json()))
    except OSError as error:
        if isinstance(error, PaddleBoxError):
            raise
        raise StoreError(
            f"{run_dir}: cannot be used as a run dir: {error.strerror}; expected a folder that can "
            "be made and written to: choose another --run-dir"
        ) from error


def append_json(path: Path, value: Any) -> None:
    try:
        with open(path, "a") as file:
            file.write(json.dumps(value) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror}") from error


def write_json(path: Path, value: Any) -> None:
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        temporary.write_text(json.dumps(value, indent=1) + "\n")
        temporary.rename(path)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror}") from error
