"""Buckets and metrics read dense values as they are in the data, not as float32 holds them."""

from __future__ import annotations

import bisect
import logging
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paddlebox._native import core
from paddlebox.config import Format, Slots
from paddlebox.config.metrics import MetricConfig
from paddlebox.data.findings import Findings, Told
from paddlebox.data.options import EXACT_FLOATS
from paddlebox.errors import ConfigError
from paddlebox.serving.feed import feed_of
from paddlebox.serving.fields import FieldParser
from paddlebox.training.metric_set import MetricSet, exact_columns
from paddlebox.training.metrics import warn_of_one_class
from paddlebox.training.opening import create_dataset
from tests.support.configs import make_config
from tests.support.fixtures import OpenTable
from tests.support.options import load_options

#: Neighbours as float32, some also as double.
BOUNDARIES = (0.1, 16777217, 1700000300, 2**53 + 1, 2**63 + 1, 2**64 - 1)
VALUES = [
    *(-7, -0.5, 0.09999999999999999, 0.1, 16777216, 16777217, 1700000299, 1700000300),
    *(2**53, 2**53 + 1, 2**63, 2**63 + 1, 2**64 - 2, 2**64 - 1),
]


def slots(**of_ts: Any) -> Slots:
    fields = [
        {"name": "click", "type": "label"},
        {"name": "pair", "type": "dense", "dim": 2},
        {"name": "ts", "type": "dense", **of_ts},
        {"name": "user", "type": "sparse"},
        {"name": "range", "type": "sparse", "bucket": {"of": "ts", "boundaries": BOUNDARIES}},
    ]
    return Slots.model_validate({"slots": fields}, strict=False)


def lines(form: str, values: list[Any]) -> bytes:
    line = {
        "multislot": "1 0 2 {0} 0 1 {0} 1 5",
        "feasign_slot": "0:click {0}:pair 0:pair {0}:ts 5:user",
        "slot_value": "click:0 pair:{0} pair:0 ts:{0} user:5",
        "csv": "0,{0}|0,{0},5",
    }[form]
    return "".join(line.format(repr(value)) + "\n" for value in values).encode()


def parsed(form: str, values: list[Any], of: Slots, exact: tuple[str, ...]) -> Any:
    schema = load_options(Format(form), of, 1, exact=exact).schema()
    if form != "parquet":
        return core.parse_chunk(schema, lines(form, values))
    batches = []
    for value in values:  # each in the type that holds it
        kind = pa.float64() if isinstance(value, float) else pa.int64()
        kind = pa.uint64() if value >= 2**63 else kind
        columns = {"click": [0], "pair": pa.array([[value, 0]], pa.list_(kind)), "user": [5]}
        batches.append(pa.record_batch({**columns, "ts": pa.array([value], kind)}))
    return core.parse_columns(schema, batches)


def columns(chunk: Any) -> tuple[np.ndarray, list[int]]:
    """The floats, and the bucket of each row."""
    assert chunk.bad_lines == 0, chunk.first_bad
    _, dense, _, ids = core.columns_of(chunk)
    return dense.reshape(chunk.instances, -1), ids[1::2].tolist()


def exact_of(dense: np.ndarray, place: int) -> list[float]:
    return list(dense[:, place:][:, :EXACT_FLOATS].astype(np.longdouble).sum(axis=1))


@pytest.mark.parametrize("path", ["auto", "plain"])
@pytest.mark.parametrize("form", ["multislot", "feasign_slot", "slot_value", "csv", "parquet"])
def test_values_are_exact_in_each_format_and_on_each_path(form: str, path: str) -> None:
    of = slots(log1p=True).model_copy()
    of = Slots.model_validate(
        {
            "slots": [
                s.model_dump() | ({"log1p": True} if s.name == "pair" else {}) for s in of.slots
            ]
        }
    )
    core.select_parser_path(path)
    dense, buckets = columns(parsed(form, VALUES, of, ("ts", "pair")))
    assert exact_of(dense, 3) == exact_of(dense, 6) == [np.longdouble(v) for v in VALUES]
    assert dense[:, 2].tolist() == [np.float32(np.log1p(max(0, float(v)))) for v in VALUES]
    wanted = [bisect.bisect_right(BOUNDARIES, v) for v in VALUES]
    assert len(set(buckets)) == len(set(wanted)) == len(BOUNDARIES) + 1
    assert len(set(zip(buckets, wanted, strict=True))) == len(BOUNDARIES) + 1
    plain, same = columns(parsed(form, VALUES, of, ()))
    assert plain.tolist() == dense[:, :3].tolist()
    assert same == buckets
    parser = FieldParser(feed_of(make_config(data={"format": form}), of))
    served = parser.parse([{"pair": [v, 0], "ts": v, "user": 5} for v in VALUES])
    assert columns(served)[1] == buckets


