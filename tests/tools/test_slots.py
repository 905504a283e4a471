"""`paddlebox slots try` shows what the slots of the first rows are."""

from __future__ import annotations

import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
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


def test_a_malformed_row_is_an_error_that_names_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert try_slots(tmp_path, ["1,1,4,Bonn,7", "x,1,1,a,1"]) == 3
    assert "a.csv: line 3: slot 'click': 'x' is not a label" in capsys.readouterr().err
    assert try_slots(tmp_path, [*["1,1,4,Bonn,7"] * 9, "x,1,1,a,1"]) == 3
    assert "a.csv: line 11: slot 'click'" in capsys.readouterr().err
    assert try_slots(tmp_path, [*["1,1,4,Bonn,7"] * 10, "x,1,1,a,1"]) == 0


def test_rows_are_counted_over_all_parts_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_slots(tmp_path, click="label", ctr={"type": "dense", "expr": "zscore(clicks)"})
    file = tmp_path / "a.parquet"
    data = {"format": "parquet", "train_files": [str(file)]}
    arguments = ["try", str(file), "-c", str(write_config(tmp_path, data=data))]
    for clicks, code in ([1.0, 3.0, 1.0, 3.0, 2.0, 2.0], 0), ([1.0, 2.0, 3.0, 4.0, math.nan], 3):
        table = pa.table({"click": [0] * len(clicks), "clicks": clicks})
        pq.write_table(table, file, row_group_size=2)
        assert slots_main(arguments) == code
    shown = capsys.readouterr()
    values = [float(line[7:]) for line in shown.out.splitlines() if line.startswith("  ctr: ")]
    assert values == pytest.approx([-1.2247449, 1.2247449] * 2 + [0, 0])
    assert "a.parquet: row 5: column 'clicks' of an expr: nan is not" in shown.err
