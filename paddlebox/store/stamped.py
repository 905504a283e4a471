"""JSON files with a format and a checksum."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from paddlebox.errors import CorruptionError, StoreError
from paddlebox.store.files import crc32c


def stamped(fields: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The fields with `format`, and with `crc32c`, the checksum of all others."""
    complete = {**fields, "format": number}
    return {**complete, "crc32c": checksum(complete)}


def checksum(fields: Mapping[str, Any]) -> int:
    """Of the fields but `crc32c`."""
    rest = {field: value for field, value in fields.items() if field != "crc32c"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return crc32c(text.encode())


def read_stamped(content: bytes, where: str, number: int) -> dict[str, Any]:
    """The fields of a file that holds what `stamped` returned. Raises: StoreError if it has another
    format; CorruptionError."""
    try:
        fields = json.loads(content)
        expected, found = fields["crc32c"], checksum(fields)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise CorruptionError(f"{where}: expected JSON with a checksum: {error!r}") from error
    if found != expected:
        raise CorruptionError(f"{where}: has CRC32C {found:#010x}, expected {expected}")
    if fields.get("format") != number:
        raise StoreError(
            f"{where}: has format {fields.get('format')}, expected {number}: use the version of "
            "paddlebox that wrote it"
        )
    return dict(fields)
