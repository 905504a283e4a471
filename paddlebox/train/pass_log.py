"""The lines of metrics.jsonl that a run keeps in memory: the last few, and sums over all."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

Line = dict[str, Any]  # the line of a pass


class Lines:
    """The last lines, and the totals of passes, samples and batches over all lines.

    Args:
        keep: how many of the last lines to keep; at least one is kept.
        lines: lines to add first.
    """

    def __init__(self, keep: int = 1, lines: Iterable[Line] = ()) -> None:
        self._recent: deque[Line] = deque(maxlen=max(1, keep))
        self.passes = 0
        self.samples = 0
        self.batches = 0
        for line in lines:
            self.add(line)

    def add(self, line: Line) -> None:
        self._recent.append(line)
        self.passes += 1
        self.samples += int(line["samples"])
        self.batches += int(line.get("batches", 0))

    @property
    def last(self) -> Line:
        """The last line, empty before the first pass. Callers may add entries to it."""
        return self._recent[-1] if self._recent else {}

    @property
    def recent(self) -> list[Line]:
        """The lines that are kept, oldest first."""
        return [*self._recent]
