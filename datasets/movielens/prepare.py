#!/usr/bin/env python3
"""Makes one row for each rating of MovieLens: did the user like the movie?

    python datasets/movielens/prepare.py --ratings ml-20m/ratings.csv --movies ml-20m/movies.csv
    python datasets/movielens/prepare.py --samples trainingSamples.csv

Reads the publisher's ratings, which are grouped by user, or rows in the format of SparrowRecSys.
The history of a row holds the movies that the user rated 3.5 or more before, the latest first. One
moment separates the training rows from the later test rows. Both files are grouped by user.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from parts import identity, open_text, report, side_by_side, write_parts

LIKED = 3.5
HEADER = "liked,user,movie,genres,year,history,user_count,user_mean,time"


class Row(NamedTuple):
    at: int  # time in seconds
    text: str


def made(
    rating: float, user: str, movie: str, genres: list[str], year: str, history: list[str],
    count: int, mean: float, at: int,
) -> Row:  # fmt: skip
    """A row. Ids get a letter in front, so that user 7 and movie 7 are different values."""
    cells = (
        *(f"{int(rating >= LIKED)}", f"u{user}", f"m{movie}", "|".join(genres)),
        *(f"y{year}" if year else "", "|".join(f"m{one}" for one in history)),
        *(str(count), f"{mean:.3f}", str(at)),
    )
    return Row(at, ",".join(cells))


def of_samples(path: Path, length: int) -> Iterator[Row]:
    """Yields the rows of a file in the format of SparrowRecSys."""
    with open_text(path) as file:
        for line in csv.DictReader(file):
            liked = [line[f"userRatedMovie{k}"] for k in range(1, 6)]
            genres = [line[f"movieGenre{k}"] for k in range(1, 4)]
            yield made(
                float(line["rating"]),
                line["userId"],
                line["movieId"],
                [genre for genre in genres if genre],
                line["releaseYear"],
                [movie for movie in liked if movie][:length],
                int(line["userRatingCount"] or 0),
                float(line["userAvgRating"] or 0),
                int(line["timestamp"]),
            )


def of_ratings(ratings: Path, movies: Path, length: int) -> Iterator[Row]:
    """Yields the rows of the publisher's files. Raises SystemExit if the ratings of a user are not
    next to each other."""
    about = {}
    with open_text(movies) as file:
        for line in csv.DictReader(file):
            year = re.search(r"\((\d{4})\)\s*$", line["title"])
            genres = [g for g in line["genres"].split("|") if not g.startswith("(")]
            about[line["movieId"]] = (genres, year[1] if year else "")
    with open_text(ratings) as file:
        users = side_by_side(ratings, csv.DictReader(file), lambda line: line["userId"], "user")
        for user, lines in users:
            yield from _of_user(user, list(lines), about, length)


def _of_user(
    user: str, lines: list[dict[str, str]], about: dict[str, tuple[list[str], str]], length: int
) -> Iterator[Row]:
    liked: list[str] = []
    summed = 0.0
    lines.sort(key=lambda line: int(line["timestamp"]))
    for count, line in enumerate(lines):
        rating, movie = float(line["rating"]), line["movieId"]
        genres, year = about.get(movie, ([], ""))
        history = liked[: -length - 1 : -1]
        mean = summed / count if count else 0.0
        at = int(line["timestamp"])
        yield made(rating, user, movie, genres, year, history, count, mean, at)
        summed += rating
        if rating >= LIKED:
            liked.append(movie)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make CSV files of MovieLens' ratings.")
    parser.add_argument("--ratings", type=Path, help="the publisher's ratings.csv")
    parser.add_argument("--movies", type=Path, help="the publisher's movies.csv")
    parser.add_argument("--samples", type=Path, help="rows in SparrowRecSys' format instead")
    parser.add_argument("--out", type=Path, default=Path("data/movielens"), help="folder")
    parser.add_argument("--length", type=int, default=20, help="maximum length of a history")
    parser.add_argument(
        "--test-ratio", type=float, default=0.2, help="share of the latest rows, for testing"
    )
    options = parser.parse_args(arguments)
    inputs = [options.samples] if options.samples else [options.ratings, options.movies]
    if None in inputs or (options.samples and (options.ratings or options.movies)):
        parser.error("expected --ratings and --movies, or --samples")
    if options.length < 1 or not 0 <= options.test_ratio < 1:
        parser.error("expected --length of 1 or more, and --test-ratio from 0 to below 1")

    def rows() -> Iterator[Row]:
        if options.samples:
            return of_samples(options.samples, options.length)
        return of_ratings(options.ratings, options.movies, options.length)

    try:
        times = np.fromiter((row.at for row in rows()), np.int64)
        if not len(times):
            raise SystemExit(f"{inputs[0]}: expected rows, found none")
        test_rows = round(len(times) * options.test_ratio)
        start = np.sort(times)[len(times) - test_rows] if test_rows else times.max() + 1
        trained = int((times < start).sum())
        files = [("train.csv", trained), ("test.csv", len(times) - trained)]
        every = itertools.chain(
            (row.text for row in rows() if row.at < start),
            (row.text for row in rows() if row.at >= start),
        )
        made_of = {
            "inputs": [identity(path) for path in inputs],
            "length": options.length,
            "start": int(start),
        }
        write_parts(options.out, [file for file in files if file[1]], HEADER, every, made_of)
    except (OSError, EOFError, UnicodeDecodeError, KeyError, ValueError) as error:
        raise SystemExit(f"{inputs[0]}: {type(error).__name__}: {error}") from error
    report(options.out, files)
    return 0


if __name__ == "__main__":
    sys.exit(main())
