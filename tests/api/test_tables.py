"""Tables of a program become what the feeder reads from a file with the same columns, or are
refused with an error that names the column."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from paddlebox._native import core
from paddlebox.api.tables import as_table, digest, write_arrow
from paddlebox.config import Format, Slots
from paddlebox.data.columnar import read_pieces
from paddlebox.errors import DataError, StoreError
from tests.support.configs import make_slots
from tests.support.options import load_options

SLOTS = make_slots(click="label", age="dense", user={"hash": True}, item="sparse")
DAY = datetime.datetime(2024, 2, 29, 12)


def schema_of(slots: Slots = SLOTS) -> Any:
    return load_options(Format.ARROW, slots, 1).schema()


def as_column(values: Any, slot: str | dict[str, Any]) -> Any:
    """The column of a slot, given as a DataFrame."""
    schema = schema_of(make_slots(click="label", x=slot))
    frame = pd.DataFrame({"click": [0] * len(values), "x": values})
    return as_table(frame, "data", schema)["x"]


HASHED, RAW = {"hash": True}, "sparse"


@pytest.mark.parametrize(
    ("values", "slot", "expected"),
    [
        (pd.array([1, None, 3], dtype="Int64"), RAW, [1, None, 3]),
        ([7.0, float("nan")], RAW, [7, None]),  # pandas has floats where integers are missing
        ([[7.0, 8.0], [9.0]], RAW, [[7, 8], [9]]),
        (pd.Series([2**63, None], dtype=object), RAW, [2**63, None]),
        ([[2**64 - 1], []], RAW, [[2**64 - 1], []]),
        (pd.array([-1], dtype="int8"), RAW, [-1]),
        (pd.Categorical(["b", None, "b"]), HASHED, ["b", None, "b"]),
        (pd.Categorical([7, 9]), RAW, [7, 9]),
        (["a", None], HASHED, ["a", None]),
        ([["a", "b"], None, []], HASHED, [["a", "b"], None, []]),
        ([np.array(["a"]), ("b", "c")], HASHED, [["a"], ["b", "c"]]),
        ([7.0, 0.5, None], HASHED, [7.0, 0.5, None]),
        ([True, None], HASHED, [True, None]),
        ([DAY], HASHED, [DAY]),
        ([True, False], "dense", [True, False]),
        (pd.array([True, None], dtype="boolean"), "dense", [True, None]),
        ([0.5, float("nan")], "dense", [0.5, None]),
        ([[0.5, 1.5]], {"type": "dense", "dim": 2}, [[0.5, 1.5]]),
        (pd.array([1.5], dtype="float32"), "dense", [1.5]),
        ([None, None], RAW, [None, None]),
    ],
)
def test_a_column_of_a_data_frame_has_its_values(
    values: Any, slot: str | dict[str, Any], expected: list[Any]
) -> None:
    assert as_column(values, slot).to_pylist() == expected


@pytest.mark.parametrize(
    ("values", "slot", "found"),
    [
        (["a", 7], HASHED, r"column 'x' \(dtype object\): expected .* found str, int: convert"),
        ([{"a"}, {"b"}], HASHED, r"column 'x' \(dtype object\): .*found set"),
        ([{"a": 1}], HASHED, r"column 'x' of slot 'x': .*struct.*given as dtype object"),
        (pd.period_range("2024-01", periods=2, freq="M"), RAW, r"'x' \(dtype period\[M\]\)"),
        ([1 + 2j], "dense", r"column 'x' \(dtype complex128\)"),
        (pd.array([1, 0], dtype="Sparse[int]"), RAW, r"column 'x' \(dtype Sparse"),
        ([0.5], RAW, r"slot 'x': expected an integer type.*found double.*dtype float64"),
        ([2.0**53 + 2], RAW, r"slot 'x': expected an integer type.*found double.*dtype float64"),
        (["7"], RAW, r"slot 'x': expected an integer type.*give the slot hash: true.*dtype str"),
        ([DAY], "dense", r"slot 'x': expected a number.*timestamp.*dtype datetime64"),
        (["a"], "dense", r"slot 'x': expected a number.*found large_string"),
        ([[1.0, 2.0]], {"type": "dense", "dim": 3}, None),
        ([-1, 2**63], RAW, r"column 'x' \(dtype (object|float64)\)"),
    ],
)
def test_a_column_that_its_slot_cannot_read_is_refused_by_name(
    values: Any, slot: str | dict[str, Any], found: str | None
) -> None:
    if found is None:  # rows are malformed, as in a file
        assert as_column(values, slot).to_pylist() == values
        return
    with pytest.raises(DataError, match=found):
        as_column(values, slot)


def test_missing_columns_are_one_error_with_the_nearest_name() -> None:
    frame = pd.DataFrame({"click": [0], "usr": ["a"], "age": [1.0]})
    with pytest.raises(DataError) as error:
        as_table(frame, "data", schema_of())
    assert str(error.value) == (
        "data: expected the columns of the slots, found no item, user; did you mean 'usr'?"
    )


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ({"click": [0]}, "found dict: convert it"),
        ("clicks.csv", "found str"),
        ([{"click": 0}, ["a"]], r"row 1: expected a dict from column to value, found list"),
        (
            pd.DataFrame([[0, 1.0, "a", "b"]], columns=["click", "age", "user", "user"]),
            "expected each column once, found user twice",
        ),
    ],
)
def test_other_data_are_refused(data: Any, found: str) -> None:
    with pytest.raises(DataError, match=found):
        as_table(data, "data", schema_of())


def test_a_table_and_dicts_give_what_the_data_frame_gives() -> None:
    frame = pd.DataFrame(
        {"other": [1, 2], "click": [0, 1], "age": [0.5, None], "user": ["a", None], "item": [7, 8]}
    )
    expected = as_table(frame, "data", schema_of())
    assert expected.column_names == ["age", "click", "item", "user"]
    nones = frame.astype(object).where(frame.notna(), None).to_dict("records")
    nans = [row | ({"age": float("nan")} if row["age"] is None else {}) for row in nones]
    for data in (nones, nans, pa.Table.from_pandas(frame), pa.RecordBatch.from_pandas(frame)):
        found = as_table(data, "data", schema_of())
        assert found.to_pylist() == expected.to_pylist()
        assert digest(found) == digest(expected)


def test_nan_in_a_table_is_a_number_as_in_a_file() -> None:
    table = pa.table({"click": [0], "age": [float("nan")], "user": ["a"], "item": [1]})
    assert np.isnan(as_table(table, "data", schema_of())["age"].to_pylist()[0])


def parsed(path: Path, data_format: Format) -> tuple[list[int], list[int], list[float]]:
    """Feasigns and lengths, and floats, of all rows of a file."""
    schema = schema_of()
    instances = core.Instances(schema.sparse_slots, schema.dense_width)
    for piece in read_pieces(str(path), data_format, schema):
        instances.append(piece.parse(schema))
    instances.index(core.ThreadPool(1))
    feasigns, offsets = instances.pack_feasigns(0, instances.size)
    rows = np.full(instances.unique_keys, -1, np.int32)
    dense = instances.pack_batch(0, instances.size, rows, 0, schema.dense_width)["dense"]
    return feasigns.tolist(), offsets.tolist(), dense.ravel().tolist()


@pytest.mark.parametrize(
    "user", [[7, 0], ["7", "0"], [7.0, 0.5], [True, False]], ids=["int", "str", "float", "bool"]
)
def test_ids_are_those_of_a_parquet_file_of_the_data_frame(user: list[Any], tmp_path: Path) -> None:
    frame = pd.DataFrame({"click": [0, 1], "age": [0.5, 2], "user": user, "item": [3, -1]})
    frame.to_parquet(tmp_path / "frame.parquet")
    write_arrow(as_table(frame, "data", schema_of()), tmp_path / "own.arrow")
    found = parsed(tmp_path / "own.arrow", Format.ARROW)
    assert found == parsed(tmp_path / "frame.parquet", Format.PARQUET)
    assert found[0][1] == 3
    assert found[0][3] == 2**64 - 1


def test_a_digest_depends_on_values_alone() -> None:
    values = pa.array(["a", None, "bc", ""] * 5)
    lists = pa.array([[1, 2], None, [], [None]] * 5)
    table = pa.table({"s": values, "l": lists, "n": [0.5, None, 1.0, 2.0] * 5, "b": [True] * 20})
    assert digest(pa.concat_tables([table.slice(0, 7), table.slice(7)])) == digest(table)
    assert digest(pa.concat_tables([table, table]).slice(20)) == digest(table)
    large = table.set_column(0, "s", values.cast(pa.large_string()))
    assert digest(large.set_column(1, "l", lists.cast(pa.large_list(pa.int64())))) == digest(table)
    garbage = pa.array([0.5, 9.0, 1.0, 2.0] * 5, mask=np.array([False, True, False, False] * 5))
    assert digest(table.set_column(2, "n", garbage)) == digest(table)

    others = [
        table.slice(1),
        table.rename_columns(["s", "l", "m", "b"]),
        table.set_column(0, "s", pa.array(["a", "", "bc", None] * 5)),
        table.set_column(0, "s", pa.array(["ab", None, "c", ""] * 5)),
        table.set_column(1, "l", pa.array([[1], None, [2], [None]] * 5)),
        table.set_column(1, "l", pa.array([[1, 2], [], None, [None]] * 5)),
        table.set_column(2, "n", pa.array([0.5, None, 1.0, 2.5] * 5)),
        table.set_column(3, "b", pa.array([True] * 19 + [False])),
    ]
    assert len({digest(table), *map(digest, others)}) == 1 + len(others)


def test_a_file_has_its_name_only_when_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, path = pa.table({"x": [1, 2, 3]}), tmp_path / "x.arrow"

    def killed(*_: object) -> None:
        assert not path.exists()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", killed)
        with pytest.raises(KeyboardInterrupt):
            write_arrow(table, path)
    assert list(tmp_path.iterdir()) == []
    write_arrow(table, path)
    assert pa.ipc.open_file(path).read_all() == table
    with pytest.raises(StoreError, match="cannot write"):
        write_arrow(table, tmp_path / "absent" / "x.arrow")


def test_a_large_table_has_record_batches_that_threads_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paddlebox.api.tables._PIECE_BYTES", 800)
    chunks = [pa.array(range(at, at + 50)) for at in range(0, 1000, 50)]
    write_arrow(pa.table({"x": pa.chunked_array(chunks)}), tmp_path / "x.arrow")
    with pa.ipc.open_file(tmp_path / "x.arrow") as file:
        assert file.num_record_batches == 10
        assert file.read_all()["x"].to_pylist() == list(range(1000))
