"""Repairs a damaged store. It drops only what is proven to be damaged, and lists all of it."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.config.arguments import AnyPath, as_path
from paddlebox.errors import CorruptionError, StoreError
from paddlebox.store import files
from paddlebox.store.lock import KeptLock
from paddlebox.store.manifest import Manifest
from paddlebox.store.rebuild import rebuild_from_files
from paddlebox.store.record import VersionRecord, newly_written
from paddlebox.tools.upkeep.verify import Damage, dense_damage, segment_damage

_ASIDE = "damaged"


@dataclass(frozen=True)
class Lost:
    """Rows of one damaged block, or of a whole segment. Their keys are in [min_key, max_key]."""

    file: str
    block: int | None
    rows: int
    min_key: int
    max_key: int
    # Older segments that overlap. Their copies of the lost rows become current.
    older: tuple[str, ...]


@dataclass
class Repair:
    """The damage that was found, and whether it was repaired."""

    done: bool  # False: nothing was changed
    manifest: str | None = None  # its damage; it is rebuilt from MANIFEST files
    version: int = 0  # the newest version after the repair
    lost: list[Lost] = field(default_factory=list)
    not_mended: list[Damage] = field(default_factory=list)  # cannot be repaired

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def repair(folder: AnyPath, *, yes: bool = False) -> Repair:
    """Make a new version of the newest one without the damaged blocks of its segments.

    Damaged files are kept in STORE/damaged/. Then older versions without damage stay; the others
    are dropped. Without ``yes`` nothing is changed.

    Raises: StoreLockedError while training runs; CorruptionError if no version can be used.
    """
    folder = as_path(folder, "folder")
    with KeptLock(folder) if yes else contextlib.nullcontext():
        return _repair(folder, yes)


def _repair(folder: Path, yes: bool) -> Repair:
    result = Repair(done=yes)
    try:
        with Manifest.open_reader(folder) as manifest:
            manifest.versions()
            record = manifest.head()
    except CorruptionError as error:
        result.manifest = str(error)
        if not yes:
            return result
        record = rebuild_from_files(folder)
    if record is None:
        raise StoreError(f"{folder}: no version has been committed yet: nothing to repair")
    result.version = record.version
    damaged = {
        segment["id"]: (segment, found)
        for segment in record.segments
        if (found := list(segment_damage(folder, segment)))
    }
    result.not_mended = list(dense_damage(folder, record))
    for segment, found in damaged.values():
        result.lost += _lost(folder, record, segment, found)
    if not yes or not damaged:
        return result
    with Manifest.open_writer(folder) as manifest:
        segments = [s for s in record.segments if s["id"] not in damaged]
        kept = manifest.records()
        next_id = max(s["id"] for one in kept for s in one.segments) + 1
        for number, (segment, found) in enumerate(damaged.values()):
            segments += _rewrite(folder, segment, found, next_id + number)
        lost = sum(part.rows for part in result.lost)
        mended = record.following(
            "repair", segments=segments, live_rows=max(0, record.live_rows - lost)
        )
        for segment, _ in damaged.values():
            _set_aside(folder, segment["file"])
        manifest.commit(mended)
        if not files.is_of_set(str(folder)):  # otherwise the first table refers to versions
            sound = {segment["id"] for segment in record.segments} - damaged.keys()
            whole = [one.version for one in kept if _is_whole(folder, one, sound)]
            manifest.prune(keep=1, named=whole)
        result.version = mended.version
    return result


def _is_whole(folder: Path, record: VersionRecord, sound: Collection[int]) -> bool:
    """Whether no file of a version is damaged or set aside. sound: segments that are checked."""
    others = (segment for segment in record.segments if segment["id"] not in sound)
    damage = itertools.chain.from_iterable(segment_damage(folder, segment) for segment in others)
    return not any(damage) and not any(dense_damage(folder, record))


def _lost(
    folder: Path, record: VersionRecord, segment: dict[str, Any], found: list[Damage]
) -> list[Lost]:
    lost = []
    for damage in found:
        low, high = segment["min_key"], segment["max_key"]
        if damage.block is not None:
            low, high = _interval(folder, segment, damage.block, {d.block for d in found})
        older = tuple(
            s["file"]
            for s in record.segments
            if s["sequence"] < segment["sequence"] and s["min_key"] <= high and s["max_key"] >= low
        )
        lost.append(Lost(damage.file, damage.block, damage.rows or 0, low, high, older))
    return lost


def _interval(
    folder: Path, segment: dict[str, Any], block: int, damaged: set[int | None]
) -> tuple[int, int]:
    """The range of keys of a damaged block: between the keys of the intact blocks next to it."""
    file = _native.core.SegmentFile(str(folder / "ssd" / segment["file"]), segment)
    low, high = segment["min_key"], segment["max_key"]
    if block > 0 and block - 1 not in damaged:
        low = int(file.rows(block - 1, 1)[0][-1]) + 1
    if block + 1 < file.shape["blocks"] and block + 1 not in damaged:
        high = int(file.rows(block + 1, 1)[0][0]) - 1
    return low, high


def _rewrite(
    folder: Path, segment: dict[str, Any], found: list[Damage], new_id: int
) -> list[dict[str, Any]]:
    """Write the intact blocks of a segment as a new segment. Returns the descriptor of the new
    segment, or an empty list if no block is intact."""
    if any(damage.block is None for damage in found):
        return []
    file = _native.core.SegmentFile(str(folder / "ssd" / segment["file"]), segment)
    shape = file.shape
    bad = {damage.block for damage in found}
    keys, rows = [], []
    for block in range(shape["blocks"]):
        if block not in bad:
            block_keys, block_rows = file.rows(block, 1)
            keys.append(block_keys)
            rows.append(block_rows)
    if not keys:
        return []
    spec = {**shape, "id": new_id, "sequence": segment["sequence"]}
    written = _native.core.write_segment(
        str(folder / "ssd"), spec, np.concatenate(keys), np.concatenate(rows)
    )
    return newly_written([written])


def _set_aside(folder: Path, file: str) -> None:
    """Keep a segment file in STORE/damaged/."""
    aside = folder / _ASIDE
    files.make_folder(str(aside))
    path, target = folder / "ssd" / file, aside / file
    if path.exists() and not target.exists():
        os.link(path, target)
        files.sync_folder(str(aside))
