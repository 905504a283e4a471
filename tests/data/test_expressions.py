"""Slots with `expr`: random expressions against Python, in every format and in a request."""

from __future__ import annotations

import datetime
import math
import random
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paddlebox._native import core
from paddlebox.config import Format, Slots
from paddlebox.config.zones import zones_of
from paddlebox.data.columnar import as_read
from paddlebox.data.expressions import expression_columns
from paddlebox.data.loader import load
from paddlebox.errors import ConfigError, DataError
from paddlebox.serving.feed import feed_of
from paddlebox.serving.fields import FieldParser
from paddlebox.serving.openapi import fields_of
from tests.support.configs import make_config, make_slots
from tests.support.options import load_options

Row = dict[str, Any]
Made = tuple[str, Callable[[Row], Any]]  # an expression, and its value; None: null
UTC, SHANGHAI, NEW_YORK = datetime.UTC, "Asia/Shanghai", "America/New_York"


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def strict(of: Callable[..., Any], *parts: Made) -> Callable[[Row], Any]:
    """Null if an argument, or a result that is not finite, is null."""

    def value(row: Row) -> Any:
        given = [part(row) for _, part in parts]
        if any(one is None for one in given):
            return None
        try:
            made = of(*given)
        except (ZeroDivisionError, OverflowError, ValueError):
            return None
        return finite(made) if isinstance(made, float) else (None if made == "" else made)

    return value


def clipped(x: float) -> float:
    return max(min(x, 5.0), -5.0)


def matched(row: Row, key: str | None) -> str | None:
    pairs = [item.rpartition(":") for item in row["map"]]
    return next((value or None for name, _, value in pairs if name == key), None)


def and_of(a: Any, b: Any) -> Any:
    if a is False or b is False:
        return False
    return None if a is None or b is None else True


