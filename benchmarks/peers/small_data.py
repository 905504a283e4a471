"""The datasets of defaults.py: small and medium ones of different kinds, as a newcomer may have.

Each is a function that returns the rows in order. Three of the real ones are in $PADDLEBOX_DATA,
two in the wheels of recbole and obp (requirements/bench_data.txt). The others are generated
(planted_data.py).

No default was chosen on the ones that are held out, half of all. They were named before the first
run.
"""

from __future__ import annotations

import csv
import gzip
import importlib.util
import io
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from peers import planted_data as planted
from peers.planted_data import Rows


@dataclass(frozen=True)
class DataSet:
    name: str
    about: str
    make: Callable[[], Rows | None]  # returns None if the real data is missing
    held_out: bool = False
    history: str = ""  # for DIN: "history: item"


def real(name: str) -> Path | None:
    """A file of $PADDLEBOX_DATA; None if it does not exist."""
    path = Path(os.environ.get("PADDLEBOX_DATA", "../shared/data")) / name
    return path if path.is_file() else None


def _lines(path: Path) -> list[str]:
    with gzip.open(path, "rt") as file:
        return file.read().splitlines()


def criteo() -> Rows | None:
    path = real("criteo/train.tsv.gz")
    if path is None:
        return None
    slots = Path(__file__).parents[2] / "datasets" / "criteo" / "slots.yaml"
    return Rows(_lines(path), slots.read_text(), format="criteo_tsv")


_CENSUS_NUMBERS = {0: "age", 5: "wage", 16: "gains", 17: "losses", 18: "dividends"} | {
    30: "persons",
    39: "weeks",
}


def census() -> Rows | None:
    """Is the income above 50,000 a year? The columns are unchanged, with log1p for integers."""
    path = real("census_income/train.csv.gz")
    if path is None:
        return None
    names, slots = [], ["slots:", "  - {name: income, type: label}"]
    kept = [at for at in range(41) if at != 24]  # 24 is the weight of the instance
    for at in kept:
        name = _CENSUS_NUMBERS.get(at, f"c{at}")
        names.append(name)
        what = "dense, log1p: true" if at in _CENSUS_NUMBERS else "sparse, hash: true"
        slots.append(f"  - {{name: {name}, type: {what}}}")
    out = []
    for row in csv.reader(_lines(path), skipinitialspace=True):
        label = "1" if row[41].strip().startswith("50000+") else "0"
        out.append(_csv([label, *(row[at].strip() for at in kept)]))
    return Rows(out, "\n".join(slots), ",".join(["income", *names]))


def movielens() -> Rows | None:
    """Does a user like a movie? One column is the list of the last five liked movies."""
    path = real("movielens_history/train.csv.gz")
    if path is None:
        return None
    rows = sorted(csv.DictReader(_lines(path)), key=lambda row: int(row["timestamp"]))
    out = []
    for row in rows:
        history = [row[f"userRatedMovie{n}"] for n in range(1, 6)]
        genres = [row[f"movieGenre{n}"] for n in range(1, 4)]
        out.append(
            _csv(
                [
                    row["label"],
                    row["userId"],
                    row["movieId"],
                    "|".join(one for one in history if one and one != "0"),
                    "|".join(one for one in genres if one),
                    row["releaseYear"],
                    row["userRatingCount"],
                    row["userAvgRating"] or "0",
                ]
            )
        )
    slots = """slots:
  - {name: label, type: label}
  - {name: user, type: sparse, hash: true}
  - {name: movie, type: sparse, hash: true}
  - {name: history, type: sparse, hash: true, max_length: 5, shares: movie}
  - {name: genres, type: sparse, hash: true}
  - {name: year, type: sparse, hash: true}
  - {name: count, type: dense, log1p: true, default: 0}
  - {name: mean, type: dense, default: 0}
"""
    return Rows(out, slots, "label,user,movie,history,genres,year,count,mean")


