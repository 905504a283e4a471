"""CSV as people write it: no header, another delimiter, lines in front, texts that mean nothing."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.config import Format, Slots
from paddlebox.config.slots import Csv
from paddlebox.data.cache import ParsedCache
from paddlebox.data.loader import LoadedPass, load
from paddlebox.data.reader import Head, read_chunks
from paddlebox.errors import ConfigError, DataError
from paddlebox.serving.feed import feed_of
from paddlebox.serving.fields import FieldParser
from tests.support.configs import make_config, make_slots
from tests.support.options import load_options


def slots_of(**csv: Any) -> Slots:
    slots = [
        {"name": "clicked", "type": "label"},
        {"name": "user", "type": "sparse", "hash": True},
        {"name": "price", "type": "dense", "default": 7},
    ]
    return Slots.model_validate({"slots": slots, "csv": csv})


def read(
    path: Path, cache: ParsedCache | None = None, ratio: float = 0.001, **csv: Any
) -> LoadedPass:
    options = load_options(
        Format.CSV, slots_of(**csv), batch_size=8, max_bad_line_ratio=ratio, cache=cache
    )
    options.slots.check_format(options.data.format)
    return load([str(path)], options, 1 << 20)


def prices(loaded: LoadedPass) -> list[float]:
    rows = [-1] * loaded.instances.unique_keys
    import numpy as np

    batch = loaded.instances.pack_batch(0, loaded.size, np.array(rows, np.int32), 0, 1)
    return batch["dense"].reshape(-1).tolist()


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    def write(text: str, name: str = "a.csv") -> Path:
        path = tmp_path / name
        path.write_text(text)
        os.utime(path, (1, 1))
        return path

    return write


ROWS = "1,ann,2.5\n0,bob,3.5\n"

WRONG = {
    "no header": (ROWS, {}, r"the first line looks like data.*csv: \{header: false\}"),
    "delimiter of a header": (
        "clicked;user;price\n1;ann;2.5\n",
        {},
        r"1 column with delimiter ',', and ';' occurs 2 times.* csv: \{delimiter: \";\"\}",
    ),
    "tabs": ("clicked\tuser\tprice\n", {}, r"'\\t' occurs 2 times.* csv: \{delimiter: \"\\t\"\}"),
    "delimiter without a header": (
        "1;ann;2.5\n",
        {"header": False},
        r"a.csv:1: 1 cells, expected 3.*(.|\n)*1 column with .* csv: \{delimiter: \";\"\}",
    ),
    "a header that is not expected": (
        f"clicked,user,price\n{ROWS}",
        {"header": False},
        r"(.|\n)*the first line looks like names: remove csv: \{header: false\}",
    ),
    "a name that is nearly there": (
        "click,user,price\n1,ann,2.5\n",
        {},
        r"expected one column 'clicked', .* did you mean 'click'\?",
    ),
}


@pytest.mark.parametrize(("text", "csv", "named"), WRONG.values(), ids=WRONG)
def test_a_file_written_otherwise_is_recognised(
    written: Callable[..., Path], text: str, csv: dict[str, Any], named: str
) -> None:
    with pytest.raises(DataError, match=named):
        read(written(text), **csv)


def test_a_header_among_few_bad_lines_is_recognised_in_the_log(
    written: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    path = written(f"clicked,user,price\n{ROWS}")
    with caplog.at_level(logging.WARNING):
        assert read(path, ratio=0.5, header=False).size == 2
    assert "the first line looks like names" in caplog.text


def test_a_row_that_is_right_gets_no_advice(written: Callable[..., Path]) -> None:
    with pytest.raises(DataError) as error:
        read(written("clicked,user,price\n1,ann,2.5\n2,ann;bob;eve,3\n"))
    assert "delimiter" not in str(error.value)
    assert "header" not in str(error.value)


def test_columns_name_those_of_a_file_without_a_header(written: Callable[..., Path]) -> None:
    path = written("x,2.5,ann,1\ny,3.5,bob,0\n")
    loaded = read(path, columns=["other", "price", "user", "clicked"])
    assert prices(loaded) == [2.5, 3.5]
    assert loaded.instances.unique_keys == 2


def test_lines_in_front_are_skipped_and_the_others_keep_their_numbers(
    written: Callable[..., Path],
) -> None:
    text = "# made by x\n\nclicked,user,price\n1,ann,2.5\n0,bob,zero\n"
    path = written(text)
    loaded = read(path, ratio=0.5, skip=2)
    assert prices(loaded) == [2.5]
    with pytest.raises(DataError, match=rf"{path}:5: slot 'price': 'zero'"):
        read(path, skip=2)
    bare = written(text.partition("price\n")[2].replace("zero", "3.5"), "b.csv")
    assert prices(read(bare, skip=1, header=False)) == [3.5]
    for lines in (4, 9):
        with pytest.raises(DataError, match="found no first line"):
            read(written("a\nb\nc\nd\n", "c.csv"), skip=lines)
    assert read(written("a\nb\n", "d.csv"), skip=9, header=False).size == 0


@pytest.mark.parametrize("chunk_bytes", [1, 7, 100])
@pytest.mark.parametrize("skip", [0, 1, 2, 3, 4, 7])
def test_skipped_lines_keep_line_ends_for_any_chunk_size(
    written: Callable[..., Path], chunk_bytes: int, skip: int
) -> None:
    lines = ["one", "", "three is long", "four", "five"]
    path = written("\n".join(lines))
    left = b"".join(c.data for c in read_chunks(str(path), chunk_bytes, head=Head(skip)))
    assert left.decode().splitlines() == [
        "" if number < skip else line for number, line in enumerate(lines)
    ]


def test_texts_that_mean_nothing_are_empty_cells(written: Callable[..., Path]) -> None:
    path = written("clicked,user,price\n1,NULL,nan\n0,bob,NULL\n1,NULLA,3\n")
    loaded = read(path, null=["NULL", "nan"])
    assert prices(loaded) == [7, 7, 3]
    assert loaded.instances.unique_keys == 2  # bob and NULLA
    with pytest.raises(DataError, match="'nan' is not a finite number"):
        read(path)


def test_served_fields_are_read_with_the_same_nulls() -> None:
    from paddlebox.config import load_config

    config = load_config("configs/deepfm_synthetic.yaml", ["data.format=csv"])
    parser = FieldParser(feed_of(config, slots_of(null=["NULL"])))
    assert parser.parse([{"user": "NULL", "price": "NULL"}]).occurrences == 0
    assert parser.parse([{"user": "ann", "price": 1}]).occurrences == 1
    hint = "'price': .* found 'nan': leave the field out, or send None, for the slot's default"
    with pytest.raises(DataError, match=hint):
        parser.parse([{"price": float("nan")}])


@pytest.mark.parametrize(
    ("weight", "other"), [({"column": "price"}, {}), ({"column": "c"}, {"column": "w"})]
)
def test_served_fields_leave_out_the_weight_but_no_column_that_another_slot_reads(
    weight: dict[str, str], other: dict[str, str]
) -> None:
    slots = make_slots(click="label", w={"type": "weight", **weight}, price=other)
    parser = FieldParser(feed_of(make_config(data={"format": "csv"}), slots))
    ignored, read = ("c", "w") if other else ("w", "price")
    assert parser.parse([{ignored: 1, read: 5}]).occurrences == 1


def test_errors_of_served_fields_show_what_was_sent() -> None:
    slots = make_slots(click="label", price="dense", city={"type": "sparse", "hash": True})
    parser = FieldParser(feed_of(make_config(data={"format": "csv"}), slots))
    with pytest.raises(DataError, match=r"slot 'price': .*, found '1, 2': send a number"):
        parser.parse([{"price": [1, 2]}])
    for text in ("\ud800", "\udcb1"):  # JSON may have the first; the second stands for a byte
        with pytest.raises(DataError, match=r"instance 1: expected text, found .*surrogate"):
            parser.parse([{"price": 1, "city": "é"}, {"price": 1, "city": text}])


@pytest.mark.parametrize("one", [18.0, np.float32(18), [1, 18.0]])
def test_a_float_in_a_hashed_slot_is_refused_for_its_text_may_be_another(
    one: float | list[float],
) -> None:
    from paddlebox.config import load_config

    config = load_config("configs/deepfm_synthetic.yaml", ["data.format=csv"])
    parser = FieldParser(feed_of(config, slots_of()))
    with pytest.raises(DataError, match=r"instance 0: field 'user': .*send 18, or '18\.0' if"):
        parser.parse([{"user": one}])
    for fits in ("18.0", 18, 18.5, np.int64(18)):
        assert parser.parse([{"user": fits}]).occurrences == 1
    with pytest.raises(DataError, match=r"field 'user': .*leave the field out, or send None"):
        parser.parse([{"user": float("nan")}])


def test_the_parsed_cache_knows_how_a_file_is_written(
    written: Callable[..., Path], tmp_path: Path
) -> None:
    cache = ParsedCache(tmp_path / "cache", 1 << 20)
    path = written("1,ann,2.5\n0,bob,NULL\n1,eve,3\n")
    assert prices(read(path, cache, header=False, null=["NULL"])) == [2.5, 7, 3]
    assert prices(read(path, cache, header=False, null=["NULL"], skip=1)) == [7, 3]
    assert prices(read(path, cache, header=False, null=["NULL", "3"])) == [2.5, 7, 7]
    columns = ["clicked", "price", "user"]
    with pytest.raises(DataError, match="slot 'price': 'ann'"):
        read(path, cache, null=["NULL"], columns=columns)
    assert prices(read(path, cache, header=False, null=["NULL"])) == [2.5, 7, 3]
    assert cache.hits == 1


@pytest.mark.parametrize(
    ("csv", "named"),
    [
        ({"columns": ["a"], "header": True}, "columns names the columns of files without a header"),
        ({"columns": ["a", "b", "a"]}, "expected each name once, found a twice"),
        ({None: [None]}, "YAML reads an unquoted NULL as nothing: quote it"),
        ({"skip": -1}, "expected at least 0"),
    ],
)
def test_options_that_do_not_go_together_are_refused(csv: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        slots_of(**{"null" if key is None else key: value for key, value in csv.items()})


def test_the_key_null_is_read_from_yaml(tmp_path: Path) -> None:
    from paddlebox.config import load_slots

    path = tmp_path / "slots.yaml"
    path.write_text(
        'csv: {columns: [a, y], skip: 1, null: ["NULL", "nan"]}\n'
        "slots: [{name: y, type: label}, {name: a, type: sparse}]\n"
    )
    csv = load_slots(path).csv
    assert csv == Csv(columns=("a", "y"), header=False, skip=1, null=("NULL", "nan"))
    assert Csv.model_validate(csv.model_dump()) == csv


def test_a_slot_whose_column_is_not_among_columns_is_named() -> None:
    with pytest.raises(ConfigError, match=r"slot 'clicked': no column .* did you mean 'click'"):
        slots_of(columns=["click", "user", "price"]).check_format(Format.CSV)


@pytest.mark.parametrize("separator", ["|", "/"])
def test_the_text_of_a_cell_is_served_as_it_is_trained(
    written: Callable[..., Path], separator: str
) -> None:
    import csv

    from paddlebox.config import load_config

    slots = Slots.model_validate(
        {
            "slots": [
                {"name": "clicked", "type": "label"},
                {"name": "tags", "type": "sparse", "hash": True},
                {"name": "items", "type": "sparse"},
                {"name": "point", "type": "dense", "dim": 2},
                {"name": "price", "type": "dense", "default": 0},
            ],
            "csv": {"list_separator": separator, "null": ["n/a"]},
        }
    )
    lines = [
        "clicked,tags,items,point,price",
        "1,home|music,5|6|0,1|2,2.5",
        '0,"a ""b""|c,d||",7,3|4,',
    ]
    text = "\n".join(lines).replace("|", separator) + "\n0,n/a,,5" + separator + "6,n/a\n"
    path = written(text)
    options = load_options(Format.CSV, slots, batch_size=8)
    trained = load([str(path)], options, 1 << 20).instances
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    lists: list[dict[str, Any]] = [
        {"tags": ["home", "music"], "items": [5, 6], "point": [1, 2], "price": 2.5},
        {"tags": ['a "b"', "c,d", "", ""], "items": 7, "point": [3, 4]},
        {"point": [5, 6]},
    ]

    def served(
        data_format: str, instances: Sequence[dict[str, Any]]
    ) -> tuple[list[int], list[int]]:
        config = load_config("configs/deepfm_synthetic.yaml", [f"data.format={data_format}"])
        parsed = FieldParser(feed_of(config, slots)).parse(instances)
        lengths, feasigns = parsed.sample(9)
        return lengths.tolist(), feasigns.tolist()

    expected = served("csv", lists)
    assert expected[0] == [2, 2, 2, 1, 0, 0]
    assert served("csv", rows) == expected
    feasigns, offsets = trained.pack_feasigns(0, trained.size)
    assert (np.diff(offsets).tolist(), feasigns.tolist()) == expected
    whole = [{"tags": separator.join("ab"), "point": [1, 2]}]
    assert served("parquet", whole)[0] == [1, 0]  # the text is a value
    assert served("csv", [{**whole[0], "tags": [separator.join("ab")]}])[0] == [1, 0]
