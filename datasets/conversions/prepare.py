#!/usr/bin/env python3
"""Generates impressions, of which some are clicked and then bought, from a planted model.

    python datasets/conversions/prepare.py

Both probabilities are known, so the best possible AUC of each task is known and printed. The same
arguments give the same bytes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from parts import cuts, write_parts
from planted import auc

HEADER = "click,buy,user,item,seller,hour"
SIZES = {"user": 20_000, "item": 5_000, "seller": 300, "hour": 24}
TASTES = 4  # dimensions of the taste vectors of users and items
CHUNK_ROWS = 50_000


class Chunk(NamedTuple):
    ids: dict[str, np.ndarray]
    click: np.ndarray
    buy: np.ndarray
    p_click: np.ndarray
    p_buy: np.ndarray  # probability of a purchase, given a click


class Planted:
    """Weights of every value for clicks and for purchases (correlated), and taste vectors."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng([seed, 0])
        shared = {name: random.normal(0, 0.7, size) for name, size in SIZES.items()}
        self.click = {name: weights.copy() for name, weights in shared.items()}
        self.buy = {n: 0.5 * w + random.normal(0, 0.6, len(w)) for n, w in shared.items()}
        self.users = random.normal(0, 0.6, (SIZES["user"], TASTES))
        self.items = random.normal(0, 0.6, (SIZES["item"], TASTES))

    def chunk(self, seed: int, number: int) -> Chunk:
        random = np.random.default_rng([seed, 1, number])
        ids = {
            name: (random.random(CHUNK_ROWS) ** 2 * size).astype(np.int64)
            for name, size in SIZES.items()
        }
        taste = (self.users[ids["user"]] * self.items[ids["item"]]).sum(1)
        click = -2.2 + taste + sum(self.click[name][at] for name, at in ids.items())
        buy = -1.2 + taste + sum(self.buy[name][at] for name, at in ids.items())
        p_click, p_buy = 1 / (1 + np.exp(-click)), 1 / (1 + np.exp(-buy))
        clicked = random.random(CHUNK_ROWS) < p_click
        bought = clicked & (random.random(CHUNK_ROWS) < p_buy)
        return Chunk(ids, clicked, bought, p_click, p_buy)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Generate impressions, clicks and purchases.")
    parser.add_argument("--out", type=Path, default=Path("data/conversions"), help="folder")
    parser.add_argument("--rows", type=int, default=500_000, help="number of impressions")
    parser.add_argument(
        "--test-ratio", type=float, default=0.2, help="share of the last rows, for testing"
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    if options.rows < 2 or not 0 < options.test_ratio < 1 or options.seed < 0:
        parser.error("expected --rows of 2 or more, --test-ratio in (0, 1), --seed of 0 or more")
    planted = Planted(options.seed)

    def chunks() -> Iterator[Chunk]:
        for number in range(-(-options.rows // CHUNK_ROWS)):
            yield planted.chunk(options.seed, number)

    def rows() -> Iterator[str]:
        for chunk in chunks():
            columns = [chunk.click.astype(int), chunk.buy.astype(int), *chunk.ids.values()]
            for click, buy, user, item, seller, hour in zip(*columns, strict=True):
                yield f"{click},{buy},u{user},i{item},s{seller},h{hour}"

    files = list(cuts(options.rows, 1, options.test_ratio))
    try:
        write_parts(options.out, files, HEADER, rows(), {"seed": options.seed})
    except OSError as error:
        raise SystemExit(f"{options.out}: {error}") from error
    start = files[0][1]
    every = list(chunks())
    of_test = slice(start, options.rows)
    click = np.concatenate([chunk.click for chunk in every])[of_test]
    buy = np.concatenate([chunk.buy for chunk in every])[of_test]
    p_click = np.concatenate([chunk.p_click for chunk in every])[of_test]
    p_buy = np.concatenate([chunk.p_click * chunk.p_buy for chunk in every])[of_test]
    print(f"{options.out}: {start:,} rows to train on, {options.rows - start:,} to test on")
    print(f"best possible AUC on the test rows: click {auc(p_click, click):.4f}, buy "
          f"{auc(p_buy, buy):.4f}")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
