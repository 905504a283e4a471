"""Refuses passwords in a config, which is copied to the log, the run dir, versions and saves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_WITH_PASSWORD = re.compile(r"\b[A-Za-z][A-Za-z0-9+.-]*://[^/\s:@]*:[^/\s@]+@")


def refuse_passwords(fields: Any) -> None:
    """Check that no text is a URI with a password, such as s3://name:password@bucket.

    Args:
        fields: plain data.

    Raises:
        ValueError: there is such a text. The error names its key but does not show its value.
    """
    found = list(dict.fromkeys(_keys(fields, "")))
    if found:
        raise ValueError(
            f"{', '.join(found)}: found a URI with a password in it, expected one "
            "without: values are written into the log, the run dir, its versions and saves. Remove "
            "the password; credentials of S3, GCS and HDFS are read from the environment or from "
            "their own files"
        )


def _keys(value: Any, key: str) -> Iterator[str]:
    if isinstance(value, str) and _WITH_PASSWORD.search(value):
        yield key
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _keys(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _keys(inner, key)