class Random:
    """Random expressions by type. depth: of the tree below."""

    def __init__(self, seed: int) -> None:
        self.pick = random.Random(seed)

    def number(self, depth: int) -> Made:
        choice = self.pick.choice
        if depth == 0:
            leaf = choice(["price", "age", "literal"])
            literal = choice([0.0, 2.0, -3.5, 1e40])
            if leaf == "literal":
                return repr(literal), lambda _: literal
            return f"number({leaf})", lambda row: None if row[leaf] is None else float(row[leaf])
        a, b, c = self.number(depth - 1), self.number(depth - 1), self.number(depth - 1)
        t, many, truth = self.text(depth - 1), self.many(depth - 1), self.truth(depth - 1)
        return choice(
            [
                (f"({a[0]} + {b[0]})", strict(lambda x, y: x + y, a, b)),
                (f"({a[0]} - {b[0]})", strict(lambda x, y: x - y, a, b)),
                (f"({a[0]} * {b[0]})", strict(lambda x, y: x * y, a, b)),
                (f"({a[0]} / {b[0]})", strict(lambda x, y: x / y, a, b)),
                (f"-({a[0]})", strict(lambda x: -x, a)),
                (f"abs({a[0]})", strict(abs, a)),
                (f"sqrt({a[0]})", strict(math.sqrt, a)),
                (f"log1p({a[0]})", strict(math.log1p, a)),
                (f"min({a[0]}, {b[0]}, {c[0]})", strict(min, a, b, c)),
                (f"max({a[0]}, {b[0]})", strict(max, a, b)),
                (f"clip({a[0]}, -5, 5)", strict(clipped, a)),
                (f"floor(clip({a[0]}, -5, 5))", strict(lambda x: math.floor(clipped(x)), a)),
                (f"round(clip({a[0]}, -5, 5))", strict(lambda x: round(clipped(x)), a)),
                (f"coalesce({a[0]}, {b[0]})",
                 lambda r: a[1](r) if a[1](r) is not None else b[1](r)),
                (f"if({truth[0]}, {a[0]}, {b[0]})", self.chosen(truth, a, b)),
                (f"length({many[0]})", lambda r: len(many[1](r))),
                (f"common({many[0]}, tags)", lambda r: len({*many[1](r)} & {*r['tags']})),
                (f"number(text({t[0]}))", strict(float, t)),
            ]
        )  # fmt: skip

    @staticmethod
    def chosen(truth: Made, a: Made, b: Made) -> Callable[[Row], Any]:
        def value(row: Row) -> Any:
            which = truth[1](row)
            return None if which is None else a[1](row) if which else b[1](row)

        return value

    def truth(self, depth: int) -> Made:
        a, b = self.number(max(depth - 1, 0)), self.number(max(depth - 1, 0))
        s, t = self.text(max(depth - 1, 0)), self.text(max(depth - 1, 0))
        made = [
            (f"{a[0]} < {b[0]}", strict(lambda x, y: x < y, a, b)),
            (f"{a[0]} != {b[0]}", strict(lambda x, y: x != y, a, b)),
            (f"text({s[0]}) == {t[0]}", strict(lambda x, y: x == y, s, t)),
            (f"missing({s[0]})", lambda r: s[1](r) is None),
            (f"contains(tags, {s[0]})", strict(lambda x: x, s)),
        ]
        made[4] = (made[4][0], lambda r: None if s[1](r) is None else s[1](r) in r["tags"])
        if depth > 0:
            x, y = self.truth(depth - 1), self.truth(depth - 1)
            made.append((f"({x[0]} and {y[0]})", lambda r: and_of(x[1](r), y[1](r))))
            made.append((f"not ({x[0]})", strict(lambda v: not v, x)))
        return self.pick.choice(made)

    def text(self, depth: int) -> Made:
        if depth == 0:
            return self.pick.choice([("city", lambda r: r["city"]), ("' X y'", lambda _: " X y")])
        a, b, many = self.text(depth - 1), self.text(depth - 1), self.many(depth - 1)
        return self.pick.choice(
            [
                (f"lower({a[0]})", strict(str.lower, a)),
                (f"upper({a[0]})", strict(str.upper, a)),
                (f"trim({a[0]})", strict(str.strip, a)),
                (f"prefix({a[0]}, 2)", strict(lambda x: x[:2], a)),
                (f"concat({a[0]}, '-', {b[0]})", strict(lambda x, y: f"{x}-{y}", a, b)),
                (f"concat({a[0]}, length({many[0]}))", lambda r: None if a[1](r) is None else
                 f"{a[1](r)}{len(many[1](r))}"),
                (f"match(map, {a[0]})", lambda r: matched(r, a[1](r))),
            ]
        )  # fmt: skip

    def many(self, depth: int) -> Made:
        if depth == 0:
            return "list(tags)", lambda r: r["tags"]
        a, b, t = self.many(depth - 1), self.many(depth - 1), self.text(depth - 1)

        def common(row: Row) -> list[str]:
            return list(dict.fromkeys(one for one in a[1](row) if one in b[1](row)))

        return self.pick.choice(
            [
                (f"first({a[0]}, 2)", lambda r: a[1](r)[:2]),
                (f"last({a[0]}, 2)", lambda r: a[1](r)[-2:]),
                (f"intersection({a[0]}, {b[0]})", common),
                (f"split({t[0]}, ' ')", lambda r: [i for i in (t[1](r) or "").split(" ") if i]),
            ]
        )


def rows_of(seed: int, count: int) -> list[Row]:
    pick = random.Random(seed)
    words = ["a", "b", "red", "x y", "Ab", "12", "0.5"]
    return [
        {
            "price": pick.choice([None, pick.uniform(-9, 9), 0.0, 1.5]),
            "age": pick.choice([None, pick.randrange(-3, 90), 0]),
            "city": pick.choice([None, *words, " pad "]),
            "tags": pick.choices(words, k=pick.randrange(4)),
            "map": [f"{key}:{pick.choice(['1', 'z', ''])}" for key in pick.sample(words, 2)],
        }
        for _ in range(count)
    ]


