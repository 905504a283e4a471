"""Keys of `data.stream`: records of a Kafka topic, or of files that grow (docs/stream.md)."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from paddlebox.config.section import Section, Text

EARLIEST, LATEST, END = "earliest", "latest", "end"
_KAFKA = re.compile(r"kafka://([^/\s,]+:\d+(?:,[^/\s,]+:\d+)*)/([A-Za-z0-9._-]{1,249})")


def kafka_of(source: str) -> tuple[str, str] | None:
    """The brokers and the topic of a source; None for a folder."""
    found = _KAFKA.fullmatch(source)
    return (found[1], found[2]) if found else None


def time_of(text: str) -> float | None:
    """The Unix time that a place names; None if it is not a time. Without an offset it is UTC."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()


def offsets_of(text: str) -> dict[str, int]:
    """The offsets that a place such as "clicks/0=120,clicks/1=80" names. Raises: ValueError."""
    found: dict[str, int] = {}
    for part in text.split(","):
        name, mark, number = part.strip().rpartition("=")
        if not (mark and name and number.isdecimal()) or name in found:
            raise ValueError(f"expected PARTITION=OFFSET, found {part.strip()!r}")
        found[name] = int(number)
    return found


def _source(text: str) -> str:
    if "://" in text and kafka_of(text) is None:
        raise ValueError(
            f"expected kafka://HOST:PORT/TOPIC, with further HOST:PORT after commas, or a local "
            f"folder, found {text!r}"
        )
    return text


def _place(text: str) -> str:
    if text and text not in (EARLIEST, LATEST, END) and time_of(text) is None:
        offsets_of(text)
    return text


_Place = Annotated[str, AfterValidator(_place)]


class StreamConfig(Section):
    """Records of a stream in place of `train_files`."""

    source: Annotated[Text, AfterValidator(_source)] = Field(
        description="kafka://HOST:PORT/TOPIC, with further HOST:PORT after commas; or a folder "
        "with files to which records are appended"
    )
    properties: str = Field(
        default="",
        description="file of librdkafka's properties, such as those of security: KEY=VALUE lines",
    )
    start: _Place = Field(
        default=EARLIEST,
        description="where a new run begins: earliest, latest, a time such as 2024-01-31T12:00Z, "
        "or offsets such as clicks/0=120,clicks/1=80; in a later start, a changed value moves the "
        "run there",
    )
    until: _Place = Field(
        default="",
        description="where the run ends: end (the newest record at the start), a time or offsets; "
        "empty: it does not end",
    )
    pass_records: int = Field(
        default=100_000, ge=1, le=1 << 30, description="records that make up a pass"
    )
    pass_s: float = Field(
        default=60.0, gt=0, description="seconds after which a pass with fewer records begins"
    )

    @model_validator(mode="after")
    def _places_make_sense(self) -> StreamConfig:
        for name, wrong in (("start", (END, "")), ("until", (EARLIEST, LATEST))):
            if getattr(self, name) in wrong:
                usual = "earliest, latest" if name == "start" else "end"
                raise ValueError(
                    f"{name}: expected {usual}, a time or offsets, found {getattr(self, name)!r}"
                )
            if kafka_of(self.source) is None and time_of(getattr(self, name)) is not None:
                raise ValueError(
                    f"{name}: expected no time, because the records of a folder have none, found "
                    f"{getattr(self, name)!r}"
                )
        if self.properties and kafka_of(self.source) is None:
            raise ValueError("properties is set, but source is a folder: take properties out")
        return self
