"""data.dedup_slots with histories that grow by one event: each event is held once, each id of a
batch is pulled once, and nothing else changes."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from paddlebox.compat.upstream import UpstreamDataset
from paddlebox.data.batches import Feed
from tests.support.configs import make_slots
from tests.support.fixtures import OpenDataset, WriteLines

SPARSE: dict[str, Any] = {"user": {}, "interests": {}, "history": {"max_length": 6}, "item": {}}
SLOTS = make_slots(click="label", **SPARSE)
PER_USER = 12
EVENTS = 9  # what a file holds of a history, of which the slot takes 6
CELLS = 9  # of user, interests, six events and item
SHARED: list[Any] = ["auto", ["history"], ["interests"], ["interests", "history"]]


def lines(
    *, grows: bool = True, latest_first: bool = True, users: int = 40, weighted: bool = False
) -> list[str]:
    """Users in turn. A history gets the item of an instance that was clicked or, unless it `grows`,
    is drawn for each instance. `weighted`: 0 or 2 after the click."""
    random = np.random.default_rng(7)
    made = []
    for user in range(users):
        interests = random.integers(9000, 9050, 3)
        seen: list[int] = []
        for _ in range(PER_USER):
            item, click = int(random.integers(1000, 4000)), int(random.integers(2))
            held = seen if grows else random.integers(1000, 4000, len(seen)).tolist()
            history = held[:EVENTS] if latest_first else held[::-1][-6:]
            weights = [[2 * int(random.integers(2))]] if weighted else []
            texts = [[click], *weights, [user + 1], interests, history, [item]]
            # MultiSlot has no empty slots: an instance without a history has the event 999.
            made.append(" ".join(f"{len(t)} {' '.join(map(str, t))}" for t in map(_or_none, texts)))
            if click:
                seen = [item, *seen]
    return made


def _or_none(values: Any) -> list[int]:
    return [int(value) for value in values] or [999]


def train(dataset: UpstreamDataset, path: str, shuffled: bool) -> tuple[str, str, str, int]:
    """Trains two passes with a loss of all cells, and evaluates a third. Returns what was pulled,
    the lengths of the histories, the digest, and the number of rows that were read."""
    paddle = pytest.importorskip("paddle")
    from paddlebox.nn.pooled_slots import PooledSlots

    paddle.disable_static()
    dataset.set_filelist([path])
    layer = PooledSlots(CELLS, 4)
    pulled, lengths = [], []
    for number in range(3):
        training = number < 2
        dataset.set_test_mode(not training)
        dataset.load_into_memory(is_shuffle=shuffled)
        dataset.begin_pass()
        for batch in dataset.batches():
            names = ("box_ids", "box_offsets", "box_show_click", "box_plan")
            out = layer(*(paddle.to_tensor(batch[name]) for name in names))
            pulled.append(out.numpy())
            lengths.append(batch["box_dense"])
            if training:
                weights = paddle.arange(1, CELLS + 1, dtype="float32").reshape([1, CELLS, 1])
                (out.square() * 0.1 + out * weights).mean().backward()
        dataset.end_pass()
    table = dataset._table
    table.wait_commit()
    read = table.first.native.counters()["rows_pulled"]
    digests = [
        hashlib.sha256(np.concatenate(made).tobytes()).hexdigest() for made in (pulled, lengths)
    ]
    return digests[0], digests[1], table.digest(), read


@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "shuffled"])
@pytest.mark.parametrize("first", [True, False], ids=["latest first", "latest last"])
def test_training_and_evaluation_are_the_same_bits_and_read_fewer_rows(
    open_dataset: OpenDataset, write_lines: WriteLines, first: bool, shuffled: bool
) -> None:
    path = write_lines("users", lines(latest_first=first))
    outcomes, reads = [], []
    for dedup in ["off", *SHARED]:
        options: dict[str, Any] = {"dedup_slots": dedup, "batch_size": 60}
        dataset = open_dataset(slots=SLOTS, sequences=["history"], **options)
        *same, read = train(dataset, path, shuffled)
        outcomes.append(same)
        reads.append(read)
        assert (dataset.stats.dedup.get("rows", 0) > 0) == (dedup != "off")
        dataset._table.close()
    assert all(same == outcomes[0] for same in outcomes)
    # In order, a batch has 5 users; their histories of up to 6 events have about 6 clicks.
    assert max(reads[1:]) < (1 if shuffled else 0.75) * reads[0]


@pytest.mark.parametrize("dedup", SHARED, ids=str)
@pytest.mark.parametrize("grows", [True, False], ids=["grows", "does not"])
def test_an_id_of_histories_occurs_once_in_a_batch(
    open_dataset: OpenDataset, write_lines: WriteLines, dedup: Any, grows: bool
) -> None:
    path = write_lines("users", lines(grows=grows, users=10))
    feeds = []
    for value in ("off", dedup):
        dataset = open_dataset(slots=SLOTS, sequences=["history"], dedup_slots=value, batch_size=60)
        dataset.set_filelist([path])
        dataset.load_into_memory()
        dataset.begin_pass()
        feeds.append(list(dataset.batches()))
        held = dataset.stats.dedup
        dataset.end_pass()
        dataset._table.close()
    for plain, shared in zip(*feeds, strict=True):
        cells = CELLS * 60
        bounds, list_of = np.split(shared["box_offsets"], [len(shared["box_offsets"]) - cells])
        by_cell = list_of.reshape(60, CELLS)
        lists = sorted(set(by_cell[:, 2:8].flat))
        ids = [tuple(shared["box_ids"][bounds[k] : bounds[k + 1]]) for k in lists]
        assert (len(ids) == len(set(ids))) == (dedup != ["interests"])
        assert len(set(by_cell[:, 1])) == (60 if dedup == ["history"] else 60 // PER_USER)
        assert expanded(shared, cells) == expanded(plain, cells)
        for name in ("box_plan", "box_dense", "box_label", "box_show_click"):
            assert np.array_equal(plain[name], shared[name])
    # Histories that are drawn for each instance have nothing in common with the one before, except
    # that some have no event.
    if dedup == ["history"]:
        assert (held["ids"] > 4 * 10 * PER_USER / 2) == grows


def expanded(batch: Feed, cells: int) -> tuple[list[int], list[int]]:
    """The ids of a batch and its offsets, with a list for each cell."""
    bounds, list_of = np.split(batch["box_offsets"], [len(batch["box_offsets"]) - cells])
    if len(bounds) == 1:  # no list is shared
        return batch["box_ids"].tolist(), batch["box_offsets"].tolist()
    ids = [batch["box_ids"][bounds[k] : bounds[k + 1]] for k in list_of]
    return np.concatenate(ids).tolist(), [0, *np.cumsum([len(one) for one in ids]).tolist()]


@pytest.mark.parametrize("dedup", SHARED, ids=str)
def test_instances_of_weight_0_train_no_rows(
    open_dataset: OpenDataset, write_lines: WriteLines, dedup: Any
) -> None:
    weighted = make_slots(click="label", w="weight", **SPARSE)
    path = write_lines("weighted", lines(users=10, weighted=True))
    feeds = []
    for value in ("off", dedup):
        init: dict[str, Any] = {"dedup_slots": value, "batch_size": 60}
        dataset = open_dataset(slots=weighted, sequences=["history"], **init)
        dataset.set_filelist([path])
        dataset.load_into_memory()
        dataset.begin_pass()
        feeds.append(list(dataset.batches()))
        dataset.end_pass()
        dataset._table.close()
    for plain, shared in zip(*feeds, strict=True):
        assert len(shared["box_ids"]) < len(plain["box_ids"])
        assert np.array_equal(plain["box_plan"], shared["box_plan"])
        assert expanded(shared, 60 * CELLS) == expanded(plain, 60 * CELLS)


@pytest.mark.parametrize("dedup", ["off", ["history"]], ids=str)
def test_an_idle_batch_has_the_cells_of_one_instance(
    open_dataset: OpenDataset, write_lines: WriteLines, dedup: Any
) -> None:
    dataset = open_dataset(slots=SLOTS, sequences=["history"], dedup_slots=dedup)
    dataset.set_filelist([write_lines("users", lines(users=1))])
    dataset.load_into_memory()
    dataset.begin_pass()
    batches = dataset.batches()
    next(batches)
    current: Any = dataset._stager.current
    idle = dataset._feeder._packer(current, current.open, ()).idle_batch()
    assert len(idle["box_offsets"]) == CELLS + 1
    assert idle["box_ids"].tolist() == [-1]
    list(batches)
    dataset.end_pass()


def test_what_a_growing_history_holds_is_counted(
    open_dataset: OpenDataset, write_lines: WriteLines
) -> None:
    path = write_lines("one", [f"1 0 1 1 1 5 3 {k + 2} {k + 1} {k} 1 9" for k in range(10, 30)])
    dataset = open_dataset(slots=SLOTS, sequences=["history"], dedup_slots=["history"])
    dataset.set_filelist([path])
    dataset.load_into_memory()
    dataset.begin_pass()
    list(dataset.batches())
    dataset.end_pass()
    # 20 histories of 3: the first is held, of the others one event. The index has 4 bytes for each.
    # They have 60 events, of which 22 differ. A row has 7 floats.
    assert dataset.stats.dedup == {
        "lists": 19,
        "ids": 2 * 19,
        "bytes": 4 * 2 * 19 - 4 * 20,
        "rows": 60 - 22,
        "row_bytes": 4 * 7 * (60 - 22),
    }
