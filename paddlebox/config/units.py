"""Parses byte sizes with units, such as "64MiB"."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator

_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
KIB, MIB, GIB = _UNITS["KiB"], _UNITS["MiB"], _UNITS["GiB"]


def parse_bytes(value: Any) -> Any:
    """Parse a size: "64MiB" becomes 67108864. A value that is not text is returned as it is.

    Raises:
        ValueError: the text is not a number with a unit, or not a whole number of bytes.
    """
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*", value)
    if match is None or match[2] not in _UNITS:
        units = ", ".join(_UNITS)
        raise ValueError(
            f"expected bytes, as a number and one of {units}, found {value!r}{_meant(match)}"
        )
    whole, _, fraction = match[1].partition(".")
    scale = 10 ** len(fraction)
    count, rest = divmod(int(whole + fraction) * _UNITS[match[2]], scale)
    if rest:
        raise ValueError(f"{value!r} is not a whole number of bytes")
    return count


def _meant(match: re.Match[str] | None) -> str:
    """A hint about a number with another unit, such as GB."""
    letter = match[2][0].upper() if match else ""
    if match and letter in "KMGT" and match[2][1:].upper() in ("", "B", "IB"):
        return f"; did you mean {match[1]}{letter}iB?"
    return "; write for example 64MiB"


Bytes = Annotated[int, BeforeValidator(parse_bytes)]
