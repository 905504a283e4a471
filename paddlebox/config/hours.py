"""Hours of a log that goes on: what a template names, in which time zone, and when each is over.

A step is what one rendering of the template names: an hour of local time where it has {hour}, else
a day. Steps are walked in UTC, so none is lost or doubled where clocks change: the hour that a
spring skips is no step, and the two hours of autumn that have one name are one step of two hours,
unless the template tells them apart (`{hour:%H%z}`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from paddlebox.config.dates import day_of

_FIELD = re.compile(r"\{(date|hour)(?::([^{}]*))?\}")
_DEFAULTS = {"date": "%Y%m%d", "hour": "%H"}
_HOUR = timedelta(hours=1)
_PROBE = datetime(2024, 3, 5, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Hour:
    """One step: an hour, or a day where the template has no {hour}."""

    begin: datetime  # local
    end: datetime

    @property
    def name(self) -> str:
        """As 2024-01-01T05:00+00:00: one moment, whatever the clocks did."""
        return self.begin.isoformat(timespec="minutes")

    @property
    def date(self) -> str:
        return self.begin.strftime("%Y%m%d")


def render(template: str, at: datetime) -> str:
    return _FIELD.sub(lambda found: at.strftime(found[2] or _DEFAULTS[found[1]]), template)


def check_template(template: str) -> None:
    """Raises: ValueError for other fields than {date} and {hour}, or where days look alike."""
    rest = _FIELD.sub("", template)
    if "{" in rest or "}" in rest:
        raise ValueError(
            f"expected {{date}} and {{hour}}, each with a format or without, found {rest!r}"
        )
    if render(template, _PROBE) == render(template, _PROBE + timedelta(days=1)):
        raise ValueError(f"{template!r} names the same files every day: {{date}} is missing")


def is_hourly(template: str) -> bool:
    return render(template, _PROBE) != render(template, _PROBE + _HOUR)


def zone_of(name: str) -> tzinfo:
    """Raises: ValueError for a name that the tz database does not have."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(
            f"expected a time zone of the tz database, as UTC or Asia/Shanghai, found {name!r}"
        ) from error


def moment(text: str, zone: tzinfo) -> datetime:
    """The beginning of YYYYMMDD, or of the hour YYYYMMDDHH; of two hours of a name, the first.

    Raises: ValueError.
    """
    day, hour = text[:8], text[8:] or "00"
    if len(text) not in (8, 10) or not hour.isdecimal() or int(hour) > 23:
        raise ValueError(f"expected YYYYMMDD or YYYYMMDDHH, found {text!r}")
    day_of(day)
    local = datetime.strptime(day + hour, "%Y%m%d%H").replace(tzinfo=zone)
    return local.astimezone(UTC).astimezone(zone)  # an hour that is none is the one after it


def end_of(text: str, zone: tzinfo) -> datetime:
    """The end of the day YYYYMMDD, or of the hour YYYYMMDDHH."""
    if len(text) == 8:
        noon = datetime.strptime(text, "%Y%m%d") + timedelta(days=1)
        return moment(noon.strftime("%Y%m%d"), zone)
    return _later(moment(text, zone))


def hour_at(template: str, begin: datetime) -> Hour:
    """The step that begins at a moment."""
    name, end = render(template, begin), _later(begin)
    while render(template, end) == name:
        end = _later(end)
    return Hour(begin, end)


def _later(at: datetime) -> datetime:
    return (at.astimezone(UTC) + _HOUR).astimezone(at.tzinfo)
