"""Parquet, Arrow IPC, ORC and CSV give the instances that the same rows give as text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from paddlebox._native import core
from paddlebox.config import Format, KeySpace, Slots, load_slots
from paddlebox.data.columnar import is_list
from paddlebox.data.first_look import FirstLook
from paddlebox.data.loader import LoadedPass, load
from paddlebox.errors import DataError
from tests.support.configs import make_config, make_slots
from tests.support.options import load_options

TOP = 2**64 - 1
SLOTS: dict[str, list[dict[str, Any]]] = {
    "slots": [
        {"name": "click", "type": "label"},
        {"name": "age", "type": "dense"},
        {"name": "geo", "type": "dense", "dim": 2},
        {"name": "user", "type": "sparse"},
        {"name": "words", "type": "sparse"},
    ]
}


def slots(**changes: dict[str, Any]) -> Slots:
    """SLOTS with fields added to those named."""
    return Slots.model_validate(
        {"slots": [{**slot, **changes.get(slot["name"], {})} for slot in SLOTS["slots"]]}
    )


def rows(count: int, seed: int = 1) -> dict[str, list[Any]]:
    random = np.random.default_rng(seed)
    words = [random.integers(1, TOP, random.integers(0, 4), np.uint64) for _ in range(count)]
    return {
        "click": [int(x) for x in random.integers(0, 2, count)],
        "age": [float(x) for x in random.random(count).astype(np.float32)],
        "geo": [[float(x) for x in pair] for pair in random.random((count, 2)).astype(np.float32)],
        "user": [int(x) for x in random.integers(1, TOP, count, np.uint64)],
        "words": [[int(x) for x in row] for row in words],
    }


def table(data: Mapping[str, list[Any]], **types: Any) -> pa.Table:
    """Data with the plain types of its columns, or others."""
    plain = {
        "click": pa.int32(),
        "age": pa.float32(),
        "geo": pa.list_(pa.float32(), 2),
        "user": pa.uint64(),
        "words": pa.list_(pa.uint64()),
    }
    return pa.table({name: pa.array(data[name], {**plain, **types}[name]) for name in data})


def multislot(path: Path, data: dict[str, list[Any]]) -> str:
    with path.open("w") as file:
        for click, age, geo, user, words in zip(*data.values(), strict=True):
            file.write(f"1 {click} 1 {age!r} 2 {geo[0]!r} {geo[1]!r} 1 {user} ")
            file.write(f"{max(1, len(words))} {' '.join(map(str, words or [0]))}\n")
    return str(path)


def load_file(
    path: Any, data_format: Format, of: Slots | None = None, **options: Any
) -> LoadedPass:
    chosen = of or slots()
    chosen.check_format(data_format)
    return load([str(path)], load_options(data_format, chosen, 16, **options), 1 << 30)


def contents(loaded: LoadedPass) -> list[Any]:
    """Every column of all instances."""
    indexed = loaded.instances
    positions = np.arange(indexed.unique_keys, dtype=np.int32)
    width = loaded.options.slots.dense_width
    batch = indexed.pack_batch(0, loaded.size, positions, 1, width)
    feasigns, offsets = indexed.pack_feasigns(0, loaded.size)
    return [a.tolist() for a in (batch["label"], batch["dense"], feasigns, offsets)]


def of_slot(loaded: LoadedPass, index: int) -> list[list[int]]:
    """The feasigns of one sparse slot, by instance."""
    feasigns, offsets = loaded.instances.pack_feasigns(0, loaded.size)
    count = len(loaded.options.slots.sparse)
    return [
        feasigns[offsets[i * count + index] : offsets[i * count + index + 1]].tolist()
        for i in range(loaded.size)
    ]


def dense(loaded: LoadedPass) -> list[list[float]]:
    return contents(loaded)[1]


def write_arrow(data: pa.Table, path: Path, rows_a_batch: int = 1 << 20) -> None:
    with pa.ipc.new_file(str(path), data.schema) as file:
        file.write_table(data, rows_a_batch)


_SIGNED = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}
_SIGNED |= {pa.uint64(): pa.int64(), pa.float16(): pa.float32()}


def orc_type(type_: pa.DataType) -> pa.DataType:
    """The type in which ORC, which has fewer of them, holds the values, or their bits."""
    if pa.types.is_dictionary(type_):
        return orc_type(type_.value_type)
    if is_list(type_):
        return pa.list_(orc_type(type_.value_type))
    return _SIGNED.get(type_, type_)


def write_orc(data: pa.Table, path: Path, rows_a_stripe: int = 1 << 20) -> None:
    columns = [column.cast(orc_type(column.type), safe=False) for column in data.columns]
    plain = pa.table(columns, names=data.column_names)
    with orc.ORCWriter(str(path), batch_size=rows_a_stripe, stripe_size=1) as file:
        for first in range(0, max(1, len(plain)), rows_a_stripe):
            file.write(plain.slice(first, rows_a_stripe))


def write_json(data: pa.Table, path: Path) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in data.to_pylist()))


WRITERS: dict[Format, Callable[..., None]] = {
    Format.JSON: write_json,
    Format.PARQUET: pq.write_table,
    Format.ARROW: write_arrow,
    Format.ORC: write_orc,
}
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(data: pa.Table, data_format: Format, group: int = 1 << 20) -> Path:
        path = tmp_path / f"a.{data_format.value}"
        WRITERS[data_format](data, path, group)
        return path

    return write


COLUMNAR = pytest.mark.parametrize("data_format", [Format.PARQUET, Format.ARROW, Format.ORC])


# ---- the same instances


@COLUMNAR
@pytest.mark.parametrize("per_slot", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
def test_columns_give_the_instances_of_the_text(
    tmp_path: Path, write: Write, data_format: Format, per_slot: bool, threads: int
) -> None:
    data = rows(5000)
    options: dict[str, Any] = {
        "key_space": KeySpace.PER_SLOT if per_slot else KeySpace.SHARED,
        "threads": threads,
    }
    path = write(table(data), data_format, 700)  # several row groups, blocks cut in the middle
    expected = load_file(multislot(tmp_path / "a.txt", data), Format.MULTISLOT, **options)
    assert contents(load_file(path, data_format, **options)) == contents(expected)


TYPES = {
    "signed bits": {"user": pa.int64(), "words": pa.list_(pa.int64())},
    "large list": {"words": pa.large_list(pa.uint64()), "geo": pa.large_list(pa.float64())},
    "numbers": {"click": pa.float64(), "age": pa.float64(), "geo": pa.list_(pa.float64())},
    "list of one": {"user": pa.list_(pa.uint64(), 1), "age": pa.list_(pa.float32())},
    "dictionary": {"user": pa.dictionary(pa.int32(), pa.uint64())},
}


@COLUMNAR
@pytest.mark.parametrize("types", TYPES.values(), ids=TYPES)
def test_other_types_of_the_same_values_give_the_same_instances(
    write: Write, data_format: Format, types: dict[str, Any]
) -> None:
    data = rows(300)
    expected = contents(load_file(write(table(data), data_format), data_format))
    other = dict(data)
    if types is TYPES["signed bits"]:
        other["user"] = [x - (1 << 64 if x >> 63 else 0) for x in data["user"]]
        other["words"] = [[x - (1 << 64 if x >> 63 else 0) for x in row] for row in data["words"]]
    if types is TYPES["list of one"]:
        other["user"] = [[x] for x in data["user"]]
        other["age"] = [[x] for x in data["age"]]
    path = write(table(other, **types), data_format)
    assert contents(load_file(path, data_format)) == expected


@COLUMNAR
def test_small_integers_and_booleans_are_numbers(write: Write, data_format: Format) -> None:
    data: dict[str, list[Any]] = {
        "click": [True, False],
        "age": [3, 250],
        "geo": [[1, 2], [3, 4]],
        "user": [7, 200],
        "words": [[1], [100, 2]],
    }
    types = {
        "click": pa.bool_(),
        "age": pa.uint8(),
        "geo": pa.list_(pa.int16()),
        "user": pa.uint8(),
        "words": pa.list_(pa.int8()),
    }
    loaded = load_file(write(table(data, **types), data_format), data_format)
    assert contents(loaded) == [
        [[1.0], [0.0]],
        [[3, 1, 2], [250, 3, 4]],
        [7, 1, 200, 100, 2],
        [0, 1, 2, 3, 5],
    ]


@COLUMNAR
def test_the_whole_range_of_feasigns_and_zero_as_padding(write: Write, data_format: Format) -> None:
    data = rows(3) | {"user": [TOP, 1 << 63, 0], "words": [[0, TOP, 0], [], [0]]}
    loaded = load_file(write(table(data), data_format), data_format)
    assert of_slot(loaded, 0) == [[TOP], [1 << 63], []]
    assert of_slot(loaded, 1) == [[TOP], [], []]


@COLUMNAR
def test_columns_that_no_slot_uses_are_not_read(write: Write, data_format: Format) -> None:
    data = table(rows(100)).append_column("secret", pa.array([{"a": 1}] * 100))
    expected = contents(load_file(write(data.drop(["secret"]), data_format), data_format))
    assert contents(load_file(write(data, data_format), data_format)) == expected


@COLUMNAR
def test_a_slot_may_use_a_column_of_another_name(write: Write, data_format: Format) -> None:
    data = rows(50)
    renamed = table(data).rename_columns(["y", "age", "geo", "u", "words"])
    chosen = slots(click={"column": "y"}, user={"column": "u"})
    expected = contents(load_file(write(table(data), data_format), data_format))
    assert contents(load_file(write(renamed, data_format), data_format, chosen)) == expected


# ---- nulls


@COLUMNAR
def test_nulls_are_empty_slots_and_defaults(write: Write, data_format: Format) -> None:
    data = rows(3) | {
        "age": [None, 1.0, 2.0],
        "geo": [[1, None], None, [3, 4]],
        "user": [None, 8, 9],
        "words": [None, [None, 5], [6]],
    }
    chosen = slots(age={"default": -1.0}, geo={"default": 0.5}, words={"default": 77})
    loaded = load_file(write(table(data), data_format), data_format, chosen)
    assert dense(loaded) == [[-1, 1, 0.5], [1, 0.5, 0.5], [2, 3, 4]]
    assert of_slot(loaded, 0) == [[], [8], [9]]
    assert of_slot(loaded, 1) == [[77], [5], [6]]


BAD = {
    "a null label": ("click", None, "slot 'click': a null, expected a label"),
    "a label of 2": ("click", 2, "slot 'click': 2 is not a label"),
    "a null dense value": ("age", None, "slot 'age': a null and no default"),
    "NaN": ("age", float("nan"), "slot 'age': nan is not a finite float"),
    "infinity": ("age", float("inf"), "slot 'age': inf is not a finite float"),
    "beyond float": ("age", 1e300, r"slot 'age': 1e\+300 is not a finite float"),
    "too short a list": ("geo", [1.0], "slot 'geo': 1 values, expected 2"),
    "too long a list": ("geo", [1.0, 2.0, 3.0], "slot 'geo': 3 values, expected 2"),
}


@COLUMNAR
@pytest.mark.parametrize(("name", "value", "reason"), BAD.values(), ids=BAD)
def test_a_malformed_row_is_counted_quoted_and_left_out(
    write: Write,
    data_format: Format,
    name: str,
    value: float | list[Any] | None,
    reason: str,
) -> None:
    data = rows(4) | {"words": [[1], [2, 3], [], [4]]}
    types = {"age": pa.float64(), "geo": pa.list_(pa.float64()), "words": pa.list_(pa.int32())}
    good = load_file(write(table(data, **types).take([0, 1, 3]), data_format), data_format)
    expected = contents(good)
    data[name] = data[name][:2] + [value] + data[name][3:]
    path = write(table(data, **types), data_format)
    loaded = load_file(path, data_format, max_bad_line_ratio=0.5)
    assert (loaded.lines, loaded.bad_lines) == (4, 1)
    assert contents(loaded) == expected
    with pytest.raises(DataError, match=rf"1 of 4 lines are malformed(.|\n)*{path}:3: {reason}"):
        load_file(path, data_format)


# ---- files that are not what they should be


WRONG = {
    "missing": (lambda t: t.drop(["user"]), r"slot 'user': expected one column 'user', found 0"),
    "twice": (lambda t: t.append_column("user", t["user"]), "one column 'user', found 2"),
    "a float for a sparse slot": (
        lambda t: t.set_column(3, "user", t["age"]),
        "column 'user' of slot 'user': expected an integer type, .* found float",
    ),
    "a string for a sparse slot": (
        lambda t: t.set_column(3, "user", pa.array(["7"] * 5)),
        "column 'user' .* found string: give the slot hash: true",
    ),
    "a string for a dense slot": (
        lambda t: t.set_column(1, "age", pa.array(["7"] * 5)),
        "column 'age' of slot 'age': expected a number.* found string",
    ),
    "another width": (
        lambda t: t.set_column(2, "geo", pa.array([[1.0] * 3] * 5, pa.list_(pa.float64(), 3))),
        r"column 'geo' .* found fixed_size_list<double>\[3\]",
    ),
    "a list of lists": (
        lambda t: t.set_column(4, "words", pa.array([[[1]]] * 5)),
        "column 'words' .* found list<list<int64>>",
    ),
    "a list for a label": (
        lambda t: t.set_column(0, "click", pa.array([[1]] * 5)),
        "column 'click' of slot 'click': expected a number or bool, found list<int64>",
    ),
}


@COLUMNAR
@pytest.mark.parametrize(("change", "reason"), WRONG.values(), ids=WRONG)
def test_a_missing_or_retyped_column_is_named_with_its_file(
    write: Write, data_format: Format, change: Callable[..., Any], reason: str
) -> None:
    if reason.endswith("found 2") and data_format is Format.PARQUET:
        pytest.skip("Parquet's writer refuses two columns of one name")
    if "fixed_size_list" in reason and data_format is Format.ORC:
        pytest.skip("a schema of ORC has no widths: each row is checked")
    path = write(change(table(rows(5))), data_format)
    with pytest.raises(DataError, match=rf"{path}: .*{reason}"):
        load_file(path, data_format)


@COLUMNAR
@pytest.mark.parametrize("damage", ["empty", "cut", "text", "flipped"])
def test_a_damaged_file_is_an_error_that_names_it(
    write: Write, data_format: Format, damage: str
) -> None:
    path = write(table(rows(5000)), data_format)
    content = path.read_bytes()
    path.write_bytes(
        {
            "empty": b"",
            "cut": content[: len(content) // 2],
            "text": b"1 1 2 0.5 1.5 1 7 2 3 4\n" * 100,
            "flipped": content[:-40] + bytes(b ^ 0xFF for b in content[-40:-8]) + content[-8:],
        }[damage]
    )
    with pytest.raises(DataError, match=f"{path}"):
        load_file(path, data_format)


def test_offsets_of_an_arrow_file_that_leave_their_values_are_an_error(
    write: Write,
) -> None:
    data = table(rows(200))
    path = write(data, Format.ARROW)
    content = path.read_bytes()
    offsets = data["words"].chunk(0).buffers()[1].to_pybytes()[:804]
    assert content.count(offsets) == 1
    at = content.index(offsets)
    for wrong in (-5, 1 << 30):
        hurt = content[: at + 400] + np.int32(wrong).tobytes() + content[at + 404 :]
        path.write_bytes(hurt)
        message = f"{path}: part 0 cannot be read: .*'words': the offsets of its lists are outside"
        with pytest.raises(DataError, match=message):
            load_file(path, Format.ARROW)
        config = make_config(data={"format": "arrow"})
        with pytest.raises(DataError, match=message):
            FirstLook(config, slots()).numbers([str(path)], 1)


@COLUMNAR
def test_a_file_that_changes_between_its_pieces_is_an_error(
    write: Write, data_format: Format
) -> None:
    from paddlebox.data.columnar import read_pieces

    path = write(table(rows(300)), data_format, 100)
    schema = load_options(data_format, slots(), 16).schema()
    pieces = list(read_pieces(str(path), data_format, schema))
    assert [piece.parse(schema).instances for piece in pieces] == [100, 100, 100]
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"more")
    with pytest.raises(DataError, match=f"{size} bytes when it was opened, {size + 4} now"):
        pieces[1].parse(schema)


@COLUMNAR
def test_a_file_that_is_cut_between_its_pieces_is_an_error_and_no_signal(
    write: Write, data_format: Format
) -> None:
    from paddlebox.data.columnar import read_pieces

    path = write(table(rows(3000)), data_format, 1000)
    schema = load_options(data_format, slots(), 16).schema()
    pieces = list(read_pieces(str(path), data_format, schema))
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(100)
    with pytest.raises(DataError, match=f"{size} bytes when it was opened, 100 now"):
        pieces[2].parse(schema)


@COLUMNAR
def test_a_uri_gives_the_same_instances(write: Write, data_format: Format) -> None:
    path = write(table(rows(300)), data_format, 100)
    expected = contents(load_file(path, data_format))
    assert contents(load_file(path.as_uri(), data_format)) == expected


@COLUMNAR
def test_files_without_rows_give_no_instances(write: Write, data_format: Format) -> None:
    loaded = load_file(write(table(rows(3)).slice(0, 0), data_format), data_format)
    assert (loaded.size, loaded.lines) == (0, 0)


# ---- CSV


def csv_line(row: list[Any]) -> str:
    cells = ["|".join(map(repr, c)) if isinstance(c, list) else repr(c) for c in row]
    return ",".join(cells) + "\n"


@pytest.mark.parametrize("header", [True, False])
def test_csv_gives_the_instances_of_the_text(tmp_path: Path, header: bool) -> None:
    data = rows(2000)
    lines = [csv_line(list(row)) for row in zip(*data.values(), strict=True)]
    path = tmp_path / "a.csv"
    path.write_text("".join(["click,age,geo,user,words\n"] * header + lines))
    chosen = Slots.model_validate({**SLOTS, "csv": {"header": header}})
    expected = contents(load_file(multislot(tmp_path / "a.txt", data), Format.MULTISLOT))
    assert contents(load_file(path, Format.CSV, chosen)) == expected


def test_a_header_sets_the_order_of_the_columns_and_quotes_may_hold_anything(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(
        b'\xef\xbb\xbf"user",other,words,geo,click,age\r\n'
        b'18446744073709551615,"a ""b"", c",1|2,0.5|1,1,\r\n'
        b'"9",,,"2|3",0,4\r\n'
    )
    loaded = load_file(path, Format.CSV, slots(age={"default": 8}))
    assert contents(loaded) == [
        [[1.0], [0.0]],
        [[8, 0.5, 1], [4, 2, 3]],
        [TOP, 1, 2, 9],
        [0, 1, 3, 4, 4],
    ]


HOSTILE_CSV = {
    "a cell too few": ("1,2,3|4,5", "4 cells, expected 5"),
    "a cell too many": ("1,2,3|4,5,6,7", "6 cells, expected 5"),
    "an open quote": ('1,2,3|4,"5,6', "the quote of cell 4 is not closed"),
    "text after a quote": ('1,2,3|4,"5"x,6', "cell 4 continues after its closing quote"),
    "an empty label": (",2,3|4,5,6", "slot 'click': '' is not a label"),
    "an empty number": ("1,,3|4,5,6", "slot 'age': '' is not a finite number"),
    "a list too short": ("1,2,3,5,6", "slot 'geo': 1 values, expected 2"),
    "a negative": ("1,2,3|4,-5,6", "slot 'user': '-5' is not a decimal feasign"),
    "above 2^64 - 1": ("1,2,3|4,5,18446744073709551616", "slot 'words': '18446744073709551616'"),
    "a space": ("1,2,3|4, 5,6", "slot 'user': ' 5' is not a decimal feasign"),
}


@pytest.mark.parametrize(("line", "reason"), HOSTILE_CSV.values(), ids=HOSTILE_CSV)
def test_a_malformed_csv_line_is_quoted_with_its_number(
    tmp_path: Path, line: str, reason: str
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"click,age,geo,user,words\n1,2,3|4,5,6\n{line}\n0,2,3|4,5,6\n")
    loaded = load_file(path, Format.CSV, max_bad_line_ratio=0.5)
    assert (loaded.size, loaded.bad_lines) == (2, 1)
    with pytest.raises(DataError, match=rf"{path}:3: {re.escape(reason)}"):
        load_file(path, Format.CSV)


@pytest.mark.parametrize("content", ["click,age,geo,user\n", "click,age,geo,user,words,user\n"])
def test_a_header_without_a_column_is_an_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=rf"{path}: expected one column '(user|words)'"):
        load_file(path, Format.CSV)


@pytest.mark.parametrize("content", ["", "\n", "\r\n", "\n1,2,3|4,5,6\n"])
def test_a_file_without_a_header_is_told_the_columns_it_should_have(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content.encode())
    columns = "click, age, geo, user, words"
    with pytest.raises(DataError, match=f"{path}: expected a header with the columns {columns}, "):
        load_file(path, Format.CSV)


# ---- slots that are hashed, cut and made, in every format


def test_strings_hash_alike_in_every_format(tmp_path: Path, write: Write) -> None:
    words = [["ab", "Ünï"], [], ["x" * 100], ["18446744073709551615"]]
    data = rows(4) | {"words": words}
    chosen = slots(words={"hash": True})
    typed = table(data, words=pa.list_(pa.string()))
    text = tmp_path / "a.txt"
    csv, slot_value = tmp_path / "a.csv", tmp_path / "a.sv"
    lines, csv_lines, sv_lines = [], ["click,age,geo,user,words\n"], []
    for click, age, geo, user, row in zip(*data.values(), strict=True):
        csv_lines.append(csv_line([click, age, geo, user])[:-1] + f",{'|'.join(row)}\n")
        if not row:  # an empty token cannot be written in multislot
            row = ["none"]
        lines.append(f"1 {click} 1 {age} 2 {geo[0]} {geo[1]} 1 {user} {len(row)} {' '.join(row)}\n")
    for click, age, geo, user, row in zip(*data.values(), strict=True):
        sv_lines.append(
            f"click:{click} age:{age} geo:{geo[0]} geo:{geo[1]} user:{user} "
            + " ".join(f"words:{word}" for word in row)
            + "\n"
        )
    text.write_text("".join(lines))
    csv.write_text("".join(csv_lines))
    slot_value.write_text("".join(sv_lines))
    parquet = load_file(write(typed, Format.PARQUET), Format.PARQUET, chosen)
    expected = of_slot(parquet, 1)
    assert [len(row) for row in expected] == [2, 0, 1, 1]
    assert expected[0][0] == 144753322831965956  # a golden value: the hash is part of the data
    assert of_slot(load_file(csv, Format.CSV, chosen), 1) == expected
    assert of_slot(load_file(slot_value, Format.SLOT_VALUE, chosen), 1) == expected
    in_text = of_slot(load_file(text, Format.MULTISLOT, chosen), 1)
    assert in_text[:1] + in_text[2:] == expected[:1] + expected[2:]
    for other in (pa.large_string(), pa.binary(), pa.large_binary(), pa.string_view()):
        again = write(table(data, words=pa.list_(pa.string())), Format.ARROW)
        assert of_slot(load_file(again, Format.ARROW, chosen), 1) == expected
        scalar = ["ab", "", None, "q"]
        named = table(data | {"words": scalar}, words=pa.string())
        cast = named.set_column(4, "words", named["words"].cast(other))
        found = of_slot(load_file(write(cast, Format.ARROW), Format.ARROW, chosen), 1)
        assert [len(row) for row in found] == [1, 0, 0, 1]
        assert found[0] == expected[0][:1]


@pytest.mark.parametrize("type_", [pa.string(), pa.binary(), pa.large_binary()])
def test_hashed_text_that_is_not_utf_8_is_a_malformed_row(tmp_path: Path, type_: Any) -> None:
    slots = make_slots(click="label", city={"type": "sparse", "hash": True})
    texts = pa.array(["北京".encode(), "北京".encode("gbk"), b"x"], pa.binary())
    if type_ == pa.string():  # a writer may not check it
        texts = pa.Array.from_buffers(type_, 3, texts.buffers())
    pq.write_table(pa.table({"click": [0, 1, 0], "city": texts}), tmp_path / "a.parquet")
    options = load_options(Format.PARQUET, slots, 2, max_bad_line_ratio=0.5)
    loaded = load([str(tmp_path / "a.parquet")], options, 1000)
    assert (loaded.size, loaded.bad_lines) == (2, 1)


@pytest.mark.parametrize("data_format", list(Format))
def test_instances_without_sparse_slots_have_one_feature_in_every_format(
    tmp_path: Path, data_format: Format
) -> None:
    criteo = data_format is Format.CRITEO_TSV
    names = [("label", "I1", "I2"), ("click", "low", "high")][not criteo]
    (tmp_path / "slots.yaml").write_text(
        f"slots:\n  - {{name: {names[0]}, type: label}}\n"
        + "".join(f"  - {{name: {name}, type: dense}}\n" for name in names[1:])
    )
    values = [(1, 0, 3), (0, 1, 4)]
    path = tmp_path / "a"
    columns = {name: pa.array([row[i] for row in values]) for i, name in enumerate(names)}
    if data_format.is_columnar:
        WRITERS[data_format](pa.table(columns), path)
    else:
        lines = [",".join(names)] * (data_format is Format.CSV)
        for row in values:
            text = {
                Format.CSV: ",".join(map(str, row)),
                Format.MULTISLOT: " ".join(f"1 {value}" for value in row),
                Format.CRITEO_TSV: "\t".join(map(str, row)) + "\t" * 37,
                Format.SLOT_VALUE: " ".join(map("{}:{}".format, names, row)),
                Format.FEASIGN_SLOT: " ".join(map("{}:{}".format, row, names)),
            }
            lines.append(text[data_format])
        path.write_text("\n".join(lines) + "\n")
    loaded = load_file(path, data_format, load_slots(tmp_path / "slots.yaml"))
    label, found, feasigns, offsets = contents(loaded)
    assert label == [[1.0], [0.0]]
    logs = np.log(np.array([[1, 4], [2, 5]])).astype(np.float32).tolist()
    assert found == (logs if criteo else [[0.0, 3.0], [1.0, 4.0]])
    assert len(feasigns) == 2
    assert feasigns[0] == feasigns[1] != 0
    assert offsets == [0, 1, 2]


def write_pairs(path: Path, data_format: Format, hashed: bool) -> str:
    """Three lines: an item, one that was seen before it, two words; the same tokens in all."""
    tokens = ["ab", "cd", "ab"] if hashed else ["7", "9", "7"]
    seen = [["ab", "cd"], ["ab"], []] if hashed else [["7", "9"], ["7"], []]
    if data_format.is_columnar:
        whole: Any = (lambda x: x) if hashed else int
        leaf = pa.string() if hashed else pa.int64()
        columns = {
            "click": pa.array([0, 1, 0], pa.int32()),
            "word": pa.array([whole(x) for x in tokens], leaf),
            "seen": pa.array([[whole(x) for x in row] for row in seen], pa.list_(leaf)),
            "item": pa.array([whole(x) for x in tokens], leaf),
        }
        WRITERS[data_format](pa.table(columns), path)
        return str(path)
    lines = ["click,word,seen,item"] if data_format is Format.CSV else []
    for label, token, row in zip("010", tokens, seen, strict=True):
        if data_format is Format.CSV:
            lines.append(f"{label},{token},{'|'.join(row)},{token}")
        elif data_format is Format.MULTISLOT:
            lines.append(f"1 {label} 1 {token} {len(row) or 1} {' '.join(row or ['0'])} 1 {token}")
        elif data_format is Format.CRITEO_TSV:
            fields = [label, *[""] * 13, token, row[0] if row else "", token, *[""] * 23]
            lines.append("\t".join(fields))
        else:
            pairs = [("click", label), ("word", token), *(("seen", x) for x in row)]
            order = 1 if data_format is Format.SLOT_VALUE else -1
            lines.append(" ".join(":".join(p[::order]) for p in [*pairs, ("item", token)]))
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.mark.parametrize("data_format", list(Format))
@pytest.mark.parametrize("hashed", [False, True])
def test_slots_that_share_ids_have_the_same_features_in_every_format(
    tmp_path: Path, data_format: Format, hashed: bool
) -> None:
    """`seen` stands before the slot whose ids it shares, and its default is such an id too."""
    if hashed and data_format is Format.CRITEO_TSV:
        pytest.skip("criteo_tsv has no hash")
    of: dict[str, Any] = {"type": "sparse"}
    if hashed:
        of["hash"] = True
    columns = {"click": "label", "word": "C1", "seen": "C2", "item": "C3"}
    absent = {"default": "cd" if hashed else 9}
    listed: list[dict[str, Any]] = [
        {"name": "click", "type": "label"},
        {"name": "word", **of},
        {"name": "seen", **of, **absent, "shares": "item"},
        {"name": "item", **of},
    ]
    if data_format is Format.CRITEO_TSV:
        listed = [{**slot, "column": columns[slot["name"]]} for slot in listed]
    path = write_pairs(tmp_path / "a", data_format, hashed)
    chosen = Slots.model_validate({"slots": listed})
    apart = Slots.model_validate(
        {"slots": [{k: v for k, v in slot.items() if k != "shares"} for slot in listed]}
    )
    as_one, own, plain = (
        load_file(path, data_format, of_them, key_space=KeySpace(space))
        for of_them, space in ((chosen, "per_slot"), (apart, "per_slot"), (chosen, "shared"))
    )
    # What is in no shared slot is as without the word, and key_space shared does not mind it.
    assert of_slot(as_one, 0) == of_slot(own, 0)
    assert of_slot(as_one, 2) == of_slot(own, 2)
    assert contents(plain) == contents(load_file(path, data_format, apart))
    for tokens, shared in zip(of_slot(plain, 1), of_slot(as_one, 1), strict=True):
        assert shared == [core.feasign_in_slot(token, 2) for token in tokens]
    assert of_slot(as_one, 1)[1] == of_slot(as_one, 2)[0]
    assert not {*of_slot(as_one, 0)[0]} & {*of_slot(as_one, 2)[0]}


@pytest.mark.parametrize("data_format", [Format.MULTISLOT, Format.PARQUET, Format.ARROW])
@pytest.mark.parametrize("per_slot", [False, True])
def test_transforms_do_not_depend_on_the_format(
    tmp_path: Path, write: Write, data_format: Format, per_slot: bool
) -> None:
    data = rows(300)
    changed: dict[str, dict[str, Any]] = {
        "age": {"clip": [0.1, 0.9], "log1p": True},
        "words": {"max_length": 2, "default": 5},
    }
    made: list[dict[str, Any]] = [
        {"name": "bucket", "type": "sparse", "bucket": {"of": "age", "boundaries": [0.25, 0.5]}},
        {"name": "pair", "type": "sparse", "cross": ["user", "words"]},
        {"name": "third", "type": "sparse", "cross": ["bucket", "pair"], "max_length": 1},
    ]
    base = [{**slot, **changed.get(slot["name"], {})} for slot in SLOTS["slots"]]
    chosen = Slots.model_validate({"slots": base + made})
    text = data_format is Format.MULTISLOT
    path = multislot(tmp_path / "a.txt", data) if text else write(table(data), data_format)
    space = KeySpace.PER_SLOT if per_slot else KeySpace.SHARED
    loaded = load_file(path, data_format, chosen, key_space=space)
    plain = load_file(path, data_format, key_space=space)
    ages = np.array(data["age"], np.float32)
    expected = np.log(1 + np.clip(ages, np.float32(0.1), np.float32(0.9)).astype(np.longdouble))
    assert [row[0] for row in dense(loaded)] == expected.astype(np.float32).tolist()
    before = of_slot(plain, 1)
    after = of_slot(loaded, 1)
    assert all(a == b[:2] for a, b in zip(after, before, strict=True) if b)
    filled = {tuple(a) for a, b in zip(after, before, strict=True) if not b}
    assert len(filled) == 1
    assert (filled == {(5,)}) is not per_slot
    assert of_slot(loaded, 0) == of_slot(plain, 0)
    buckets = of_slot(loaded, 2)
    wanted = np.searchsorted([0.25, 0.5], ages, side="right")
    assert (
        len({(bucket[0], int(which)) for bucket, which in zip(buckets, wanted, strict=True)}) == 3
    )
    assert [len(pair) for pair in of_slot(loaded, 3)] == [len(words) for words in after]
    assert {len(third) for third in of_slot(loaded, 4)} == {1}
    assert len({x for pair in of_slot(loaded, 3) for x in pair}) > 300


@COLUMNAR
@pytest.mark.parametrize("name", ["user", "age"])
def test_a_slot_over_a_timestamp_is_an_error(write: Write, data_format: Format, name: str) -> None:
    data = rows(3)
    data[name] = [1, 2, 3]
    path = write(table(data, **{name: pa.timestamp("us")}), data_format)
    with pytest.raises(
        DataError,
        match=f"column '{name}' of slot '{name}': expected .* found timestamp: .*hash: true",
    ):
        load_file(path, data_format)
