"""The tables of slots.yaml, which the function `lookup` of expressions reads."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paddlebox.errors import ConfigError

MOST_BYTES = 1 << 20  # of all tables: each commit holds them


def with_files(values: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The content of slots.yaml with the rows of files in place of their names, which are relative
    to its folder. Raises: ConfigError, which names the line of a file."""
    tables = values.get("lookups")
    if not isinstance(tables, Mapping):
        return dict(values)
    read = {
        name: _read(path.parent / given, f"{path}: lookups.{name}")
        if isinstance(given, str)
        else given
        for name, given in tables.items()
    }
    return {**values, "lookups": read}


def _read(path: Path, where: str) -> dict[str, str]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{where}: {path} cannot be read: {error}: expected a CSV file of UTF-8"
        ) from error
    table: dict[str, str] = {}
    reader = csv.reader(text.splitlines(keepends=True), strict=True)
    try:
        for cells in reader:
            line = f"{where}: {path}: line {reader.line_num}"
            if len(cells) != 2 or not cells[0]:
                raise ConfigError(f"{line}: expected a key and its value, found {cells}")
            if cells[0] in table:
                raise ConfigError(f"{line}: the key {cells[0]!r} occurs twice: take one out")
            table[cells[0]] = cells[1]
    except csv.Error as error:
        raise ConfigError(f"{where}: {path}: line {reader.line_num}: {error}") from error
    return table


def check_size(tables: Mapping[str, Mapping[str, str]]) -> None:
    """Raises: ValueError if the tables are too large."""
    rows = (row for table in tables.values() for row in table.items())
    size = sum(len(key.encode()) + len(value.encode()) for key, value in rows)
    if size > MOST_BYTES:
        raise ValueError(
            f"lookups: expected at most {MOST_BYTES} bytes of keys and values, found {size}: each "
            "commit holds the tables; join larger ones before the data is written"
        )