def test_a_default_is_exact(tmp_path: Path) -> None:
    of = slots(default=16777217, clip=[0, 1])
    schema = load_options(Format.CSV, of, 1, exact=("ts",)).schema()
    dense, buckets = columns(core.parse_chunk(schema, b"0,1|2,,5\n0,1|2,16777217,5\n"))
    assert exact_of(dense, 3) == [16777217, 16777217]
    assert buckets[0] == buckets[1]
    batch = {"click": [0], "pair": [[1, 2]], "ts": pa.nulls(1), "user": [5]}
    schema = load_options(Format.PARQUET, of, 1, exact=("ts",)).schema()
    dense, same = columns(core.parse_columns(schema, [pa.record_batch(batch)]))
    assert exact_of(dense, 3) == [16777217]
    assert same == buckets[:1]


@pytest.mark.parametrize("form", ["multislot", "feasign_slot", "csv", "parquet"])
def test_an_integer_that_float32_rounds_is_warned_of_once(
    form: str, caplog: pytest.LogCaptureFixture
) -> None:
    of, found, told = slots(), Findings(), Told()
    options = load_options(Format(form), of, 1)
    for values in ([1.5, 20_000_000], [1700000001, 20_000_001], [20_000_003]):
        chunk = parsed(form, values, of, ())
        found.add(of, lambda line: f"x:{line + 1}", chunk)
        told.tell(options, found, 2)
    rounded = [r.getMessage() for r in caplog.records if "float32 rounds" in r.getMessage()]
    assert [message.split(":")[0] for message in rounded] == [
        f"slot '{name}' holds integers that float32 rounds, such as 1700000001 to 1700000000 (x"
        for name in ("pair", "ts")
    ]


def test_what_the_model_does_not_read_rounded_is_not_warned_of() -> None:
    for of in (slots(log1p=True), slots(clip=[0, 1000])):
        assert [one[0] for one in parsed("csv", [16777217], of, ()).rounded] == [0]  # pair


def test_negatives_are_sampled_alike_whatever_metrics_measure() -> None:
    kept = []
    for exact in ((), ("ts",)):
        options = load_options(Format.CSV, slots(), 1, exact=exact)
        chunk = parsed("csv", list(range(200)), slots(), exact)
        chunk.sample_negatives(options.schema(), 0.5, 7)
        kept.append(columns(chunk)[0][:, 2].tolist())
    assert kept[0] == kept[1]
    assert 50 < len(kept[0]) < 150


# ---- metrics


def metric(column: np.ndarray, **fields: Any) -> dict[str, Any]:
    spec = MetricConfig.model_validate({"name": "m", **fields}, strict=False)
    found = MetricSet([spec])
    n = len(column)
    found.add(np.full(n, 0.5, np.float32), np.arange(n, dtype=np.float32) % 2, {"x": column})
    return dict(found.compute()["m"])


@pytest.mark.parametrize(
    ("values", "mask", "size"),
    [
        ([20240101, 20240102, 20240103], [20240102], 1),
        ([0.1, 0.5], [0.1], 1),
        ([2**53, 2**53 + 1, 2**63, 2**63 + 1], [2**53 + 1, 2**63 + 1], 2),
        ([-1, 1], [-1.0], 1),
    ],
)
def test_a_mask_compares_exact_values(values: list[Any], mask: list[Any], size: int) -> None:
    assert metric(np.array([np.longdouble(v) for v in values]), mask={"x": mask})["size"] == size


def test_a_mask_of_ids_compares_all_64_bits() -> None:
    ids = np.array([2**53, 2**53 + 1, 2**64 - 1], np.uint64)
    assert metric(ids, mask={"x": [2**53 + 1]})["size"] == 1
    assert metric(ids, mask={"x": [-1, 0.5]})["size"] == 1


def test_groups_are_exact_and_the_same_in_each_batch() -> None:
    values = [
        np.longdouble(v) for v in (90000000, 90000001, 0.1, -0.0, 2**63, -(2**62)) for _ in "ab"
    ]
    assert metric(np.array(values), method="wuauc", group="x")["groups"] == 6
    small = metric(np.array([0.0, -0.0], np.float32), method="wuauc", group="x")
    assert small["groups"] == 1


@pytest.mark.parametrize("fields", [{"mask": {"x": [20240101]}}, {"method": "wuauc", "group": "x"}])
def test_large_integers_in_float32_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"tells integers above 2\^24 apart, found float32"):
        metric(np.array([20240101, 20240102], np.float32), **fields)


def test_an_empty_metric_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    warn_of_one_class("pass 1", {"size": 4, "auc": 0.5, "m": {"size": 0}, "n": {"size": 2}})
    assert [r.getMessage() for r in caplog.records] == [
        "pass 1: metric 'm' counts no sample: check its mask and group"
    ]


def test_columns_of_metrics_that_the_feeder_would_round_are_kept() -> None:
    specs = [
        MetricConfig(name="a", mask={"ts": (1,), "user": (2,)}),
        MetricConfig.model_validate(
            {"name": "b", "method": "wuauc", "group": "pair"}, strict=False
        ),
    ]
    assert exact_columns(specs, slots()) == ("pair", "ts")


def test_a_run_keeps_what_its_metrics_read(open_table: OpenTable) -> None:
    config = make_config(
        data={"format": "csv"},
        model={"type": "lr"},
        metrics=[{"name": "m", "mask": {"ts": [1], "user": [2]}}],
    )
    with closing(create_dataset(config, slots(), open_table())) as dataset:
        assert dataset.options.load.exact == ("ts",)
