"""Time of 30 slots with expressions on one core, against the same columns in pandas and pyarrow.

Two comparisons have goals, each with the whole time of the feeder, which computes the columns,
hashes them and makes instances. `to_instances` is equal work: the columns that the others compute
are parsed by the feeder. In `against_columns` the others stop at columns, so that the feeder does
more. `from_csv` has no goal: it begins with text, which the others parse with pyarrow, and they
stop at columns.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import report

from paddlebox._native import core
from paddlebox.config import Slots

PANDAS_TIMES, PYARROW_TIMES = 5.0, 1.5
ZONE = "Asia/Shanghai"


def batch_of(rows: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    cities = np.array(["Berlin", "New York", "Shanghai", " Oslo ", "Lima", "Delhi"])
    shows = rng.integers(0, 50, rows).astype(np.float64)
    price = rng.lognormal(2, 1, rows)
    return pa.RecordBatch.from_pydict(
        {
            "click": rng.integers(0, 2, rows),
            "shows": shows,
            "clicks": np.floor(shows * rng.random(rows)),
            "price": pa.array(price, mask=rng.random(rows) < 0.05),
            "age": pa.array(rng.integers(10, 90, rows), mask=rng.random(rows) < 0.1),
            "city": pa.array(cities[rng.integers(0, len(cities), rows)]),
            "device": pa.array(np.array(["ios", "android", "web"])[rng.integers(0, 3, rows)]),
            "time": pa.array(
                rng.integers(1_600_000_000, 1_800_000_000, rows), pa.timestamp("s", "UTC")
            ),
        }
    )


Pandas = Callable[[Any], Any]
Arrow = Callable[[Any], Any]


def _number(a: str, b: str, sign: str) -> tuple[str, Pandas, Arrow]:
    python = {"+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y}
    arrow = {"+": pc.add, "-": pc.subtract, "*": pc.multiply}
    return (
        f"{a} {sign} {b}",
        lambda d: python[sign](d[a], d[b]),
        lambda d: arrow[sign](d[a], d[b]),
    )


def _local(d: Any) -> Any:
    return d["time"].dt.tz_convert(ZONE).dt


def _zoned(d: Any) -> Any:
    return d["time"].cast(pa.timestamp("s", ZONE))


def dense() -> list[tuple[str, Pandas, Arrow]]:
    null = pa.scalar(None, pa.float64())
    made = [_number("shows", "clicks", "-"), _number("price", "shows", "*")]
    made += [_number("price", "clicks", "+"), _number("price", "price", "*")]
    return [
        *made,
        (
            "clicks / shows",
            lambda d: (d["clicks"] / d["shows"]).where(d["shows"] != 0),
            lambda d: pc.if_else(
                pc.not_equal(d["shows"], 0), pc.divide(d["clicks"], d["shows"]), null
            ),
        ),
        ("log1p(price)", lambda d: np.log1p(d["price"]), lambda d: pc.log1p(d["price"])),
        ("log1p(shows)", lambda d: np.log1p(d["shows"]), lambda d: pc.log1p(d["shows"])),
        ("sqrt(price)", lambda d: np.sqrt(d["price"]), lambda d: pc.sqrt(d["price"])),
        (
            "abs(price - 10)",
            lambda d: (d["price"] - 10).abs(),
            lambda d: pc.abs(pc.subtract(d["price"], 10)),
        ),
        (
            "clip(age, 18, 65)",
            lambda d: d["age"].clip(18, 65),
            lambda d: pc.max_element_wise(
                pc.min_element_wise(d["age"], 65, skip_nulls=False), 18, skip_nulls=False
            ),
        ),
        (
            "coalesce(price, 0)",
            lambda d: d["price"].fillna(0),
            lambda d: pc.coalesce(d["price"], 0.0),
        ),
        ("coalesce(age, -1)", lambda d: d["age"].fillna(-1), lambda d: pc.coalesce(d["age"], -1)),
        (
            "price > 10 and shows > 5",
            lambda d: (d["price"] > 10) & (d["shows"] > 5),
            lambda d: pc.and_kleene(pc.greater(d["price"], 10), pc.greater(d["shows"], 5)),
        ),
        (
            "if(shows > 0, clicks, -1)",
            lambda d: d["clicks"].where(d["shows"] > 0, -1),
            lambda d: pc.if_else(pc.greater(d["shows"], 0), d["clicks"], -1),
        ),
        (
            "min(shows, clicks * 3)",
            lambda d: np.minimum(d["shows"], d["clicks"] * 3),
            lambda d: pc.min_element_wise(
                d["shows"], pc.multiply(d["clicks"], 3), skip_nulls=False
            ),
        ),
        (
            "max(price, clicks)",
            lambda d: np.maximum(d["price"], d["clicks"]),
            lambda d: pc.max_element_wise(d["price"], d["clicks"], skip_nulls=False),
        ),
        (
            "(price - 12.3) / 4.5",
            lambda d: (d["price"] - 12.3) / 4.5,
            lambda d: pc.divide(pc.subtract(d["price"], 12.3), 4.5),
        ),
        ("missing(age)", lambda d: d["age"].isna(), lambda d: pc.is_null(d["age"])),
    ]


def sparse() -> list[tuple[str, Pandas, Arrow]]:
    return [
        (f"hour(time, '{ZONE}')", lambda d: _local(d).hour, lambda d: pc.hour(_zoned(d))),
        (
            f"weekday(time, '{ZONE}')",
            lambda d: _local(d).day_of_week,
            lambda d: pc.day_of_week(_zoned(d)),
        ),
        (f"month(time, '{ZONE}')", lambda d: _local(d).month, lambda d: pc.month(_zoned(d))),
        (f"day(time, '{ZONE}')", lambda d: _local(d).day, lambda d: pc.day(_zoned(d))),
        ("lower(city)", lambda d: d["city"].str.lower(), lambda d: pc.ascii_lower(d["city"])),
        ("upper(device)", lambda d: d["device"].str.upper(), lambda d: pc.ascii_upper(d["device"])),
        (
            "trim(city)",
            lambda d: d["city"].str.strip(),
            lambda d: pc.ascii_trim_whitespace(d["city"]),
        ),
        (
            "prefix(city, 3)",
            lambda d: d["city"].str[:3],
            lambda d: pc.utf8_slice_codeunits(d["city"], 0, 3),
        ),
        (
            "concat(city, '_', device)",
            lambda d: d["city"] + "_" + d["device"],
            lambda d: pc.binary_join_element_wise(d["city"], d["device"], "_"),
        ),
        (
            "if(device == 'web', city, device)",
            lambda d: d["city"].where(d["device"] == "web", d["device"]),
            lambda d: pc.if_else(pc.equal(d["device"], "web"), d["city"], d["device"]),
        ),
        ("floor(price)", lambda d: np.floor(d["price"]), lambda d: pc.floor(d["price"])),
        (
            "round(log1p(price) * 4)",
            lambda d: (np.log1p(d["price"]) * 4).round(),
            lambda d: pc.round(pc.multiply(pc.log1p(d["price"]), 4)),
        ),
    ]


def schema_of(data_format: str, *, computed: bool) -> Any:
    """computed: whether the feeder computes the columns; otherwise it reads them."""
    slots: list[dict[str, Any]] = [{"name": "click", "type": "label"}]
    for number, (text, *_) in enumerate(dense()):
        expr = {"expr": text} if computed else {}
        slots.append({"name": f"d{number}", "type": "dense", "default": 0, **expr})
    for number, (text, *_) in enumerate(sparse()):
        expr = {"expr": text} if computed else {}
        slots.append({"name": f"s{number}", "type": "sparse", "hash": True, **expr})
    fields = Slots.model_validate({"slots": slots}, strict=False).fields()
    return core.FeedSchema(data_format, fields, True, 1 << 20)


def instances_of(schema: Any, click: Any, columns: list[Any]) -> None:
    """Parses computed columns, the dense ones first."""
    names = ["click", *(f"d{i}" for i in range(len(dense())))]
    names += [f"s{i}" for i in range(len(sparse()))]
    arrays = [click, *(pa.array(column, from_pandas=True) for column in columns)]
    for at in range(1 + len(dense()), len(arrays)):
        if pa.types.is_floating(arrays[at].type):
            arrays[at] = arrays[at].cast(pa.int64())
    check(core.parse_columns(schema, [pa.RecordBatch.from_arrays(arrays, names)]), len(click))


def check(chunk: Any, rows: int) -> None:
    if chunk.instances != rows:
        raise RuntimeError(f"{chunk.instances} of {rows} rows: {chunk.first_bad}")


Turns = dict[str, Callable[[], Any]]


def subjects_of(batch: Any) -> dict[str, Turns]:
    frame, rows, click = batch.to_pandas(), batch.num_rows, batch.column("click")
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    computes, reads = (schema_of("parquet", computed=own) for own in (True, False))
    made = [*dense(), *sparse()]

    def in_pandas(frame: Any) -> list[Any]:
        return [of(frame) for _, of, _ in made]

    def in_arrow(columns: Any) -> list[Any]:
        return [of(columns) for _, _, of in made]

    def ours() -> None:
        check(core.parse_columns(computes, [batch]), rows)

    sink = pa.BufferOutputStream()
    pa_csv.write_csv(batch, sink)
    text = sink.getvalue()
    header, _, lines = text.to_pybytes().partition(b"\n")
    of_csv = schema_of("csv", computed=True).with_csv_header(header)

    options = (
        pa_csv.ReadOptions(use_threads=False),
        pa_csv.ParseOptions(),
        pa_csv.ConvertOptions(column_types=batch.schema),
    )

    def table() -> Any:
        return pa_csv.read_csv(pa.BufferReader(text), *options).combine_chunks()

    return {
        "against_columns": {
            "paddlebox": ours,
            "pandas": lambda: in_pandas(frame),
            "pyarrow": lambda: in_arrow(columns),
        },
        "to_instances": {
            "paddlebox": ours,
            "pandas": lambda: instances_of(reads, click, in_pandas(frame)),
            "pyarrow": lambda: instances_of(reads, click, in_arrow(columns)),
        },
        "from_csv": {
            "paddlebox": lambda: check(core.parse_chunk(of_csv, lines), rows),
            "pandas": lambda: in_pandas(table().to_pandas()),
            "pyarrow": lambda: in_arrow(table().to_batches()[0]),
        },
    }


def measure(given: argparse.Namespace) -> tuple[dict[str, Any], list[report.Goal]]:
    parts = subjects_of(batch_of(given.rows, given.seed))
    seconds = {part: {name: list[float]() for name in turns} for part, turns in parts.items()}
    for _ in range(given.repeats):
        for part, turns in parts.items():
            for name, run in turns.items():
                started = time.process_time()
                run()
                seconds[part][name].append(time.process_time() - started)
    peers = ("pandas", "pyarrow")

    def times(part: str, peer: str) -> list[float]:
        return report.ratios(seconds[part][peer], seconds[part]["paddlebox"])

    figures = {
        "slots": len(dense()) + len(sparse()),
        "rows": given.rows,
        "cpu_seconds": {
            part: {name: report.spread(own) for name, own in turns.items()}
            for part, turns in seconds.items()
        },
        "times": {
            part: {peer: report.spread(times(part, peer)) for peer in peers} for part in parts
        },
    }
    goals = [
        report.at_least(f"{part}: times {peer}", times(part, peer), bound)
        for part in ("to_instances", "against_columns")
        for peer, bound in zip(peers, (PANDAS_TIMES, PYARROW_TIMES), strict=True)
    ]
    return figures, goals


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=9, help="turns per subject")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/expressions.json"))
    given = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    pa.set_cpu_count(1)
    figures, goals = measure(given)
    settings = {"rows": given.rows, "repeats": given.repeats, "seed": given.seed}
    return report.write(given.out, settings, figures, goals)


if __name__ == "__main__":
    report.run(main)
