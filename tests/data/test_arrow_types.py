"""Each Arrow type in each kind of slot: it is read with one meaning, or refused with a step that
works."""

from __future__ import annotations

import datetime
import functools
import io
import operator
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from paddlebox._native import core
from paddlebox.config import Format, Slots
from paddlebox.data.columnar import _plain_type, as_read, uses_of
from paddlebox.data.first_look import FirstLook
from tests.support.configs import make_config
from tests.support.options import load_options

DAY = datetime.date(2024, 2, 29)
#: The row of the table -> types, with three values of each.
TYPES: dict[str, list[tuple[Any, list[Any]]]] = {
    "`int8` to `int64`": [
        (kind, [0, -1, 2 ** (kind.bit_width - 1) - 1])
        for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())
    ],
    "`uint8` to `uint64`": [
        (kind, [0, 1, 2**kind.bit_width - 1])
        for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
    ],
    "`halffloat`, `float`, `double`": [
        (kind, [np.float16(7), np.float16(0.5), np.float16(-2)])
        for kind in (pa.float16(), pa.float32(), pa.float64())
    ],
    "`decimal`": [
        (pa.decimal128(6, 2), [Decimal("7.10"), Decimal("0.30"), None]),
        (pa.decimal256(40, 0), [Decimal(7), Decimal(2**40), None]),
    ],
    "`bool`": [(pa.bool_(), [True, False, None])],
    "`string`, `binary`, large and views": [
        (kind, ["a", "", "7"]) for kind in (pa.string(), pa.large_string(), pa.string_view())
    ]
    + [(kind, [b"a", b"", b"7"]) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())],
    "`date32`, `date64`": [(kind, [DAY, None, DAY]) for kind in (pa.date32(), pa.date64())],
    "`timestamp`": [
        (kind, [1709210000, None, 0])
        for kind in (pa.timestamp("s"), pa.timestamp("us"), pa.timestamp("ns", "UTC"))
    ],
    "`time32`, `time64`, `duration`": [
        (kind, [3600, None, 0]) for kind in (pa.time32("s"), pa.time64("us"), pa.duration("ms"))
    ],
    "`null`": [(pa.null(), [None, None, None])],
    "`struct`, `map`, list in a list": [
        (pa.struct({"a": pa.int64()}), [{"a": 1}, None, None]),
        (pa.map_(pa.string(), pa.int64()), [[], None, None]),
    ],
}
#: The column of the table -> fields of the slot.
SLOTS: dict[str, dict[str, Any]] = {
    "label": {"type": "label"},
    "dense": {"type": "dense", "default": 0.5},
    "sparse": {"type": "sparse"},
    "sparse with `hash`": {"type": "sparse", "hash": True},
    "weights": {"type": "sparse", "weighted": True, "weight_column": "x"},
}
TAGS = {"ins_id": "ins_id", "content, logkey": "content", "time": "time"}
YES, NO = "yes", "no"


def schema_of(slot: dict[str, Any]) -> Any:
    """The slot reads column x; a weighted slot has its ids in column y."""
    own = {"name": "y" if "weight_column" in slot else "x", **slot}
    click = [] if slot["type"] == "label" else [{"name": "click", "type": "label"}]
    slots = Slots.model_validate({"slots": [*click, own]}, strict=False)
    return load_options(Format.PARQUET, slots, 1).schema()


def batch_of(column: Any) -> Any:
    n = len(column)
    return pa.record_batch({"click": pa.array([1] * n), "y": pa.array([7] * n), "x": column})


def parse(schema: Any, column: Any) -> Any:
    """The ParsedChunk. Raises: ValueError if the type is refused."""
    batch = as_read(batch_of(column), schema)
    schema.check_columns(batch.schema)
    return core.parse_columns(schema, [batch])


def feasigns(schema: Any, column: Any) -> list[list[int]]:
    """The ids of each row."""
    _, _, sizes, ids = core.columns_of(parse(schema, column))
    ends = np.cumsum(sizes)
    return [ids[end - size : end].tolist() for end, size in zip(ends, sizes, strict=True)]


def refusal(schema: Any, type_: Any) -> str:
    """The error about a type; "" if it is accepted."""
    plain = [pa.field(f.name, f.type) for f in batch_of(pa.nulls(1)).schema if f.name != "x"]
    plain.append(pa.field("x", _plain_type(type_, uses_of(schema, "").get("x", frozenset()))))
    try:
        schema.check_columns(pa.schema(plain))
    except ValueError as error:
        return str(error)
    return ""


