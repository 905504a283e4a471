"""What a version is made of: its own store, and of a group the stores of the other tables."""

from __future__ import annotations

import os

from paddlebox.store import files
from paddlebox.store.crc import crc32c
from paddlebox.store.record import VersionRecord, unframe


def parts_of(store: str, record: VersionRecord) -> list[tuple[str, VersionRecord]]:
    """(folder inside the store, record) of each table that a kept version names, its own last: who
    writes them in this order has written the whole of it when the last is there.

    Raises: OSError, CorruptionError: a MANIFEST file.
    """
    parts = []
    for table, version in sorted(record.tables.items()):
        inside = files.table_folder("", table)
        path = files.manifest_path(os.path.join(store, inside), version)
        parts.append((inside, VersionRecord.from_payload(unframe(files.read(path), path), path)))
    return [*parts, ("", record)]


def payload_crc(record: VersionRecord) -> int:
    """Tells versions of one number apart, as stores that went back have them."""
    return crc32c(record.to_payload())
