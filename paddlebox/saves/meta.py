"""meta.json, the record that makes a folder a save (docs/formats/save.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paddlebox.errors import CorruptionError, StoreError
from paddlebox.store import files
from paddlebox.store.crc import crc32c

FORMAT = 1
FORMAT_OF_TABLES = 2  # for saves with rows of several tables
META = "meta.json"
ROWS, DELETED, DENSE, TABLES = "000", "deleted", "dense", "tables"  # folders inside a save
BASE, DELTA, BATCH = "base", "delta", "batch"
NO_DATE = "00000000"

_FIELDS = (
    "kind",
    "name",
    "version",
    "day",
    "date",
    "pass_number",
    "key",
    "base",
    "parent",
    "filter",
    "layout",
    "words",
    "layout_fingerprint",
    "rows",
    "deleted",
    "segments",
    "deletions",
    "dense",
    "files",
    "events",
    "sequence",
    "commit",
    "created_at",
)


# The fields that differ between the tables of a save.
OF_TABLE = ("version", "filter", "layout", "events", "day_ended", "sequence", "commit")


def _crc_of(fields: Mapping[str, Any]) -> int:
    rest = {name: value for name, value in fields.items() if name != "crc32c"}
    return crc32c(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode())


def write_meta(folder: Path, fields: Mapping[str, Any]) -> int:
    """Write meta.json durably, with the fields `format` and `crc32c` added. Returns the CRC32C."""
    complete = {**fields, "format": FORMAT_OF_TABLES if fields.get("tables") else FORMAT}
    crc = complete["crc32c"] = _crc_of(complete)
    files.write_durably(str(folder / META), _text_of(complete))
    return crc


def _text_of(complete: Mapping[str, Any]) -> bytes:
    return json.dumps(complete, sort_keys=True, indent=1, allow_nan=False).encode() + b"\n"


def read_meta(folder: Path) -> dict[str, Any]:
    """Read and check meta.json.

    Raises: StoreError if there is no save, or a later release wrote it; CorruptionError.
    """
    path = folder / META
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StoreError(
            f"{folder}: holds no complete save ({META}: {error.strerror}); expected a folder such "
            "as OUT/20240101/base"
        ) from error
    return parse_meta(content, str(path))


def parse_meta(content: bytes, path: str) -> dict[str, Any]:
    """Check the content of a meta.json. path: for messages.

    Raises: StoreError if a later release wrote it; CorruptionError.
    """
    try:
        found = json.loads(content)
        missing = [name for name in (*_FIELDS, "format", "crc32c") if name not in found]
        crc = _crc_of(found)
    except (ValueError, TypeError, AttributeError) as error:
        raise CorruptionError(f"{path}: not the record of a save: {error}") from error
    if crc != found.get("crc32c"):
        raise CorruptionError(f"{path}: has CRC32C {crc:#010x}, expected {found.get('crc32c')}")
    if found.get("format", 0) > FORMAT_OF_TABLES:
        raise StoreError(
            f"{path}: written by a later version (format {found['format']}, this one reads up to "
            f"{FORMAT_OF_TABLES})"
        )
    if content != _text_of(found):  # the CRC does not cover the spaces between the fields
        raise CorruptionError(
            f"{path}: expected {len(_text_of(found))} bytes as it was written, "
            f"found {len(content)} others with the same fields"
        )
    if missing:
        raise CorruptionError(f"{path}: lacks {', '.join(missing)}")
    return dict(found)
