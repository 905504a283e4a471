"""Days, as numbers since 1970-01-01, and the hours of a continuous log.

A step of a log is the span of time for which a path template renders to the same text: an hour of
local time if it has {hour}, else a day. Steps advance in UTC, so that none is lost or repeated when
clocks change. The hour that is skipped in spring is not a step. The two hours of autumn with the
same name are one step of two hours, unless the template distinguishes them (`{hour:%H%z}`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from pydantic import BeforeValidator

_EPOCH = date(1970, 1, 1)


def _number_to_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


DigitText = Annotated[str, BeforeValidator(_number_to_text)]  # YAML reads 20240101 as a number


def day_of(date: str) -> int:
    """The day number of a date YYYYMMDD; at least 1, because 0 means that no date is known. Raises:
    ValueError."""
    try:
        if len(date) != 8 or not date.isdecimal():
            raise ValueError
        day = (datetime.strptime(date, "%Y%m%d").date() - _EPOCH).days
    except ValueError:
        raise ValueError(
            f"expected YYYYMMDD, found {date!r}: give a day that exists, such as 20240131"
        ) from None
    if day < 1:
        raise ValueError(f"expected a date after 19700101, found {date!r}")
    return day


def date_of(day: int) -> str:
    """The date of a day number; "" for 0."""
    return (_EPOCH + timedelta(days=day)).strftime("%Y%m%d") if day else ""


_FIELD = re.compile(r"\{(date|hour)(?::([^{}]*))?\}")
_DEFAULTS = {"date": "%Y%m%d", "hour": "%H"}
_HOUR = timedelta(hours=1)
_PROBE = datetime(2024, 3, 5, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Hour:
    """One step: an hour, or a day if the template has no {hour}."""

    begin: datetime  # in the time zone of the log
    end: datetime  # exclusive

    @property
    def name(self) -> str:
        """A unique name such as 2024-01-01T05:00+00:00, with the offset from UTC."""
        return self.begin.isoformat(timespec="minutes")

    @property
    def date(self) -> str:
        """The local day, YYYYMMDD."""
        return self.begin.strftime("%Y%m%d")


def render(template: str, at: datetime) -> str:
    """Replace {date} and {hour} in a template by those of a moment."""
    return _FIELD.sub(lambda found: at.strftime(found[2] or _DEFAULTS[found[1]]), template)


def check_template(template: str) -> None:
    """Raises: ValueError for fields other than {date} and {hour}, or if two days are the same."""
    rest = _FIELD.sub("", template)
    if "{" in rest or "}" in rest:
        raise ValueError(
            f"expected {{date}} and {{hour}}, each with a format or without, found {rest!r}"
        )
    if render(template, _PROBE) == render(template, _PROBE + timedelta(days=1)):
        raise ValueError(f"{template!r} names the same files every day: {{date}} is missing")


def is_hourly(template: str) -> bool:
    """Whether two successive hours render differently."""
    return render(template, _PROBE) != render(template, _PROBE + _HOUR)


def zone_of(name: str) -> tzinfo:
    """The time zone of a name of the tz database. Raises: ValueError."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(
            f"expected a time zone of the tz database, such as UTC or Asia/Shanghai, found {name!r}"
        ) from error


def moment(text: str, zone: tzinfo) -> datetime:
    """The beginning of the day YYYYMMDD, or of the hour YYYYMMDDHH; of two hours with the same
    name, of the first. Raises: ValueError."""
    day, hour = text[:8], text[8:] or "00"
    if len(text) not in (8, 10) or not hour.isdecimal() or int(hour) > 23:
        raise ValueError(f"expected YYYYMMDD or YYYYMMDDHH, found {text!r}")
    day_of(day)
    local = datetime.strptime(day + hour, "%Y%m%d%H").replace(tzinfo=zone)
    return local.astimezone(UTC).astimezone(zone)  # an hour that clocks skip becomes the next one


def end_of(text: str, zone: tzinfo) -> datetime:
    """The end of the day YYYYMMDD, or of the hour YYYYMMDDHH."""
    if len(text) == 8:
        noon = datetime.strptime(text, "%Y%m%d") + timedelta(days=1)
        return moment(noon.strftime("%Y%m%d"), zone)
    return _later(moment(text, zone))


def hour_at(template: str, begin: datetime) -> Hour:
    """The step of a template that begins at a moment."""
    name, end = render(template, begin), _later(begin)
    while render(template, end) == name:
        end = _later(end)
    return Hour(begin, end)


def _later(at: datetime) -> datetime:
    return (at.astimezone(UTC) + _HOUR).astimezone(at.tzinfo)
