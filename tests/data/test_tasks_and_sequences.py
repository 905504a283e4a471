"""Several labels, and slots whose ids are fed one by one, through the feeder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.compat.upstream import UpstreamDataset
from paddlebox.config import Slots
from paddlebox.config.fields import fields_of
from paddlebox.data.positions import Positions, task_columns
from paddlebox.errors import ConfigError, DataError
from tests.support.configs import make_slots

SLOTS = make_slots(
    age="dense",
    click="label",
    user="sparse",
    buy="label",
    size={"type": "dense", "dim": 2},
    history={"max_length": 3},
    item="sparse",
)
# age, click, user, buy, size, history, item
LINES = [
    "1 30 1 1 1 7 1 0 2 5 6 2 11 12 1 12",
    "1 40 1 0 2 7 8 1 1 2 7 8 4 13 12 11 10 1 11",
    "1 50 1 1 1 9 1 1 2 9 10 1 0 1 13",
]


def batches(dataset: UpstreamDataset, path: Path, lines: list[str]) -> list[dict[str, Any]]:
    path.write_text("\n".join(lines) + "\n")
    dataset.set_filelist([str(path)])
    dataset.load_into_memory()
    dataset.begin_pass()
    return list(dataset.batches())


@pytest.fixture
def feeding(open_table: Any) -> Any:
    table, opened = open_table(), []

    def make(slots: Slots = SLOTS, **init: Any) -> UpstreamDataset:
        dataset = UpstreamDataset(table)
        opened.append(dataset)
        dataset.init(slots=slots, batch_size=2, thread_num=1, **init)
        return dataset

    yield make
    for dataset in opened:
        dataset.close()


def test_labels_are_columns_in_the_order_of_the_slots_and_dense_holds_features_alone(
    feeding: Callable[..., UpstreamDataset], tmp_path: Path
) -> None:
    first, second = batches(feeding(), tmp_path / "a", LINES)
    np.testing.assert_array_equal(first["box_label"], [[1, 0], [0, 1]])
    np.testing.assert_array_equal(first["box_dense"], [[30, 5, 6], [40, 7, 8]])
    np.testing.assert_array_equal(first["box_show_click"], [[1, 1], [1, 0]])  # of the first task
    np.testing.assert_array_equal(second["box_label"], [[1, 1]])
    assert SLOTS.tasks == ("click", "buy")
    assert task_columns(SLOTS) == ([1], [0, 2, 3])


def test_a_label_of_a_second_task_outside_0_and_1_is_an_error_that_names_it(
    feeding: Callable[..., UpstreamDataset], tmp_path: Path
) -> None:
    wrong = LINES[1].replace("1 1 2 7 8", "1 3 2 7 8")
    with pytest.raises(DataError, match=r"'buy' of instance 1 of the pass is 3"):
        batches(feeding(), tmp_path / "a", [LINES[0], wrong])


def test_each_id_of_a_sequence_has_its_own_place_in_order_and_lengths_follow_the_features(
    feeding: Callable[..., UpstreamDataset], tmp_path: Path
) -> None:
    plain = feeding()
    pooled = batches(plain, tmp_path / "a", LINES)[0]
    plain.end_pass()
    parted = batches(feeding(sequences=["history"]), tmp_path / "b", LINES)[0]
    np.testing.assert_array_equal(pooled["box_offsets"], [0, 1, 3, 4, 6, 9, 10])
    # user, three places of history, item
    np.testing.assert_array_equal(parted["box_offsets"], [0, 1, 2, 3, 3, 4, 6, 7, 8, 9, 10])
    np.testing.assert_array_equal(parted["box_dense"], [[30, 5, 6, 2], [40, 7, 8, 3]])
    ids = parted["box_ids"]
    np.testing.assert_array_equal(ids, pooled["box_ids"])
    assert ids[2] == ids[3] == ids[7]  # 12 in both histories and as an item: one row
    assert ids[6] != ids[7]
    assert list(parted["box_plan"][1:3]) == list(pooled["box_plan"][1:3])


def test_parting_by_hand() -> None:
    # The drawing of data/positions.py.
    slots = make_slots(y="label", history={"max_length": 3})
    offsets, lengths = Positions(slots, ["history"]).part(np.array([0, 2, 3, 3], np.int32))
    assert offsets.tolist() == [0, 1, 2, 2, 3, 3, 3, 3, 3, 3]
    assert lengths.tolist() == [[2], [1], [0]]


def test_rows_learn_the_same_from_places_as_from_their_sum(open_table: Any, tmp_path: Path) -> None:
    """With a gradient that is the same for all places of a slot."""
    digests = []
    for sequences in ([], ["history"]):
        table = open_table()
        dataset = UpstreamDataset(table)
        dataset.init(slots=SLOTS, batch_size=3, thread_num=1, sequences=sequences)
        (feed,) = batches(dataset, tmp_path / "a", LINES)
        cells = (len(feed["box_offsets"]) - 1) // 3
        of_slot = np.array([[1] * 5, [2] * 5, [3] * 5], np.float32)
        grad = np.repeat(of_slot, [1, 3 if sequences else 1, 1], axis=0)
        table.first.native.push_pooled(
            feed["box_ids"],
            feed["box_offsets"],
            cells,
            False,
            feed["box_show_click"],
            feed["box_plan"],
            np.ascontiguousarray(np.broadcast_to(grad[None], (3, cells, 5)), np.float32),
        )
        dataset.end_pass()
        dataset.close()
        digests.append(table.digest())
        table.close()
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"sequences": ["histry"]}, "did you mean 'history'"),
        ({"sequences": ["user"]}, "give slot 'user' a max_length"),
    ],
)
def test_sequences_that_cannot_be_are_refused(
    feeding: Callable[..., UpstreamDataset], arguments: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        feeding(**arguments)


def test_fields_say_where_a_model_finds_each_slot() -> None:
    fields = fields_of(SLOTS, ["history"])
    assert fields.cells == {"user": (0, 1), "history": (1, 4), "item": (4, 5)}
    assert fields.dense == {"age": (0, 1), "size": (1, 3)}
    assert fields.sequences == {"history": 3}
    with pytest.raises(ConfigError, match=r"model.item: no slot 'itm'; did you mean 'item'"):
        fields.check(["itm"], "model.item")