def _csv(cells: Sequence[Any]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow(cells)
    return out.getvalue()


def _shipped(package: str, folder: str) -> Path | None:
    """A folder of an installed package, which is not imported; None if it is not installed."""
    found = importlib.util.find_spec(package)
    for at in (found.submodule_search_locations or ()) if found else ():
        if (Path(at) / folder).is_dir():
            return Path(at) / folder
    return None


def ml100k() -> Rows | None:
    """Does a user rate a film with at least four of five stars?"""
    folder = _shipped("recbole", "dataset_example/ml-100k")
    if folder is None:
        return None

    def rows_of(kind: str) -> Iterator[list[str]]:
        lines = (folder / f"ml-100k.{kind}").read_text().splitlines()
        return (line.split("\t") for line in lines[1:])

    users = {row[0]: row[1:] for row in rows_of("user")}
    films = {  # of one, the year is "unkonwn"
        row[0]: (row[2] if row[2].isdigit() else "", "|".join(row[3].split()))
        for row in rows_of("item")
    }
    out = [
        _csv([int(float(stars) >= 4), user, film, *users[user], *films[film], seconds])
        for user, film, stars, seconds in rows_of("inter")
    ]
    slots = """slots:
  - {name: liked, type: label}
  - {name: user, type: sparse, hash: true}
  - {name: film, type: sparse, hash: true}
  - {name: age, type: dense}
  - {name: gender, type: sparse, hash: true}
  - {name: occupation, type: sparse, hash: true}
  - {name: zip, type: sparse, hash: true}
  - {name: year, type: dense, default: 0}
  - {name: genres, type: sparse, hash: true}
  - {name: seconds, type: dense}
"""
    return Rows(out, slots, "liked,user,film,age,gender,occupation,zip,year,genres,seconds")


_BANDIT_TOKENS = ("campaign", "item", "position", "hour", *(f"user{n}" for n in range(4)))


def bandit() -> Rows | None:
    """60,000 recommendations of clothes by two policies, three campaigns each; 0.5 % are clicked.

    Of the affinities of a user to all items there is the one to the item that was shown.
    """
    folder = _shipped("obp", "dataset/obd")
    if folder is None:
        return None
    names = [*_BANDIT_TOKENS, "item1", "item2", "item3", "price", "affinity", "propensity"]
    out = []
    for policy in ("random", "bts"):
        for campaign in ("all", "men", "women"):
            at = folder / policy / campaign
            with open(at / "item_context.csv") as file:
                items = {row["item_id"]: row for row in csv.DictReader(file)}
            with open(at / f"{campaign}.csv") as file:
                for row in csv.DictReader(file):
                    out.append(_csv(_shown(row, campaign, items[row["item_id"]])))
    tokens = names[:-3]
    kinds = dict.fromkeys(tokens, "sparse, hash: true") | dict.fromkeys(names[-3:], "dense")
    slots = ["slots:", "  - {name: click, type: label}"]
    slots += [f"  - {{name: {name}, type: {kind}}}" for name, kind in kinds.items()]
    return Rows(out, "\n".join(slots), ",".join(["click", *names]))


def _shown(row: dict[str, str], campaign: str, item: dict[str, str]) -> list[str]:
    shown = row["item_id"]
    hour = datetime.fromisoformat(row["timestamp"]).astimezone(UTC).strftime("%H")
    return [
        row["click"], campaign, f"{campaign}{shown}", row["position"], hour,
        *(row[f"user_feature_{n}"] for n in range(4)),
        *(item[f"item_feature_{n}"] for n in range(1, 4)),
        item["item_feature_0"], row[f"user-item_affinity_{shown}"], row["propensity_score"],
    ]  # fmt: skip


OPEN = (
    DataSet("criteo", "real display ads, 13 integers and 26 tokens", criteo),
    DataSet("census", "real survey, 7 integers and 33 categories", census),
    DataSet("movielens", "real ratings with a history", movielens, history="history: movie"),
    DataSet("planted_20k", "ten columns of integers and numbers", planted.planted(20_000)),
    DataSet("planted_1m", "the same, 1 million rows", planted.planted(1_000_000)),
    DataSet("ads", "five categories", planted.ads),
    DataSet("integers", "small integers that collide", planted.integers),
    DataSet("tags", "several values a cell", planted.tags),
    DataSet("measures", "numbers alone", planted.measures),
    DataSet("heavy", "numbers with heavy tails", planted.heavy(42, 8, 40_000)),
    DataSet("missing", "many missing values", planted.missing(43, 40_000, 0.4)),
    DataSet("baskets", "lists of 20 to 150 values", planted.baskets),
    DataSet("attribution", "display ads, users, prices, times", planted.attribution),
    DataSet("few", "5,000 rows, categories and numbers", planted.few),
)
HELD_OUT = (
    DataSet("ml100k", "real ratings with users and films", ml100k, True),
    DataSet("bandit", "real recommendations, 0.5 % clicks", bandit, True),
    DataSet("phones", "many rare values", planted.phones, True),
    DataSet("ratings", "ratings with a history", planted.ratings, True, "history: film"),
    DataSet("monotone", "numbers with monotone effects", planted.monotone, True),
    DataSet("periodic", "numbers with periodic effects", planted.periodic, True),
    DataSet("skewed", "numbers with heavy tails", planted.heavy(44, 16, 25_000), True),
    DataSet("gaps", "more missing values", planted.missing(45, 60_000, 0.65), True),
    DataSet("codes", "label-encoded integers", planted.codes, True),
    DataSet("documents", "lists of 30 to 200 values", planted.documents, True),
    DataSet("rare", "2 % positives", planted.rare, True),
    DataSet("few_numbers", "5,000 rows, numbers alone", planted.few_numbers, True),
    DataSet("mobile", "mobile ads with nested columns", planted.mobile, True),
    DataSet("mixed_1m", "numbers and categories, 1 million rows", planted.mixed_1m, True),
)
DATA_SETS = OPEN + HELD_OUT
