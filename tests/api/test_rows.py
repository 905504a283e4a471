"""Rows to predict are read as the same rows in a file of the run's data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from paddlebox._native import core
from paddlebox.api.rows import written
from paddlebox.config import Config, Slots
from paddlebox.config.slots import Csv
from paddlebox.data.columnar import read_pieces
from paddlebox.data.reader import read_chunks
from paddlebox.data.sources import FilePart
from paddlebox.errors import DataError
from paddlebox.training.opening import load_options
from tests.support.configs import make_config, make_slots

SLOTS = make_slots(
    click="label", age={"type": "dense", "default": -1}, user={"hash": True}, item={}
)


def contents(config: Config, slots: Slots, path: str) -> tuple[list[int], list[int], list[float]]:
    """Feasigns, the ends of their lists, and floats of all rows of a file."""
    options = load_options(config, slots, test=True)
    schema = options.schema()
    if config.data.format.is_columnar:
        chunks = [one.parse(schema) for one in read_pieces(path, config.data.format, schema)]
    else:
        lines = options.head(schema).taken_from(read_chunks(path), FilePart(path))
        chunks = [chunk.parse(schema) for chunk in lines]
    assert sum(chunk.bad_lines for chunk in chunks) == 0, chunks[0].first_bad
    instances = core.Instances(schema.sparse_slots, schema.dense_width)
    for chunk in chunks:
        instances.append(chunk)
    instances.index(core.ThreadPool(1))
    feasigns, offsets = instances.pack_feasigns(0, instances.size)
    rows = np.full(instances.unique_keys, -1, np.int32)
    dense = instances.pack_batch(0, instances.size, rows, 0, schema.dense_width)["dense"]
    return feasigns.tolist(), offsets.tolist(), dense.ravel().tolist()


def of_rows(data: Any, config: Config, slots: Slots) -> tuple[list[int], list[int], list[float]]:
    with written(data, "data", config, slots, labelled=False) as rows:
        assert rows.count == len(data)
        return contents(rows.config, rows.slots, rows.path)


def of_file(text: str, config: Config, slots: Slots, folder: Path) -> Any:
    (folder / "file").write_text(text)
    return contents(config, slots, str(folder / "file"))


CSV = make_config()
# A list, missing cells, a text that means nothing, quotes, and ids that are hashed as texts.
LINES = '''user;item;age;click
a|b;7|8;1.5;1
"""hi"" she says";9;;0
n|a;;0.25;1
7;3;2;0
'''


def test_a_data_frame_that_pandas_read_from_a_csv_file_is_that_file(tmp_path: Path) -> None:
    slots = SLOTS.having({"csv": Csv(delimiter=";", null=("n|a",))})
    expected = of_file(LINES, CSV, slots, tmp_path)
    assert expected[1] == [0, 2, 4, 5, 6, 6, 6, 7, 8]
    for options in ({}, {"keep_default_na": False, "dtype": str}):
        frame = pd.read_csv(tmp_path / "file", sep=";", **options)
        assert of_rows(frame, CSV, slots) == expected
        assert of_rows(frame.drop(columns="click"), CSV, slots) == expected


def test_lists_and_numbers_are_the_texts_of_a_csv_file(tmp_path: Path) -> None:
    text = "click,age,user,item\n0,1,a|b,7|8\n0,0.5,,9\n"
    rows = [
        {"user": ["a", None, "b"], "item": [7, 8], "age": 1.0},
        {"item": [9], "age": 0.5, "user": None, "click": "unknown"},
    ]
    assert of_rows(rows, CSV, SLOTS) == of_file(text, CSV, SLOTS, tmp_path)
    missing = pd.DataFrame({"user": ["a", "b"], "item": [7, None], "age": [1, 2]})
    assert missing["item"].dtype == float  # pandas has no other number that may be missing
    text = "click,age,user,item\n0,1,a,7\n0,2,b,\n"
    assert of_rows(missing, CSV, SLOTS) == of_file(text, CSV, SLOTS, tmp_path)


@pytest.mark.parametrize(
    ("user", "found"),
    [
        ([7.0], r"column 'user' \(dtype float64\): expected .* integers or strings, found double"),
        ([True], r"column 'user' \(dtype bool\): expected .* found bool"),
        ([pd.Timestamp("2024-02-29")], r"column 'user' \(dtype datetime64"),
        (["a\nb"], r"column 'user' \(dtype str\): expected texts of one line"),
        (["a\x1fb"], "expected texts of one line"),
    ],
)
def test_values_whose_text_in_a_csv_file_is_not_known_are_refused(
    user: list[Any], found: str
) -> None:
    frame = pd.DataFrame({"user": user, "item": [1], "age": [1]})
    with pytest.raises(DataError, match=found), written(frame, "data", CSV, SLOTS, labelled=False):
        pass


def test_rows_of_a_multislot_run_have_the_ids_of_its_lines(tmp_path: Path) -> None:
    slots = make_slots(
        click="label",
        age="dense",
        user={"hash": True},
        words={"weighted": True, "pooling": "mean"},
        late={"type": "late", "of": "click"},
    )
    config = make_config(data={"format": "multislot"})
    words = [["7:0.5"], ["8", "9"]]
    frame = pd.DataFrame({"age": [1.5, 2], "user": [["a", "b"], ["c"]], "words": words})
    text = "1 0 1 1.5 2 a b 1 7:0.5 1 0\n1 0 1 2 1 c 2 8 9 1 0\n"
    assert of_rows(frame, config, slots)[0] == of_file(text, config, slots, tmp_path)[0]


def test_rows_of_a_criteo_run_are_those_of_its_lines(tmp_path: Path) -> None:
    slots = make_slots(label="label", I1="dense", I2={}, C1={}, token={"column": "C3"}, I3="dense")
    config = make_config(data={"format": "criteo_tsv"})
    cells = [["0"] + [""] * 39 for _ in range(3)]
    values: dict[str, list[Any]] = {
        "I1": [7, None, -1],
        "I2": [3, 4, None],
        "I3": [0, 1, 2],
        "C1": ["68fd1e64", None, "12"],
        "C3": [None, "a", "b"],
    }
    for name, column in values.items():
        place = int(name[1:]) + (13 if name[0] == "C" else 0)
        for row, value in enumerate(column):
            cells[row][place] = "" if value is None else str(value)
    text = "".join("\t".join(row) + "\n" for row in cells)
    frame = pd.DataFrame(values)
    assert of_rows(frame, config, slots) == of_file(text, config, slots, tmp_path)
    numbers = frame.assign(C1=[12, 13, 14])
    with pytest.raises(DataError, match=r"'C1' \(dtype int64\): .* as strings, found int64"):
        of_rows(numbers, config, slots)


def test_a_label_that_a_feature_reads_too_is_not_lost(tmp_path: Path) -> None:
    slots = make_slots(click="label", before={"column": "click"}, user={"hash": True})
    config = make_config(data={"format": "parquet", "key_space": "shared"})
    frame = pd.DataFrame({"click": [1, 2], "user": ["a", "b"]})
    feasigns, _, _ = of_rows(frame, config, slots)
    assert feasigns[0::2] == [1, 2]


def test_an_error_about_a_line_names_the_row() -> None:
    frame = pd.DataFrame({"user": ["a", "b"], "item": [1, 2], "age": [1, 2]})
    with (
        pytest.raises(DataError, match=r"^row 1: bad; in data$"),
        written(frame, "data", CSV, SLOTS, labelled=False) as rows,
    ):
        raise DataError(f"{rows.path}:2: bad; in {rows.path}")
