"""Generated rows for small_data.py: a planted logit, and normal noise that no model can explain.

Most have weights of values and products of latent vectors of two values. Each function has a seed
of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
        ",".join(map(str, row))
        for row in zip(y.tolist(), *(np.asarray(c).tolist() for c in columns), strict=True)
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


def _table(rng: np.random.Generator, a: np.ndarray, b: np.ndarray, scale: float) -> Floats:
    """A weight for each pair of two values, which no product of short vectors can give."""
    return np.asarray(rng.normal(0, scale, (a.max() + 1, b.max() + 1))[a, b])


def _weights(rng: np.random.Generator, values: np.ndarray, scale: float) -> Floats:
    return np.asarray(rng.normal(0, scale, values.max() + 1)[values])


def _absent(column: Any, where: np.ndarray) -> np.ndarray:
    """The column as text, empty where it is absent."""
    return np.where(where, "", np.asarray(column).astype(str))


_NUMBER = "dense, default: 0"


def _lists(
    rng: np.random.Generator, values: int, exponent: float, lengths: np.ndarray, scale: float
) -> tuple[list[str], Floats]:
    """Cells with lists of distinct values, and the sum of the weights of each."""
    weight = rng.normal(0, scale, values)
    drawn = _zipf(rng, values, exponent, int(lengths.sum()))
    cells = [np.unique(of) for of in np.split(drawn, np.cumsum(lengths)[:-1])]
    return ["|".join(f"w{v}" for v in cell) for cell in cells], np.array(
        [weight[cell].sum() for cell in cells]
    )


def monotone() -> Rows:
    """40,000 rows of eight numbers whose effects rise or fall and level off, and two categories."""
    rng = np.random.default_rng(31)
    n = 40_000
    age, wage, score = rng.integers(18, 90, n), rng.gamma(2.0, 900.0, n), rng.beta(2, 5, n)
    visits, price, distance = rng.poisson(4, n), rng.gamma(1.5, 30.0, n), rng.exponential(12.0, n)
    tenure, load = rng.integers(0, 240, n), rng.random(n)
    region, plan = _zipf(rng, 60, 0.8, n), _zipf(rng, 5, 0.4, n)
    logit = -1.4 + 1.6 / (1 + np.exp(-(age - 45) / 4)) + 0.5 * np.log1p(wage / 300)
    logit += 1.5 * (score > 0.35) - 0.9 * np.exp(-visits / 2) - 0.02 * np.minimum(price, 60)
    logit += np.exp(-distance / 5) - 0.8 * (tenure < 12) - 1.2 * np.maximum(load - 0.8, 0) / 0.2
    logit += _weights(rng, region, 0.3) + 0.5 * (plan == 1) * (age > 60)
    columns: dict[str, Any] = {"age": age, "wage": wage.round(2), "score": score.round(3)}
    columns["visits"] = visits
    columns |= {"price": price.round(2), "distance": distance.round(1), "tenure": tenure}
    columns |= {"load": load.round(4), "region": [f"r{v}" for v in region]}
    columns["plan"] = [f"p{v}" for v in plan]
    kinds = ["dense"] * 8 + [_TOKENS] * 2
    return _rows(list(columns), kinds, list(columns.values()), _click(rng, logit, 0.3))


def periodic() -> Rows:
    """50,000 rows whose label depends on the hour, the day of the year and an angle, as numbers."""
    rng = np.random.default_rng(32)
    n = 50_000
    minute, day = rng.integers(0, 24 * 60, n), rng.integers(1, 366, n)
    angle, speed = rng.random(n) * 360, rng.gamma(2.0, 4.0, n)
    shop, kind = _zipf(rng, 400, 0.9, n), _zipf(rng, 8, 0.4, n)
    phase = rng.random(8) * 2 * np.pi
    logit = -1.2 + 0.8 * np.sin(2 * np.pi * minute / 1440 + phase[kind])
    logit += 0.5 * np.sin(4 * np.pi * minute / 1440) + 0.6 * np.cos(2 * np.pi * day / 7)
    logit += 0.5 * np.cos(2 * np.pi * day / 365) + 0.5 * np.cos(np.radians(angle)) * (speed > 6)
    logit += _weights(rng, shop, 0.4)
    columns: list[Any] = [minute, day, angle.round(1), speed.round(2)]
    columns += [[f"s{v}" for v in shop], [f"k{v}" for v in kind]]
    names = ["minute", "day", "angle", "speed", "shop", "kind"]
    return _rows(names, ["dense"] * 4 + [_TOKENS] * 2, columns, _click(rng, logit, 0.3))


def heavy(seed: int, columns: int, n: int) -> Callable[[], Rows]:
    """Numbers with heavy tails, as they are in a log: amounts, bytes, counts and debts."""

    def make() -> Rows:
        rng = np.random.default_rng(seed)
        z = rng.normal(size=(n, columns))
        effect = rng.normal(0, 0.4, columns)
        logit = -1.0 + z @ effect + 0.5 * z[:, 0] * z[:, 1] - 0.4 * np.abs(z[:, 2])
        kind = _zipf(rng, 40, 0.7, n)
        logit += _weights(rng, kind, 0.4) + 0.5 * (z[:, 3] > 1)
        data: list[Any] = []
        for k in range(columns):
            if k % 4 == 0:
                data.append(np.exp(3 + 2.5 * z[:, k]).round(2))
            elif k % 4 == 1:
                data.append(np.floor(np.exp(9 + 3 * z[:, k])).astype(np.int64))
            elif k % 4 == 2:
                data.append(rng.poisson(np.exp(np.minimum(0.5 + 1.3 * z[:, k], 12))))
            else:  # both signs
                data.append((np.sign(z[:, k]) * np.expm1(4 * np.abs(z[:, k]))).round(2))
        names = [*(f"x{k}" for k in range(columns)), "kind"]
        kinds = ["dense"] * columns + [_TOKENS]
        return _rows(names, kinds, [*data, [f"k{v}" for v in kind]], _click(rng, logit, 0.3))

    return make


def missing(seed: int, n: int, share: float) -> Callable[[], Rows]:
    """Numbers and categories of which many are missing, some of them for a reason."""

    def make() -> Rows:
        rng = np.random.default_rng(seed)
        z = rng.normal(size=(n, 10))
        logit = -1.0 + z[:, :6] @ rng.normal(0, 0.4, 6) - 0.5 * np.abs(z[:, 6])
        cells: list[Any] = []
        for k in range(10):
            because = 1 / (1 + np.exp(-(z[:, k] if k % 2 else z[:, 9 - k])))
            gone = rng.random(n) < np.clip(share * 2 * because, 0, 0.98)
            logit += rng.normal(0, 0.4) * gone
            scaled = (50 + 20 * z[:, k]).round(1) if k % 3 else np.exp(2 + z[:, k]).round(3)
            cells.append(_absent(scaled, gone))
        city, job = _zipf(rng, 500, 0.9, n), _zipf(rng, 30, 0.6, n)
        logit += _weights(rng, city, 0.4) + _weights(rng, job, 0.4)
        for name, column in (("c", city), ("j", job)):
            gone = rng.random(n) < share
            logit += 0.4 * gone
            cells.append(_absent([f"{name}{v}" for v in column], gone))
        names = [*(f"x{k}" for k in range(10)), "city", "job"]
        return _rows(names, [_NUMBER] * 10 + [_TOKENS] * 2, cells, _click(rng, logit, 0.3))

    return make


def codes() -> Rows:
    """50,000 rows of label-encoded columns from 0; the newcomer declares half of them as numbers.

    The codes of a column have no order, except those of two."""
    rng = np.random.default_rng(33)
    n = 50_000
    sizes = {"brand": 120, "city": 300, "channel": 9, "grade": 12, "item": 2500, "user": 6000}
    sizes |= {"weekday": 7, "level": 40}
    columns = {k: _zipf(rng, v, 0.7 if v > 50 else 0.3, n) for k, v in sizes.items()}
    logit = np.full(n, -1.3)
    for name in ("brand", "city", "channel", "item", "user", "weekday"):
        logit += _weights(rng, columns[name], 0.4)
    logit += 0.12 * columns["grade"] - 0.8 * (columns["level"] > 15)
    logit += _table(rng, columns["channel"], columns["weekday"], 0.4)
    numbers = ("brand", "channel", "grade", "level")
    kinds = ["dense" if name in numbers else _TOKENS for name in sizes]
    return _rows(list(sizes), kinds, list(columns.values()), _click(rng, logit, 0.3))


def baskets() -> Rows:
    """30,000 rows with a customer and a list of 20 to 150 articles."""
    rng = np.random.default_rng(34)
    n = 30_000
    customer, store = _zipf(rng, 4000, 0.6, n), _zipf(rng, 50, 0.6, n)
    cells, total = _lists(rng, 8000, 0.8, rng.integers(20, 151, n), 0.14)
    logit = -0.8 + _weights(rng, customer, 0.4) + _weights(rng, store, 0.3) + total
    columns = [[f"c{v}" for v in customer], [f"s{v}" for v in store], cells]
    return _rows(["customer", "store", "articles"], [_TOKENS] * 3, columns, _click(rng, logit, 0.3))


def documents() -> Rows:
    """15,000 texts of 30 to 200 words by 600 authors; the effect of a word falls with the length
    of the text."""
    rng = np.random.default_rng(35)
    n = 15_000
    author, source = _zipf(rng, 600, 0.7, n), _zipf(rng, 20, 0.5, n)
    lengths = rng.integers(30, 201, n)
    cells, total = _lists(rng, 20_000, 0.9, lengths, 1.1)
    logit = -0.5 + _weights(rng, author, 0.5) + _weights(rng, source, 0.3)
    logit += total / np.sqrt(lengths)
    columns = [[f"a{v}" for v in author], [f"s{v}" for v in source], cells]
    return _rows(["author", "source", "words"], [_TOKENS] * 3, columns, _click(rng, logit, 0.3))


def rare() -> Rows:
    """100,000 rows of which 2 % are positive, with categories and two numbers."""
    rng = np.random.default_rng(36)
    n = 100_000
    sizes = {"advertiser": 300, "creative": 2000, "slot": 30, "city": 350, "model": 800}
    columns: dict[str, Any] = {k: _zipf(rng, v, 0.9, n) for k, v in sizes.items()}
    price, age = rng.gamma(1.5, 40.0, n), rng.integers(14, 80, n)
    logit = np.full(n, -4.2)
    for column in columns.values():
        logit += _weights(rng, column, 0.5)
    logit += _table(rng, columns["advertiser"], columns["slot"], 0.4)
    logit += 0.6 * np.exp(-price / 30) - np.abs(age - 35) / 40
    text = [[f"{name[0]}{v}" for v in column] for name, column in columns.items()]
    kinds = [_TOKENS] * 5 + ["dense"] * 2
    names = [*sizes, "price", "age"]
    return _rows(names, kinds, [*text, price.round(2), age], _click(rng, logit, 0.3))


def few() -> Rows:
    """5,000 rows of categories and numbers."""
    rng = np.random.default_rng(37)
    n = 5000
    sizes = {"product": 80, "channel": 6, "city": 200, "agent": 400}
    columns = {k: _zipf(rng, v, 0.7, n) for k, v in sizes.items()}
    age, amount = rng.integers(18, 80, n), np.exp(rng.normal(4, 1.2, n))
    logit = -1.0 + 0.8 * np.log(amount / 55) - np.abs(age - 45) / 20
    for column in columns.values():
        logit += _weights(rng, column, 0.5)
    text = [[f"{name[0]}{v}" for v in column] for name, column in columns.items()]
    names, kinds = [*sizes, "age", "amount"], [_TOKENS] * 4 + ["dense", "dense, log1p: true"]
    return _rows(names, kinds, [*text, age, amount.round(2)], _click(rng, logit, 0.3))


def few_numbers() -> Rows:
    """5,000 rows of ten numbers without categories."""
    rng = np.random.default_rng(38)
    n = 5000
    z = rng.normal(size=(n, 10))
    logit = -0.6 + z @ rng.normal(0, 0.4, 10) + 0.7 * z[:, 0] * z[:, 1] - 0.6 * np.abs(z[:, 2])
    columns = [(100 + 15 * z[:, k]).round(1) for k in range(10)]
    return _rows([f"x{k}" for k in range(10)], ["dense"] * 10, columns, _click(rng, logit, 0.3))


def attribution() -> Rows:
    """80,000 impressions of display ads with a campaign, nine categories, a user who is there again
    a few times, the price, and the time since the user's last click."""
    rng = np.random.default_rng(39)
    n = 80_000
    campaign, user = _zipf(rng, 650, 0.9, n), rng.integers(0, 45_000, n)
    of_campaign = {"cat1": 9, "cat4": 20, "cat6": 1200, "cat8": 30}
    of_user = {"cat2": 70, "cat5": 50, "cat9": 28}
    of_row = {"cat3": 1500, "cat7": 9000}
    columns: dict[str, np.ndarray] = {"campaign": campaign, "user": user}
    for name, size in of_campaign.items():
        columns[name] = rng.integers(0, size, 650)[campaign]
    for name, size in of_user.items():
        columns[name] = _zipf(rng, size, 0.7, 45_000)[user]
    for name, size in of_row.items():
        columns[name] = _zipf(rng, size, 0.9, n)
    since = np.where(rng.random(n) < 0.6, -1, np.floor(rng.exponential(200_000, n))).astype(int)
    cost = np.exp(rng.normal(-8, 1, 650)[campaign] + rng.normal(0, 0.4, n))
    logit = -0.7 + _weights(rng, campaign, 0.35) + _weights(rng, user, 0.3)
    for name in ("cat2", "cat3", "cat5", "cat7", "cat9"):
        logit += _weights(rng, columns[name], 0.2)
    logit += _table(rng, campaign, columns["cat5"], 0.35)
    logit += _table(rng, columns["cat1"], columns["cat9"], 0.3)
    logit += 0.7 * np.where(since < 0, 0, np.exp(-since / 80_000)) + 0.1 * np.log(cost / 3e-4)
    order = ["campaign", "user", *(f"cat{k}" for k in range(1, 10))]
    text = [[f"{v * 2654435761 % 2**32}" for v in columns[name]] for name in order]
    names, kinds = [*order, "since", "cost"], [_TOKENS] * 11 + ["dense"] * 2
    data = [*text, since, [f"{v:.7f}" for v in cost]]
    return _rows(names, kinds, data, _click(rng, logit, 0.3))


