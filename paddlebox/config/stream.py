"""Keys of `data` for logs that arrive hour by hour (docs/hours.md)."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field, model_validator

from paddlebox.config.dates import DigitText
from paddlebox.config.hours import check_template, is_hourly, moment, zone_of
from paddlebox.config.section import Choice, Section, Text


class MissingHour(StrEnum):
    WAIT = "wait"
    SKIP = "skip"
    STOP = "stop"


class StreamConfig(Section):
    """A stream of hourly logs in place of `train_files`; each hour is a pass."""

    path_template: str = Field(
        default="",
        description="instead of train_files: path of the log of an hour, with {date} and {hour}; "
        "without {hour} a pass is a day (docs/hours.md)",
    )
    from_hour: DigitText = Field(
        default="", description="the first hour of path_template, YYYYMMDD or YYYYMMDDHH"
    )
    until_hour: DigitText = Field(
        default="",
        description="the last hour of path_template, or its day; empty: no end (--until)",
    )
    time_zone: Text = Field(default="UTC", description="time zone of {date} and {hour}")
    ready_marker: str = Field(
        default="",
        description="template of a file whose presence says that an hour is complete; empty: an "
        "hour is complete when it is over and has files",
    )
    missing_hour: Choice[MissingHour] = Field(
        default=MissingHour.WAIT,
        description="if an hour is still missing late_s after its end: wait for it, skip it (at "
        "most 24 in a row), or stop",
    )
    late_s: float = Field(
        default=3600.0,
        ge=0,
        description="seconds after the end of an hour in which its log may still arrive",
    )

    @model_validator(mode="after")
    def _hours_make_sense(self) -> StreamConfig:
        if not self.path_template:
            for name in ("from_hour", "until_hour", "ready_marker"):
                if getattr(self, name):
                    raise ValueError(f"{name} is set, but path_template is not")
            return self
        for name in ("path_template", "ready_marker"):
            try:
                if getattr(self, name):
                    check_template(getattr(self, name))
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        try:
            zone = zone_of(self.time_zone)
        except ValueError as error:
            raise ValueError(f"time_zone: {error}") from None
        if not self.from_hour:
            raise ValueError("path_template is set, but from_hour, the first hour, is not")
        for name in ("from_hour", "until_hour"):
            text = getattr(self, name)
            try:
                if text:
                    moment(text, zone)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
            if len(text) == 10 and not is_hourly(self.path_template):
                raise ValueError(
                    f"{name}: expected YYYYMMDD, because path_template has no {{hour}}, found "
                    f"{text!r}"
                )
        return self
