"""Whether the log of an hour is there (docs/hours.md)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from paddlebox.config.hours import Hour, render
from paddlebox.config.stream import StreamConfig
from paddlebox.data.sources import NothingThereError, expand, is_uri, written_at


@dataclass(frozen=True)
class Log:
    """What is there of an hour."""

    files: tuple[str, ...] = ()  # none: it is not complete
    written_at: float = 0.0
    why: str = ""  # it is not


def look(config: StreamConfig, hour: Hour, retries: int) -> Log:
    """Raises: DataError where a file system does not answer."""
    marker, marked = render(config.ready_marker, hour.begin), None
    if marker:
        marked = written_at(marker, retries)
        if marked is None:
            return Log(why=f"{marker} is not there")
    pattern = render(config.path_template, hour.begin)
    try:
        files = tuple(expand([pattern], retries))
    except NothingThereError as error:
        return Log(why=f"{error}" + (f", though {marker} says that it is complete" * bool(marker)))
    if marked is None:
        marked = max(written_at(file, retries) or 0.0 for file in files)
    return Log(files, marked)


def sizes(files: tuple[str, ...]) -> dict[str, int]:
    """Bytes of those that are local and there."""
    found = {}
    for file in files:
        try:
            if not is_uri(file):
                found[file] = os.stat(file).st_size
        except OSError:
            continue
    return found


def rewritten(before: Mapping[str, int]) -> dict[str, int]:
    """Files that have other `sizes` now, and which."""
    return {f: now for f, now in sizes(tuple(before)).items() if now != before[f]}
