"""Generates the CSV files of docs/first_hour.md: three days of impressions, and a test file.

    python -m paddlebox.tools.first_hour --out mine

Clicks are drawn from a planted model, so the best possible AUC on test.csv is known and printed.
The same seed gives the same files. A file that exists already is not changed.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

HEADER = "clicked,user_id,item,country,age,price,tags"
COUNTRIES = ("CN", "US", "DE", "IN", "BR", "JP", "FR", "GB")
TAGS = ("home", "music", "car", "garden", "sport", "books", "toys", "food")
DAYS = ("20240101", "20240102", "20240103")


class Clicks:
    """Draws rows, and knows their true probabilities."""

    def __init__(self, seed: int) -> None:
        plan = random.Random(seed)
        self._users = [plan.gauss(0, 0.9) for _ in range(2000)]
        self._items = [plan.gauss(0, 0.9) for _ in range(3000)]
        self._tags = {tag: plan.gauss(0, 0.5) for tag in TAGS}
        # One weight per country and tag: an interaction, which a linear model cannot learn.
        self._likes = {(c, t): plan.gauss(0, 0.5) for c in COUNTRIES for t in TAGS}

    def row(self, draw: random.Random) -> tuple[str, int, float]:
        """Draws one row. Returns the line, the label and the true probability."""
        user = int(len(self._users) * draw.random() ** 2)  # some users are far more frequent
        item = int(len(self._items) * draw.random() ** 3)
        country, age = COUNTRIES[user % len(COUNTRIES)], 14 + user % 60
        price = draw.lognormvariate(3, 1)
        tags = sorted(draw.sample(TAGS, draw.randrange(4)))
        logit = self._users[user] + self._items[item] - 1.5 - 0.2 * (math.log1p(price) - 3)
        logit += sum(self._tags[tag] + self._likes[country, tag] for tag in tags)
        probability = 1 / (1 + math.exp(-logit))
        clicked = int(draw.random() < probability)
        shown = str(age) if draw.random() < 0.8 else ""  # the age of one user in five is unknown
        line = f"{clicked},u{user},sku-{item:05},{country},{shown},{price:.2f},{'|'.join(tags)}"
        return line, clicked, probability


def auc(rows: Sequence[tuple[str, int, float]]) -> float:
    """AUC of the true probabilities: the share of pairs of a row with and one without a click in
    which the former has the higher probability. Ties count half."""
    ranks = below = 0.0
    for _, group in groupby(sorted(rows, key=lambda row: row[2]), key=lambda row: row[2]):
        labels = [clicked for _, clicked, _ in group]
        others = len(labels) - sum(labels)
        ranks += sum(labels) * (below + others / 2)
        below += others
    return ranks / max(1, below * (len(rows) - below))


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m paddlebox.tools.first_hour", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--out", type=Path, default=Path("mine"), help="folder; default mine")
    parser.add_argument("--rows", type=int, default=20000, help="rows per day; default 20000")
    parser.add_argument(
        "--test-rows", type=int, default=10000, help="rows of test.csv; default 10000"
    )
    parser.add_argument("--seed", type=int, default=1, help="default 1")
    arguments = parser.parse_args()
    clicks = Clicks(arguments.seed)
    names = {f"train-{day}.csv": arguments.rows for day in DAYS} | {"test.csv": arguments.test_rows}
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        for name, count in names.items():
            path = arguments.out / name
            draw = random.Random(f"{arguments.seed} {name}")
            rows = [clicks.row(draw) for _ in range(count)]
            best = f", best possible AUC {auc(rows):.4f}" if name == "test.csv" else ""
            if path.exists():
                print(f"{path}: exists already, not changed")
                continue
            path.write_text("\n".join([HEADER, *(line for line, _, _ in rows)]) + "\n")
            print(f"{path}: {count} rows{best}")
    except OSError as error:
        print(f"{error.filename}: cannot write: {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
