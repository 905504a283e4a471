"""Verifies all bytes of a store that have a checksum, and all references."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from paddlebox import _native
from paddlebox.config.arguments import AnyPath, as_path
from paddlebox.errors import CorruptionError, PaddleBoxError, StoreError
from paddlebox.store import files, parity_set
from paddlebox.store.checkpoints import FOLDER, checkpoints
from paddlebox.store.crc import crc32c
from paddlebox.store.dense import read_dense
from paddlebox.store.manifest import Manifest
from paddlebox.store.parity_set import SetFolder
from paddlebox.store.rank_stores import pass_of, ranks_of
from paddlebox.store.record import VersionRecord, unframe


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

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def verify(folder: AnyPath, progress: Callable[[int, int], None] | None = None) -> Findings:
    """Read a store completely. It does not stop at damage.

    Args:
        progress: called with (number of segments done, number of all segments).
    """
    folder, found = as_path(folder, "folder"), Findings()
    records = _records(folder, found)
    found.versions = sorted(record.version for record in records)
    segments = {s["id"]: s for record in records for s in record.segments}
    for done, segment in enumerate(segments.values()):
        found.damage += segment_damage(folder, segment)
        found.segments += 1
        found.bytes += segment["bytes"]
        if progress is not None:
            progress(done + 1, len(segments))
    for record in records:
        found.damage += dense_damage(folder, record)
    found.damage += parity_damage(folder)
    found.unprotected = unprotected(folder, records[-1]) if records else ""
    found.damage += names_damage(folder)
    found.unreferenced = [
        name
        for name in files.unreferenced(str(folder), records)
        if not name.startswith("MANIFEST-") or not _damaged(found, name)
    ]
    return found


def segment_damage(folder: Path, descriptor: dict[str, Any]) -> Iterator[Damage]:
    """The damage of one segment."""
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
    """Parity sets that cannot be used."""
    sets, wrong = SetFolder(folder).open_sets()
    for message in wrong:
        yield Damage(file=parity_set.FOLDER, message=message)
    there = {one.set.key for one in sets}
    for one in sets:
        with one:
            for key in sorted(set(one.set.sets) - there):
                name = os.path.join(parity_set.FOLDER, f"{key.partition('-')[0]}.set")
                message = f"{folder / name}: is missing or another one; {one.path} needs set {key}"
                yield Damage(file=name, message=message)
            try:
                one.check()
            except StoreError as error:
                yield Damage(file=os.path.relpath(one.path, folder), message=str(error))


def unprotected(folder: Path, newest: VersionRecord) -> str:
    """Which passes have no parity set, if the run has parity. A job that was ended between a commit
    and its set leaves such a pass, and so does a set that was removed."""
    sets, _ = SetFolder(folder).open_sets()
    for one in sets:
        one.close()
    protected = max((one.own.passes for one in sets), default=0)
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
    """The damage of the dense state of a version."""
    try:
        read_dense(Path(files.dense_folder(str(folder), record.dense_version)), record.dense)
    except (PaddleBoxError, ValueError, KeyError) as error:
        names = sorted(record.dense)[::-1]
        name = next((name for name in names if not _is_sound(folder, record, name)), "")
        inside = files.dense_folder("", record.dense_version)
        yield Damage(file=os.path.join(inside, name), message=str(error))


def _is_sound(folder: Path, record: VersionRecord, name: str) -> bool:
    """Whether a dense file exists as it was committed."""
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
    for checkpoint in checkpoints(str(folder)):
        inside = os.path.join(FOLDER, checkpoint.name)
        own = folder / inside
        path = files.manifest_path(str(own), checkpoint.version)
        try:
            record = VersionRecord.from_payload(unframe(files.read(path), path), path)
        except StoreError as error:
            yield Damage(file=os.path.relpath(path, folder), message=str(error))
            continue
        linked = {name for name in files.data_files("", record) if _linked(folder, own, name)}
        apart = [s for s in record.segments if os.path.join("ssd", s["file"]) not in linked]
        found = [damage for segment in apart for damage in segment_damage(own, segment)]
        if not linked.issuperset(files.data_files("", replace(record, segments=[]))):
            found += dense_damage(own, record)
        for damage in found:
            yield replace(damage, file=os.path.join(inside, damage.file))


def _linked(folder: Path, own: Path, name: str) -> bool:
    try:
        return os.path.samefile(folder / name, own / name)
    except OSError:
        return False


def _records(folder: Path, found: Findings) -> list[VersionRecord]:
    """The versions on which LMDB and the MANIFEST files agree; if there are none, the versions of
    the intact MANIFEST files."""
    records: dict[int, VersionRecord] = {}
    try:
        with Manifest.open_reader(folder) as manifest:
            for number in manifest.versions():
                try:
                    records[number] = manifest.version(number)
                except CorruptionError as error:
                    found.damage.append(Damage(file="manifest", message=str(error)))
    except StoreError as error:
        found.damage.append(Damage(file="manifest", message=str(error)))
    if not records:
        for number in files.manifest_versions(str(folder)):
            path = files.manifest_path(str(folder), number)
            try:
                records[number] = VersionRecord.from_payload(unframe(files.read(path), path), path)
            except StoreError as error:
                found.damage.append(Damage(file=os.path.basename(path), message=str(error)))
    return [records[number] for number in sorted(records)]


def _damaged(found: Findings, name: str) -> bool:
    return any(name in (damage.file, os.path.basename(damage.file)) for damage in found.damage)
