"""Converts days between text, YYYYMMDD, and the number that rows hold, days since 1970-01-01."""

from __future__ import annotations

import datetime
from typing import Annotated, Any

from pydantic import BeforeValidator

_EPOCH = datetime.date(1970, 1, 1)


def _number_to_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


DigitText = Annotated[str, BeforeValidator(_number_to_text)]  # YAML reads 20240101 as a number


def day_of(date: str) -> int:
    """The day number of a date; at least 1, because 0 means that no date is known.

    Raises:
        ValueError: it is not a date YYYYMMDD, or not after 19700101.
    """
    try:
        if len(date) != 8 or not date.isdecimal():
            raise ValueError
        day = (datetime.datetime.strptime(date, "%Y%m%d").date() - _EPOCH).days
    except ValueError:
        raise ValueError(
            f"expected YYYYMMDD, found {date!r}: give a day that exists, such as 20240131"
        ) from None
    if day < 1:
        raise ValueError(f"expected a date after 19700101, found {date!r}")
    return day


def date_of(day: int) -> str:
    """The date of a day number; "" for 0."""
    return (_EPOCH + datetime.timedelta(days=day)).strftime("%Y%m%d") if day else ""
