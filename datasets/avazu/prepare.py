#!/usr/bin/env python3
"""Makes one CSV file per day of Avazu's train, plain or gzip. The last day is for testing.

    python datasets/avazu/prepare.py --input data/avazu/train.gz

The rows are in time order and stay so. `hour`, which is YYMMDDHH, becomes the hour of the day and
the day of the week. `id` is dropped, and all other columns are copied.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator
from datetime import date
from itertools import groupby
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from parts import identity, open_text, refused, report, write_groups

FEATURES = (
    *("C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain"),
    *("app_category", "device_id", "device_ip", "device_model", "device_type", "device_conn_type"),
    *(f"C{column}" for column in range(14, 22)),
)
COLUMNS = ("id", "click", "hour", *FEATURES)
HEADER = ",".join(("click", "hour_of_day", "weekday", *FEATURES))


def rows_of(path: Path) -> Iterator[tuple[str, str]]:
    """Yields (day as YYYYMMDD, CSV row) for each line. Raises SystemExit for an invalid line."""
    with open_text(path) as lines:
        reader = csv.reader(lines)
        found = next(reader, [])
        if tuple(found) != COLUMNS:
            raise SystemExit(
                f"{path}: expected the columns {','.join(COLUMNS)} in the first line, found "
                f"{','.join(found)!r}; Kaggle's test has no clicks and cannot be used"
            )
        day, weekday = "", 0
        for number, cells in enumerate(reader, 2):
            if len(cells) != len(COLUMNS) or len(cells[2]) != 8:
                raise SystemExit(
                    f"{path}: line {number}: expected {len(COLUMNS)} columns with YYMMDDHH in the "
                    f"third, found {len(cells)}: {','.join(cells)[:80]!r}"
                )
            today = f"20{cells[2][:6]}"
            if today != day:
                day, weekday = today, date.fromisoformat(today).weekday()
            yield day, ",".join([cells[1], cells[2][6:], str(weekday), *cells[3:]])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make one CSV file per day of Avazu's train.")
    parser.add_argument("--input", type=Path, required=True, help="the publisher's train")
    parser.add_argument("--out", type=Path, default=Path("data/avazu"), help="folder to write to")
    options = parser.parse_args(arguments)
    with refused(options.input):
        made_of = {"input": identity(options.input)}
        last = ""
        for day, _ in rows_of(options.input):
            if day < last:
                raise SystemExit(
                    f"{options.input}: {day} comes after {last}: expected rows in time order"
                )
            last = day
        groups = (
            (f"{'test' if day == last else 'train'}-{day}.csv", (row for _, row in rows))
            for day, rows in groupby(rows_of(options.input), lambda row: row[0])
        )
        report(options.out, write_groups(options.out, groups, HEADER, made_of))
    return 0


if __name__ == "__main__":
    sys.exit(main())