def tag_accepts(tag: str, type_: Any) -> bool:
    schema = core.FeedSchema("parquet", [], False, 1 << 20, ",|", {tag: "x"})
    uses = frozenset({"time"} if tag == "time" else ())
    try:
        schema.check_columns(pa.schema([pa.field("x", _plain_type(type_, uses))]))
    except ValueError:
        return False
    return True


def said(error: str) -> str:
    """The short form of an error for the table."""
    if not error:
        return YES
    return "`hash: true`" if "hash: true in" in error or "with hash: true" in error else NO


def table() -> str:
    """The table of docs/data.md."""
    lines = [["type", *SLOTS, *TAGS], ["---"] * (1 + len(SLOTS) + len(TAGS))]
    for name, types in TYPES.items():
        cells = []
        for slot in SLOTS.values():
            (cell,) = {said(refusal(schema_of(slot), type_)) for type_, _ in types}
            cells.append(cell)
        for tag in TAGS.values():
            (accepted,) = {tag_accepts(tag, type_) for type_, _ in types}
            cells.append(YES if accepted else NO)
        lines.append([name, *cells])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


ALL = [(type_, values) for types in TYPES.values() for type_, values in types]
NESTED = (pa.struct({"a": pa.int64()}), pa.map_(pa.string(), pa.int64()))
FLAT = [(type_, values) for type_, values in ALL if type_ not in NESTED]


def array(type_: Any, values: list[Any]) -> Any:
    if pa.types.is_time(type_) or pa.types.is_timestamp(type_) or pa.types.is_duration(type_):
        width = pa.int32() if type_.bit_width == 32 else pa.int64()
        return pa.array(values, width).cast(type_)
    if pa.types.is_float16(type_) or not pa.types.is_floating(type_):
        return pa.array(values, type_)
    return pa.array([float(value) for value in values], type_)


def test_the_docs_have_the_table() -> None:
    assert table() in Path("docs/data.md").read_text(), f"docs/data.md lacks\n{table()}"


@pytest.mark.parametrize("slot", SLOTS.values(), ids=SLOTS)
def test_lists_and_dictionaries_are_accepted_like_their_values(slot: dict[str, Any]) -> None:
    schema = schema_of(slot)
    for type_, _ in FLAT:
        refused = bool(refusal(schema, type_))
        for form in (pa.list_, pa.large_list, lambda item: pa.list_(item, 1)):
            assert bool(refusal(schema, form(type_))) == (refused or slot["type"] == "label")
        if not pa.types.is_null(type_):
            assert bool(refusal(schema, pa.dictionary(pa.int8(), type_))) == refused
    for nested in (*NESTED, pa.list_(pa.list_(pa.int64()))):
        assert "write the column with one of these types" in refusal(schema, nested)


def test_the_step_of_each_refusal_is_accepted() -> None:
    hashed = schema_of(SLOTS["sparse with `hash`"])
    steps = set()
    for slot in SLOTS.values():
        for type_, _ in ALL:
            error = refusal(schema_of(slot), type_)
            step = "hash" if said(error) not in (YES, NO) else error.rpartition(": ")[2]
            steps.add(step)
            if step == "hash":
                assert not refusal(hashed, type_)
            elif step:
                assert step == "write the column with one of these types"
                assert not refusal(schema_of(slot), pa.int8())
    assert len(steps) == 3


@pytest.mark.parametrize(("type_", "values"), FLAT, ids=[str(type_) for type_, _ in FLAT])
def test_hash_gives_the_ids_of_the_csv_file_that_pyarrow_writes(
    type_: Any, values: list[Any]
) -> None:
    column = array(type_, values)
    schema = schema_of({"type": "sparse", "hash": True})
    found = feasigns(schema, column)
    if not pa.types.is_null(type_):
        file = io.BytesIO()
        kind = pa.large_string() if pa.types.is_string_view(type_) else type_
        kind = pa.large_binary() if pa.types.is_binary_view(type_) else kind
        pa.csv.write_csv(pa.table({"x": column.cast(kind)}), file)
        lines = [line.strip('"') for line in file.getvalue().decode().splitlines()[1:]]
        csv = load_options(
            Format.CSV,
            Slots.model_validate(
                {"slots": [{"name": "x", "type": "sparse", "hash": True}]}, strict=False
            ),
            1,
        ).schema()
        wanted = [
            core.columns_of(core.parse_chunk(csv, f'"{line}"\n'.encode()))[3].tolist()
            for line in lines
        ]
        assert found == wanted
    lists = pa.array([column.to_pylist(), None, []], pa.list_(type_))
    assert feasigns(schema, lists) == [functools.reduce(operator.iadd, found, []), [], []]


