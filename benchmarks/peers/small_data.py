"""The datasets of defaults.py: small and medium ones of different kinds, as a newcomer may have.

Each is a function that returns the rows in order. Three are real, from $PADDLEBOX_DATA. The others
are drawn from a planted logistic model: weights of values, products of latent vectors of two
values, and normal noise that no model can explain.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Floats = np.ndarray  # (n)


@dataclass(frozen=True)
class Rows:
    """Lines without line breaks, with a header if the format has one, and how to read them."""

    lines: Sequence[str]
    slots: str  # content of slots.yaml
    header: str = ""
    format: str = "csv"


@dataclass(frozen=True)
class DataSet:
    name: str
    about: str
    make: Callable[[], Rows | None]  # returns None if the real data is missing
    held_out: bool = False  # no default was chosen on it
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


def _zipf(rng: np.random.Generator, values: int, exponent: float, n: int) -> np.ndarray:
    mass = np.arange(1, values + 1) ** -exponent
    return np.asarray(rng.choice(values, size=n, p=mass / mass.sum()))


def _click(rng: np.random.Generator, logit: Floats, noise: float) -> np.ndarray:
    logit = logit + rng.normal(0, noise, len(logit))
    return np.asarray(rng.random(len(logit)) < 1 / (1 + np.exp(-logit)), np.int64)


def _product(rng: np.random.Generator, a: np.ndarray, b: np.ndarray, scale: float) -> Floats:
    """The products of latent vectors of rank 4."""
    left = rng.normal(size=(a.max() + 1, 4))[a]
    right = rng.normal(size=(b.max() + 1, 4))[b]
    return np.asarray(scale / 2 * (left * right).sum(axis=1))


def _rows(names: Sequence[str], kinds: Sequence[str], columns: Sequence[Any], y: Any) -> Rows:
    slots = "\n".join(
        ["slots:", "  - {name: click, type: label}"]
        + [f"  - {{name: {name}, type: {kind}}}" for name, kind in zip(names, kinds, strict=True)]
    )
    lines = [
        ",".join(map(str, row)) for row in zip(y.tolist(), *(list(c) for c in columns), strict=True)
    ]
    return Rows(lines, slots, ",".join(["click", *names]))


_TOKENS = "sparse, hash: true"


def ads() -> Rows:
    """132,000 impressions of display ads with five categorical columns; few explain much."""
    rng = np.random.default_rng(11)
    n = 132_000
    sizes = {"site": 3000, "ad": 1200, "device": 12, "hour": 24, "region": 300}
    columns = {k: _zipf(rng, v, 1.0 if v > 100 else 0.5, n) for k, v in sizes.items()}
    logit = np.full(n, -1.8)
    for name, scale in zip(sizes, (0.5, 0.5, 0.3, 0.2, 0.2), strict=True):
        logit += rng.normal(0, scale, sizes[name])[columns[name]]
    logit += _product(rng, columns["device"], columns["hour"], 0.25)
    logit += _product(rng, columns["site"] % 40, columns["ad"] % 30, 0.2)
    y = _click(rng, logit, 0.3)
    text = [[f"{name[0]}{v:x}" for v in column] for name, column in columns.items()]
    return _rows(list(sizes), [_TOKENS] * 5, text, y)


def integers() -> Rows:
    """40,000 rows of small integers, not hashed, whose meaning depends on the column."""
    rng = np.random.default_rng(12)
    n = 40_000
    sizes = {"age": 80, "days": 60, "visits": 40, "items": 30, "store": 200, "plan": 6}
    columns = {k: 1 + _zipf(rng, v, 0.6, n) for k, v in sizes.items()}
    logit = np.full(n, -1.2)
    for name, size in sizes.items():
        logit += rng.normal(0, 0.45, size + 1)[columns[name]]
    logit += _product(rng, columns["plan"], columns["store"], 0.3)
    y = _click(rng, logit, 0.3)
    return _rows(list(sizes), ["sparse"] * 6, list(columns.values()), y)


def tags() -> Rows:
    """60,000 rows with a user, an item, and cells with several tags and words."""
    rng = np.random.default_rng(13)
    n = 60_000
    user, item = _zipf(rng, 8000, 0.8, n), _zipf(rng, 3000, 1.0, n)
    logit = np.full(n, -1.0)
    logit += rng.normal(0, 0.5, 8000)[user] + rng.normal(0, 0.5, 3000)[item]
    cells = []
    for values, most, scale in ((400, 8, 0.35), (5000, 12, 0.25)):
        weight = rng.normal(0, scale, values)
        counts = rng.integers(0, most + 1, n)
        drawn = [np.unique(_zipf(rng, values, 0.9, int(c))) for c in counts]
        logit += np.array([weight[d].sum() for d in drawn])
        cells.append(["|".join(f"t{v}" for v in d) for d in drawn])
    logit += _product(rng, user % 50, item % 50, 0.3)
    y = _click(rng, logit, 0.3)
    columns = [[f"u{v}" for v in user], [f"i{v}" for v in item], *cells]
    return _rows(["user", "item", "tags", "words"], [_TOKENS] * 4, columns, y)


def measures() -> Rows:
    """30,000 rows of twelve measurements on different scales, without categories."""
    rng = np.random.default_rng(14)
    n = 30_000
    z = rng.normal(size=(n, 12))
    logit = -0.8 + z @ rng.normal(0, 0.35, 12)
    logit += 0.6 * z[:, 0] * z[:, 1] - 0.5 * np.abs(z[:, 2]) + 0.5 * (z[:, 3] > 0.5)
    y = _click(rng, logit, 0.3)
    columns, kinds = [], []
    for k in range(12):
        if k % 3 == 0:  # skewed and large, like amounts
            columns.append(np.round(np.exp(4 + 1.5 * z[:, k]), 2))
            kinds.append("dense, log1p: true")
        elif k % 3 == 1:  # like ages and hours
            columns.append(np.clip(np.round(40 + 15 * z[:, k]), 0, 120).astype(int))
            kinds.append("dense, clip: [0, 120], log1p: true")
        else:
            columns.append(np.round(z[:, k], 3))
            kinds.append("dense")
    return _rows([f"m{k}" for k in range(12)], kinds, columns, y)


def planted(rows: int) -> Callable[[], Rows]:
    """Power-law features, as integers in ten columns, three of which have several values."""

    def make() -> Rows:
        rng = np.random.default_rng(15)
        sizes = {"user": 60_000, "item": 30_000, "query": 40_000, "publisher": 2000}
        sizes |= {"category": 300, "region": 400, "device": 50}
        columns = {k: _zipf(rng, v, 1.0, rows) for k, v in sizes.items()}
        logit = np.full(rows, -2.0)
        for name, size in sizes.items():
            logit += rng.normal(0, 0.6, size)[columns[name]]
        logit += _product(rng, columns["category"], columns["device"], 0.25)
        logit += _product(rng, columns["publisher"], columns["category"], 0.2)
        logit += _product(rng, columns["item"] % 500, columns["region"], 0.2)
        x = rng.random((rows, 3)) * 2 - 1
        logit += x @ np.array([0.6, -0.4, 0.2])
        y = _click(rng, logit, 0.2)
        names = [*sizes, "x0", "x1", "x2"]
        kinds = ["sparse"] * len(sizes) + ["dense"] * 3
        data = [*(1 + c for c in columns.values()), *(np.round(x[:, k], 3) for k in range(3))]
        return _rows(names, kinds, data, y)

    return make


def phones() -> Rows:
    """18,600 impressions on phones: addresses that occur once or twice, codes, and a few columns
    that matter."""
    rng = np.random.default_rng(21)
    n = 18_600
    sizes = {"hour": 24, "position": 4, "site": 900, "domain": 700, "app": 600, "model": 1500}
    sizes |= {"address": 12_000, "c14": 600, "c17": 120, "c19": 40, "c21": 50}
    columns = {k: _zipf(rng, v, 0.9 if v < 5000 else 0.3, n) for k, v in sizes.items()}
    logit = np.full(n, -1.6)
    for name, size in sizes.items():
        scale = 0.6 if name in ("site", "app", "c14", "c17", "c21") else 0.25
        logit += rng.normal(0, scale, size)[columns[name]]
    logit += _product(rng, columns["site"] % 30, columns["c19"], 0.25)
    y = _click(rng, logit, 0.4)
    kinds = ["sparse" if name[0] == "c" else _TOKENS for name in sizes]
    text = [
        1 + column if name[0] == "c" else [f"{v * 2654435761 % 2**32:08x}" for v in column]
        for name, column in columns.items()
    ]
    return _rows(list(sizes), kinds, text, y)


def ratings() -> Rows:
    """84,000 ratings by 900 users of 1,600 films, with genres and the last liked films."""
    rng = np.random.default_rng(22)
    n, users, films = 84_000, 900, 1600
    user, film = _zipf(rng, users, 0.4, n), _zipf(rng, films, 0.7, n)
    taste, kind = rng.normal(size=(users, 6)), rng.normal(size=(films, 6))
    genre = [np.unique(rng.integers(0, 18, rng.integers(1, 4))) for _ in range(films)]
    logit = 0.5 + rng.normal(0, 1.0, users)[user] + rng.normal(0, 1.0, films)[film]
    logit += 0.5 * (taste[user] * kind[film]).sum(axis=1)
    y = _click(rng, logit, 0.3)
    liked: dict[int, list[int]] = {}
    history = []
    for u, f, good in zip(user, film, y, strict=True):
        before = liked.setdefault(int(u), [])
        history.append("|".join(f"f{one}" for one in before[-10:][::-1]))
        if good:
            before.append(int(f))
    columns = [
        [f"u{v}" for v in user],
        [f"f{v}" for v in film],
        ["|".join(f"g{g}" for g in genre[f]) for f in film],
        history,
    ]
    kinds = [_TOKENS, _TOKENS, _TOKENS, "sparse, hash: true, max_length: 10, shares: film"]
    return _rows(["user", "film", "genres", "history"], kinds, columns, y)


DATA_SETS = (
    DataSet("criteo", "real display ads, 13 integers and 26 tokens", criteo),
    DataSet("census", "real survey, 7 integers and 33 categories", census),
    DataSet("movielens", "real ratings with a history", movielens, history="history: movie"),
    DataSet("planted_20k", "generated, ten columns of integers and numbers", planted(20_000)),
    DataSet("planted_1m", "the same, 1 million rows", planted(1_000_000)),
    DataSet("ads", "generated, five categories", ads),
    DataSet("integers", "generated, small integers that collide", integers),
    DataSet("tags", "generated, several values a cell", tags),
    DataSet("measures", "generated, numbers alone", measures),
    DataSet("phones", "generated, many rare values", phones, held_out=True),
    DataSet("ratings", "generated ratings with a history", ratings, True, "history: film"),
)
