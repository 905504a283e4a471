"""meta.json, the record that makes a folder a save (docs/formats/save.md)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from paddlebox.errors import CorruptionError, StoreError
from paddlebox.store import checked, files
from paddlebox.store.stamped import read_stamped, stamped

FORMAT = 2
META = "meta.json"
ROWS, DELETED, DENSE, TABLES = "000", "deleted", "dense", "tables"  # folders inside a save
BASE, DELTA, BATCH = "base", "delta", "batch"
NO_DATE = "00000000"

_NAME = re.compile(r"[0-9]{8}/[A-Za-z0-9][A-Za-z0-9_.-]*")
_FIELDS = (
    *("kind", "name", "version", "day", "date", "pass_number", "key", "base", "parent", "filter"),
    *("layout", "words", "layout_fingerprint", "rows", "deleted", "segments", "deletions", "dense"),
    *("files", "events", "day_ended", "sequence", "commit", "created_at"),
)


# The fields that differ between the tables of a save.
OF_TABLE = ("version", "filter", "layout", "events", "day_ended", "sequence", "commit")


#: Rule in `layout` -> the words of its state for a width, behind the weights (docs/formats/row.md).
STATE_WORDS: dict[str, Callable[[int], int]] = {
    "naive": lambda _: 0,
    "adagrad": lambda _: 1,
    "std_adagrad": lambda width: width,
    "adagrad_v2": lambda _: 1,
    "adam": lambda width: 2 * width + 2,
    "shared_adam": lambda _: 4,
    "ftrl": lambda width: 2 * width,
}


def write_meta(folder: Path, fields: Mapping[str, Any]) -> int:
    """Write meta.json durably, with the fields `format` and `crc32c` added. Returns the CRC32C."""
    complete = stamped(fields, FORMAT)
    files.write_durably(str(folder / META), _text_of(complete))
    return int(complete["crc32c"])


def _text_of(complete: Mapping[str, Any]) -> bytes:
    return json.dumps(complete, sort_keys=True, indent=1, allow_nan=False).encode() + b"\n"


def read_meta(folder: Path) -> dict[str, Any]:
    """Read and check meta.json. Raises: StoreError if there is no save, or it has another format;
    CorruptionError."""
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
    """Check the content of a meta.json. path: for messages. Raises: StoreError if it has another
    format; CorruptionError."""
    fields = read_stamped(content, path, FORMAT)
    if content != _text_of(fields):  # the CRC does not cover the spaces between the fields
        raise CorruptionError(
            f"{path}: expected {len(_text_of(fields))} bytes as it was written, "
            f"found {len(content)} others with the same fields"
        )
    if missing := [name for name in _FIELDS if name not in fields]:
        raise CorruptionError(f"{path}: lacks {', '.join(missing)}")
    try:
        _check(fields)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise CorruptionError(f"{path}: not the record of a save: {error!r}") from error
    return fields


def _check(fields: Mapping[str, Any]) -> None:
    """Raises: an error if a name or a number cannot be one of a save."""
    parent, layout = fields["parent"], fields["layout"]
    if fields["kind"] not in (BASE, DELTA, BATCH) or (fields["kind"] == DELTA) != bool(parent):
        raise ValueError(f"kind is {fields['kind']!r}, parent {parent!r}")
    for name in (fields["name"], fields["base"], *([parent["name"]] if parent else ())):
        check_name(name)
    if parent:
        checked.number(parent["crc32c"], "crc32c of the parent", 2**32 - 1)
    for name in ("version", "day", "pass_number", "key", "words", "rows", "deleted"):
        checked.number(fields[name], name)
    checked.number(fields["layout_fingerprint"], "layout_fingerprint", 2**64 - 1)
    for part in ("segments", "deletions"):
        checked.segments(fields[part], stamped=False)
    for part in ("dense", "files"):
        checked.files(fields[part])
    for name, of in fields.get("tables", {}).items():
        checked.number(of["rows"], f"rows of {checked.name(name, 'a table')}")
        checked.number(of["deleted"], f"deleted rows of {name}")
        checked.number(of["crc32c"], f"crc32c of {name}", 2**32 - 1)
    checked.number(layout.get("embedx_dim"), "layout.embedx_dim")
    event_time(fields)


def event_time(meta: Mapping[str, Any]) -> float:
    """Unix time of the newest event that a save has learnt from; of data without times of events,
    when the save was made."""
    return float(meta.get("event_time") or datetime.fromisoformat(meta["created_at"]).timestamp())


def check_name(name: object) -> None:
    """Raises: ValueError if name is not <day>/<name>, such as 20240101/delta-3."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise ValueError(f"a save is named <day>/<name>, such as 20240101/delta-3; found {name!r}")
