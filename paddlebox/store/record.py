"""VersionRecord: what a committed version is made of, and its bytes (docs/formats/manifest.md)."""

from __future__ import annotations

import dataclasses
import datetime
import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from paddlebox.errors import CorruptionError, StoreError
from paddlebox.store.crc import crc32c

FORMAT = 2
_MAGIC = "PBXMANIFEST"


def newly_written(segments: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Descriptors for the record that first names these segments. Each gets a `stamp` of its own:
    a store that went back writes other rows under the same names, with the same keys."""
    return [{**segment, "stamp": secrets.token_hex(8)} for segment in segments]


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class VersionRecord:
    """One committed version. Every field holds what JSON can hold."""

    version: int  # counts without gaps, from 1 but in a store that goes on from others
    parent: int  # the version before; 0 for version 1
    segments: list[dict[str, Any]]  # as docs/formats/manifest.md has them
    layout: dict[str, Any]  # of the rows
    pass_number: int
    kind: str = "pass"  # what made it, as docs/formats/manifest.md has them
    day: int = 0  # of training, as its cursor counts them
    cursor: dict[str, Any] = field(default_factory=dict)  # where reading the data stands
    live_rows: int = 0  # keys that have a row; rows superseded by younger ones do not count
    events: list[dict[str, Any]] = field(default_factory=list)  # life events, in order
    bytes_written: dict[str, int] = field(default_factory=dict)  # by kind, since the store began
    dense: dict[str, dict[str, Any]] = field(default_factory=dict)  # file name -> {bytes, crc32c}
    dense_version: int = 0  # the files of dense/<dense_version>/
    config_hash: str = ""
    config: dict[str, Any] = field(default_factory=dict)  # that trained it, every value
    digest: str | None = None
    tables: dict[str, int] = field(default_factory=dict)  # of a group: the others' versions
    created_at: str = field(default_factory=_now)

    @property
    def is_partial(self) -> bool:
        """Whether its rows stand elsewhere in the data than those of other ranks may
        (train/recovery.py)."""
        return "partial" in self.cursor

    def following(self, kind: str, **changes: Any) -> VersionRecord:
        """The next version: this one with changes. The dense state stays where it is."""
        return dataclasses.replace(
            self,
            version=self.version + 1,
            parent=self.version,
            kind=kind,
            **{"created_at": _now(), **changes},
        )

    def to_payload(self) -> bytes:
        """Its one spelling as JSON.

        Raises:
            StoreError: a field holds something that is not JSON.
        """
        fields = {"format": FORMAT, **dataclasses.asdict(self)}
        if not self.tables:
            del fields["tables"]  # a store of one table stays readable as it was
        try:
            text = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise StoreError(f"version {self.version}: its record is not JSON: {error}") from error
        return text.encode()

    @classmethod
    def from_payload(cls, payload: bytes, where: str) -> VersionRecord:
        """Reads what to_payload wrote. ``where`` names the place in errors.

        Raises:
            CorruptionError: it is not a record.
            StoreError: written by a later version of the project.
        """
        try:
            fields = json.loads(payload)
            found = fields.pop("format")
            if found == 1:
                fields = _from_format_1(fields)
            if found in (1, FORMAT):
                return cls(**fields)._checked()
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise CorruptionError(f"{where}: not a version record: {error!r}") from error
        raise _later(where, found)

    def _checked(self) -> VersionRecord:
        """Itself, if its fields are of their types; ValueError otherwise."""
        for name, kind in _TYPES.items():
            if type(getattr(self, name)) is not kind:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected {kind.__name__}")
        for segment in self.segments:
            for name in _SEGMENT_NUMBERS:
                if type(segment[name]) is not int or segment[name] < 0:
                    raise ValueError(f"{name} of a segment is {segment[name]!r}")
            if not isinstance(segment["file"], str) or "/" in segment["file"]:
                raise ValueError(f"file of a segment is {segment['file']!r}")
        for name, version in self.tables.items():
            if type(version) is not int or version < 1:
                raise ValueError(f"version of table {name!r} is {version!r}")
        return self


_TYPES = {
    "version": int,
    "parent": int,
    "segments": list,
    "layout": dict,
    "pass_number": int,
    "kind": str,
    "day": int,
    "live_rows": int,
    "events": list,
    "bytes_written": dict,
    "dense": dict,
    "dense_version": int,
    "config": dict,
    "cursor": dict,
    "tables": dict,
}
_SEGMENT_NUMBERS = ("id", "sequence", "rows", "min_key", "max_key", "bytes", "footer_crc")


def _from_format_1(fields: dict[str, Any]) -> dict[str, Any]:
    """Format 1 knew no merges: a segment's age was its id, every version had its dense folder."""
    segments = [{"sequence": s["id"], **s} for s in fields["segments"]]
    return {
        **fields,
        "segments": segments,
        "live_rows": sum(s["rows"] for s in segments),  # an upper bound
        "bytes_written": {"pass": sum(s["bytes"] for s in segments)},
        "dense_version": fields["version"],
    }


def _later(where: str, found: object) -> StoreError:
    return StoreError(
        f"{where}: written by a later version (format {found}, this one reads up to {FORMAT}): "
        "open the store with that version"
    )


def seal(payload: bytes) -> bytes:
    """The value that LMDB keeps for a payload: its CRC32C, little endian, and the payload."""
    return crc32c(payload).to_bytes(4, "little") + payload


def unseal(value: bytes, where: str) -> bytes:
    """The payload of a sealed value.

    Raises:
        CorruptionError: the CRC does not hold.
    """
    expected = int.from_bytes(value[:4], "little")
    found = crc32c(value[4:])
    if len(value) < 4 or found != expected:
        raise CorruptionError(f"{where}: has CRC32C {found:#010x}, expected {expected:#010x}")
    return value[4:]


def frame(payload: bytes, version: int = FORMAT) -> bytes:
    """The bytes of a MANIFEST file with this payload."""
    line = f"{_MAGIC} {version} {len(payload)}"
    return f"{line} {crc32c(line.encode() + payload):08x}\n".encode() + payload


def unframe(data: bytes, where: str) -> bytes:
    """The payload of a MANIFEST file.

    Raises:
        CorruptionError: it is torn or damaged.
        StoreError: written by a later version of the project.
    """
    line, _, payload = data.partition(b"\n")
    words = line.decode(errors="replace").split(" ")
    found = int(words[1]) if len(words) == 4 and words[1].isdecimal() else 0
    # The CRC covers the line too, so a flipped bit cannot pass for a later format.
    if found == 0 or data != frame(payload, found):
        raise CorruptionError(
            f"{where}: not a sound {_MAGIC} file: {len(data)} bytes that begin {data[:40]!r}"
        )
    if found > FORMAT:
        raise _later(where, found)
    return payload
