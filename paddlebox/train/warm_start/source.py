"""The run that a warm start reads: where it is, its version, its tables."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paddlebox.config import Slots, load_slots
from paddlebox.config.check import validate
from paddlebox.errors import ConfigError, StoreError
from paddlebox.store.files import table_folder
from paddlebox.store.import_rows import open_source
from paddlebox.store.manifest import Manifest
from paddlebox.store.names import find_version
from paddlebox.store.rank_stores import rank_versions
from paddlebox.store.run_config import SLOTS_FILE
from paddlebox.store.tiered_table import TieredTable

log = logging.getLogger("paddlebox")

INIT_FILE = "init.json"  # RUN_DIR/init.json: the source of the run, and what was carried over
DEFAULT_TABLE = ""  # stands for the default table, whatever its name is


@dataclass(frozen=True)
class Source:
    """A run to start from."""

    run: Path  # its run dir
    version: int | None  # None: the newest
    config: Mapping[str, Any]  # its config.json
    slots: Slots


def find_source(text: str, run_dir: Path) -> Source:
    """Find the run that --init-from names. Writes nothing.

    Args:
        text: RUN or RUN@VERSION.
        run_dir: the run dir of the new run.

    Raises:
        StoreError: there is no such run or version, or its config.json cannot be read.
        ConfigError: the run is `run_dir` itself.
    """
    run, mark, name = text.rpartition("@")
    if not mark or Path(text).is_dir():
        run, name = text, ""
    folder = Path(run)
    if not (folder / "store").is_dir():
        raise StoreError(
            f"--init-from {text}: {folder} holds no store; expected a run's folder: give the "
            "--run-dir of a training run"
        )
    if folder.resolve() == run_dir.resolve():
        raise ConfigError(
            f"--init-from {text}: expected another run, found that it is the --run-dir itself: "
            "choose another --run-dir"
        )
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
        slots_file = folder / SLOTS_FILE
        if slots_file.is_file():
            slots = validate(Slots, json.loads(slots_file.read_text()), str(slots_file))
        else:
            slots = load_slots(config["data"]["slots"])
        config["data"]["key_space"], config["optimizer"]["type"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise StoreError(
            f"--init-from {text}: {path} does not describe the run: {error!r}; the config.json "
            "of a run is needed to interpret its rows"
        ) from error
    return Source(folder, resolve_version(folder, name), config, slots)


def resolve_version(run: Path, name: str) -> int | None:
    """The version that a name stands for, in any form that --from takes; None: the newest.

    Raises:
        StoreError: there is no such version.
    """
    if not name:
        return None
    with Manifest.open_reader(run / "store") as manifest:
        return find_version(manifest, name)


@contextmanager
def open_tables(source: Source) -> Iterator[dict[str, list[TieredTable]]]:
    """Open the tables of the source for reading: name -> the table of each of its ranks.

    DEFAULT_TABLE is the name of the default table.
    """
    tables: dict[str, list[TieredTable]] = {}
    with ExitStack() as opened:
        for store, record in rank_versions(source.run / "store", source.version):
            stores = {DEFAULT_TABLE: (store, record.version)} | {
                name: (Path(table_folder(str(store), name)), version)
                for name, version in record.tables.items()
            }
            for name, (folder, version) in stores.items():
                tables.setdefault(name, []).append(
                    opened.enter_context(open_source(folder, version))
                )
        yield tables


def check_same_source(source: Source, run_dir: Path) -> None:
    """Check that a run that has versions was filled from this source.

    Raises:
        StoreError: it was filled from another source, or from none.
    """
    try:
        report = json.loads((run_dir / INIT_FILE).read_text())
        run, version = report["run"], report["version"]
    except (OSError, ValueError, LookupError, TypeError):
        run, version = "", 0
    if (run, source.version or version) != (str(source.run), version):
        raise StoreError(
            f"{run_dir} holds a run already"
            + (f", which was filled from {run}@{version}" if run else "")
            + "; --init-from fills an empty run dir: choose another --run-dir"
        )
    log.info("init: %s was filled from %s@%d before", run_dir, run, version)


def trained_by(run: Path, passes: int) -> list[dict[str, Any]]:
    """What the first passes of a run trained, and the runs that it was filled from: one entry for
    each pass, with its files, its date and its hour. Passes without a line in metrics.jsonl are
    left out."""
    found = trained_by_source(run)
    lines = run / "metrics.jsonl"
    for text in lines.read_text().splitlines() if lines.is_file() else ():
        try:
            line = json.loads(text)
            if line["pass"] <= passes:
                files = [os.path.realpath(file) for file in line["files"]]
                found.append({"files": files, "date": line["date"], "hour": line.get("hour", "")})
        except (ValueError, LookupError, TypeError):  # torn by a kill
            continue
    return found


def trained_by_source(run_dir: Path) -> list[dict[str, Any]]:
    """As `trained_by`, for the run that filled a run dir; empty if there is none."""
    try:
        return list(json.loads((run_dir / INIT_FILE).read_text())["trained"])
    except (OSError, ValueError, LookupError, TypeError):
        return []
