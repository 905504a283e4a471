"""Guesses what is wrong with a CSV file whose columns are not those of slots.yaml."""

from __future__ import annotations

import re
from collections.abc import Sequence

from paddlebox.config.check import did_you_mean
from paddlebox.config.slots import Csv

OTHER_NAME = (
    "; correct the slot's name in slots.yaml, give the slot `column: NAME`, or remove the slot if "
    "the data does not have it"
)
_DELIMITERS = ",;\t|"
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_CELLS = re.compile(r"(\d+) cells, expected (\d+)")


def of_header(line: bytes, columns: Sequence[str], delimiter: str) -> str:
    """What to change if the first line of a file does not name the columns; "" if there is no
    guess.

    Args:
        columns: the columns that slots.yaml expects.
    """
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


def of_line(number: int, reason: str, excerpt: str, columns: Sequence[str], csv: Csv) -> str:
    """As `of_header`, for a malformed line.

    Args:
        number: number of the line in its file, from 1.
        reason, excerpt: from the parser.
    """
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
    times = "once" if counts[mark] == 1 else f"{counts[mark]} times"
    return (
        f"{cells} column{'' if cells == 1 else 's'} with delimiter {delimiter!r}, and {mark!r} "
        f"occurs {times} on the line: is that the delimiter? csv: {{delimiter: {_quoted(mark)}}} "
        "in slots.yaml"
    )


def _quoted(mark: str) -> str:
    return '"\\t"' if mark == "\t" else f'"{mark}"'