def mobile() -> Rows:
    """60,000 mobile impressions: sites and apps in domains and categories, devices, and anonymous
    integers that are nested."""
    rng = np.random.default_rng(40)
    n = 60_000
    is_app = rng.random(n) < 0.4
    site, app = _zipf(rng, 1200, 1.0, n), _zipf(rng, 900, 1.0, n)
    site, app = np.where(is_app, 0, site), np.where(is_app, app, 0)
    c14 = _zipf(rng, 1800, 0.8, n)
    columns = {
        "hour": rng.integers(0, 24, n),
        "c1": _zipf(rng, 7, 1.5, n),
        "banner": _zipf(rng, 5, 1.2, n),
        "site": site,
        "site_domain": rng.integers(0, 800, 1200)[site],
        "site_category": rng.integers(0, 20, 1200)[site],
        "app": app,
        "app_domain": rng.integers(0, 80, 900)[app],
        "app_category": rng.integers(0, 25, 900)[app],
        "device": np.where(rng.random(n) < 0.8, 0, rng.integers(1, 9000, n)),
        "address": _zipf(rng, 30_000, 0.4, n),
        "model": _zipf(rng, 2500, 0.9, n),
        "type": _zipf(rng, 4, 1.5, n),
        "connection": _zipf(rng, 4, 1.2, n),
        "c14": c14,
        "c17": rng.integers(0, 380, 1800)[c14],
        "c18": _zipf(rng, 4, 0.4, n),
        "c19": rng.integers(0, 60, 1800)[c14],
        "c21": rng.integers(0, 55, 1800)[c14],
    }
    logit = np.full(n, -2.0)
    for name in ("hour", "banner", "site", "site_category", "app", "model", "c14", "c17", "c21"):
        logit += _weights(rng, columns[name], 0.35)
    logit += _table(rng, site, columns["c21"], 0.4) + _table(rng, app, columns["c19"], 0.3)
    logit += _table(rng, columns["banner"], columns["c18"], 0.3)
    text = [
        [1000 + int(v) for v in column] if name[0] == "c" and name != "connection"
        else [f"{int(v) * 2654435761 % 2**32:08x}" for v in column]
        for name, column in columns.items()
    ]  # fmt: skip
    return _rows(list(columns), [_TOKENS] * len(columns), text, _click(rng, logit, 0.4))


