"""export.json: what an export holds (docs/formats/rows.md). Without it, none is complete."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from paddlebox.errors import CorruptionError, DataError, StoreError
from paddlebox.store import checked
from paddlebox.store.files import crc32c
from paddlebox.store.stamped import read_stamped, stamped
from paddlebox.tools.rows.columns import FEASIGN, SLOT, Columns, check_weights
from paddlebox.tools.rows.folder import Folder
from paddlebox.tools.rows.parts import PartFormat, decode
from paddlebox.tools.rows.precision import restored, rounded_widths

EXPORT, PROGRESS = "export.json", "progress.json"
FORMAT = 1
FEASIGN_ONLY = {"feasign": 1}  # the columns of a part of deletions


@dataclass(frozen=True)
class Part:
    file: str  # relative to the export
    first_key: int  # of its range; no other part of the table has keys in it
    last_key: int
    rows: int
    crc32c: int
    bytes: int


def read_checked(folder: Folder, file: str, size: int, expected: int) -> bytes:
    content = folder.read(file)
    where = f"{folder.place}/{file}"
    if content is None:
        raise StoreError(f"{where}: is missing: {EXPORT} names it: copy the export again")
    found = crc32c(content)
    if len(content) != size or found != expected:
        raise CorruptionError(
            f"{where}: expected {size} bytes with CRC32C {expected:#010x}, found {len(content)} "
            f"with {found:#010x}: copy the export again"
        )
    return content


def shortened(value: Any) -> str:
    """A value as JSON, for a message."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]} ..."


@dataclass(frozen=True)
class TableExport:
    name: str
    folder: str  # inside the export; "": the first table
    layout: Mapping[str, Any]
    events: list[dict[str, Any]]
    columns: Mapping[str, int]  # name -> width
    parts: list[Part] = field(default_factory=list)
    deletions: list[Part] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)


@dataclass(frozen=True)
class RowsManifest:
    part_format: PartFormat
    version: int
    pass_number: int
    day: int
    since: int | None
    state: bool
    part_rows: int  # as asked for; 0: those of 64 MiB
    chosen: Mapping[str, Any]
    slots: list[str]
    key_slots: list[int] | None
    network: Mapping[str, Any]  # what gives the dense parameters their meaning
    tables: list[TableExport]
    dense: Mapping[str, Any] | None = None
    created_at: str = ""
    precision: str = "float32"  # of embedx (precision.py)

    @property
    def is_whole(self) -> bool:
        """Whether it holds every row with its state."""
        every = not any(value is not None for value in self.chosen.values())
        return self.state and every and self.since is None

    def header(self) -> dict[str, Any]:
        """What is known before the first part is written."""
        fields = dataclasses.asdict(self)
        for table in fields["tables"]:
            del table["parts"], table["deletions"]
        del fields["dense"], fields["created_at"]
        return {"format": FORMAT, **fields}

    def write(self, folder: Folder) -> None:
        fields = stamped(dataclasses.asdict(self), FORMAT)
        folder.write(EXPORT, json.dumps(fields, indent=1, sort_keys=True).encode())

    def columns(self, folder: Folder, table: TableExport, part: Part) -> Iterator[Columns]:
        """The columns of a part, in pieces. Raises: StoreError; CorruptionError; DataError."""
        widths = rounded_widths(table.columns, self.precision)
        return map(restored, self._decode(folder, part, widths))

    def deleted(self, folder: Folder, part: Part) -> Iterator[Columns]:
        return self._decode(folder, part, FEASIGN_ONLY)

    def _decode(self, folder: Folder, part: Part, widths: Mapping[str, int]) -> Iterator[Columns]:
        where, found = f"{folder.place}/{part.file}", 0
        content = read_checked(folder, part.file, part.bytes, part.crc32c)
        for columns in decode(self.part_format, content, widths, self.slots, where):
            found += len(columns[FEASIGN])
            yield columns
        if found != part.rows:
            raise CorruptionError(f"{where}: expected {part.rows} rows, found {found}")


def read_manifest(folder: Folder) -> RowsManifest:
    """Raises: StoreError if the folder holds no complete export; CorruptionError."""
    content, where = folder.read(EXPORT), f"{folder.place}/{EXPORT}"
    if content is None:
        begun = folder.read(PROGRESS) is not None
        raise StoreError(
            f"{where}: is missing: "
            + (
                "the export is not complete: run the same `paddlebox store export` again"
                if begun
                else "expected the folder of `paddlebox store export`, or a mapping file (.yaml)"
            )
        )
    fields = read_stamped(content, where, FORMAT)
    del fields["format"], fields["crc32c"]
    try:
        return _manifest(fields)
    except (StoreError, DataError):
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise CorruptionError(f"{where}: does not describe an export: {error!r}") from error


def _manifest(fields: dict[str, Any]) -> RowsManifest:
    """Raises: ValueError and its like."""
    for table in fields["tables"]:
        _check_table(table)
    if not fields["tables"] or len(fields["key_slots"] or fields["slots"]) != len(fields["slots"]):
        raise ValueError("it has no table, or not a number for each slot")
    if fields["dense"] is not None:
        checked.name(fields["dense"]["file"], "the file of the dense state")
    tables = [
        TableExport(
            **{**table, "parts": _parts(table["parts"]), "deletions": _parts(table["deletions"])}
        )
        for table in fields.pop("tables")
    ]
    return RowsManifest(
        **{**fields, "part_format": PartFormat(fields["part_format"]), "tables": tables}
    )


def _check_table(table: Mapping[str, Any]) -> None:
    for name in ("embed", "embedx"):
        checked.name(table["layout"][name]["rule"], f"the rule of {name}")
    check_weights(table["columns"])
    for name, width in table["columns"].items():
        checked.number(width, f"the width of column {name}", least=1)
    if not {FEASIGN, SLOT} <= table["columns"].keys():
        raise ValueError(f"table {table['name']!r} has no column {FEASIGN} or {SLOT}")


def _parts(listed: list[dict[str, Any]]) -> list[Part]:
    last, parts = -1, []
    for part in (Part(**fields) for fields in listed):
        for name, value in dataclasses.asdict(part).items():
            if name != "file":
                checked.number(value, name, 2**64 - 1)
        if part.first_key <= last or part.last_key < part.first_key:
            raise ValueError(f"{part.file}: its range of keys is out of order")
        for folder in part.file.split("/"):
            checked.name(folder, "a file of the export")
        last = part.last_key
        parts.append(part)
    return parts
