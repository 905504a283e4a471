"""Checks of names and numbers from a file: a store, a copy, a save or a parity set may be forged,
or damaged in a way that its checksums do not show. Each function raises ValueError with the value,
and what was expected."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

MOST = 2**63 - 1
_SEGMENT = {
    "id": MOST,
    "sequence": MOST,
    "rows": MOST,
    "min_key": 2**64 - 1,
    "max_key": 2**64 - 1,
    "bytes": MOST,
    "footer_crc": 2**32 - 1,
}
_OF_WEIGHTS = ("embed_decay", "embedx_decay")
_OF_COUNTS = ("decay", "min_score", "min_delta_score")
_STAMP = re.compile(r"[0-9a-f]{1,32}")
_INSIDE = re.compile(r"(MANIFEST-\d{12,}|ssd/seg-\d{12,}\.seg|dense/\d{12,}/[^/]+)")


def name(value: Any, what: str) -> str:
    if (
        not isinstance(value, str)
        or value in ("", ".", "..")
        or re.search(r"[/\0]", value)
        or len(value.encode(errors="surrogatepass")) > 255
    ):
        raise ValueError(f"{what} is {value!r}, expected a name without '/'")
    return value


def number(value: Any, what: str, most: int = MOST, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{what} is {value!r}, expected an integer of {least} to {most}")
    return value


def segments(listed: Iterable[Mapping[str, Any]], *, stamped: bool = True) -> None:
    """The descriptors of segments (docs/formats/manifest.md); those of a save have no stamps."""
    seen = set()
    for segment in listed:
        for field, most in _SEGMENT.items():
            number(segment[field], f"{field} of a segment", most)
        if segment["file"] != f"seg-{segment['id']:012d}.seg" or segment["id"] in seen:
            raise ValueError(f"file of segment {segment['id']} is {segment['file']!r}")
        if segment["min_key"] > segment["max_key"] or not segment["rows"]:
            raise ValueError(f"segment {segment['id']} has no keys")
        if stamped and not _STAMP.fullmatch(segment["stamp"]):
            raise ValueError(f"stamp of segment {segment['id']} is {segment['stamp']!r}")
        seen.add(segment["id"])


def files(listed: Mapping[str, Mapping[str, Any]]) -> None:
    for file, of in listed.items():
        name(file, "name of a file")
        number(of["bytes"], f"bytes of {file}")
        number(of["crc32c"], f"crc32c of {file}", 2**32 - 1)


def inside(value: Any) -> str:
    """The path of a file that a version names, inside the store of the first table of a set."""
    parts = str(value).split("/")
    path = "/".join(parts[2:]) if parts[0] == "tables" else str(value)
    if not _INSIDE.fullmatch(path):
        raise ValueError(f"path of a file is {value!r}, expected a file of a version")
    for part in parts:
        name(part, "part of a path")
    return str(value)


def events(listed: Iterable[Mapping[str, Any]]) -> None:
    """Life events; their numbers ascend from 1."""
    seq = 0
    for event in listed:
        number(event["seq"], "seq of an event", 2**32 - 1, least=seq + 1)
        seq = event["seq"]
        if not isinstance(event["kind"], str):
            raise ValueError(f"kind of event {seq} is {event['kind']!r}")
        if event["kind"] == "erase":
            erasure(event, f"event {seq}")
            continue
        if event["kind"] == "evict":
            number(event["day"], f"day of event {seq}", 2**20 - 1)
            number(event["min_key"], f"min_key of event {seq}", 2**64 - 1)
            flag(event["by_day"], f"by_day of event {seq}")
        integers = {"weight_decay": (), "evict": ()}.get(event["kind"], ("day", "max_unseen_days"))
        for field in integers:
            number(event[field], f"{field} of event {seq}", 2**32 - 1)
        floats = {"weight_decay": _OF_WEIGHTS, "evict": ("min_score",)}
        for field in floats.get(event["kind"], _OF_COUNTS):
            value = event[field]
            if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e38:
                raise ValueError(f"{field} of event {seq} is {value!r}, expected a number")


def erasure(event: Mapping[str, Any], what: str) -> None:
    """An event that deletes the rows of keys or of a slot."""
    before = 0
    for key in event["keys"]:
        number(key, f"a key of {what}", 2**64 - 1, least=before + 1)
        before = key
    number(event["slot"], f"slot of {what}", 2**16 - 1, least=-1)
    flag(event["merged"], f"merged of {what}")
    if not isinstance(event["request"], str):
        raise ValueError(f"request of {what} is {event['request']!r}, expected a text")


def flag(value: Any, what: str) -> None:
    if type(value) is not bool:
        raise ValueError(f"{what} is {value!r}, expected true or false")