@pytest.mark.parametrize(("type_", "values"), FLAT, ids=[str(type_) for type_, _ in FLAT])
def test_a_type_of_numbers_is_read_as_its_values(type_: Any, values: list[Any]) -> None:
    column = array(type_, values)
    if not refusal(schema_of(SLOTS["dense"]), type_):
        slot = {**SLOTS["dense"], "clip": [-1e30, 1e15]}  # a larger value is malformed
        dense = core.columns_of(parse(schema_of(slot), column))[1]
        wanted = [0.5 if value is None else float(value) for value in column.to_pylist()]
        assert dense.tolist() == np.minimum(np.array(wanted, np.float32), 1e15).tolist()
    if not refusal(schema_of(SLOTS["sparse"]), type_):
        for form in (column, pa.array([[v] for v in column.to_pylist()], pa.list_(type_))):
            wanted_ids = [[v % 2**64] if v else [] for v in column.to_pylist()]
            assert feasigns(schema_of(SLOTS["sparse"]), form) == wanted_ids
    if not pa.types.is_null(type_):
        view = pa.types.is_string_view(type_) or pa.types.is_binary_view(type_)
        entries = column if view or pa.types.is_float16(type_) else column.dictionary_encode()
        for slot in (SLOTS["sparse with `hash`"], SLOTS["sparse"]):
            if not refusal(schema_of(slot), type_):
                assert feasigns(schema_of(slot), entries) == feasigns(schema_of(slot), column)


def test_columns_of_nulls_are_missing_values() -> None:
    nulls, lists = pa.nulls(2), pa.array([[None, None], []], pa.list_(pa.null()))
    for slot in ("sparse", "sparse with `hash`"):
        assert feasigns(schema_of(SLOTS[slot]), nulls) == [[], []]
        assert feasigns(schema_of(SLOTS[slot]), lists) == [[], []]
    for form in (nulls, pa.array([[None], [None]], pa.list_(pa.null()))):
        chunk = parse(schema_of(SLOTS["dense"]), form)
        assert core.columns_of(chunk)[1].tolist() == [0.5, 0.5]
    weighted = parse(schema_of(SLOTS["weights"]), nulls)
    assert (weighted.instances, core.columns_of(weighted)[3].tolist()) == (2, [7, 7])
    assert parse(schema_of(SLOTS["label"]), nulls).bad_lines == 2


def test_a_column_that_is_hashed_and_read_as_numbers_keeps_its_type() -> None:
    fields = [
        {"name": "click", "type": "label"},
        {"name": "x", "type": "dense"},
        {"name": "id", "type": "sparse", "hash": True, "column": "x"},
    ]
    slots = Slots.model_validate({"slots": fields}, strict=False)
    schema = load_options(Format.PARQUET, slots, 1).schema()
    assert not refusal(schema, pa.int64())
    error = refusal(schema, pa.float64())
    assert re.search("slot 'id': expected values with a text .*found double", error)


def test_large_ids_of_each_type_pass_the_look_for_zeros(tmp_path: Path) -> None:
    config = make_config(data={"format": "parquet"})
    for type_, values in FLAT:
        column = array(type_, values)
        forms = [column, pa.array([[v] for v in column.to_pylist()], pa.list_(type_))]
        for number, form in enumerate(forms):
            schema = schema_of(SLOTS["sparse"])
            if refusal(schema, type_) or pa.types.is_float16(type_):
                continue
            path = str(tmp_path / f"{number}.parquet")
            pq.write_table(pa.Table.from_batches([batch_of(form)]), path)
            slots = Slots.model_validate(
                {"slots": [{"name": "click", "type": "label"}, {"name": "x", "type": "sparse"}]},
                strict=False,
            )
            zeros = sum(value == 0 for value in values)
            assert FirstLook(config, slots).zeros(path, 3) == (3, {"x": zeros} if zeros else {})
