"""Verifies all bytes of a store that have a checksum, and all references; repairs a damaged store.

A repair drops only what is proven to be damaged, and lists all of it."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.config.arguments import AnyPath, as_path
from paddlebox.errors import CorruptionError, PaddleBoxError, StoreError
from paddlebox.store import files, parity_set
from paddlebox.store.files import crc32c, read_dense
from paddlebox.store.locks import KeptLock
from paddlebox.store.manifest_db import rebuild_from_files
from paddlebox.store.parity_set import SetFolder
from paddlebox.store.rank_stores import pass_of, ranks_of
from paddlebox.store.record import VersionRecord, unreferenced, with_stamps
from paddlebox.store.version_store import VersionStore


@dataclass(frozen=True)
class Damage:
    """A file, or a block of it, that differs from what was written."""

    file: str  # path in the store
    message: str
    segment: int | None = None  # id of the segment
    block: int | None = None  # None: the whole file
    offset: int | None = None  # in bytes
    first_row: int | None = None
    rows: int | None = None  # number of rows in the block or segment


@dataclass
class Findings:
    damage: list[Damage] = field(default_factory=list)
    unreferenced: list[str] = field(default_factory=list)  # left by a crash; harmless
    unprotected: str = ""  # why parity does not protect the newest version; no damage
    versions: list[int] = field(default_factory=list)
    segments: int = 0
    bytes: int = 0  # total size of the segments


def verify(folder: AnyPath, progress: Callable[[int, int], None] | None = None) -> Findings:
    """Read a store completely. It does not stop at damage. progress: called with (number of
    segments done, number of all segments)."""
    folder, findings = as_path(folder, "folder"), Findings()
    records = _records(folder, findings)
    findings.versions = sorted(record.version for record in records)
    segments = {s["id"]: s for record in records for s in record.segments}
    for done, segment in enumerate(segments.values()):
        findings.damage += segment_damage(folder, segment)
        findings.segments += 1
        findings.bytes += segment["bytes"]
        if progress is not None:
            progress(done + 1, len(segments))
    for record in records:
        findings.damage += dense_damage(folder, record)
    findings.damage += parity_damage(folder)
    findings.unprotected = unprotected(folder, records[-1]) if records else ""
    findings.damage += names_damage(folder)
    findings.unreferenced = [
        name
        for name in unreferenced(str(folder), records)
        if not name.startswith("MANIFEST-") or not _damaged(findings, name)
    ]
    return findings


def segment_damage(folder: Path, descriptor: dict[str, Any]) -> Iterator[Damage]:
    name = os.path.join("ssd", descriptor["file"])
    number = int(descriptor["id"])
    try:
        segment = _native.core.SegmentFile(str(folder / name), descriptor)
    except (StoreError, ValueError) as error:
        yield Damage(name, str(error), segment=number, rows=int(descriptor["rows"]))
        return
    for block in segment.check():
        yield Damage(name, segment=number, **block)


def parity_damage(folder: Path) -> Iterator[Damage]:
    sets, wrong = SetFolder(folder).open_sets()
    for message in wrong:
        yield Damage(file=parity_set.FOLDER, message=message)
    present = {opened.set.key for opened in sets}
    for opened in sets:
        with opened:
            for key in sorted(set(opened.set.sets) - present):
                name = os.path.join(parity_set.FOLDER, f"{key.partition('-')[0]}.set")
                needed = f"{opened.path} needs set {key}"
                message = f"{folder / name}: is missing or another one; {needed}"
                yield Damage(file=name, message=message)
            try:
                opened.check()
            except StoreError as error:
                yield Damage(file=os.path.relpath(opened.path, folder), message=str(error))


def unprotected(folder: Path, newest: VersionRecord) -> str:
    """Which passes have no parity set, if the run has parity. A job that was ended between a commit
    and its set leaves such a pass, and so does a set that was removed."""
    sets, _ = SetFolder(folder).open_sets()
    for parity in sets:
        parity.close()
    protected = max((parity.own.passes for parity in sets), default=0)
    with_parity = newest.config.get("config", {}).get("ranks", {}).get("parity", 0)
    if not (sets or with_parity) or ranks_of(newest) == 1 or protected >= pass_of(newest):
        return ""
    return (
        f"{folder / parity_set.FOLDER}: no parity set protects version {newest.version}, pass "
        f"{pass_of(newest)}; the newest one protects "
        + (f"pass {protected}" if protected else "nothing")
        + ". The next start of the job writes one"
    )


def dense_damage(folder: Path, record: VersionRecord) -> Iterator[Damage]:
    try:
        read_dense(Path(files.dense_folder(str(folder), record.dense_version)), record.dense)
    except (PaddleBoxError, ValueError, KeyError) as error:
        names = sorted(record.dense)[::-1]
        name = next((name for name in names if not _is_sound(folder, record, name)), "")
        inside = files.dense_folder("", record.dense_version)
        yield Damage(file=os.path.join(inside, name), message=str(error))


def _is_sound(folder: Path, record: VersionRecord, name: str) -> bool:
    path = os.path.join(files.dense_folder(str(folder), record.dense_version), name)
    try:
        content = files.read(path)
    except OSError:
        return False
    expected = record.dense[name]
    return len(content) == expected["bytes"] and crc32c(content) == expected.get("crc32c")


def names_damage(folder: Path) -> Iterator[Damage]:
    """The damage of the folders of named versions. Files that are links to those of the store are
    not read again."""
    for name, version in files.checkpoints(str(folder)).items():
        inside = os.path.join(files.CHECKPOINTS, name)
        own = folder / inside
        path = files.manifest_path(str(own), version)
        try:
            record = VersionRecord.read(path)
        except StoreError as error:
            yield Damage(file=os.path.relpath(path, folder), message=str(error))
            continue
        linked = {name for name in record.data_files if _linked(folder, own, name)}
        apart = [s for s in record.segments if os.path.join("ssd", s["file"]) not in linked]
        damaged = [damage for segment in apart for damage in segment_damage(own, segment)]
        if not linked.issuperset(replace(record, segments=[]).data_files):
            damaged += dense_damage(own, record)
        for damage in damaged:
            yield replace(damage, file=os.path.join(inside, damage.file))


def _linked(folder: Path, own: Path, name: str) -> bool:
    try:
        return os.path.samefile(folder / name, own / name)
    except OSError:
        return False


def _records(folder: Path, findings: Findings) -> list[VersionRecord]:
    """The versions on which LMDB and the MANIFEST files agree; if there are none, the versions of
    the intact MANIFEST files."""
    records: dict[int, VersionRecord] = {}
    try:
        with VersionStore.open_reader(folder) as manifest:
            for number in manifest.numbers():
                try:
                    records[number] = manifest.version(number)
                except CorruptionError as error:
                    findings.damage.append(Damage(file="manifest", message=str(error)))
    except StoreError as error:
        findings.damage.append(Damage(file="manifest", message=str(error)))
    if not records:
        for number in files.manifest_versions(str(folder)):
            path = files.manifest_path(str(folder), number)
            try:
                records[number] = VersionRecord.read(path)
            except StoreError as error:
                findings.damage.append(Damage(file=os.path.basename(path), message=str(error)))
    return [records[number] for number in sorted(records)]


def _damaged(findings: Findings, name: str) -> bool:
    return any(name in (damage.file, os.path.basename(damage.file)) for damage in findings.damage)


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
        with VersionStore.open_reader(folder) as manifest:
            manifest.numbers()
            record = manifest.newest()
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
    with VersionStore.open_writer(folder) as manifest:
        segments = [s for s in record.segments if s["id"] not in damaged]
        records = manifest.records()
        next_id = max(s["id"] for one in records for s in one.segments) + 1
        for number, (segment, found) in enumerate(damaged.values()):
            segments += _rewrite(folder, segment, found, next_id + number)
        lost = sum(part.rows for part in result.lost)
        mended = record.following(
            "repair", segments=segments, live_rows=max(0, record.live_rows - lost)
        )
        for segment, _ in damaged.values():
            _set_aside(folder, segment["file"])
        manifest.append(mended)
        if not files.is_of_set(str(folder)):  # otherwise the first table refers to versions
            sound = {segment["id"] for segment in record.segments} - damaged.keys()
            whole = [one.version for one in records if _is_whole(folder, one, sound)]
            manifest.retention.prune(keep=1, named=whole)
        result.version = mended.version
    return result


def _is_whole(folder: Path, record: VersionRecord, sound: Collection[int]) -> bool:
    """Whether no file of a version is damaged or set aside. sound: segments that are checked."""
    others = (segment for segment in record.segments if segment["id"] not in sound)
    damage = itertools.chain.from_iterable(segment_damage(folder, segment) for segment in others)
    return not any(damage) and not any(dense_damage(folder, record))


def _lost(
    folder: Path, record: VersionRecord, segment: dict[str, Any], damages: list[Damage]
) -> list[Lost]:
    lost = []
    for damage in damages:
        low, high = segment["min_key"], segment["max_key"]
        if damage.block is not None:
            low, high = _interval(folder, segment, damage.block, {d.block for d in damages})
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
    folder: Path, segment: dict[str, Any], damages: list[Damage], new_id: int
) -> list[dict[str, Any]]:
    """Write the intact blocks of a segment as a new segment. Returns the descriptor of the new
    segment, or an empty list if no block is intact."""
    if any(damage.block is None for damage in damages):
        return []
    file = _native.core.SegmentFile(str(folder / "ssd" / segment["file"]), segment)
    shape = file.shape
    bad = {damage.block for damage in damages}
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
    return with_stamps([written])


def _set_aside(folder: Path, file: str) -> None:
    aside = folder / _ASIDE
    files.make_folder(str(aside))
    path, target = folder / "ssd" / file, aside / file
    if path.exists() and not target.exists():
        os.link(path, target)
        files.sync_folder(str(aside))