def cell(value: Any) -> str:
    if value is None:
        return ""
    return "|".join(value) if isinstance(value, list) else repr(value).strip("'")


def values_of(chunk: Any, width: int, sparse: int) -> tuple[np.ndarray, list[list[int]]]:
    """(n, width) floats, and the ids of each list."""
    assert chunk.bad_lines == 0, chunk.first_bad
    instances = core.Instances(sparse, width)
    instances.append(chunk)
    instances.index(core.ThreadPool(1))
    n = instances.size
    packed = instances.pack_batch(0, n, np.zeros(instances.unique_keys, np.int32), 0, width)
    feasigns, offsets = instances.pack_feasigns(0, n)
    ids = [feasigns[a:b].tolist() for a, b in pairwise(offsets)]
    return np.array(packed["dense"]).reshape(n, width), ids


def as_floats(rows: list[list[Any]]) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.array(rows, np.float64).astype(np.float32)


def slots_of(dense: Sequence[str], sparse: Sequence[str]) -> Slots:
    made = {f"d{i}": {"type": "dense", "default": -77, "expr": e} for i, e in enumerate(dense)}
    more = {f"s{i}": {"hash": True, "expr": e} for i, e in enumerate(sparse)}
    return make_slots(click="label", **made, **more)


def parsed(slots: Slots, data_format: Format, data: Any) -> Any:
    schema = load_options(data_format, slots, batch_size=8).schema()
    if data_format is Format.CSV:
        header, _, lines = data.partition("\n")
        return core.parse_chunk(schema.with_csv_header(header), lines.encode())
    return core.parse_columns(schema, [as_read(data, schema)])


@pytest.mark.parametrize("seed", range(4))
def test_random_expressions_are_those_of_python_in_every_format_and_in_a_request(seed: int) -> None:
    made = Random(seed)
    numbers, lists = [made.number(3) for _ in range(20)], [made.many(3) for _ in range(8)]
    texts = [made.text(3) for _ in range(8)]
    slots = slots_of([e for e, _ in numbers], [e for e, _ in (*texts, *lists)])
    names = [name for name, *_ in expression_columns(slots)]
    rows = rows_of(seed, 600)
    width, count = len(numbers), len(texts) + len(lists)
    dense = as_floats([[v if (v := of(r)) is not None else -77 for _, of in numbers] for r in rows])
    words: list[list[str]] = []  # of each row, each sparse slot
    for row in rows:
        words += [[] if (word := of(row)) is None else [word] for _, of in texts]
        words += [of(row) for _, of in lists]
    kept = np.abs(dense).max(axis=1) <= 1e15  # what is larger makes its row malformed
    used = {name: [r[name] for r in rows] for name in dict.fromkeys(names)}
    used = {
        name: [v for v, k in zip(column, kept, strict=True) if k] for name, column in used.items()
    }
    count_kept = int(kept.sum())
    assert count_kept > 100

    table = pa.table({"click": [0] * count_kept, **used})
    columns = values_of(parsed(slots, Format.PARQUET, table.to_batches()[0]), width, count)
    np.testing.assert_array_equal(columns[0], dense[kept])
    assert [len(ids) for ids in columns[1]] == [
        len(words[i * count + s]) for i in np.flatnonzero(kept) for s in range(count)
    ]
    by_word: dict[str, int] = {}
    for i, at in enumerate(np.flatnonzero(kept)):
        for s in range(count):
            for word, feasign in zip(words[at * count + s], columns[1][i * count + s], strict=True):
                assert by_word.setdefault(word, feasign) == feasign
    assert len(set(by_word.values())) == len(by_word) > 20

    lines = [",".join(["click", *used])]
    lines += ["0," + ",".join(cell(v) for v in row) for row in zip(*used.values(), strict=True)]
    csv = values_of(parsed(slots, Format.CSV, "\n".join(lines)), width, count)
    np.testing.assert_array_equal(csv[0], columns[0])
    assert csv[1] == columns[1]

    instances = [dict(zip(used, row, strict=True)) for row in zip(*used.values(), strict=True)]
    for data_format in ("csv", "parquet"):
        config = make_config(data={"format": data_format, "key_space": "shared"})
        served = values_of(FieldParser(feed_of(config, slots)).parse(instances), width, count)
        np.testing.assert_array_equal(served[0], columns[0])
        assert served[1] == columns[1]


