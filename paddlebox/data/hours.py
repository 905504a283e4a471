"""Finds the files of an hour's log (docs/hours.md)."""

from __future__ import annotations

from dataclasses import dataclass

from paddlebox.config.data import StreamConfig
from paddlebox.config.dates import Hour, render
from paddlebox.data.listing import NothingThereError, expand
from paddlebox.data.sources import RETRIES, written_at


@dataclass(frozen=True)
class Log:
    """The log of an hour."""

    files: tuple[str, ...] = ()  # empty: the log is not complete
    written_at: float = 0.0
    why: str = ""  # the reason why it is not complete


def look(config: StreamConfig, hour: Hour, retries: int = RETRIES) -> Log:
    """Look for the log of an hour. Raises: DataError if a file system does not answer."""
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
