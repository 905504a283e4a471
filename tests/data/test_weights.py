"""Weights of instances: every format reads them, and a batch counts shows and clicks by them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from paddlebox.config import Format
from paddlebox.data.batches import METRIC_COLUMN, WEIGHT, BatchInputs, Feed
from paddlebox.data.loader import LoadedPass, load
from paddlebox.data.packer import BatchPacker
from paddlebox.errors import DataError
from tests.support.configs import make_slots
from tests.support.options import load_options

SLOTS = make_slots(
    click="label", age="dense", w="weight", buy="label", size={"type": "dense", "dim": 2}, user={}
)
CLICK, AGE, W, BUY, USER = [1, 0, 1], [20, 30, 40], [0.5, 0, 3], [0, 1, 1], [7, 8, 9]
SIZE = [[1, 2], [3, 4], [5, 6]]
TEXT = [Format.MULTISLOT, Format.FEASIGN_SLOT, Format.SLOT_VALUE, Format.CSV]
FORMATS = [*TEXT, Format.PARQUET, Format.ARROW]  # all but criteo_tsv, which has no weights


def write(folder: Path, data_format: Format, weights: Sequence[float | None]) -> str:
    """None: no weight."""
    path = folder / f"data.{data_format.value}"
    rows = list(zip(CLICK, AGE, weights, BUY, SIZE, USER, strict=True))
    if data_format is Format.MULTISLOT:
        lines = [
            f"1 {c} 1 {a} {'0' if w is None else f'1 {w}'} 1 {b} 2 {s} {t} 1 {u}"
            for c, a, w, b, (s, t), u in rows
        ]
    elif data_format is Format.FEASIGN_SLOT:
        lines = [
            f"{c}:click {a}:age{'' if w is None else f' {w}:w'} {b}:buy {s}:size {t}:size {u}:user"
            for c, a, w, b, (s, t), u in rows
        ]
    elif data_format is Format.SLOT_VALUE:
        lines = [
            f"user:{u}{'' if w is None else f' w:{w}'} click:{c} age:{a} buy:{b} size:{s} size:{t}"
            for c, a, w, b, (s, t), u in rows
        ]
    elif data_format is Format.CSV:
        lines = [
            f"{c},{a},{'' if w is None else w},{b},{s}|{t},{u}" for c, a, w, b, (s, t), u in rows
        ]
        lines.insert(0, "click,age,w,buy,size,user")
    else:
        columns = {"click": CLICK, "age": AGE, "w": weights, "buy": BUY, "size": SIZE, "user": USER}
        writer = pq.write_table if data_format is Format.PARQUET else feather.write_feather
        writer(pa.table(columns), path)
        return str(path)
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def loaded(path: str, data_format: Format, bad: float = 0.0) -> LoadedPass:
    return load([path], load_options(data_format, SLOTS, 8, max_bad_line_ratio=bad), 1 << 30)


def packed(of: LoadedPass, inputs: BatchInputs | None = None) -> Feed:
    rows = np.arange(of.instances.unique_keys, dtype=np.int32)
    return BatchPacker(of, rows, [1], inputs or BatchInputs()).pack(0, of.size)


@pytest.mark.parametrize("data_format", FORMATS)
def test_each_format_has_weights_apart_from_labels_and_dense_values(
    tmp_path: Path, data_format: Format
) -> None:
    feed = packed(loaded(write(tmp_path, data_format, W), data_format))
    assert feed[WEIGHT].tolist() == [[0.5], [0], [3]]
    assert feed["box_dense"].tolist() == [[20, 1, 2], [30, 3, 4], [40, 5, 6]]
    assert feed["box_label"].tolist() == [[1, 0], [0, 1], [1, 1]]
    assert feed["box_show_click"].tolist() == [[0.5, 0.5], [0, 0], [3, 3]]


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf"), -3e38, None])
def test_a_weight_that_is_missing_below_0_or_not_finite_makes_the_line_malformed(
    tmp_path: Path, data_format: Format, weight: float | None
) -> None:
    path = write(tmp_path, data_format, [0.5, weight, 3])
    assert packed(loaded(path, data_format, 0.5))[WEIGHT].tolist() == [[0.5], [3]]
    with pytest.raises(DataError, match="slot 'w'"):
        loaded(path, data_format)


def test_an_instance_of_weight_0_has_ids_only_where_rows_are_not_trained(tmp_path: Path) -> None:
    of = loaded(write(tmp_path, Format.CSV, W), Format.CSV)
    feed = packed(of)
    ids = feed["box_ids"].tolist()
    assert sorted(ids) == [0, 1, 2]
    trained = packed(of, BatchInputs(trained=True))
    assert trained["box_ids"].tolist() == [ids[0], -1, ids[2]]
    assert trained["box_plan"][1:3].tolist() == [2, 2]
    assert trained["box_offsets"].tolist() == feed["box_offsets"].tolist()


def test_an_instance_of_weight_0_that_others_of_a_page_view_read_keeps_its_ids(
    tmp_path: Path,
) -> None:
    of = loaded(write(tmp_path, Format.CSV, W), Format.CSV)
    rows = np.arange(of.instances.unique_keys, dtype=np.int32)
    packer = BatchPacker(of, rows, [1], BatchInputs(trained=True, rank_offset="ranks"))
    assert sorted(packer._packed(0, of.size)["box_ids"].tolist()) == [0, 1, 2]


def test_a_program_and_metrics_may_read_the_weight_by_the_name_of_its_slot(tmp_path: Path) -> None:
    class Var:
        name, shape, dtype, lod_level = "w", (-1, 1), "float32", 0

    of = loaded(write(tmp_path, Format.CSV, W), Format.CSV)
    feed = packed(of, BatchInputs(use_var=[Var], metric_columns=[WEIGHT, "w"], exchanged=True))
    assert feed["w"].tolist() == [[0.5], [0], [3]]
    assert feed[METRIC_COLUMN + "w"].tolist() == feed[METRIC_COLUMN + WEIGHT].tolist() == W
    assert feed["ranks:" + WEIGHT].tolist() == [[0.5], [0], [3]]
