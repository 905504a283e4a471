"""A value has one id: in training, `Predictor`, HTTP and `paddlebox store lookup`."""

from __future__ import annotations

import datetime
import json
import math
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paddlebox._native import core
from paddlebox.config import Format, Slots
from paddlebox.data.columnar import as_read
from paddlebox.errors import DataError
from paddlebox.serving.feed import feed_of
from paddlebox.serving.fields import FieldParser
from paddlebox.serving.request import parse_request
from paddlebox.store.record import VersionRecord
from paddlebox.tools.upkeep.report import feasigns_of
from tests.support.configs import make_config
from tests.support.options import load_options

COUNT = 10_000
SLOTS = Slots.model_validate(
    {
        "slots": [
            {"name": "click", "type": "label"},
            {"name": "user", "type": "sparse"},
            {"name": "word", "type": "sparse", "hash": True},
        ]
    },
    strict=False,
)


def ids_of(chunk: Any, slot: int) -> list[list[int]]:
    """The ids of a slot in each row."""
    assert chunk.bad_lines == 0
    _, _, sizes, ids = core.columns_of(chunk)
    ends = np.cumsum(sizes)
    lists = [ids[end - size : end].tolist() for end, size in zip(ends, sizes, strict=True)]
    return lists[slot::2]


def trained(column: Any, slot: str) -> list[list[int]]:
    schema = load_options(Format.PARQUET, SLOTS, 1).schema()
    columns = {"click": pa.array([1] * len(column)), "user": None, "word": None}
    columns = {name: pa.nulls(len(column)) if c is None else c for name, c in columns.items()}
    batch = as_read(pa.record_batch({**columns, slot: column}), schema)
    schema.check_columns(batch.schema)
    return ids_of(core.parse_columns(schema, [batch]), ["user", "word"].index(slot))


def served(values: list[Any], slot: str, form: str = "parquet") -> list[list[int]]:
    config = make_config(data={"format": form, "key_space": "shared"})
    parser = FieldParser(feed_of(config, SLOTS))
    return ids_of(parser.parse([{slot: v} for v in values]), ["user", "word"].index(slot))


def over_http(values: list[Any], slot: str) -> list[list[int]]:
    body = json.dumps({"instances": [{slot: value} for value in values]})
    fields = [one[slot] for one in parse_request(body.encode(), len(values))]
    return served(fields, slot)


def looked_up(values: list[Any], slot: str, form: str = "parquet") -> list[list[int]]:
    data = {"format": form, "key_space": "shared"}
    described = {"config": {"data": data}, "slots": SLOTS.model_dump(mode="json")}
    record = VersionRecord(1, 0, [], {}, 1, config=described)
    return [[id_] for id_ in feasigns_of(record, slot, [str(value) for value in values])]


def integers() -> list[int]:
    """Of all sizes, from -2^63 to 2^64 - 1, without 0, which is padding."""
    draw = np.random.default_rng(1)
    sizes = draw.integers(1, 65, COUNT)
    drawn = draw.integers(0, 2**64, COUNT, np.uint64)
    values = [int(v) >> (64 - int(n)) for v, n in zip(drawn, sizes, strict=True)]
    negative = [-(v >> 1) if n % 3 == 0 else v for n, v in enumerate(values)]
    return [-1, 1, -(2**63), 2**63, 2**64 - 1] + [value or 1 for value in negative][5:]


def texts() -> list[str]:
    draw = random.Random(2)
    alphabet = [*"ab01-.:+e \"'é漢,|\\", "nan", "-1", "1e16", "7.0", "true", "null"]
    return ["".join(draw.choices(alphabet, k=draw.randint(1, 5))) for _ in range(COUNT)]


