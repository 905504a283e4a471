"""Reads the config, the slots and the metrics of a run from its folder."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paddlebox.config import Config, Slots, load_slots
from paddlebox.config.arguments import AnyPath, as_path
from paddlebox.config.check import validate
from paddlebox.config.load import config_of
from paddlebox.config.stored import read_config, with_stored
from paddlebox.errors import ConfigError, StoreError
from paddlebox.store.record import VersionRecord

# Tools that fork import this module, so it imports lmdb only when it is needed.

CONFIG_FILE, SLOTS_FILE = "config.json", "slots.json"  # of a run dir


def of_newest(run_dir: AnyPath, overrides: Sequence[str] = ()) -> tuple[Config, Slots]:
    """The config and slots of the newest commit; those in RUN_DIR if it has none, because your own
    program made it. An override "key.path=value" of data.slots also changes the slots. Raises:
    StoreError if there is no run, or it has no config; ConfigError for an override."""
    own = _own(as_path(run_dir, "run_dir"))
    return of_version(own, _record(own), overrides)


def continuing(config: Config, run_dir: AnyPath) -> Config:
    """The config, with the newest commit's values, if it has any, for keys that are not named
    (`with_stored`)."""
    stored = stored_config(_own(as_path(run_dir, "run_dir")))
    return with_stored(config, stored, f"{run_dir}: config") if stored else config


def stored_config(run_dir: Path, version: str = "") -> Mapping[str, Any]:
    """The config of a commit, by default the newest; empty if there is none. Raises: StoreError if
    there is no such version."""
    record = record_of(run_dir, version)
    return dict(record.config.get("config", {})) if record is not None else {}


def stored_slots(run_dir: Path, version: str = "") -> Mapping[str, Any]:
    """The slots of a commit, as `stored_config` its config."""
    record = record_of(run_dir, version)
    return dict(record.config.get("slots", {})) if record is not None else {}


def record_of(run_dir: Path, version: str = "") -> VersionRecord | None:
    """A version of a run, by default the newest; None if nothing is committed. Raises: StoreError
    if there is no such version."""
    data = run_dir / "store" / "manifest" / "data.mdb"
    if not data.is_file() or data.stat().st_size == 0:
        return None
    return _record(run_dir, version)


def of_version(
    run_dir: Path, record: VersionRecord | None, overrides: Sequence[str] = ()
) -> tuple[Config, Slots]:
    """As `of_newest`, for any version; None: there is no commit."""
    if record is None or not record.config:
        config = of_last_start(run_dir, overrides)
        return config, _stored_slots(run_dir, config, overrides)
    where = f"{run_dir}: version {record.version}"
    config = _with_overrides(record.config["config"], overrides, f"{where}: config")
    if _names_slots(overrides):
        return config, load_slots(config.data.slots).with_exact_values(config.data.exact_values)
    return config, validate(Slots, record.config["slots"], f"{where}: slots")


def of_last_start(run_dir: Path, overrides: Sequence[str] = ()) -> Config:
    """The config of the last start: RUN_DIR/config.json; in a run dir that was restored from a
    copy, that of the newest commit. Raises: as `of_newest`."""
    own = _own(run_dir)
    path = own / CONFIG_FILE
    if own.is_file():
        raise ConfigError(
            f"{run_dir}: expected the --run-dir of a training run, found a file: give a config as "
            f"-c {run_dir}"
        )
    try:
        values = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        head = _record(own)
        if head is not None and head.config:
            return of_version(own, head, overrides)[0]
        what = (
            f"holds no config: neither {CONFIG_FILE} nor a commit of paddlebox train"
            if run_dir.is_dir()
            else f"no such folder in {Path.cwd()}"
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
    return _with_overrides(values, overrides, str(path))


def lines_of(path: Path, passes: int) -> dict[int, dict[str, Any]]:
    """The lines of metrics.jsonl up to a pass, by number, in order, without torn lines."""
    kept: dict[int, dict[str, Any]] = {}
    for line in path.read_text(errors="replace").splitlines() if path.is_file() else ():
        try:
            fields = json.loads(line)
            if 0 < fields["pass"] <= passes:
                kept.setdefault(fields["pass"], fields)
        except (ValueError, TypeError, LookupError):
            continue
    return dict(sorted(kept.items()))


def _with_overrides(stored: Mapping[str, Any], overrides: Sequence[str], source: str) -> Config:
    config = read_config(stored, source)
    if not overrides:
        return config
    return config_of(copy.deepcopy(dict(stored)), overrides, source)


def _own(run_dir: Path) -> Path:
    """The first rank's run dir; this rank's, if this machine does not have the first one."""
    rank = os.environ.get("PADDLE_TRAINER_ID", "0")
    own = run_dir / "ranks" / rank
    return run_dir if rank == "0" or (run_dir / "store").is_dir() or not own.is_dir() else own


def _record(run_dir: Path, version: str = "") -> VersionRecord | None:
    from paddlebox.store.checkpoints import find_version
    from paddlebox.store.version_store import VersionStore

    if not (run_dir / "store").is_dir():
        return None
    with VersionStore.open_reader(run_dir / "store") as manifest:
        return manifest.version(find_version(manifest, version)) if version else manifest.newest()


def _stored_slots(run_dir: Path, config: Config, overrides: Sequence[str]) -> Slots:
    path = run_dir / SLOTS_FILE
    if _names_slots(overrides) or not path.is_file():
        return load_slots(config.data.slots).with_exact_values(config.data.exact_values)
    try:
        values: Any = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}: cannot be read: {error}") from error
    return validate(Slots, values, str(path))


def _names_slots(overrides: Sequence[str]) -> bool:
    return any(
        override.partition("=")[0].strip() in ("data", "data.slots") for override in overrides
    )
