"""VersionRecord: the content of a committed version, its MANIFEST file, and the files that it
names."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_origin, get_type_hints

from paddlebox.config.dates import date_of
from paddlebox.errors import CorruptionError, StoreError
from paddlebox.store import checked, files
from paddlebox.store.files import crc32c

FORMAT = 2
_MAGIC = "PBXMANIFEST"


def with_stamps(segments: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Descriptors for the record that first names these segments, each with a unique `stamp`: a
    store that went back may write other rows, with the same keys, under the same name."""
    return [{**segment, "stamp": secrets.token_hex(8)} for segment in segments]


def title(version: int, pass_number: int, day: int) -> str:
    """The name of a version in logs, such as "version 5, pass 3 (20240103)". day: days since
    1970-01-01; 0: no date."""
    date = date_of(day)
    return f"version {version}, pass {pass_number}{f' ({date})' if date else ''}"


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class VersionRecord:
    """One committed version. Every field can be written as JSON."""

    version: int  # without gaps; from 1, or higher in a store that continues others
    parent: int  # the version before; 0 for version 1
    segments: list[dict[str, Any]]  # see docs/formats/manifest.md
    layout: dict[str, Any]  # of the rows
    pass_number: int
    kind: str = "pass"  # see docs/formats/manifest.md
    day: int = 0  # day of the pass, in days since 1970-01-01; 0: no date
    cursor: dict[str, Any] = field(default_factory=dict)  # position in the data
    live_rows: int = 0  # keys that have a row
    events: list[dict[str, Any]] = field(default_factory=list)  # life events, in order
    bytes_written: dict[str, int] = field(default_factory=dict)  # by kind, since the store began
    dense: dict[str, dict[str, Any]] = field(default_factory=dict)  # file name -> {bytes, crc32c}
    dense_version: int = 0  # the files of dense/<dense_version>/
    config_hash: str = ""
    config: dict[str, Any] = field(default_factory=dict)  # complete, with every value
    digest: str | None = None
    tables: dict[str, int] = field(default_factory=dict)  # in a set: versions of other tables
    created_at: str = field(default_factory=_now)

    @property
    def is_partial(self) -> bool:
        """Committed within a pass: other ranks may be elsewhere in the data (ranks/recovery.py)."""
        return "partial" in self.cursor

    @property
    def crc32c(self) -> int:
        """Differs between versions with the same number, which exist if a store went back."""
        return crc32c(self.to_payload())

    def following(self, kind: str, **changes: Any) -> VersionRecord:
        """The next version: this one with changes. The dense state stays where it is."""
        return dataclasses.replace(
            self,
            version=self.version + 1,
            parent=self.version,
            kind=kind,
            **{"created_at": _now(), **changes},
        )

    def bytes_with(self, kind: str, segments: Iterable[Mapping[str, Any]]) -> dict[str, int]:
        """`bytes_written` of a following version that adds these segments."""
        added = sum(segment["bytes"] for segment in segments)
        return {**self.bytes_written, kind: self.bytes_written.get(kind, 0) + added}

    @property
    def data_files(self) -> dict[str, int]:
        """Path inside the store -> bytes, of every data file."""
        dense = files.dense_folder("", self.dense_version)
        sizes = {os.path.join("ssd", s["file"]): int(s["bytes"]) for s in self.segments}
        return sizes | {
            os.path.join(dense, name): int(f["bytes"]) for name, f in self.dense.items()
        }

    def first_missing(self, folder: str) -> str | None:
        """The first data file that is missing or has another size, in words; None if all are
        there."""
        for name, expected in self.data_files.items():
            try:
                found = os.stat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                return f"{name}, which is missing"
            if found != expected:
                return f"{name} of {expected} bytes, found {found}"
        return None

    def tables_in(self, store: str) -> list[tuple[str, VersionRecord]]:
        """(folder inside the store, record) of each table; the first table comes last: a copy made
        in this order is complete when it is there. Raises: as `read`."""
        parts = []
        for table, version in sorted(self.tables.items()):
            inside = files.table_folder("", table)
            path = files.manifest_path(os.path.join(store, inside), version)
            parts.append((inside, VersionRecord.read(path)))
        return [*parts, ("", self)]

    @classmethod
    def read(cls, path: str) -> VersionRecord:
        """Reads a MANIFEST file. Raises: OSError; as `unframe`."""
        return cls.from_payload(unframe(files.read(path), path), path)

    def write(self, folder: str) -> None:
        """Writes the MANIFEST file in a store, durably. Raises: OutOfSpaceError, StoreError."""
        path = files.manifest_path(folder, self.version)
        files.write_durably(path, frame(self.to_payload()))

    def to_payload(self) -> bytes:
        """As JSON; equal records have equal bytes. Raises: StoreError if a field is not JSON."""
        fields = {"format": FORMAT, **dataclasses.asdict(self)}
        try:
            text = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise StoreError(f"version {self.version}: its record is not JSON: {error}") from error
        return text.encode()

    @classmethod
    def from_payload(cls, payload: bytes, where: str) -> VersionRecord:
        """The inverse of `to_payload`. where: the place, for errors. Raises: as `unframe`."""
        try:
            fields = json.loads(payload)
            found = fields.pop("format")
            if found == FORMAT:
                return cls(**fields)._checked()
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise CorruptionError(f"{where}: not a version record: {error!r}") from error
        raise _other_format(where, found)

    def _checked(self) -> VersionRecord:
        """Returns itself. Raises ValueError if a field has the wrong type."""
        for name, kind in _TYPES.items():
            if type(getattr(self, name)) is not kind:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected {kind.__name__}")
        for name in ("version", "parent", "pass_number", "day", "live_rows", "dense_version"):
            checked.number(getattr(self, name), name)
        for kind, written in self.bytes_written.items():
            checked.number(written, f"bytes_written of {kind}")
        checked.segments(self.segments)
        checked.files(self.dense)
        checked.events(self.events)
        for name, version in self.tables.items():
            checked.number(version, f"version of table {checked.name(name, 'a table')!r}", least=1)
        return self


