"""Finds and creates run dirs, and writes their JSON files (run.py lists them)."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from paddlebox import __version__, _native
from paddlebox.config import Config, Slots
from paddlebox.data.pipeline import load_threads
from paddlebox.errors import OutOfSpaceError, StoreError
from paddlebox.store.copies import of_rank
from paddlebox.store.files import make_folder, sync_folder, write_durably
from paddlebox.store.run_config import SLOTS_FILE


def summary_of(run_dir: Path, passes: int, version: int) -> dict[str, Any] | None:
    """The contents of summary.json, or None if there is none for this number of committed passes. A
    merge or a change of the number of ranks may have raised the store's version since: it is then
    updated. Raises StoreError if it cannot be."""
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


def dir_of(run_dir: Path, rank: int) -> Path:
    """The run dir of a rank. run_dir: the run dir of the first rank."""
    return run_dir if rank == 0 else run_dir / "ranks" / str(rank)


def own_dir(run_dir: Path, rank: int) -> Path:
    """`dir_of` this rank. Creates its parent folders. Raises StoreError."""
    own = dir_of(run_dir, rank)
    if rank > 0:
        for folder in (run_dir, own.parent):
            make_run_dir(folder)
    return own


def copies_of(config: Config, rank: int) -> str:
    """URI of the copies of a rank's commits; empty if there are none."""
    uri = config.checkpoint.copy_to
    return of_rank(uri, rank) if uri else ""


def make_run_dir(run_dir: Path) -> None:
    """Create a run dir if it does not exist. Raises StoreError."""
    # Durably: a power cut must not take the folder with all that is committed in it.
    try:
        make_folder(str(run_dir), 0o700)
    except OutOfSpaceError:
        raise
    except StoreError as error:
        raise StoreError(
            f"{run_dir}: cannot be used as a run dir: {error}: choose another --run-dir"
        ) from error


def write_slots(run_dir: Path, slots: Slots) -> None:
    """Write the slots of a run to its run dir, because the file data.slots may change later."""
    text = json.dumps(slots.model_dump(mode="json"), indent=1)
    write_durably(str(run_dir / SLOTS_FILE), text.encode())


def append_json(path: Path, *values: Any) -> None:
    """Append a line of JSON for each value to a file, durably. Creates the file. Raises
    StoreError."""
    try:
        new = not path.exists()
        with open(path, "a") as file:
            file.writelines(json.dumps(value) + "\n" for value in values)
            file.flush()
            os.fsync(file.fileno())
        if new:
            sync_folder(str(path.parent))
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror}") from error


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file durably: a power cut leaves the old file or the new one. Raises
    StoreError."""
    write_durably(str(path), json.dumps(value, indent=1).encode() + b"\n")


def write_environment(run_dir: Path, config: Config) -> None:
    """Write RUN_DIR/environment.json: software versions, hardware and threads of this start, and
    nothing that identifies the machine. Raises StoreError."""
    versions = {"paddlebox": __version__, "python": platform.python_version()}
    for package in ("paddlepaddle", "paddlepaddle-gpu", "numpy", "pyarrow", "lmdb"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    environment = {
        "started_at": round(time.time(), 3),
        "versions": versions,
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "vector_path": _native.core.vector_path(),
        "threads": {
            "store": load_threads(config.data.threads).most,
            "feeder": config.data.threads or "tuned",
            "dense": int(os.environ.get("OMP_NUM_THREADS") or 0) or "not set",
        },
    }
    write_json(run_dir / "environment.json", environment)


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"