@pytest.mark.parametrize("zone", [None, "UTC", NEW_YORK])
@pytest.mark.parametrize("unit", ["s", "us", "ns"])
def test_times_are_those_of_zoneinfo(zone: str | None, unit: str) -> None:
    pick = random.Random(3)
    seconds = [pick.randrange(-(10**8), 4 * 10**9) for _ in range(400)]
    stamps = [datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=s) for s in seconds]
    parts = ["hour", "weekday", "day", "month"]
    dense = [f"{part}(time, '{NEW_YORK}')" for part in parts]
    slots = slots_of([*dense, f"days_between(time, '2024-03-10', '{NEW_YORK}')"], ["'x'"])
    column = pa.array(stamps, pa.timestamp(unit, zone))
    batch = pa.RecordBatch.from_arrays([pa.array([0] * 400), column], names=["click", "time"])
    found, _ = values_of(parsed(slots, Format.PARQUET, batch), 5, 1)
    local = [
        t.replace(tzinfo=UTC).astimezone(ZoneInfo(NEW_YORK)) if zone is not None else t
        for t in stamps
    ]
    expected = [
        [t.hour, t.weekday(), t.day, t.month, (datetime.date(2024, 3, 10) - t.date()).days]
        for t in local
    ]
    np.testing.assert_array_equal(found, as_floats(expected))
    config = make_config(data={"format": "parquet"})
    served = FieldParser(feed_of(config, slots)).parse([{"time": value} for value in column])
    np.testing.assert_array_equal(values_of(served, 5, 1)[0], found)


def test_a_zone_is_found_between_quotes_and_has_all_its_changes() -> None:
    ((name, (starts, offsets)),) = zones_of(f"hour(t, '{SHANGHAI}') + day(t, \"No/Such\")").items()
    assert name == SHANGHAI
    assert offsets[-1] == 8 * 3600
    assert 9 * 3600 in offsets
    assert len(starts) == len(offsets)
    quoted = f"concat(city, '{SHANGHAI}', hour(`a)`, \"{NEW_YORK}\"), lower('x('))"
    assert [*zones_of(quoted)] == [NEW_YORK]


def test_a_mistake_is_a_config_error_with_its_place() -> None:
    slots = slots_of(["1 + lower(city)"], [])
    with pytest.raises(
        ConfigError, match=r"slot 'd0': column 5 of expr: .*: expected a number, found a text"
    ):
        load_options(Format.CSV, slots, batch_size=8).check()
    for data_format in (Format.MULTISLOT, Format.CRITEO_TSV, Format.FEASIGN_SLOT):
        with pytest.raises(ConfigError, match=f"'d0' has expr, .* {data_format.value} has none"):
            slots.check_format(data_format)
    without = slots.having({"csv": slots.csv.having({"header": False})})
    with pytest.raises(ConfigError, match=r"set csv.columns"):
        without.check_format(Format.CSV)
    for wrong in (
        {"column": "a"},
        {"dim": 2, "type": "dense"},
        {"weighted": True},
        {"type": "label"},
    ):
        with pytest.raises(ValueError, match="has expr"):
            make_slots(click="label", x={"expr": "price", **wrong})


