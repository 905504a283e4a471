"""The tables of `lookup` in slots.yaml, written there or in files."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from paddlebox.config import load_slots
from paddlebox.config.lookup_tables import MOST_BYTES
from paddlebox.errors import ConfigError


def slots_file(folder: Path, table: object) -> Path:
    path = folder / "slots.yaml"
    slot = {"name": "region", "type": "sparse", "hash": True, "expr": "lookup('t', city)"}
    slots = [{"name": "click", "type": "label"}, slot]
    path.write_text(yaml.safe_dump({"slots": slots, "lookups": {"t": table}}))
    return path


def test_a_table_is_a_mapping_or_a_file_beside_slots_yaml(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes('\ufeffBonn,EU\r\n"a, ""b""",x\nnone,\n'.encode())
    read = load_slots(slots_file(tmp_path, "t.csv"))
    assert read.lookups == {"t": {"Bonn": "EU", 'a, "b"': "x", "none": ""}}
    assert load_slots(slots_file(tmp_path, dict(read.lookups["t"]))) == read
    assert read.fields()[1]["tables"] == read.lookups
    assert read.fields()[0]["tables"] == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,1\na,2\n", r"lookups\.t: .*t\.csv: line 2: the key 'a' occurs twice"),
        ("a,1\nb\n", r"line 2: expected a key and its value, found \['b'\]"),
        ("a,1\n,2\n", "line 2: expected a key and its value"),
        ('a,"1\n', "line 1: unexpected end of data"),
        (None, r"t\.csv cannot be read"),
    ],
)
def test_a_bad_file_is_an_error_with_its_line(
    tmp_path: Path, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "t.csv").write_text(content)
    with pytest.raises(ConfigError, match=message):
        load_slots(slots_file(tmp_path, "t.csv"))


def test_large_tables_are_refused(tmp_path: Path) -> None:
    rows = "".join(f"{n},{'x' * (MOST_BYTES // 16 - 2)}\n" for n in range(10, 26))
    (tmp_path / "t.csv").write_text(rows)
    load_slots(slots_file(tmp_path, "t.csv"))
    (tmp_path / "t.csv").write_text(f"{rows}a,\n")
    with pytest.raises(ConfigError, match="expected at most 1048576 bytes"):
        load_slots(slots_file(tmp_path, "t.csv"))
