"""`paddlebox slots try` shows what the slots of the first rows are."""

from __future__ import annotations

from pathlib import Path

import pytest

from paddlebox.tools.slots import slots_main
from tests.support.configs import write_config, write_slots


def try_slots(folder: Path, rows: list[str]) -> int:
    write_slots(
        folder,
        click="label",
        ctr={"type": "dense", "default": 0, "expr": "clicks / shows"},
        city={"type": "sparse", "hash": True, "expr": "lower(city)"},
        item="sparse",
    )
    file = folder / "a.csv"
    file.write_text("\n".join(["click,clicks,shows,city,item", *rows]) + "\n")
    data = {"train_files": [str(file)], "key_space": "shared"}
    return slots_main(["try", str(file), "-c", str(write_config(folder, data=data))])


def test_the_first_ten_rows_are_shown_after_all_transforms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ["1,1,4,Bonn,7", "0,0,0,,8", "0,1,1,bonn,9", *["0,1,1,x,9"] * 20]
    assert try_slots(tmp_path, rows) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[:3] == ["row 1", "  click: 1.0", "  ctr: 0.25"]
    assert shown[4:9] == ["  item: 7", "row 2", "  click: 0.0", "  ctr: 0.0", "  city: none"]
    assert shown[3] == shown[13] != shown[18]  # bonn
    assert shown[-5] == "row 10"


def test_a_malformed_row_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert try_slots(tmp_path, ["1,1,4,Bonn,7", "x,1,1,a,1"]) == 3
    assert "slot 'click': 'x' is not a label" in capsys.readouterr().err
