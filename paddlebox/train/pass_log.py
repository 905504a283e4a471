"""What a run remembers of the lines that it writes to metrics.jsonl, however many there are."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

Line = dict[str, Any]  # of a pass


class Lines:
    """The last lines, and what is said of all of them at the end.

    Args:
        keep: how many are remembered; the last one always is.
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
        """Empty before the first pass. What is added to it is remembered too."""
        return self._recent[-1] if self._recent else {}

    @property
    def recent(self) -> list[Line]:
        return [*self._recent]
