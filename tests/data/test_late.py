"""Further counts and marks of late lines in a batch, for models and for programs of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.config import Format, Slots
from paddlebox.data.batches import LATE, MASK, METRIC_COLUMN, WEIGHT, BatchInputs, Feed
from paddlebox.data.loader import load
from paddlebox.data.packer import BatchPacker
from paddlebox.errors import ConfigError, DataError
from tests.support.configs import make_config, make_slots
from tests.support.options import load_options

SLOTS = make_slots(
    click="label",
    cart="count",
    age="dense",
    late={"type": "late", "of": "buy"},
    buy="label",
    w="weight",
    user={},
)
# The second line repeats an instance, whose 2 carts were counted before.
LINES = "click,cart,age,late,buy,w,user\n1,0,20,0,0,1,7\n1,2,30,3,1,1,8\n0,5,40,0,0,3,9\n"
COUNTS = ("buy", "cart")


def packed(folder: Path, inputs: BatchInputs, text: str = LINES, slots: Slots = SLOTS) -> Feed:
    path = folder / "data.csv"
    path.write_text(text)
    of = load([str(path)], load_options(Format.CSV, slots, 8), 1 << 30)
    rows = np.arange(of.instances.unique_keys, dtype=np.int32)
    return BatchPacker(of, rows, [1], inputs).pack(0, of.size)


def test_a_late_line_counts_its_late_label_and_nothing_else(tmp_path: Path) -> None:
    feed = packed(tmp_path, BatchInputs(counts=COUNTS, trained=True))
    assert feed["box_show_click"].tolist() == [[1, 1, 0, 0], [0, 0, 1, 0], [3, 0, 0, 15]]
    assert feed[LATE].tolist() == [[0], [1], [0]]
    assert (feed["box_ids"] >= 0).all()


def test_a_first_label_that_comes_late_counts_its_clicks(tmp_path: Path) -> None:
    slots = make_slots(buy="label", late={"type": "late", "of": "buy"}, cart="label", user={})
    inputs = BatchInputs(counts=("cart", "buy"), trained=True)
    feed = packed(tmp_path, inputs, "buy,late,cart,user\n0,0,1,7\n1,1,1,7\n", slots)
    assert feed["box_show_click"].tolist() == [[1, 0, 1, 0], [0, 1, 0, 1]]


def test_counts_and_marks_are_no_features(tmp_path: Path) -> None:
    feed = packed(tmp_path, BatchInputs(counts=COUNTS))
    assert feed["box_dense"].tolist() == [[20], [30], [40]]
    assert feed["box_label"].tolist() == [[1, 0], [1, 1], [0, 0]]
    assert feed[WEIGHT].tolist() == [[1], [1], [3]]
    assert not [name for name in feed if "cart" in name]


def test_a_program_and_metrics_may_read_them_by_the_names_of_their_slots(tmp_path: Path) -> None:
    def var(name: str) -> Any:
        return type("Var", (), {"name": name, "shape": (-1, 1), "dtype": "float32"})()

    inputs = BatchInputs(use_var=[var("cart"), var("late")], metric_columns=[MASK, "cart", "late"])
    feed = packed(tmp_path, inputs)
    assert feed["cart"].tolist() == [[0], [2], [5]]
    assert feed["late"].tolist() == [[0], [1], [0]]
    assert feed[METRIC_COLUMN + "cart"].tolist() == [0, 2, 5]
    assert feed[METRIC_COLUMN + "late"].tolist() == [0, 1, 0]
    assert feed[METRIC_COLUMN + MASK].tolist() == [1, 0, 1]  # metrics leave the late line out


@pytest.mark.parametrize("value", ["-1", "nan", "inf"])
def test_a_count_below_0_or_not_finite_makes_the_line_malformed(tmp_path: Path, value: str) -> None:
    with pytest.raises(DataError, match="slot 'cart'"):
        packed(tmp_path, BatchInputs(), LINES.replace("1,0,20", f"1,{value},20"))


def test_serving_reads_neither() -> None:
    assert [slot.name for slot in SLOTS.of_serving().slots] == ["click", "age", "user"]


@pytest.mark.parametrize(
    ("slots", "expected"),
    [
        ({"v": "late", "w": "late"}, "at most one slot of type late, found v, w"),
        ({"v": "late"}, "slot 'v': of: expected a label, found ''; there are: click"),
        ({"v": {"type": "late", "of": "clik"}}, "found 'clik'; did you mean 'click'"),
        ({"v": {"type": "count", "of": "click"}}, "'v' has of, which is for late slots"),
        ({"w": {"type": "count", "dim": 2}}, "'w' has dim, which is for dense slots"),
        ({"w": {"type": "count", "default": 1}}, "'w' has a default, but its value is never"),
    ],
)
def test_slots_that_contradict_each_other_are_refused(slots: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        make_slots(click="label", item="sparse", **slots)


@pytest.mark.parametrize("name", ["age", "user", "carts"])
def test_a_count_is_a_label_or_a_slot_of_type_count(name: str) -> None:
    SLOTS.check_counts(["click", "buy", "cart"])
    with pytest.raises(ConfigError, match=f"no label and no slot of type count '{name}'"):
        SLOTS.check_counts(["buy", name])


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"table": {"counts": ["buy", "buy"]}}, "expected each name once, found buy twice"),
        (
            {
                "model": {"type": "dnn"},
                "table": {"counts": ["buy"]},
                "extra_tables": {"wide": {"counts": []}},
            },
            r"extra_tables.wide.counts is \[\], table.counts is \['buy'\]",
        ),
        ({"table": {"counts": ["buy"]}, "hbm": {"place": "gpu"}}, "with hbm.place gpu"),
        ({"table": {"counts": ["buy"]}, "ranks": {"rows": "float16"}}, "ranks.rows float16"),
        (
            {"model": {"type": "mmoe", "delayed_task": "buy"}, "hbm": {"place": "gpu"}},
            "delayed_task buy does not work together with hbm.place gpu",
        ),
        (
            {"model": {"type": "mmoe", "delayed_task": "buy"}, "ranks": {"gradients": "float16"}},
            "delayed_task buy does not work together with ranks.gradients float16",
        ),
    ],
)
def test_configs_that_contradict_each_other_are_refused(sections: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        make_config(**sections)
