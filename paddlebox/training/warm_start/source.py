"""The run that a warm start reads: its version, its tables, and the new places of its slots."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paddlebox.config import Config, KeySpace, Slot, Slots, load_slots
from paddlebox.config.check import validate
from paddlebox.errors import ConfigError, StoreError
from paddlebox.store.checkpoints import find_version
from paddlebox.store.files import table_folder
from paddlebox.store.import_rows import open_source
from paddlebox.store.rank_stores import rank_versions
from paddlebox.store.run_config import SLOTS_FILE
from paddlebox.store.tiered_table import TieredTable
from paddlebox.store.version_store import VersionStore

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
    """Find the run that --init-from names: RUN or RUN@VERSION. run_dir: that of the new run.

    Raises: StoreError if there is no such run or version, or its config.json cannot be read;
    ConfigError if the run is `run_dir` itself.
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
    """The version that a name, as --from takes it, stands for; None: the newest. Raises
    StoreError."""
    if not name:
        return None
    with VersionStore.open_reader(run / "store") as manifest:
        return find_version(manifest, name)


@contextmanager
def open_tables(source: Source) -> Iterator[dict[str, list[TieredTable]]]:
    """Open the tables of the source for reading: name, or DEFAULT_TABLE -> that of each of its
    ranks."""
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
    """Raises StoreError if a run that has versions was not filled from this source."""
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
    """What the first passes of a run trained, and the runs that it was filled from: files, date and
    hour of each pass with a line in metrics.jsonl."""
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


# Fields of a slot that determine the feasigns of its values.
_MEANING = ("hash", "bucket", "cross")
_DROPPED = -1


@dataclass(frozen=True)
class SlotMap:
    """Maps the sparse slots of the source to those of the new run."""

    indices: list[int]  # by slot of the source: its index in the new run; -1: dropped
    keys: list[tuple[int, int]]  # by slot of the source: its number in feasigns, old and new
    kept: list[str]
    dropped: list[str]
    changed: list[str]  # kept, but their values now become other feasigns
    tables: list[tuple[str, str]]  # by slot of the source: its table, old and new; "": dropped
    moved_tables: list[str]  # kept, but now in another table, so their rows are not carried

    def report(self, slots: Slots) -> dict[str, list[str]]:
        added = [slot.name for slot in slots.sparse if slot.name not in self.kept]
        return {
            "kept": self.kept,
            "added": added,
            "dropped": self.dropped,
            "changed_meaning": self.changed,
        }

    @property
    def moved(self) -> bool:
        return any(new not in (-1, old) for old, new in enumerate(self.indices))

    def within(self, table: str) -> SlotMap:
        """The map restricted to slots that belong to this table in both runs."""
        indices = [
            to if of_both == (table, table) else -1
            for to, of_both in zip(self.indices, self.tables, strict=True)
        ]
        return replace(self, indices=indices)


def map_slots(source: Source, config: Config, new: Slots) -> SlotMap:
    old = source.slots
    first = source.config["table"]["name"]
    places = {slot.name: (index, slot) for index, slot in enumerate(new.sparse)}
    kept = [slot for slot in old.sparse if slot.name in places]
    meaning = (*_MEANING, "shares") if is_per_slot(config) else _MEANING
    changed = [
        slot.name
        for slot in kept
        if any(getattr(slot, name) != getattr(places[slot.name][1], name) for name in meaning)
    ]
    if changed:
        log.warning(
            "init: slots whose values become other feasigns than before: %s", ", ".join(changed)
        )
    indices, keys = _places(old, new, is_per_slot(config))
    tables = [
        (_table_of(slot, first), _table_of(new.sparse[to], config.table.name))
        if to != _DROPPED
        else ("", "")
        for slot, to in zip(old.sparse, indices, strict=True)
    ]
    moved = [slot.name for slot, (a, b) in zip(old.sparse, tables, strict=True) if a != b]
    if moved:
        log.warning(
            "init: slots that moved to another table start without rows: %s", ", ".join(moved)
        )
    return SlotMap(
        indices,
        keys,
        [slot.name for slot in kept],
        [slot.name for slot in old.sparse if slot.name not in places],
        changed,
        tables,
        moved,
    )


def is_per_slot(config: Config) -> bool:
    return config.data.key_space is KeySpace.PER_SLOT


def _table_of(slot: Slot, first: Any) -> str:
    """The name of a slot's table, or DEFAULT_TABLE. first: name of the default table."""
    return DEFAULT_TABLE if slot.table in (None, first) else str(slot.table)


def _places(old: Slots, new: Slots, per_slot: bool) -> tuple[list[int], list[tuple[int, int]]]:
    """`indices` and `keys` of a `SlotMap`.

    With key_space per_slot, a feasign contains the number of the slot that owns its row, and rows
    move with their owner. If an owner now shares the ids of another slot, its rows could collide
    with those of that slot, and are dropped.
    """
    place = {slot.name: index for index, slot in enumerate(new.sparse)}
    if not per_slot:
        return [place.get(slot.name, _DROPPED) for slot in old.sparse], []
    before, after = old.key_slots(), new.key_slots()
    indices, keys = [], []
    for slot, number in zip(old.sparse, before, strict=True):
        to = place.get(old.sparse[number].name, _DROPPED)
        if to != _DROPPED and after[to] != to:
            to = _DROPPED
        own = place.get(slot.name, _DROPPED)
        shared_still = own != _DROPPED and to != _DROPPED and after[own] == to
        indices.append(own if shared_still else to)
        keys.append((number, to if to != _DROPPED else number))
    return indices, keys
