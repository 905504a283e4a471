"""Formats values for people, and escapes text for HTML."""

from __future__ import annotations

import datetime
import html
import json
import re
from collections.abc import Callable
from typing import Any

NONE = "–"
_SECRET = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def esc(value: Any) -> str:
    return html.escape(str(value), quote=True)


_COUNTS = ((1e12, "T"), (1e9, "G"), (1e6, "M"))
_SIZES = ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB"))


def passes(number: int) -> str:
    return f"{number:,} pass{'' if number == 1 else 'es'}"


def count(value: float | None) -> str:
    """12,345; from a million on 1.23 M."""
    if value is None:
        return NONE
    for size, unit in _COUNTS:
        if abs(value) >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def size(value: float | None) -> str:
    """Bytes, in binary units."""
    if value is None:
        return NONE
    for shift, unit in _SIZES:
        if abs(value) >= 1 << shift:
            return (
                f"{value / (1 << shift):.3g} {unit}"
                if abs(value) < 1000 << shift
                else (f"{value / (1 << shift):,.0f} {unit}")
            )
    return f"{value:.0f} B"


def seconds(value: float | None) -> str:
    if value is None:
        return NONE
    if abs(value) < 60:
        return "0 s" if value == 0 else f"{value:.3g} s" if abs(value) >= 1e-3 else "<1 ms"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def unit(value: float, written: Callable[..., str]) -> tuple[float, str]:
    """The unit in which a function of this module writes a value, and its text."""
    if written is seconds:
        return 1.0, " s"
    units = {count: _COUNTS, size: tuple((float(1 << s), name) for s, name in _SIZES)}
    found = [(scale, f" {name}") for scale, name in units.get(written, ()) if value >= scale]
    return found[0] if found else (1.0, " B" if written is size else "")


def decimal(value: float | None, digits: int = 4) -> str:
    return NONE if value is None else f"{value:.{digits}f}"


def share(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.1f} %"


def moment(unix: float | None) -> str:
    if unix is None:
        return NONE
    at = datetime.datetime.fromtimestamp(unix, datetime.UTC)
    return at.strftime("%Y-%m-%d %H:%M:%S UTC")


def setting(value: Any, key: str = "") -> str:
    """A value of a config. The part before an @ in a URI is hidden, because it may be a
    password."""
    if key.endswith("_bytes") and isinstance(value, int) and value >= 1024:
        return size(value)
    if isinstance(value, str):
        return _SECRET.sub("…", value) if value else '""'
    return _SECRET.sub("…", json.dumps(value, ensure_ascii=False))
