"""Shows the content of a store: figures, digests, single rows, all rows."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from paddlebox import _native
from paddlebox.config.arguments import AnyPath, as_path
from paddlebox.errors import StoreError
from paddlebox.store import compaction, files
from paddlebox.store.checkpoints import checkpoints
from paddlebox.store.dense import dense_digest
from paddlebox.store.leases import held_leases
from paddlebox.store.manifest import Manifest, VersionRecord
from paddlebox.store.row_fields import fields_of_rows
from paddlebox.store.tiered_table import TieredTable, stored_table
from paddlebox.tools.upkeep.store_files import newest, reading

_DUMP_ROWS = 1 << 17  # rows in memory at a time, and in a Parquet row group


def stat(folder: AnyPath) -> dict[str, Any]:
    """Figures of a store. Bytes are sizes of files."""
    folder = as_path(folder, "folder")
    with reading(folder) as manifest:
        head = newest(manifest)
        records = manifest.records()
        journal = manifest.journal()
        held = [lease for lease in held_leases(str(folder)) if lease.pid != os.getpid()]
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
            "life_events": len(head.events),
            "used_bytes": files.used_bytes(str(folder)),
            "free_bytes": disk.f_bavail * disk.f_frsize,
            "bytes_written": dict(head.bytes_written),
            "bytes_written_by_day": _by_day(journal),
            "versions": [_version(folder, record, records) for record in records],
            "names": [asdict(c) for c in checkpoints(str(folder))],
            "leases": [{"pid": lease.pid, "version": lease.version} for lease in held],
        }


def _by_day(journal: Sequence[dict[str, Any]]) -> dict[str, int]:
    days: dict[str, int] = {}
    for entry in journal:
        day = datetime.datetime.fromisoformat(entry["created_at"]).date().isoformat()
        days[day] = days.get(day, 0) + entry["bytes"]
    return days


def _version(
    folder: Path, record: VersionRecord, records: Sequence[VersionRecord]
) -> dict[str, Any]:
    others = [other for other in records if other.version != record.version]
    alone = files.only_in(str(folder), [record], others)
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
    with Manifest.open_reader(folder) as manifest:
        record = newest(manifest) if version is None else manifest.version(version)
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
    fields = fields_of_rows(layout, row[None])
    return {name: values[0].tolist() for name, values in fields.items()}


def lookup(
    folder: AnyPath, feasigns: Sequence[int], version: int | None = None
) -> list[dict[str, Any]]:
    """The rows of feasigns, with all life events applied, and the segments that hold copies."""
    with open_version(folder, version) as table:
        assert table.head is not None
        layout = dict(table.native.layout)
        found = []
        for feasign in feasigns:
            key = int(_native.core.mix(feasign))
            here, rows = table.native.lookup(np.array([feasign], np.uint64))
            found.append(
                {
                    "feasign": feasign,
                    "key": f"{key:#018x}",
                    "found": bool(here[0]),
                    "row": row_fields(layout, rows[0]) if here[0] else None,
                    "copies": _copies(as_path(folder, "folder"), table.head, key),
                }
            )
        return found


def _copies(folder: Path, record: VersionRecord, key: int) -> list[dict[str, Any]]:
    copies = []
    for segment in sorted(record.segments, key=lambda s: -s["sequence"]):
        if not segment["min_key"] <= key <= segment["max_key"]:
            continue
        file = _native.core.SegmentFile(str(folder / "ssd" / segment["file"]), segment)
        block = file.find(key)
        if block is not None:
            copies.append(
                {"file": segment["file"], "sequence": segment["sequence"], "block": block}
            )
    return copies


def dump(
    folder: AnyPath,
    out: AnyPath,
    version: int | None = None,
    slot: int | None = None,
    others: Sequence[tuple[AnyPath, int]] = (),
) -> int:
    """Write the rows of a version to a Parquet file, in the order of keys, in bounded memory.

    Args:
        slot: write only rows of this slot; None: all rows.
        others: (store, version) of the other ranks, in order.

    Returns: the number of rows.

    Raises: StoreError if the file cannot be written.
    """
    out = as_path(out, "out")
    with open_version(folder, version) as table:
        layout = dict(table.native.layout)
        words = 7 + sum(n for name, n in layout.items() if name != "fingerprint")
        no_rows = np.empty((0, words), np.float32)
        schema = _columns(np.empty(0, np.uint64), fields_of_rows(layout, no_rows)).schema
        written = 0
        temporary = out.with_name(f"{out.name}.tmp")
        try:
            with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:

                def write(feasigns: np.ndarray, rows: np.ndarray) -> None:
                    nonlocal written
                    if slot is not None:
                        kept = (rows.view(np.uint32)[:, 0] & 0xFFFF) == slot
                        feasigns, rows = feasigns[kept], rows[kept]
                    writer.write_table(_columns(feasigns, fields_of_rows(layout, rows)))
                    written += len(feasigns)

                table.native.visit_chunks(_DUMP_ROWS, write)
                table.close()  # the names of open tables must be unique in a process
                for store, number in others:
                    with open_version(store, number) as of_rank:
                        of_rank.native.visit_chunks(_DUMP_ROWS, write)
            temporary.rename(out)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"{out}: cannot be written: {error}") from error
        return written


def _columns(feasigns: np.ndarray, fields: dict[str, np.ndarray]) -> pa.Table:
    def column(values: np.ndarray) -> pa.Array:
        flat = pa.array(np.ascontiguousarray(values).reshape(-1))
        if values.ndim == 1:
            return flat
        offsets = np.arange(len(values) + 1, dtype=np.int32) * values.shape[1]
        return pa.ListArray.from_arrays(pa.array(offsets), flat)

    return pa.table({name: column(of) for name, of in {"feasign": feasigns, **fields}.items()})
