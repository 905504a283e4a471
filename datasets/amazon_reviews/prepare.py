#!/usr/bin/env python3
"""Makes one row for each Amazon review, in time order: did the user like the item?

    python datasets/amazon_reviews/prepare.py --reviews data/amazon_reviews/Electronics_5.json.gz \
        --meta data/amazon_reviews/meta_Electronics.json.gz

Reads JSON lines, plain or gzip, with the field names of the publisher's 2018 or 2023 version. The
history of a row holds the items that the user rated 4 or more before, the latest first.
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
# Field names of user, item, rating and time, and the divisor that turns the time into seconds.
VERSIONS = {
    2018: ("reviewerID", "asin", "overall", "unixReviewTime", 1),
    2023: ("user_id", "parent_asin", "rating", "timestamp", 1000),
}


class About(NamedTuple):
    category: str
    brand: str


def objects(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the JSON object of each line. Raises SystemExit if a line is not an object."""
    with open_text(path) as lines:
        for number, line in enumerate(lines, 1):
            try:
                found = json.loads(line)
            except json.JSONDecodeError as error:
                raise SystemExit(
                    f"{path}: line {number}: expected a JSON object, found {line[:60]!r}; "
                    "the 2014 version, which has Python literals, is not supported"
                ) from error
            if not isinstance(found, dict):
                raise SystemExit(f"{path}: line {number}: expected a JSON object")
            yield found


def plain(name: Any) -> str:
    """A name without the characters that separate cells and values."""
    return re.sub(r'[,|"\s]+', " ", str(name or "")).strip()


def about_items(path: Path | None) -> dict[str, About]:
    """Category and brand of each item."""
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
    """All reviews, sorted by time. Users and items are numbers; their names are held once."""

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
        """Yields the rows in time order. A row uses only reviews that came before it."""
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
    parser = argparse.ArgumentParser(description="Make CSV files of Amazon reviews.")
    parser.add_argument("--reviews", type=Path, required=True, help="the publisher's reviews")
    parser.add_argument("--meta", type=Path, help="the publisher's metadata: category and brand")
    parser.add_argument("--out", type=Path, default=Path("data/amazon_reviews"), help="folder")
    parser.add_argument("--length", type=int, default=20, help="maximum length of a history")
    parser.add_argument("--rows", type=int, default=1_000_000, help="maximum per training file")
    parser.add_argument(
        "--test-ratio", type=float, default=0.2, help="share of the latest rows, for testing"
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