_TYPES = {
    name: get_origin(kind) or kind
    for name, kind in get_type_hints(VersionRecord).items()
    if name != "digest"  # may be None
}


def _other_format(where: str, found: object) -> StoreError:
    return StoreError(
        f"{where}: has format {found}, expected {FORMAT}: open the store with the version of "
        "paddlebox that wrote it"
    )


def frame(payload: bytes, version: int = FORMAT) -> bytes:
    """The bytes of a MANIFEST file with this payload."""
    line = f"{_MAGIC} {version} {len(payload)}"
    return f"{line} {crc32c(line.encode() + payload):08x}\n".encode() + payload


def unframe(data: bytes, where: str) -> bytes:
    """The payload of a MANIFEST file. Raises: CorruptionError; StoreError for another format."""
    line, _, payload = data.partition(b"\n")
    words = line.decode(errors="replace").split(" ")
    found = int(words[1]) if len(words) == 4 and words[1].isdecimal() else 0
    # The CRC covers the line too, so a flipped bit cannot look like another format.
    if found == 0 or data != frame(payload, found):
        expected = frame(payload, found or FORMAT).partition(b"\n")[0]
        raise CorruptionError(
            f"{where}: not an intact {_MAGIC} file: expected {expected!r} before these "
            f"{len(payload)} bytes, found {line[:80]!r}"
        )
    if found != FORMAT:
        raise _other_format(where, found)
    return payload


def only_in(dropped: Iterable[VersionRecord], kept: Iterable[VersionRecord]) -> set[str]:
    """Data files of dropped versions that no kept version names, as paths inside the store."""
    names: set[str] = set()
    for record in dropped:
        names |= record.data_files.keys()
    for record in kept:
        names -= record.data_files.keys()
    return names


def unreferenced(folder: str, kept: Iterable[VersionRecord]) -> list[str]:
    """Files of the store that no kept version names, as sorted paths inside it."""
    named: set[str] = set()
    for record in kept:
        named |= record.data_files.keys()
        named.add(os.path.basename(files.manifest_path(folder, record.version)))
    found = [name for name in os.listdir(folder) if name.startswith("MANIFEST-")]
    for top in ("ssd", "dense"):
        for where, _, names in os.walk(os.path.join(folder, top)):
            found += [os.path.relpath(os.path.join(where, name), folder) for name in names]
    return sorted(set(found) - named)
