"""Heartbeat: the file in which a rank reports its progress to the tool that may restart it.

    line 1: count stage passes text      line 2: the rank that this one waits for, and why

Only the training thread writes line 1, at each step and stage. So line 1 stops changing when that
thread hangs, even if other threads of the rank still run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

#: Environment variable: the path of the file. `paddlebox train-on-ray` sets it.
FILE = "PADDLEBOX_HEARTBEAT"
LINE = 256  # bytes of each of the two lines
_T = TypeVar("_T")


class Heartbeat:
    """What a rank reports. path: the file, which exists; "": nothing is written."""

    def __init__(self, path: str = "") -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CLOEXEC) if path else -1
        self._count, self._stage, self._text, self._passes = 0, "start", "", -1
        self._beat()

    def stage(self, name: str, text: str = "") -> None:
        """Begin a stage. Each stage has a time limit (docs/ray.md)."""
        self._stage, self._text = name, text
        self._beat()

    def steps(self, feeds: Iterable[_T]) -> Iterator[_T]:
        """Yield each feed: stage "step" while it trains, and "load" until the next one."""
        for number, feed in enumerate(feeds, 1):
            self.stage("step", str(number))
            yield feed
            self.stage("load", f"after step {number}")

    def rows(self, what: str) -> Callable[[int], None]:
        """Begin stage "load" for work on many rows. Call the result with the rows read."""
        self.stage("load", what)
        return lambda read: self.stage("load", f"{what}: {read}")

    def committed(self, passes: int) -> None:
        """Report how many passes every rank has committed. Progress since the last failure resets
        the count of failures."""
        self._passes = passes
        self._beat()

    def waits(self, rank: int, what: str) -> None:
        """Report that this rank waits for another one, and for what; "" ends the wait. Any thread
        may call it. It does not count as progress."""
        self._write(f"{rank} {what}" if what else "", LINE)

    def _beat(self) -> None:
        if self._file >= 0:
            self._count += 1
            self._write(f"{self._count} {self._stage} {self._passes} {self._text}", 0)

    def _write(self, text: str, at: int) -> None:
        if self._file >= 0:
            # A single write of a few bytes: a reader sees either the old line or the new one.
            os.pwrite(self._file, text[: LINE - 1].ljust(LINE - 1).encode()[: LINE - 1] + b"\n", at)


SILENT = Heartbeat()


def of_process() -> Heartbeat:
    """The heartbeat of this process, as its environment names it."""
    return Heartbeat(os.environ.get(FILE, ""))
