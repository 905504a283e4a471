"""What a config asks for is counted from the sizes of its files and a sample of the first."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paddlebox.config import Config, Slots, load_slots
from paddlebox.errors import ConfigError, DataError
from paddlebox.tools.advise.workload import describe, take_sample
from tests.support.configs import make_config, write_slots


@pytest.fixture
def slots(tmp_path: Path) -> Slots:
    return load_slots(write_slots(tmp_path, click="label", user="sparse", item="sparse"))


def config(folder: Path, data_format: str, **data: object) -> Config:
    return make_config(
        data={
            "format": data_format,
            "slots": str(folder / "slots.yaml"),
            "train_files": [f"{folder}/train-*"],
            "files_per_pass": 1,
            "batch_size": 100,
            "key_space": "per_slot",
            **data,
        },
        trainer={"epochs": 2},
        security={"allow_commands": True},
    )


def test_text_is_sampled_from_its_first_lines_and_the_rest_estimated_by_size(
    tmp_path: Path, slots: Slots
) -> None:
    # 30,000 lines of 12 bytes, and half as many; users are all different, items 10.
    for number, lines in enumerate((30_000, 15_000)):
        text = "".join(f"1,{100_000 + i},{10 + i % 10}\n" for i in range(lines))
        (tmp_path / f"train-{number}").write_text("click,user,item\n" + text)
    one = config(tmp_path, "csv")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    sample = take_sample(one, slots, scratch)
    assert sample.loaded.size == 20_000 - 1  # and the header
    work = describe(one, sample)
    assert work.passes == pytest.approx((30_000, 15_000) * 2, rel=1e-3)
    assert work.passes_an_epoch == 2
    assert work.line_ids == 2
    assert work.unique(20_000) == pytest.approx(20_010, rel=1e-3)
    assert work.unique(40_000) == pytest.approx(40_010, rel=1e-2)


def test_columns_are_sampled_as_the_first_file(tmp_path: Path, slots: Slots) -> None:
    for number, rows in enumerate((8_000, 8_000)):
        columns = {"click": [1.0] * rows, "user": [1 + i % 100 for i in range(rows)]}
        table = pa.table({**columns, "item": [1 + i % 10 for i in range(rows)]})
        pq.write_table(table, tmp_path / f"train-{number}")
    one = config(tmp_path, "parquet")
    work = describe(one, take_sample(one, slots, tmp_path))
    assert work.passes == (8_000,) * 4
    assert work.unique(8_000) == pytest.approx(110)
    assert work.unique(80_000) == pytest.approx(110)  # they do not grow


def test_what_cannot_be_sampled_is_refused(tmp_path: Path, slots: Slots) -> None:
    (tmp_path / "train-0").write_text("click,user,item\n")
    with pytest.raises(DataError, match="no instances to measure with"):
        take_sample(config(tmp_path, "csv"), slots, tmp_path)
    with pytest.raises(ConfigError, match="advise reads files without"):
        take_sample(config(tmp_path, "csv", pipe_command="cat"), slots, tmp_path)
