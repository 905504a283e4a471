"""No password in a configuration: it would be in the log, the run dir, every version and save."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from paddlebox.errors import ConfigError

_WITH_PASSWORD = re.compile(r"\b[A-Za-z][A-Za-z0-9+.-]*://[^/\s:@]*:[^/\s@]+@")


def refuse_passwords(fields: Any, where: str) -> None:
    """Raises: ConfigError naming the keys of texts with a URI such as s3://name:password@bucket,
    and nothing of their values."""
    found = list(dict.fromkeys(_keys(fields, "")))
    if found:
        raise ConfigError(
            f"{where}: {', '.join(found)}: found a URI with a password in it, expected one "
            "without: values are written into the log, the run dir, its versions and saves. Take "
            "it out; credentials of S3, GCS and HDFS are read from the environment or from their "
            "own files"
        )


def _keys(value: Any, key: str) -> Iterator[str]:
    if isinstance(value, str) and _WITH_PASSWORD.search(value):
        yield key
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _keys(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for inner in value:
            yield from _keys(inner, key)
