"""Shows the content of a store: figures, digests, single rows."""

from __future__ import annotations

import datetime
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox import _native
from paddlebox.config import Format, KeySpace
from paddlebox.config.arguments import AnyPath, as_path
from paddlebox.config.slots import Slots
from paddlebox.errors import ConfigError, StoreError
from paddlebox.serving.slot_values import SlotValues, known_slot
from paddlebox.store import compaction, files
from paddlebox.store.files import dense_digest
from paddlebox.store.life import last_seq
from paddlebox.store.locks import held_leases
from paddlebox.store.record import VersionRecord, only_in
from paddlebox.store.table import fields_of_rows
from paddlebox.store.tiered_table import TieredTable, stored_table
from paddlebox.store.version_store import VersionStore


@contextmanager
def reading(folder: Path) -> Iterator[VersionStore]:
    """Open the manifest with a lease on the newest version. This works while training runs."""
    with VersionStore.open_reader(folder) as manifest:
        manifest.pin()
        yield manifest


def newest(manifest: VersionStore) -> VersionRecord:
    """The newest version. Raises: StoreError if there is none."""
    record = manifest.newest()
    if record is None:
        raise StoreError(f"{manifest.folder}: no version has been committed yet")
    return record


def record_of(folder: Path, version: int | None) -> VersionRecord:
    """A version; None: the newest one."""
    with VersionStore.open_reader(folder) as manifest:
        return newest(manifest) if version is None else manifest.version(version)


def stat(folder: AnyPath) -> dict[str, Any]:
    """Figures of a store. Bytes are sizes of files."""
    folder = as_path(folder, "folder")
    with reading(folder) as manifest:
        head = newest(manifest)
        records = manifest.records()
        journal = manifest.journal()
        others = [lease for lease in held_leases(str(folder)) if lease.pid != os.getpid()]
        shape = compaction.shape(head.segments, head.live_rows)
        opened = [
            _native.core.SegmentFile(str(folder / "ssd" / s["file"]), s).shape
            for s in head.segments
        ]
        disk = os.statvfs(folder)
        return {
            "store": str(folder),
            "version": head.version,
            "pass_number": head.pass_number,
            "day": head.day,
            "created_at": head.created_at,
            "live_rows": head.live_rows,
            "stored_rows": sum(s["rows"] for s in head.segments),
            "segments": len(head.segments),
            "stored_bytes": shape.bytes,
            "space_ratio": round(shape.space_ratio, 4),
            "depth": shape.depth,
            "memory_bytes": sum(s["memory_bytes"] for s in opened),
            "life_events": last_seq(head.events),
            "used_bytes": files.used_bytes(str(folder)),
            "free_bytes": disk.f_bavail * disk.f_frsize,
            "bytes_written": dict(head.bytes_written),
            "bytes_written_by_day": _by_day(journal),
            "versions": [_version(folder, record, records) for record in records],
            "names": [
                {"name": name, "version": version}
                for name, version in files.checkpoints(str(folder)).items()
            ],
            "leases": [{"pid": lease.pid, "version": lease.version} for lease in others],
        }


def _by_day(journal: Sequence[dict[str, Any]]) -> dict[str, int]:
    days = Counter[str]()
    for entry in journal:
        day = datetime.datetime.fromisoformat(entry["created_at"]).date().isoformat()
        days[day] += entry["bytes"]
    return dict(days)


def _version(
    folder: Path, record: VersionRecord, records: Sequence[VersionRecord]
) -> dict[str, Any]:
    others = [other for other in records if other.version != record.version]
    alone = only_in([record], others)
    return {
        "version": record.version,
        "kind": record.kind,
        "pass_number": record.pass_number,
        "day": record.day,
        "created_at": record.created_at,
        "live_rows": record.live_rows,
        "segments": len(record.segments),
        "bytes_kept_alone": sum(os.path.getsize(folder / name) for name in alone),
    }


def open_version(folder: AnyPath, version: int | None) -> TieredTable:
    """Open a version for reading. version: None: the newest."""
    folder = as_path(folder, "folder")
    record = record_of(folder, version)
    return stored_table(folder, record, read_only=True, version=record.version)


def digest(folder: AnyPath, version: int | None = None) -> dict[str, Any]:
    """Canonical digests of the rows and of the dense state of a version."""
    with open_version(folder, version) as table:
        assert table.head is not None
        return {
            "version": table.head.version,
            "sparse_digest": table.digest(),
            "dense_digest": dense_digest(table.load_dense()),
        }


def row_fields(layout: dict[str, int], row: np.ndarray) -> dict[str, Any]:
    """The fields of a row, under the names of docs/formats/row.md."""
    return {name: v[0].tolist() for name, v in fields_of_rows(layout, row[None]).items()}


def lookup(
    folder: AnyPath, feasigns: Sequence[int], version: int | None = None
) -> list[dict[str, Any]]:
    """The rows of feasigns, with all life events applied, and the segments that hold copies."""
    with open_version(folder, version) as table:
        assert table.head is not None
        layout = dict(table.native.layout)
        answers = []
        for feasign in feasigns:
            key = int(_native.core.mix(feasign))
            here, rows = table.native.lookup(np.array([feasign], np.uint64))
            answers.append(
                {
                    "feasign": feasign,
                    "key": f"{key:#018x}",
                    "found": bool(here[0]),
                    "row": row_fields(layout, rows[0]) if here[0] else None,
                    "copies": _copies(as_path(folder, "folder"), table.head, key),
                }
            )
        return answers


def _copies(folder: Path, record: VersionRecord, key: int) -> list[dict[str, Any]]:
    copies = []
    for segment in sorted(record.segments, key=lambda s: -s["sequence"]):
        if not segment["min_key"] <= key <= segment["max_key"]:
            continue
        file = _native.core.SegmentFile(str(folder / "ssd" / segment["file"]), segment)
        if (block := file.find(key)) is not None:
            entry = {name: segment[name] for name in ("file", "sequence")}
            copies.append({**entry, "block": block})
    return copies


def feasigns_of(record: VersionRecord, slot: str, values: Sequence[str]) -> list[int]:
    """The feasigns that the feeder computed from these values when the version was trained
    (`SlotValues`).

    Raises: StoreError if the version has no record of its slots; ConfigError if there is no such
        slot, or the slot cannot have the value.
    """
    if not record.config:
        raise StoreError(
            f"version {record.version} has no record of its slots, which only paddlebox train "
            "writes: look up feasigns, without --slot"
        )
    slots = Slots.model_validate(record.config["slots"], strict=False)
    data = record.config["config"]["data"]
    data_format, key_space = Format(data["format"]), KeySpace(data["key_space"])
    of_slot = SlotValues(slots, slot, data_format, key_space, data.get("parser", ""))
    return [int(feasign) for feasign in of_slot.feasigns(values)]


def index_of(record: VersionRecord, slot: str) -> int:
    """The index of a sparse slot, which its rows hold. slot: its name; the index itself if the
    version has no record of its slots. Raises: ConfigError."""
    if record.config:
        slots = Slots.model_validate(record.config["slots"], strict=False)
        names = [sparse.name for sparse in slots.sparse]
        return names.index(
            known_slot(names, slot, f"version {record.version} has no slot {slot!r}")
        )
    if not slot.isdecimal():
        raise ConfigError(
            f"version {record.version} has no names of slots, which only paddlebox train writes: "
            f"expected the index of a slot, found {slot!r}"
        )
    return int(slot)
