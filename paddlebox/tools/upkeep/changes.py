"""The commands of tools/store.py that change or copy a store. Each returns an exit code."""

from __future__ import annotations

import argparse
from pathlib import Path

from paddlebox.errors import StoreError
from paddlebox.store import copies, names
from paddlebox.store.checkpoints import checkpoints
from paddlebox.store.files import table_folder
from paddlebox.store.lock import KeptLock
from paddlebox.store.manifest import Manifest
from paddlebox.store.names import find_version
from paddlebox.store.tiered_table import stored_table
from paddlebox.tools.columns import aligned
from paddlebox.tools.upkeep import report
from paddlebox.tools.upkeep.output import DAMAGED, SOUND, show
from paddlebox.tools.upkeep.repair import repair
from paddlebox.tools.upkeep.store_files import newest
from paddlebox.tools.upkeep.verify import verify


def compact(folder: Path, arguments: argparse.Namespace) -> int:
    """Merge segments, and print the figures of the store before and after. Each pass that has a
    version keeps its newest one: how many passes stay is a setting of the run, not of the store."""
    with KeptLock(folder):
        before = report.stat(folder)
        with Manifest.open_reader(folder) as manifest:
            record, passes = newest(manifest), len(manifest.versions())
        with stored_table(
            folder, record, compaction=None, threads=2, keep_versions=passes
        ) as table:
            table.compactor.compact(full=arguments.full)
        after = report.stat(folder)
    names = ["version", "segments", "stored_rows", "stored_bytes", "space_ratio", "depth"]
    value = {name: {"before": before[name], "after": after[name]} for name in names}
    rows = [("", "before", "after"), *((name, before[name], after[name]) for name in names)]
    show(arguments, value, aligned(rows))
    return SOUND


def repair_store(folder: Path, arguments: argparse.Namespace) -> int:
    result = repair(folder, yes=arguments.yes)
    lines = []
    if result.manifest is not None:
        rebuilt = "was rebuilt" if result.done else "can be rebuilt"
        lines.append(f"manifest: {result.manifest}: it {rebuilt} from its files")
    for lost in result.lost:
        where = "all of it" if lost.block is None else f"block {lost.block}"
        lines.append(
            f"lost: {lost.file}, {where}: {lost.rows} rows of keys {lost.min_key:#018x} to "
            f"{lost.max_key:#018x}"
        )
        older = ", ".join(lost.older)
        lines.append(
            f"  older copies in {older} become current"
            if older
            else "  no older copies: these feasigns start again from nothing"
        )
    lines += [f"cannot be repaired: {damage.message}" for damage in result.not_mended]
    damaged = bool(result.lost or result.not_mended or result.manifest)
    if not damaged:
        lines.append("nothing is damaged")
    elif result.done:
        lines.append(f"repaired as version {result.version}; damaged files are kept in damaged/")
    else:
        lines.append("nothing was changed: add --yes to repair")
    show(arguments, result.as_dict(), lines)
    return DAMAGED if result.not_mended or (damaged and not result.done) else SOUND


def name_version(folder: Path, arguments: argparse.Namespace) -> int:
    with Manifest.open_reader(folder) as manifest:
        version = find_version(manifest, arguments.version)
    names.name_version(str(folder), version, arguments.name)
    value = {"name": arguments.name, "version": version}
    show(arguments, value, [f"version {version} is named {arguments.name}"])
    return SOUND


def unname(folder: Path, arguments: argparse.Namespace) -> int:
    version = names.unname(str(folder), arguments.name)
    value = {"name": arguments.name, "version": version}
    show(arguments, value, [f"version {version} is no longer named {arguments.name}"])
    return SOUND


def copy(folder: Path, arguments: argparse.Namespace) -> int:
    with Manifest.open_reader(folder) as manifest:
        version = find_version(manifest, arguments.version) if arguments.version else None
        record = manifest.pin(version)
        if record is None:
            raise StoreError(f"{folder}: no version has been committed yet")
        named = {c.name for c in checkpoints(str(folder)) if c.version == record.version}
        label = arguments.version if arguments.version in named else copies.label_of(record)
        written = copies.copy_version(str(folder), record, arguments.uri, label)
    value = {"version": record.version, "label": label, "bytes": written}
    show(arguments, value, [f"version {record.version} copied as {label}: {written:,} bytes"])
    return SOUND


def restore(arguments: argparse.Namespace) -> int:
    record = copies.restore(arguments.uri, arguments.run_dir, arguments.version)
    store = arguments.run_dir / "store"
    others = [verify(store / table_folder("", table)) for table in record.tables]
    found = verify(store)
    found.damage += [damage for other in others for damage in other.damage]
    value = {"version": record.version, "pass": record.pass_number, **found.as_dict()}
    lines = [f"damaged: {damage.message}" for damage in found.damage]
    lines.append(f"{store}: version {record.version}, pass {record.pass_number}")
    show(arguments, value, lines)
    return DAMAGED if found.damage else SOUND