def test_bad_values_are_counted_and_wrong_types_are_named(tmp_path: Path) -> None:
    slots = slots_of(["price * 2"], ["city"])
    bad = pa.table({"click": [0, 0, 1], "price": [1.0, math.nan, 2.0], "city": ["a", "b", None]})
    pq.write_table(bad, tmp_path / "a.parquet")
    options = load_options(Format.PARQUET, slots, batch_size=8, max_bad_line_ratio=1)
    loaded = load([str(tmp_path / "a.parquet")], options, 1 << 20)
    assert (loaded.size, loaded.bad_lines) == (2, 1)
    pq.write_table(pa.table({"click": [0], "price": ["x"], "city": ["a"]}), tmp_path / "b.parquet")
    with pytest.raises(
        DataError,
        match=r"b.parquet: column 'price' of an expr: expected a number or bool, found string",
    ):
        load([str(tmp_path / "b.parquet")], options, 1 << 20)
    config = make_config()
    for fields, message in (
        ({"price": "x"}, "column 'price' of an expr: 'x' is not a finite number"),
        ({"cty": "a"}, "no slot reads a field 'cty'; did you mean 'city'"),
    ):
        with pytest.raises(DataError, match=message):
            FieldParser(feed_of(config, slots)).parse([fields])
    assert [*fields_of(slots)] == ["price", "city"]


def test_a_list_is_not_read_as_one_value() -> None:
    slots = slots_of(["length(tags)"], ["lower(tags)"])
    chunk = parsed(slots, Format.CSV, "click,tags\n0,a|b\n1,a\n")
    assert (chunk.instances, chunk.bad_lines) == (1, 1)
    message = "column 'tags' of an expr: 'a.*b' is not one value: read it with list"
    assert re.match(message, chunk.first_bad[0][1])
    for data_format in ("csv", "parquet"):
        config = make_config(data={"format": data_format})
        with pytest.raises(DataError, match=message):
            FieldParser(feed_of(config, slots)).parse([{"tags": ["a", "b"]}])


def test_an_expr_slot_is_a_slot_like_others() -> None:
    """bucket, cross, clip, max_length, defaults and shared ids apply to it."""
    slots = make_slots(
        click="label",
        size={"type": "dense", "expr": "length(tags)", "clip": [0, 2]},
        word={"hash": True, "expr": "lower(city)", "default": "none"},
        city={"hash": True},
        tag={"hash": True, "expr": "list(tags)", "max_length": 2, "shares": "city"},
        range={"bucket": {"of": "size", "boundaries": [3]}},
        both={"cross": ["word", "tag"]},
    )
    data = "click,city,tags\n1,Ab,x|y|z\n0,,\n"
    dense, ids = values_of(parsed(slots, Format.CSV, data), 1, 5)
    batch = pa.RecordBatch.from_pylist(
        [
            {"click": 1, "city": "Ab", "tags": ["x", "y", "z"]},
            {"click": 0, "city": None, "tags": None},
        ]
    )
    columns = values_of(parsed(slots, Format.PARQUET, batch), 1, 5)
    np.testing.assert_array_equal(columns[0], dense)
    assert columns[1] == ids
    assert dense.tolist() == [[2], [0]]
    assert [len(one) for one in ids] == [1, 1, 2, 1, 2, 1, 0, 0, 1, 0]
    assert ids[3] != ids[8]


def test_missing_reads_a_column_as_other_expressions_do() -> None:
    """Alone it reads a text, which a float is not."""
    batch = pa.RecordBatch.from_pydict({"click": [0, 0], "price": [None, 2.5]})
    expressions = ["missing(price)", "if(missing(price), -1, price)"]
    for dense in (expressions, expressions[::-1]):
        assert expression_columns(slots_of(dense, [])) == [("price", "number", False)]
        found, _ = values_of(parsed(slots_of(dense, []), Format.PARQUET, batch), 2, 0)
        assert found[:, dense.index(expressions[0])].tolist() == [1, 0]
    assert [kind for _, kind, _ in expression_columns(slots_of(expressions[:1], []))] == ["text"]
    used = slots_of(["missing(city)"], ["city", "lower(city)"])
    assert [kind for _, kind, _ in expression_columns(used)] == ["text"]
