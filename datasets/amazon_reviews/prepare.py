#!/usr/bin/env python3
"""Makes rows of "did this user like this item, after those" of Amazon reviews, in time order.

    python datasets/amazon_reviews/prepare.py --reviews data/amazon_reviews/Electronics_5.json.gz \
        --meta data/amazon_reviews/meta_Electronics.json.gz

JSON lines, plain or gzip, by the names of the publisher's versions of 2018 or 2023. A history is
the items that the user rated 4 or more before, the latest first.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from parts import chunks, identity, open_text, refused, report, write_groups

LIKED = 4.0
HEADER = "liked,user,item,category,brand,history,user_count,user_mean,item_count"
# user, item, rating, time, and the divisor that makes seconds of it
VERSIONS = {
    2018: ("reviewerID", "asin", "overall", "unixReviewTime", 1),
    2023: ("user_id", "parent_asin", "rating", "timestamp", 1000),
}


class About(NamedTuple):
    category: str
    brand: str


def objects(path: Path) -> Iterator[dict[str, Any]]:
    """One a line. Raises SystemExit for a line that is none."""
    with open_text(path) as lines:
        for number, line in enumerate(lines, 1):
            try:
                found = json.loads(line)
            except json.JSONDecodeError as error:
                raise SystemExit(
                    f"{path}: line {number}: expected a JSON object, found {line[:60]!r}; "
                    "the version of 2014 has Python literals and is not read"
                ) from error
            if not isinstance(found, dict):
                raise SystemExit(f"{path}: line {number}: expected a JSON object")
            yield found


def plain(name: Any) -> str:
    """A name without what parts cells and values."""
    return re.sub(r'[,|"\s]+', " ", str(name or "")).strip()


def about_items(path: Path | None) -> dict[str, About]:
    if path is None:
        return {}
    known = {}
    for one in objects(path):
        item = one.get("parent_asin") or one.get("asin")
        categories = one.get("categories") or one.get("category") or []
        brand = one.get("store") or one.get("brand")
        if item:
            category = plain(categories[-1]) if isinstance(categories, list) and categories else ""
            known[str(item)] = About(category, plain(brand))
    return known


class Reviews:
    """All reviews by time: 24 bytes each, and each user's and item's name once."""

    def __init__(self, path: Path) -> None:
        users: dict[str, int] = {}
        items: dict[str, int] = {}
        columns: tuple[list[int], list[int], list[float], list[int]] = ([], [], [], [])
        names: tuple[str, str, str, str, int] | None = None
        for number, one in enumerate(objects(path), 1):
            if names is None:
                names = next((v for v in VERSIONS.values() if set(v[:4]) <= set(one)), None)
            if names is None or not set(names[:4]) <= set(one):
                expected = " or ".join(", ".join(v[:4]) for v in VERSIONS.values())
                raise SystemExit(f"{path}: line {number}: expected {expected}, found {sorted(one)}")
            user, item, rating, at, divisor = names
            columns[0].append(users.setdefault(str(one[user]), len(users)))
            columns[1].append(items.setdefault(str(one[item]), len(items)))
            columns[2].append(float(one[rating]))
            columns[3].append(int(one[at]) // divisor)
        at_all = np.array(columns[3], np.int64)
        order = np.argsort(at_all, kind="stable")
        self.at = at_all[order]
        self.user = np.array(columns[0], np.int32)[order]
        self.item = np.array(columns[1], np.int32)[order]
        self.rating = np.array(columns[2], np.float32)[order]
        self.users, self.items = list(users), list(items)

    def rows(self, known: dict[str, About], length: int) -> Iterator[str]:
        """In time order; what a row says of a user and an item is from before it."""
        liked: list[list[int]] = [[] for _ in self.users]
        counts, sums = np.zeros(len(self.users)), np.zeros(len(self.users))
        of_item = np.zeros(len(self.items), np.int64)
        every = zip(self.user.tolist(), self.item.tolist(), self.rating.tolist(), strict=True)
        for user, item, rating in every:
            name, history = self.items[item], liked[user]
            about = known.get(name, About("", ""))
            mean = sums[user] / counts[user] if counts[user] else 0.0
            cells = (
                *(f"{int(rating >= LIKED)}", f"u{self.users[user]}", f"i{name}"),
                *(about.category, about.brand),
                "|".join(f"i{self.items[one]}" for one in reversed(history)),
                *(f"{counts[user]:.0f}", f"{mean:.3f}", f"{of_item[item]}"),
            )
            yield ",".join(cells)
            counts[user] += 1
            sums[user] += rating
            of_item[item] += 1
            if rating >= LIKED:
                history.append(item)
                del history[:-length]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make rows of users' histories of reviews.")
    parser.add_argument("--reviews", type=Path, required=True, help="the publisher's reviews")
    parser.add_argument("--meta", type=Path, help="the publisher's items: category and brand")
    parser.add_argument("--out", type=Path, default=Path("data/amazon_reviews"), help="folder")
    parser.add_argument("--length", type=int, default=20, help="items of a history at most")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of a training file, at most")
    parser.add_argument(
        "--test-ratio", type=float, default=0.2, help="share of the rows, the latest ones"
    )
    options = parser.parse_args(arguments)
    if min(options.length, options.rows) < 1 or not 0 <= options.test_ratio < 1:
        parser.error("expected --length and --rows of 1 or more, --test-ratio from 0 to below 1")
    with refused(options.reviews):
        inputs = [path for path in (options.reviews, options.meta) if path]
        made_of = {
            "inputs": [identity(path) for path in inputs],
            "options": [options.length, options.rows, options.test_ratio],
        }
        reviews = Reviews(options.reviews)
        rows = reviews.rows(about_items(options.meta), options.length)
        train = len(reviews.at) - round(len(reviews.at) * options.test_ratio)
        first = islice(rows, train)
        groups = chain(chunks(first, options.rows, "train-{}.csv"), [("test.csv", rows)])
        report(options.out, write_groups(options.out, groups, HEADER, made_of, len(reviews.at)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
