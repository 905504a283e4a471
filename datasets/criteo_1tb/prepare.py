#!/usr/bin/env python3
"""Cuts days of Criteo's 1TB click logs into gzip files of --rows lines, one per pass.

    python datasets/criteo_1tb/prepare.py --days data/criteo_1tb/day_*.gz

A day has about 200 million lines, more than a pass should hold in memory. The lines are copied as
they are. The order of the file names is the order of time: train/day_02/part-000.txt.gz.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from parts import chunks, identity, open_text, refused, report, write_groups

COLUMNS = 40  # label, 13 integers, 26 tokens, separated by tabs


def day_of(path: Path) -> int:
    """The day of a name such as day_7.gz. Raises SystemExit for another name."""
    match = re.match(r"day_(\d+)", path.name)
    if match is None:
        raise SystemExit(f"{path}: expected one of the publisher's names, day_0.gz to day_23.gz")
    return int(match[1])


def parts_of(path: Path, rows: int) -> Iterator[tuple[str, Iterator[str]]]:
    """Yields (file name, lines) for each part of a day. Raises SystemExit if the first line has
    another number of columns."""
    with open_text(path) as file:
        lines = (line.rstrip("\n") for line in file)
        first = next(lines, "")
        if first.count("\t") != COLUMNS - 1:
            raise SystemExit(
                f"{path}: line 1: expected {COLUMNS} columns separated by tabs, found "
                f"{first.count(chr(9)) + 1}"
            )
        yield from chunks(chain([first], lines), rows, "part-{}.txt.gz")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Cut days of Criteo's 1TB logs into files of one pass each."
    )
    parser.add_argument("--days", type=Path, nargs="+", required=True, help="day_0.gz …")
    parser.add_argument("--out", type=Path, default=Path("data/criteo_1tb"), help="folder")
    parser.add_argument("--rows", type=int, default=10_000_000, help="maximum lines of a file")
    parser.add_argument("--test-days", type=int, nargs="*", default=[23], help="days for testing")
    options = parser.parse_args(arguments)
    if options.rows < 1:
        parser.error("expected --rows of 1 or more")
    for path in sorted(options.days, key=day_of):
        day = day_of(path)
        out = options.out / ("test" if day in options.test_days else "train") / f"day_{day:02}"
        with refused(path):
            made_of = {"input": identity(path), "rows": options.rows}
            report(out, write_groups(out, parts_of(path, options.rows), "", made_of))
    return 0


if __name__ == "__main__":
    sys.exit(main())
