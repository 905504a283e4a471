#!/usr/bin/env python3
"""Makes CSV files of the publisher's census-income.data, plain or gzip, in the same order.

    python datasets/census_income/prepare.py --input data/census_income/census-income.data

The labels are those on which multi-task models are usually compared: income above 50,000, and never
married. The instance weight is dropped, as the publisher asks.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from parts import add_split, cuts, identity, open_text, parse_split, refused, report, write_parts

# Columns in the order of the file. None: the column becomes a label or is dropped.
COLUMNS: tuple[str | None, ...] = (
    *("age", "class_of_worker", "industry_code", "occupation_code", "education", "wage_per_hour"),
    *("enrolled", None, "major_industry", "major_occupation", "race", "hispanic", "sex", "union"),
    *("unemployment_reason", "full_or_part_time", "capital_gains", "capital_losses", "dividends"),
    *("tax_filer", "previous_region", "previous_state", "household", "household_summary", None),
    *("migration_msa", "migration_region", "migration_within", "lived_here", "sunbelt"),
    *("employer_persons", "parents", "father_country", "mother_country", "self_country"),
    *("citizenship", "own_business", "veteran_questionnaire", "veteran_benefits", "weeks_worked"),
    *("year", None),
)
MARITAL, INCOME = 7, 41
HEADER = ",".join(["income", "never_married", *(name for name in COLUMNS if name)])


def rows_of(path: Path) -> Iterator[str]:
    """Yields a CSV row for each line. Raises SystemExit for an invalid line."""
    with open_text(path) as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            cells = [cell.strip() for cell in line.split(",")]
            income = cells[-1].rstrip(".")
            if len(cells) != len(COLUMNS) or income not in ("- 50000", "50000+"):
                raise SystemExit(
                    f"{path}: line {number}: expected {len(COLUMNS)} columns that end with "
                    f"'- 50000.' or '50000+.', found {len(cells)} columns, the last {cells[-1]!r}"
                )
            labels = [int(income == "50000+"), int(cells[MARITAL] == "Never married")]
            kept = [cell for name, cell in zip(COLUMNS, cells, strict=True) if name]
            yield ",".join([*map(str, labels), *kept])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make CSV files of census-income.data.")
    add_split(parser, "data/census_income", parts=1, test_ratio=0.2)
    options = parse_split(parser, arguments)
    with refused(options.input):
        with open_text(options.input) as lines:
            count = sum(1 for line in lines if line.strip())
        files = list(cuts(count, options.parts, options.test_ratio))
        made_of = {"input": identity(options.input)}
        write_parts(options.out, files, HEADER, rows_of(options.input), made_of)
    report(options.out, files)
    return 0


if __name__ == "__main__":
    sys.exit(main())