def mixed_1m() -> Rows:
    """1,000,000 rows of numbers with bends, tails and gaps, and of categories."""
    rng = np.random.default_rng(41)
    n = 1_000_000
    sizes = {"user": 40_000, "item": 20_000, "city": 500, "device": 40, "hour": 24}
    columns: dict[str, Any] = {k: _zipf(rng, v, 0.8, n) for k, v in sizes.items()}
    z = rng.normal(size=(n, 5))
    logit = np.full(n, -2.2)
    for column in columns.values():
        logit += _weights(rng, column, 0.4)
    logit += _table(rng, columns["city"], columns["device"], 0.3)
    logit += z @ np.array([0.4, -0.3, 0.2, 0.3, 0.0]) - 0.4 * np.abs(z[:, 1])
    logit += 0.4 * z[:, 2] * z[:, 3] + 0.5 * (z[:, 4] > 0.7)
    gone = rng.random(n) < 0.3
    logit += 0.3 * gone
    data: list[Any] = [[f"{name[0]}{v}" for v in column] for name, column in columns.items()]
    data += [np.exp(3 + 2 * z[:, 0]).round(2), (40 + 15 * z[:, 1]).round(1), z[:, 2].round(3)]
    data += [z[:, 3].round(3), _absent((10 * z[:, 4]).round(1), gone)]
    kinds = [_TOKENS] * 5 + [_NUMBER] * 5
    names = [*sizes, "amount", "age", "x", "y", "score"]
    return _rows(names, kinds, data, _click(rng, logit, 0.3))
