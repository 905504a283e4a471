#!/usr/bin/env python3
"""Makes rows of Taobao's UserBehavior.csv: is this the item that the user looked at next?

    python datasets/taobao/prepare.py --input data/taobao/UserBehavior.csv

The file has only what users did. So each such row (label 1) is followed by one with an item drawn
from all items (label 0). The draw is a hash of --seed, the user and the number of the action, so
the same arguments give the same rows.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from parts import chunks, identity, open_text, refused, report, side_by_side, write_groups

BEHAVIORS = ("pv", "buy", "cart", "fav")
HEADER = "done,user,item,category,weekday,hour,history,history_categories"
CHINA = 8 * 3600  # seconds ahead of UTC: the days of the dataset are days in China
FIRST_DAY, LAST_DAY = 1511539200, 1512316800  # 25 November to 3 December 2017, as published
Act = tuple[int, str, str]  # time, item, category


def acts_of(path: Path, behaviors: list[str]) -> Iterator[tuple[str, list[Act]]]:
    """Yields (user, actions) with the actions of the published days in time order. Raises
    SystemExit for an invalid line, or if the lines of a user are not next to each other."""

    def lines() -> Iterator[list[str]]:
        with open_text(path) as file:
            for number, cells in enumerate(csv.reader(file), 1):
                if len(cells) != 5 or cells[3] not in BEHAVIORS or not cells[4].isdigit():
                    raise SystemExit(
                        f"{path}: line {number}: expected user,item,category,behavior,seconds with "
                        f"a behavior of {', '.join(BEHAVIORS)}, found {','.join(cells)[:80]!r}"
                    )
                yield cells

    for user, rows in side_by_side(path, lines(), lambda cells: cells[0], "user"):
        acts = [
            (int(seconds), item, category)
            for _, item, category, behavior, seconds in rows
            if behavior in behaviors and FIRST_DAY <= int(seconds) < LAST_DAY
        ]
        acts.sort(key=lambda act: act[0])
        yield user, acts


class Items:
    """All items and their categories, for random draws."""

    def __init__(self, path: Path, behaviors: list[str]) -> None:
        known: dict[int, int] = {}
        for _, acts in acts_of(path, behaviors):
            for _, item, category in acts:
                known[int(item)] = int(category)
        self.ids = np.fromiter(known.keys(), np.int64, len(known))
        self.categories = np.fromiter(known.values(), np.int64, len(known))

    def draw(self, of: str) -> tuple[str, str]:
        """An item and its category. The same text gives the same item."""
        digest = hashlib.blake2b(of.encode(), digest_size=8).digest()
        place = int.from_bytes(digest, "little") % len(self.ids)
        return str(self.ids[place]), str(self.categories[place])


def rows_of(path: Path, items: Items, options: argparse.Namespace, testing: bool) -> Iterator[str]:
    """Yields the rows of actions before --test-from or, if `testing`, from that moment on."""
    for user, acts in acts_of(path, options.behaviors):
        begun = max(1, len(acts) - options.per_user)
        for place in range(begun, len(acts)):
            seconds, item, category = acts[place]
            if (seconds >= options.test_from) != testing:
                continue
            before = acts[max(0, place - options.length) : place][::-1]  # the latest first
            history = "|".join(f"i{act[1]}" for act in before)
            categories = "|".join(f"c{act[2]}" for act in before)
            local = seconds + CHINA
            when = f"{(local // 86400 + 3) % 7},{local // 3600 % 24}"  # 1 January 1970: a Thursday
            drawn = items.draw(f"{options.seed} {user} {place}")
            for done, (one, of) in ((1, (item, category)), (0, drawn)):
                yield f"{done},u{user},i{one},c{of},{when},{history},{categories}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make CSV files of Taobao's UserBehavior.csv.")
    parser.add_argument("--input", type=Path, required=True, help="the publisher's file")
    parser.add_argument("--out", type=Path, default=Path("data/taobao"), help="folder to write to")
    parser.add_argument("--length", type=int, default=50, help="maximum length of a history")
    parser.add_argument(
        "--per-user", type=int, default=10, help="number of last actions that become rows"
    )
    parser.add_argument("--rows", type=int, default=2_000_000, help="maximum per training file")
    parser.add_argument(
        "--behaviors", nargs="+", choices=BEHAVIORS, default=["pv"], help="actions that count"
    )
    parser.add_argument(
        "--test-from",
        type=int,
        default=LAST_DAY - 86400,
        help="rows from this moment on, in seconds, are for testing; default: the last day",
    )
    parser.add_argument("--seed", type=int, default=1, help="seed for drawing items")
    options = parser.parse_args(arguments)
    if min(options.length, options.per_user, options.rows) < 1:
        parser.error("expected --length, --per-user and --rows of 1 or more")
    with refused(options.input):
        made_of = {
            "input": identity(options.input),
            **{k: v for k, v in vars(options).items() if k not in ("input", "out")},
        }
        items = Items(options.input, options.behaviors)
        trained = rows_of(options.input, items, options, testing=False)
        groups = chain(
            chunks(trained, options.rows, "train-{}.csv"),
            [("test.csv", rows_of(options.input, items, options, testing=True))],
        )
        report(options.out, write_groups(options.out, groups, HEADER, made_of))
    return 0


if __name__ == "__main__":
    sys.exit(main())
