"""Malformed lines: counts them, quotes the first few, and suggests how to correct them."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paddlebox.config.check import did_you_mean
from paddlebox.config.slots import Csv
from paddlebox.errors import DataError

log = logging.getLogger(__name__)

TO_UTF8 = (
    "write the file in UTF-8, or convert it, for example with data.pipe_command: iconv -f GB18030 "
    "-t UTF-8"
)
OTHER_NAME = (
    "; correct the slot's name in slots.yaml, give the slot `column: NAME`, or remove the slot if "
    "the data does not have it"
)
_DELIMITERS = ",;\t|"
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_CELLS = re.compile(r"(\d+) cells, expected (\d+)")

_QUOTED_BAD_LINES = 5
# Text in the reason for a malformed line -> advice for lines with that reason.
_ADVICE = {
    "is not UTF-8": TO_UTF8,
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
LEAST_RECORDS = 10_000  # of a stream: the ratio of a smaller pass is that of so many records


class BadLines:
    """Counts the malformed lines of a pass and of each of its files.

    Args:
        csv: None: data.format is not csv.
        columns: those that slots.yaml expects.
        least: the ratio of fewer lines is that of so many. The file of a line does not matter then.
    """

    def __init__(
        self, ratio: float, csv: Csv | None = None, columns: Sequence[str] = (), least: int = 0
    ) -> None:
        self.ratio, self._least = ratio, least
        self._csv = csv
        self._columns = columns
        self.total, self._file = _Counts(""), _Counts("")

    def begin(self, path: str) -> Callable[[int], str]:
        """Call it before a chunk of a file is added. Returns what gives the "file:line" of a line
        in the chunk."""
        if path != self._file.name:
            self._check_file()
            self._file = _Counts(path)
        before = self._file.lines
        return lambda line: f"{path}:{before + line + 1}"

    def add(
        self,
        path: str,
        lines: int,
        bad: int,
        first: Sequence[tuple[int, str, str]],
        left_out: int = 0,
    ) -> None:
        """Add a chunk. left_out: lines of the other side of data.holdout, which `lines` counts."""
        place = self.begin(path)
        for line, reason, excerpt in first[: _QUOTED_BAD_LINES - len(self._file.quoted)]:
            quoted, hint = f"{place(line)}: {reason}: {excerpt}", ""
            if self._csv is not None:
                number = self._file.lines + line + 1
                hint = _line_hint(number, reason, excerpt, self._columns, self._csv)
            for counts in (self.total, self._file):
                if len(counts.quoted) < _QUOTED_BAD_LINES:
                    counts.quoted[quoted] = hint
        for counts in (self.total, self._file):
            counts.lines += lines
            counts.bad += bad
            counts.left_out += left_out
        if self._file.read >= _LINES_BEFORE_EARLY_STOP:
            self._check_file()
        if self.total.read >= _LINES_BEFORE_EARLY_STOP:
            self._check(self.total)

    def check(self) -> None:
        """Call it after the last chunk. Raises: DataError if the share of bad lines of the pass, or
        of its last file, is above the ratio."""
        self._check_file()
        self._check(self.total)

    def _check_file(self) -> None:
        """Check the file. One bad line counts in the pass only, unless the file has no other line:
        otherwise a short file could not have any."""
        if self._least:
            return
        lines, bad = self._file.lines, self._file.bad
        head = self._csv.skip + self._csv.header if self._csv is not None else 0
        if bad > 1 or (bad and self._file.read <= bad + head):
            self._check(self._file if lines < self.total.lines else self.total)

    def _check(self, counts: _Counts) -> None:
        if counts.bad > self.ratio * max(counts.read, self._least):
            of = "lines" if counts is self.total else f"lines of {counts.name}"
            raise DataError(
                f"{counts.bad} of {counts.read} {of} are malformed, expected a share of at most "
                f"{self.ratio} (data.max_bad_line_ratio). The first:\n  "
                f"{self._text(counts, _ADVICE_OF_ANY)}"
            )

    def _text(self, counts: _Counts, otherwise: str = "") -> str:
        """The quoted lines, and advice; `otherwise` if no advice is known."""
        known = _ADVICE | (_ADVICE_OF_CSV if self._csv is not None else {})
        applies = [reason for reason in known if any(reason in q for q in counts.quoted)]
        if "'' is not a finite number" in applies and "is not a finite number" in applies:
            applies.remove("is not a finite number")
        advice = [known[reason] for reason in applies]
        hints = dict.fromkeys(hint for hint in counts.quoted.values() if hint)
        return "\n  ".join([*counts.quoted, *(hints or advice or [otherwise] * bool(otherwise))])

    def warn(self) -> None:
        if self.total.bad:
            log.warning(
                "%d of %d lines are malformed and left out. The first:\n  %s",
                self.total.bad,
                self.total.read,
                self._text(self.total),
            )


@dataclass
class _Counts:
    name: str
    lines: int = 0
    bad: int = 0
    left_out: int = 0
    quoted: dict[str, str] = field(default_factory=dict)  # the first bad lines -> a hint

    @property
    def read(self) -> int:
        """The lines on this side of data.holdout."""
        return self.lines - self.left_out


def header_hint(line: bytes, columns: Sequence[str], delimiter: str) -> str:
    """What to change if the first line of a CSV file does not name the columns of slots.yaml; "" if
    there is no guess."""
    if not line:
        return "; if the file is empty, write it again or leave it out"
    text = line.decode("utf-8", "replace")
    cells = _cut(text, delimiter)
    other = _other_delimiter(text, delimiter, len(cells), min(2, len(columns)))
    if other and not {*cells} & {*columns}:
        return f"; {other}"
    if not {*cells} & {*columns} and any(_NUMBER.fullmatch(cell) for cell in cells):
        return (
            "; the first line looks like data, not like names: set csv: {header: false} in "
            "slots.yaml, or csv: {columns: […]} if the columns of the file are not the slots"
        )
    missing = [column for column in columns if column not in cells]
    return did_you_mean(missing, cells) or OTHER_NAME


def _line_hint(number: int, reason: str, excerpt: str, columns: Sequence[str], csv: Csv) -> str:
    """As `header_hint`, for a malformed line. number: of the line in its file, from 1."""
    text = excerpt.replace("\\x09", "\t")
    cells = _cut(text, csv.delimiter)
    if number == csv.skip + 1 and not csv.header and len({*cells} & {*columns}) * 2 > len(cells):
        return "the first line looks like names: remove csv: {header: false} from slots.yaml" + (
            ", and also csv: {columns: […]}" if csv.columns else ""
        )
    found = _CELLS.search(reason)
    return _other_delimiter(text, csv.delimiter, int(found[1]), 2) if found else ""


def _cut(text: str, delimiter: str) -> list[str]:
    return [cell.strip().strip('"') for cell in text.split(delimiter)]


def _other_delimiter(text: str, delimiter: str, cells: int, least: int) -> str:
    counts = {mark: text.count(mark) for mark in _DELIMITERS if mark != delimiter}
    mark = max(counts, key=lambda one: counts[one])
    if counts[mark] < cells or counts[mark] + 1 < least:
        return ""
    shown = '"\\t"' if mark == "\t" else f'"{mark}"'
    times = "once" if counts[mark] == 1 else f"{counts[mark]} times"
    return (
        f"{cells} column{'' if cells == 1 else 's'} with delimiter {delimiter!r}, and {mark!r} "
        f"occurs {times} on the line: is that the delimiter? csv: {{delimiter: {shown}}} "
        "in slots.yaml"
    )
