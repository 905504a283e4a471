#!/usr/bin/env python3
"""Generates page views, each with three ads that a user may click, from a planted model.

    python datasets/page_views/prepare.py

An ad is clicked less often if the ads beside it are attractive. So a model that reads whole pages
can predict better than one that reads single ads. The AUC of the true probabilities, and that of a
score that knows a single ad, are printed. The same arguments give the same bytes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from parts import write_parts
from planted import auc

HEADER = "click,logkey,user,ad,advertiser,position"
USERS, ADS, ADVERTISERS = 5_000, 1_000, 100
ADS_A_PAGE = 3  # they have the ranks 1, 2 and 3
CMATCH = 222
TASTES = 2  # dimensions of the taste vectors of users and ads
POSITION = np.array([0.5, 0.0, -0.5])  # effect of ranks 1, 2 and 3 on the logit
BESIDE = -0.8  # weight, in an ad's logit, of the mean attraction of the ads beside it
BIAS = -1.4
CHUNK_PAGES = 20_000


class Chunk(NamedTuple):
    """P pages with A ads each."""

    user: np.ndarray  # (P)
    ad: np.ndarray  # (P, A)
    p_click: np.ndarray  # (P, A)
    alone: np.ndarray  # (P, A) a score of user and ad: the logit without position and neighbours
    click: np.ndarray  # (P, A)


class Planted:
    """Weights of every user, ad and advertiser, and taste vectors."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng([seed, 0])
        self.user = random.normal(0, 0.5, USERS)
        self.ad = (
            random.normal(0, 0.8, ADS) + random.normal(0, 0.6, ADVERTISERS)[owner(np.arange(ADS))]
        )
        self.users = random.normal(0, 0.8, (USERS, TASTES))
        self.ads = random.normal(0, 0.8, (ADS, TASTES))

    def chunk(self, seed: int, number: int) -> Chunk:
        random = np.random.default_rng([seed, 1, number])
        user = (random.random(CHUNK_PAGES) ** 2 * USERS).astype(np.int64)
        ad = (random.random((CHUNK_PAGES, ADS_A_PAGE)) ** 2 * ADS).astype(np.int64)
        taste = (self.users[user][:, None, :] * self.ads[ad]).sum(2)
        attraction = self.ad[ad] + taste
        beside = (attraction.sum(1, keepdims=True) - attraction) / (ADS_A_PAGE - 1)
        alone = BIAS + attraction + self.user[user][:, None]
        p_click = 1 / (1 + np.exp(-(alone + POSITION + BESIDE * beside)))
        click = random.random(p_click.shape) < p_click
        return Chunk(user, ad, p_click, alone, click)


def owner(ad: np.ndarray) -> np.ndarray:
    """The advertiser of each ad."""
    return ad % ADVERTISERS


def log_key(page: int, rank: int) -> str:
    """A log key as in PaddleBox: 11 characters, then cmatch, rank and search id in hexadecimal."""
    return f"{'0' * 11}{CMATCH:03x}{rank:02x}{page:016x}"


def cut(pages: int, parts: int, test_ratio: float) -> list[tuple[str, int]]:
    """Name and number of rows of each file. A page is never split between two files."""
    test = max(1, round(pages * test_ratio))
    train = pages - test
    ends = [train * part // parts for part in range(parts + 1)]
    files = [
        (f"train-{part:03}.csv", ADS_A_PAGE * (ends[part + 1] - ends[part]))
        for part in range(parts)
    ]
    return [*files, ("test.csv", ADS_A_PAGE * test)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Generate page views of three ads each.")
    parser.add_argument("--out", type=Path, default=Path("data/page_views"), help="folder")
    parser.add_argument("--pages", type=int, default=250_000, help="number of page views")
    parser.add_argument("--parts", type=int, default=4, help="number of training files")
    parser.add_argument(
        "--test-ratio", type=float, default=0.2, help="share of the last pages, for testing"
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    if not 0 < options.test_ratio < 1 or options.seed < 0 or options.parts < 1:
        parser.error("expected --test-ratio in (0, 1), --seed of 0 or more, --parts of 1 or more")
    if options.pages < 2 * options.parts:
        parser.error("expected --pages of at least twice --parts")
    planted = Planted(options.seed)

    def chunks() -> Iterator[tuple[int, Chunk]]:
        for number in range(-(-options.pages // CHUNK_PAGES)):
            yield number * CHUNK_PAGES, planted.chunk(options.seed, number)

    def rows() -> Iterator[str]:
        for first, chunk in chunks():
            columns = (chunk.user, chunk.ad, owner(chunk.ad), chunk.click.astype(int))
            pages = zip(*(column.tolist() for column in columns), strict=True)
            for page, (user, ads, advertisers, clicks) in enumerate(pages, first + 1):
                shown = zip(ads, advertisers, clicks, strict=True)
                for rank, (ad, advertiser, click) in enumerate(shown, 1):
                    yield f"{click},{log_key(page, rank)},u{user},a{ad},o{advertiser},p{rank}"

    files = cut(options.pages, options.parts, options.test_ratio)
    try:
        write_parts(options.out, files, HEADER, rows(), {"seed": options.seed})
    except OSError as error:
        raise SystemExit(f"{options.out}: {error}") from error
    every = [chunk for _, chunk in chunks()]
    of_test = slice(options.pages - files[-1][1] // ADS_A_PAGE, options.pages)
    click, page, alone = (
        np.concatenate([getattr(chunk, name) for chunk in every])[of_test].reshape(-1)
        for name in ("click", "p_click", "alone")
    )
    test = files[-1][1]
    print(
        f"{options.out}: {ADS_A_PAGE * options.pages - test:,} rows to train on, "
        f"{test:,} to test on"
    )
    print(f"AUC on the test rows: {auc(page, click):.4f} of the true probabilities, the best "
          f"possible; {auc(alone, click):.4f} of a score that knows only user and ad")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
