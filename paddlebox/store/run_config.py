"""The config and the slots that a run keeps, for tools that are given its folder alone."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paddlebox.config import Config, Slots, load_slots
from paddlebox.config.check import validate
from paddlebox.config.load import config_of
from paddlebox.config.stored import completed, with_stored
from paddlebox.errors import ConfigError, StoreError
from paddlebox.store.record import VersionRecord

# Of the store only what needs no lmdb is imported here: tools that fork import this module.

CONFIG_FILE, SLOTS_FILE = "config.json", "slots.json"  # of a run dir


def of_newest(run_dir: Path, overrides: Sequence[str] = ()) -> tuple[Config, Slots]:
    """What the newest commit was trained with; what RUN_DIR/config.json and slots.json say where
    the commit says nothing, as that of a program of one's own.

    Args:
        overrides: "key.path=value", applied on top. With one of data.slots the slots are those of
            that file.

    Raises: StoreError where there is no run, or it says no config; ConfigError for an override.
    """
    own = _own(run_dir)
    head = _newest(own)
    if head is None:
        config = of_last_start(run_dir, overrides)
        return config, _slots_beside(own, config, overrides)
    return of_version(own, head, overrides)


def continuing(config: Config, run_dir: Path) -> Config:
    """The config with the values that the newest commit was trained with, for keys that it does not
    name (`with_stored`); as it is where there is no commit, or one that says nothing."""
    stored = stored_config(_own(run_dir))
    return with_stored(config, stored, f"{run_dir}: config") if stored else config


def stored_config(run_dir: Path, version: str = "") -> Mapping[str, Any]:
    """The config that the newest commit, or another version, was trained with; empty where there is
    none, or it says nothing.

    Raises: StoreError for a version that is not there.
    """
    from paddlebox.store.manifest import Manifest
    from paddlebox.store.versions import find_version

    data = run_dir / "store" / "manifest" / "data.mdb"
    if not data.is_file() or data.stat().st_size == 0:
        return {}
    with Manifest.open_reader(run_dir / "store") as manifest:
        record = manifest.version(find_version(manifest, version)) if version else manifest.head()
    return dict(record.config.get("config", {})) if record is not None else {}


def of_version(
    run_dir: Path, record: VersionRecord, overrides: Sequence[str] = ()
) -> tuple[Config, Slots]:
    """As `of_newest`, of any version."""
    if not record.config:
        config = of_last_start(run_dir, overrides)
        return config, _slots_beside(run_dir, config, overrides)
    where = f"{run_dir}: version {record.version}"
    config = config_of(completed(record.config["config"]), overrides, f"{where}: config")
    if _names_slots(overrides):
        return config, load_slots(config.data.slots)
    return config, validate(Slots, record.config["slots"], f"{where}: slots")


def of_last_start(run_dir: Path, overrides: Sequence[str] = ()) -> Config:
    """What the run was last started with: RUN_DIR/config.json, or where there is none, as in a run
    dir that was restored from a copy, what its newest commit was trained with.

    Raises: as `of_newest`.
    """
    own = _own(run_dir)
    path = own / CONFIG_FILE
    try:
        values = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        head = _newest(own)
        if head is not None and head.config:
            return of_version(own, head, overrides)[0]
        what = (
            f"holds no config: neither {CONFIG_FILE} nor a commit of tools/train.py"
            if run_dir.is_dir()
            else f"no such folder, seen from {Path.cwd()}"
        )
        raise StoreError(
            f"{run_dir}: {what}; expected the --run-dir of a training run: correct it, or give the "
            "config: -c CONFIG"
        ) from error
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{path}: cannot be read: {error}; give the config that trained the run: -c CONFIG"
        ) from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a mapping, found {type(values).__name__}")
    return config_of(completed(values), overrides, str(path))


def _own(run_dir: Path) -> Path:
    """The run dir of this rank, on a machine that does not have the first one's."""
    rank = os.environ.get("PADDLE_TRAINER_ID", "0")
    own = run_dir / "ranks" / rank
    return run_dir if rank == "0" or (run_dir / "store").is_dir() or not own.is_dir() else own


def _newest(run_dir: Path) -> VersionRecord | None:
    from paddlebox.store.manifest import Manifest

    store = run_dir / "store"
    if not store.is_dir():
        return None
    with Manifest.open_reader(store) as manifest:
        return manifest.head()


def _slots_beside(run_dir: Path, config: Config, overrides: Sequence[str]) -> Slots:
    path = run_dir / SLOTS_FILE
    if _names_slots(overrides) or not path.is_file():
        return load_slots(config.data.slots)
    try:
        values: Any = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}: cannot be read: {error}") from error
    return validate(Slots, values, str(path))


def _names_slots(overrides: Sequence[str]) -> bool:
    return any(
        override.partition("=")[0].strip() in ("data", "data.slots") for override in overrides
    )
