"""What a run learns from the first rows of a file: one read counts rows, scales, and finds zeros.

Ids of 0 are padding: a new run names the columns that hold them.
"""

from __future__ import annotations

import csv
import gzip
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from paddlebox.config import Config, Slots
from paddlebox.data import first_look
from paddlebox.data.first_look import FirstLook
from paddlebox.training.opening import warn_of_zeros
from tests.support.configs import make_config, make_slots, slots_fields


def slots(**more: Any) -> Slots:
    listed = slots_fields(
        click="label", plan="sparse", tags={"column": "words"}, site={"hash": True}
    )
    return Slots.model_validate({"slots": listed, **more})


def config(form: str, **more: Any) -> Config:
    return make_config(data={"format": form, **more}, security={"allow_commands": True})


ROWS = "1,0,3|0|0,0\n0,5,10|20,0\n0,0,,7\n"


def test_zeros_of_slots_that_are_not_hashed_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(("click,plan,words,site\n" + ROWS).encode()))
    assert FirstLook(config("csv"), slots()).zeros(str(path), 10) == (3, {"plan": 2, "tags": 2})


def test_files_without_a_header_are_read_by_the_names_of_slots_yaml(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a comment\n" + ROWS.replace(",", ";"))
    named = {"columns": ["click", "plan", "words", "site"], "delimiter": ";", "skip": 1}
    _, found = FirstLook(config("csv"), slots(csv=named)).zeros(str(path), 10)
    assert found == {"plan": 2, "tags": 2}


def test_a_stray_quote_ends_with_its_line(tmp_path: Path) -> None:
    """csv.reader would take what follows for one cell, and refuse it after 128 KiB."""
    path = tmp_path / "a.csv"
    lines = ['1,"0,3|0,0', "", "1,0,0,a\x1eb\r"] + ["0,0,5,x"] * 50_000
    path.write_text("click,plan,words,site\n" + "\n".join(lines) + "\n")
    assert path.stat().st_size > csv.field_size_limit()
    rows, found = FirstLook(config("csv"), slots()).zeros(str(path), 10)
    assert (rows, found) == (50_002, {"plan": 50_001, "tags": 1})


def test_columns_of_integers_are_looked_at(tmp_path: Path) -> None:
    table = pa.table(
        {"click": [1, 0], "plan": [0, None], "words": [[0, 3, 0], []], "site": ["0", "1"]}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    found = FirstLook(config("parquet"), slots()).zeros(str(tmp_path / "a.parquet"), 10)
    assert found == (2, {"plan": 1, "tags": 2})


@pytest.mark.parametrize("more", [{"format": "multislot"}, {"pipe_command": "cat"}])
def test_where_zeros_are_padding_by_convention_nothing_is_read(more: dict[str, str]) -> None:
    own = config(more.pop("format", "csv"), **more)
    assert FirstLook(own, slots()).zeros("not there", 10) == (0, {})


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_the_rows_of_a_file_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    path = str(tmp_path / "a")
    table = pa.table({"click": [1, 0], "plan": [0, 3], "price": [1.0, 3.0]})
    (pq.write_table if form == "parquet" else pa.csv.write_csv)(table, path)
    own = make_slots(click="label", plan="sparse", price="dense")
    name, opened = "read_pieces" if form == "parquet" else "read_chunks", list[str]()
    read = getattr(first_look, name)

    def counted(of: str, *arguments: Any, **options: Any) -> Any:
        opened.append(of)
        return read(of, *arguments, **options)

    monkeypatch.setattr(first_look, name, counted)
    look = first_look.FirstLook(config(form), own)
    assert look.rows([path], 100) == 2
    for _ in range(2):
        assert look.numbers([path], 100).scales == ((2.0, 1.0),)
        assert look.ids([path], 100) == 0.5  # 0 is padding
        assert look.zeros(path, 100) == (2, {"plan": 1})
    assert opened == [path]
    look.forget()
    assert look.zeros(path, 100) == (2, {"plan": 1})
    assert opened == [path] * 2


def test_the_warning_names_the_slot_and_what_keeps_its_zeros(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("click,plan,words,site\n1,0,1,x\n0,0,2,y\n")
    with caplog.at_level(logging.WARNING, "paddlebox"):
        warn_of_zeros(config("csv"), FirstLook(config("csv"), slots()), str(path))
    (message,) = caplog.messages
    assert "hold the id 0 in the first 2 rows (slot: times): plan: 2;" in message
    assert "hash: true" in message
    caplog.clear()
    path.write_text("click,plan,words,site\n1,10,1,x\n")
    warn_of_zeros(config("csv"), FirstLook(config("csv"), slots()), str(path))
    assert not caplog.messages
