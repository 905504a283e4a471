"""Counts malformed lines, quotes the first few, and suggests how to correct them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from paddlebox.config.slots import Csv
from paddlebox.data import csv_hints
from paddlebox.errors import DataError

log = logging.getLogger(__name__)

_QUOTED_BAD_LINES = 5
# Text in the reason for a malformed line -> advice for lines with that reason.
_ADVICE = {
    "is not a decimal feasign": "a sparse slot of strings, or of negative numbers, needs "
    "hash: true in slots.yaml",
    "'' is not a finite number": "default: VALUE of a dense slot in slots.yaml gives empty "
    "cells a value",
    "is not a label in [0, 1]": "write labels as 0, 1 or, for a loss of your own, a number "
    "between them",
    "is not a count of values": "multislot has `n v1 … vn` for each slot: correct data.format or "
    "slots.yaml if these files are written otherwise",
}
_ADVICE_OF_CSV = {
    "is not a finite number": 'csv: {null: ["nan"]} in slots.yaml reads that text as an empty '
    "cell, and default: VALUE of a dense slot gives empty cells a value",
}
_ADVICE_OF_ANY = (
    "correct or remove these lines, or set a larger data.max_bad_line_ratio to skip more of them"
)
_LINES_BEFORE_EARLY_STOP = 10_000


class BadLines:
    """Counts malformed lines, quotes the first few, and reports when there are too many."""

    def __init__(self, ratio: float, csv: Csv | None = None, columns: Sequence[str] = ()) -> None:
        self.ratio = ratio
        self._csv = csv  # None: data.format is not csv
        self._columns = columns
        self._hints: list[str] = []
        self.lines = 0
        self.bad = 0
        self.quoted: list[str] = []
        self._file = ""
        self._lines_of_file = 0

    def begin(self, path: str) -> Callable[[int], str]:
        """Call it before a chunk of a file is added. Returns a function from the number of a line
        in the chunk to its "file:line"."""
        if path != self._file:
            self._file, self._lines_of_file = path, 0
        before = self._lines_of_file
        return lambda line: f"{path}:{before + line + 1}"

    def add(self, path: str, lines: int, bad: int, first: Sequence[tuple[int, str, str]]) -> None:
        place = self.begin(path)
        for line, reason, excerpt in first[: _QUOTED_BAD_LINES - len(self.quoted)]:
            self.quoted.append(f"{place(line)}: {reason}: {excerpt}")
            if self._csv is not None:
                number = self._lines_of_file + line + 1
                self._hints.append(
                    csv_hints.of_line(number, reason, excerpt, self._columns, self._csv)
                )
        self._lines_of_file += lines
        self.lines += lines
        self.bad += bad
        if self.lines >= _LINES_BEFORE_EARLY_STOP:
            self.check()

    def check(self) -> None:
        """Raises: DataError if the share of bad lines is above the ratio."""
        if self.bad > self.ratio * self.lines:
            raise DataError(
                f"{self.bad} of {self.lines} lines are malformed, expected a share of at most "
                f"{self.ratio} (data.max_bad_line_ratio). The first:\n  {self.text(_ADVICE_OF_ANY)}"
            )

    def text(self, otherwise: str = "") -> str:
        """The quoted lines, and advice on how to correct them.

        Args:
            otherwise: the advice if nothing better is known.
        """
        known = _ADVICE | (_ADVICE_OF_CSV if self._csv is not None else {})
        applies = [reason for reason in known if any(reason in q for q in self.quoted)]
        if "'' is not a finite number" in applies and "is not a finite number" in applies:
            applies.remove("is not a finite number")
        advice = [known[reason] for reason in applies]
        hints = dict.fromkeys(hint for hint in self._hints if hint)
        return "\n  ".join([*self.quoted, *(hints or advice or [otherwise] * bool(otherwise))])

    def warn(self) -> None:
        """Log how many lines were left out, if any."""
        if self.bad:
            log.warning(
                "%d of %d lines are malformed and left out. The first:\n  %s",
                self.bad,
                self.lines,
                self.text(),
            )
