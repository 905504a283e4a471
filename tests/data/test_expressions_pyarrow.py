"""Ten thousand random expressions against pyarrow.compute, where both have a function."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from paddlebox.config import Format
from tests.data.test_expressions import parsed, slots_of, values_of
from tests.support.configs import make_slots
from tests.support.marks import long, slow

Made = tuple[str, Any]  # an expression, and its values as an array
ROWS, EXPRESSIONS = 300, 100  # of a block
ZONE = "Asia/Shanghai"
PARTS = {"hour": pc.hour, "weekday": pc.day_of_week, "day": pc.day, "month": pc.month}
NONE = pa.scalar(None, pa.string())


def finite(values: Any) -> Any:
    return pc.if_else(pc.is_finite(values), values, pa.scalar(None, pa.float64()))


def filled(values: Any) -> Any:
    """An empty text is null."""
    return pc.if_else(pc.equal(values, ""), NONE, values)


def clipped(values: Any, low: float, high: float) -> Any:
    above = pc.max_element_wise(values, low, skip_nulls=False)
    return pc.min_element_wise(above, high, skip_nulls=False)


def batch_of(seed: int) -> Any:
    pick = random.Random(seed)
    words = ["", "a", "Ab c", " pad ", "x_y", "Straße", "12", "0123456789abcdefXYZ"]
    if seed % 2:
        words = [f"{word}{i}" for i in range(40) for word in words]
    texts = [[pick.choice([None, *words]) for _ in range(ROWS)] for _ in range(3)]
    return pa.RecordBatch.from_pydict(
        {
            "click": [0] * ROWS,
            "x": [pick.choice([None, 0.0, pick.uniform(-9, 9)]) for _ in range(ROWS)],
            "n": pa.array([pick.choice([None, pick.randrange(-3, 90)]) for _ in range(ROWS)]),
            "y": [pick.choice([0.0, 1.5, pick.gauss(0, 1e3)]) for _ in range(ROWS)],
            **dict(zip("stu", texts, strict=True)),
            "time": pa.array(
                [pick.randrange(-6 * 10**8, 4 * 10**9) for _ in range(ROWS)],
                pa.timestamp("s", "UTC"),
            ),
        }
    )


class Random:
    """Random expressions over a batch, by type. depth: of the tree below."""

    def __init__(self, seed: int, batch: Any) -> None:
        self.pick, self.batch = random.Random(seed), batch

    def column(self, name: str) -> Any:
        return self.batch.column(name)

    def number(self, depth: int) -> Made:
        choice = self.pick.choice
        if depth == 0:
            name = choice(["x", "n", "y", "literal", "time"])
            if name == "literal":
                literal = choice([0.0, 2.0, -3.5, 1e200])
                return repr(literal), pa.array([literal] * ROWS)
            if name == "time":
                part = choice([*PARTS])
                local = self.column("time").cast(pa.timestamp("s", ZONE))
                return f"{part}(time, '{ZONE}')", PARTS[part](local).cast(pa.float64())
            return f"number({name})", self.column(name).cast(pa.float64())
        a, b = self.number(depth - 1), self.number(depth - 1)
        which, other = self.truth(depth - 1), self.text(depth - 1)
        (p, x), (q, y) = a, b
        return choice(
            [
                (f"({p} + {q})", finite(pc.add(x, y))),
                (f"({p} - {q})", finite(pc.subtract(x, y))),
                (f"({p} * {q})", finite(pc.multiply(x, y))),
                (f"({p} / {q})", finite(pc.divide(x, y))),
                (f"-({p})", pc.negate(x)),
                (f"abs({p})", pc.abs(x)),
                (f"sqrt({p})", finite(pc.sqrt(x))),
                (f"min({p}, {q})", pc.min_element_wise(x, y, skip_nulls=False)),
                (f"max({p}, {q})", pc.max_element_wise(x, y, skip_nulls=False)),
                (f"clip({p}, -5, 5)", clipped(x, -5.0, 5.0)),
                (f"floor(clip({p}, -5, 5))", pc.floor(clipped(x, -5.0, 5.0))),
                (f"round(clip({p}, -5, 5))", pc.round(clipped(x, -5.0, 5.0))),
                (f"coalesce({p}, {q})", pc.coalesce(x, y)),
                (f"if({which[0]}, {p}, {q})", pc.if_else(which[1], x, y)),
                (f"if(missing({other[0]}), {p}, {q})", pc.if_else(pc.is_null(other[1]), x, y)),
            ]
        )

    def truth(self, depth: int) -> Made:
        below = max(depth - 1, 0)
        (p, x), (q, y) = self.number(below), self.number(below)
        (s, u), (t, v) = self.text(below), self.text(below)
        made = [
            (f"{p} < {q}", pc.less(x, y)),
            (f"{p} >= {q}", pc.greater_equal(x, y)),
            (f"{p} != {q}", pc.not_equal(x, y)),
            (f"text({s}) == {t}", pc.equal(u, v)),
            (f"text({s}) < {t}", pc.less(u, v)),
        ]
        if depth > 0:
            (a, i), (b, j) = self.truth(depth - 1), self.truth(depth - 1)
            made += [
                (f"(({a}) and ({b}))", pc.and_kleene(i, j)),
                (f"(({a}) or ({b}))", pc.or_kleene(i, j)),
                (f"(not ({a}))", pc.invert(i)),
            ]
        return self.pick.choice(made)

    def text(self, depth: int) -> Made:
        if depth == 0:
            name = self.pick.choice(["s", "t", "u", "' X y'"])
            if name.startswith("'"):
                return name, pa.array([name[1:-1]] * ROWS)
            return f"text({name})", filled(self.column(name))
        a, b, which = self.text(depth - 1), self.text(depth - 1), self.truth(depth - 1)
        (p, x), (q, y) = a, b
        n = self.pick.randrange(4)
        return self.pick.choice(
            [
                (f"lower({p})", pc.ascii_lower(x)),
                (f"upper({p})", pc.ascii_upper(x)),
                (f"trim({p})", filled(pc.ascii_trim_whitespace(x))),
                (f"prefix({p}, {n})", filled(pc.utf8_slice_codeunits(x, 0, n))),
                (f"concat({p}, '-', {q})", pc.binary_join_element_wise(x, y, "-")),
                (f"coalesce({p}, {q})", pc.coalesce(x, y)),
                (f"if({which[0]}, {p}, {q})", pc.if_else(which[1], x, y)),
            ]
        )


@pytest.mark.parametrize("first", [0, slow(5), *map(long, range(10, 100, 5))])
def test_values_are_those_of_pyarrow(first: int) -> None:
    for seed in range(first, first + 5):
        batch = batch_of(seed)
        made = Random(seed, batch)
        numbers = [made.number(seed % 4 + 1) for _ in range(EXPRESSIONS // 2)]
        texts = [made.text(seed % 4 + 1) for _ in range(EXPRESSIONS // 2)]
        bounded = [f"clip({text}, -1e6, 1e6)" for text, _ in numbers]
        slots = slots_of(bounded, [text for text, _ in texts])
        dense, ids = values_of(parsed(slots, Format.PARQUET, batch), len(numbers), len(texts))
        for (text, values), found in zip(numbers, dense.T, strict=True):
            expected = clipped(values, -1e6, 1e6).fill_null(-77.0)
            wanted = expected.to_numpy(zero_copy_only=False).astype(np.float32)
            np.testing.assert_array_equal(found, wanted, err_msg=text)
        plain = make_slots(click="label", **{f"s{i}": {"hash": True} for i in range(len(texts))})
        columns = {f"s{i}": values for i, (_, values) in enumerate(texts)}
        given = pa.RecordBatch.from_pydict({"click": [0] * ROWS, **columns})
        _, wanted_ids = values_of(parsed(plain, Format.PARQUET, given), 0, len(texts))
        for i, (text, _) in enumerate(texts):
            assert ids[i :: len(texts)] == wanted_ids[i :: len(texts)], text
