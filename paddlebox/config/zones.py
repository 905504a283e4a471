"""The offsets of time zones from UTC, as the expressions of slots need them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_TOKEN = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|\w+|[^\w\s]")
_WITH_ZONE = frozenset(("hour", "day", "month", "weekday", "days_between"))
_FIRST, _LAST = datetime(1950, 1, 1, tzinfo=UTC), datetime(2101, 1, 1, tzinfo=UTC)
_STEP = timedelta(days=7)  # no zone changes its offset and back in less

Offsets = tuple[list[int], list[int]]  # seconds since 1970 at which each offset, in seconds, begins


def zones_of(expression: str) -> dict[str, Offsets]:
    """The zones that an expression names, except for UTC and offsets."""
    found = {name: _offsets(name) for name in sorted(_named(expression)) if "/" in name}
    return {name: offsets for name, offsets in found.items() if offsets is not None}


def _named(expression: str) -> set[str]:
    """The quoted texts that are the last argument of a function that takes a zone."""
    names, calls = set[str](), list[str]()
    before = ""
    for token in _TOKEN.findall(expression):
        if token == "(":
            calls.append(before)
        elif token == ")" and calls and calls.pop() in _WITH_ZONE and before[:1] in ("'", '"'):
            names.add(before[1:-1])
        before = token
    return names


@cache
def _offsets(name: str) -> Offsets | None:
    """From 1950 to 2100; None: there is no such zone."""
    try:
        zone = ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None
    at, offset = _FIRST, _offset(zone, _FIRST)
    starts, offsets = [int(at.timestamp())], [offset]
    while at < _LAST:
        after = at + _STEP
        if _offset(zone, after) != offset:
            at = _change(zone, at, after)
            offset = _offset(zone, at)
            starts.append(int(at.timestamp()))
            offsets.append(offset)
        else:
            at = after
    return starts, offsets


def _offset(zone: ZoneInfo, at: datetime) -> int:
    offset = at.astimezone(zone).utcoffset()
    return round(offset.total_seconds()) if offset is not None else 0


def _change(zone: ZoneInfo, before: datetime, after: datetime) -> datetime:
    """The first second in (before, after] with another offset than `before` has."""
    old = _offset(zone, before)
    while after - before > timedelta(seconds=1):
        middle = before + timedelta(seconds=int((after - before).total_seconds()) // 2)
        if _offset(zone, middle) == old:
            before = middle
        else:
            after = middle
    return after