@pytest.mark.parametrize("slot", ["user", "word"])
def test_integers_have_the_id_of_training_everywhere(slot: str) -> None:
    values = integers()
    low = [v for v in values if v < 2**63]
    found = dict(zip(low, trained(pa.array(low, pa.int64()), slot), strict=True))
    high = [v for v in values if v >= 0]
    found |= dict(zip(high, trained(pa.array(high, pa.uint64()), slot), strict=True))
    wanted = [found[value] for value in values]
    if slot == "user":
        assert wanted == [[value % 2**64] for value in values]
    assert served(values, slot) == wanted
    assert served([str(value) for value in values], slot) == wanted
    arrow = [pa.scalar(v, pa.int64() if v < 2**63 else pa.uint64()) for v in values]
    assert served(arrow, slot) == wanted
    assert served([np.int64(v) if v < 2**63 else np.uint64(v) for v in values], slot) == wanted
    assert over_http(values, slot) == wanted
    assert looked_up(values[::20], slot) == wanted[::20]


def test_texts_have_the_id_of_training_everywhere() -> None:
    values = texts()
    wanted = trained(pa.array(values), "word")
    for kind in (pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())):
        assert trained(pa.array(values).cast(kind), "word") == wanted
    assert served(values, "word") == wanted
    assert served([value.encode() for value in values], "word") == wanted
    assert served([pa.scalar(value) for value in values], "word") == wanted
    assert over_http(values, "word") == wanted
    assert looked_up(values[::20], "word") == wanted[::20]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64()], ids=str)
def test_a_negative_integer_has_one_id_in_each_width(kind: Any) -> None:
    assert trained(pa.array([-1, -128], kind), "user") == [[2**64 - 1], [2**64 - 128]]


OTHER: list[tuple[Any, list[Any]]] = [
    (pa.bool_(), [True, False]),
    (pa.date32(), [datetime.date(2024, 2, 29), datetime.date(1969, 1, 1)]),
    (pa.decimal128(6, 2), [Decimal("7.10"), Decimal("-0.30")]),
]
SCALARS = [pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("ms", "UTC"), pa.duration("s")]


def test_other_values_have_the_text_of_training() -> None:
    for kind, values in OTHER:
        column = pa.array(values, kind)
        wanted = trained(column, "word")
        assert served(values, "word") == wanted
        assert served(list(column), "word") == wanted
        assert served([np.bool_(v) if v is True else v for v in values], "word") == wanted
        assert looked_up(column.cast(pa.string()).to_pylist(), "word") == wanted
    for kind in SCALARS:
        column = pa.array([0, 1709210000], pa.int64()).cast(kind)
        assert served(list(column), "word") == trained(column, "word")
    moment = np.datetime64("2024-02-29T12:00:00", "s")
    assert served([moment], "word") == trained(pa.array([moment]), "word")


def test_lists_have_the_ids_of_training_and_none_for_nulls() -> None:
    lists = [[5, None, -1], [], None]
    wanted = trained(pa.array(lists, pa.list_(pa.int64())), "user")
    assert wanted == [[5, 2**64 - 1], [], []]
    assert served(lists, "user") == wanted
    assert served(list(pa.array(lists, pa.list_(pa.int64()))), "user") == wanted
    assert served([np.array([5, -1]), np.array([], int), np.int64(0)], "user") == wanted


FLOATS = [7.0, 1e15, 1e16, 12345678901234567.0, 1e300, 0.5, -1.0, math.inf, math.nan]


@pytest.mark.parametrize("form", ["parquet", "csv", "multislot"])
def test_a_float_is_an_error_in_each_slot_of_ids(form: str) -> None:
    for value in FLOATS:
        of_value: list[Any] = [value, np.float64(value), pa.scalar(value), [value]]
        for slot in ("user", "word"):
            for one in of_value:
                if value == 0.5 and slot == "word":  # it has one text
                    assert served([one], slot, form) == served(["0.5"], slot, form)
                    continue
                with pytest.raises(DataError, match=f"instance 0: field '{slot}': .*float"):
                    served([one], slot, form)
    with pytest.raises(DataError, match="send 10000000000000000, or '1e\\+16' if"):
        served([1e16], "word", form)


def test_text_formats_have_no_negative_id_and_the_error_names_what_may_be_meant() -> None:
    with pytest.raises(DataError, match=r"if 2\^64-1 is meant, send 18446744073709551615"):
        served([-1], "user", "csv")
    chunk = core.parse_chunk(load_options(Format.CSV, SLOTS, 1).schema(), b"1,-1,a\n")
    assert chunk.bad_lines == 1
