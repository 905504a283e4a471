"""PaddleBox's page views by user: `set_merge_by_uid` and its relatives, with numbers worked out by
hand."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paddlebox.compat.dump import TrainingDump
from paddlebox.data import loader
from paddlebox.errors import ConfigError, PassError
from tests.support.fixtures import WriteLines
from tests.upstream.conftest import OpenUpstream

# User 7 has items 1 to 6 at times 10 to 60, but item 2 comes after item 4 in the file. User 5 has
# items 8 and 9.
EVENTS = [(7, 1, 10), (7, 4, 40), (5, 8, 11), (7, 2, 20), (7, 3, 30), (5, 9, 12), (7, 5, 50),
          (7, 6, 60)]  # fmt: skip


def var(name: str, dtype: str = "int64") -> SimpleNamespace:
    return SimpleNamespace(name=name, shape=(-1, 1), dtype=dtype, lod_level=0)


VARIABLES = [var("words"), var("offset", "int32"), var("mask"), var("cur"), var("show")]


@pytest.fixture
def file(write_lines: WriteLines) -> str:
    lines = [f"1 {time} 1 {item % 2} 2 0 0 1 {user} 1 {item}" for user, item, time in EVENTS]
    return write_lines("a.txt", lines)


def opened(open_upstream: OpenUpstream, kind: str = "InMemoryDataset", **init: Any) -> Any:
    dataset = open_upstream(kind, use_var=VARIABLES, batch_size=100, **init)
    dataset.set_ads_offset("offset")
    dataset.set_ads_train_mask("mask")
    dataset.set_ads_cur_timestamp("cur")
    dataset.set_ads_show_timestamp("show")
    dataset.set_enable_pv_merge(True)
    dataset.set_pv_batch_size(100)
    return dataset


def load(dataset: Any, file: str) -> None:
    dataset.set_filelist([file])
    dataset.load_into_memory()
    dataset.begin_pass()
    dataset.set_current_phase(1)


def views_of(batch: dict[str, np.ndarray]) -> list[list[int]]:
    """The items of each page view; those that are context are negative."""
    items = np.where(batch["mask"] == 1, 1, -1) * batch["words"]
    ends = batch["offset"][:, 0].tolist()
    return [items[a:b, 0].tolist() for a, b in itertools.pairwise(ends)]


def joined(dataset: Any) -> list[list[list[int]]]:
    return [views_of(batch) for batch in dataset.batches()]


@pytest.mark.parametrize(
    ("method", "size", "train_size", "expected"),
    [
        (0, 0, 0, [[1, 2, 3, 4, 5, 6], [8, 9]]),
        (0, 3, 2, [[1, 2, 3, 4, 5, 6], [8, 9]]),
        (1, 4, 0, [[1, 2], [3, 4, 5, 6], [8, 9]]),
        (2, 4, 2, [[1, 2], [-1, -2, 3, 4], [-3, -4, 5, 6], [8, 9]]),
        (2, 5, 0, [[1, 2, 3, 4], [-2, -3, -4, 5, 6], [8, 9]]),  # a train size of 5 // 2
        (2, 4, 4, [[1, 2], [3, 4, 5, 6], [8, 9]]),
        (2, 6, 3, [[1, 2, 3, 4, 5, 6], [8, 9]]),
        (1, 0, 0, [[1, 2, 3, 4, 5, 6], [8, 9]]),
        (2, 0, 3, [[1, 2, 3, 4, 5, 6], [8, 9]]),
    ],
)
def test_page_views_are_users_in_the_order_of_time(
    open_upstream: OpenUpstream,
    file: str,
    method: int,
    size: int,
    train_size: int,
    expected: list[list[int]],
) -> None:
    dataset = opened(open_upstream)
    dataset._shuffles_views = False
    dataset.set_merge_by_uid(True, method, size, train_size, user="user")
    load(dataset, file)
    dataset.preprocess_instance()
    assert dataset.get_pv_data_size() == len(expected)
    assert joined(dataset) == [expected]
    dataset.end_pass()


def test_variables_have_the_types_of_paddlebox(open_upstream: OpenUpstream, file: str) -> None:
    dataset = opened(open_upstream)
    dataset._shuffles_views = False
    dataset.set_merge_by_uid(True, 1, 4, user="user")
    dataset.set_pv_batch_size(2)
    load(dataset, file)
    dataset.preprocess_instance()
    first, second = dataset.batches()
    assert (first["offset"].tolist(), first["offset"].dtype) == ([[0], [2], [6]], np.int32)
    assert (first["mask"].shape, first["mask"].dtype) == ((6, 1), np.int64)
    assert first["show"].tolist() == first["cur"].tolist()
    assert (first["show"][:, 0].tolist(), first["show"].dtype) == (
        [10, 20, 30, 40, 50, 60],
        np.int64,
    )
    assert second["offset"].tolist() == [[0], [2]]
    dataset.end_pass()


def test_update_has_each_instance_once_and_times_if_they_are_wanted(
    open_upstream: OpenUpstream, file: str
) -> None:
    dataset = open_upstream("PadBoxSlotDataset", use_var=[var("words"), var("show")], batch_size=3)
    dataset.set_ads_show_timestamp("show")
    dataset.set_enable_pv_merge(True)
    dataset.set_need_time_info(True)
    dataset.set_merge_by_uid(True, 2, 4, 2, user="user")
    load(dataset, file)
    assert sum(len(batch["words"]) for batch in dataset.batches()) == 8 + 4
    dataset.set_current_phase(0)
    batches = list(dataset.batches())
    assert [len(batch["words"]) for batch in batches] == [3, 3, 2]
    of_item = {item: time for _, item, time in EVENTS}
    found = {
        int(item): int(time)
        for batch in batches
        for item, time in zip(batch["words"][:, 0], batch["show"][:, 0], strict=True)
    }
    assert found == of_item
    dataset.end_pass()


def test_times_work_without_users(open_upstream: OpenUpstream, file: str) -> None:
    dataset = open_upstream("InMemoryDataset", use_var=[var("words"), var("show")], batch_size=8)
    dataset.set_ads_show_timestamp("show")
    dataset.set_need_time_info(True)
    load(dataset, file)
    (batch,) = dataset.batches()
    assert batch["show"][:, 0].tolist() == [time for _, _, time in EVENTS]
    dataset.end_pass()


def test_the_mask_exists_in_join_only(open_upstream: OpenUpstream, file: str) -> None:
    dataset = opened(open_upstream)
    dataset.set_merge_by_uid(True, 0, user="user")
    load(dataset, file)
    dataset.preprocess_instance()
    list(dataset.batches())
    dataset.set_current_phase(0)
    dataset.postprocess_instance()
    with pytest.raises(PassError, match=r"variable 'offset' takes box_seq_offsets, which only"):
        list(dataset.batches())
    dataset.abandon_pass()


def test_an_invalid_user_has_a_page_view_per_instance(
    open_upstream: OpenUpstream, file: str
) -> None:
    dataset = opened(open_upstream)
    dataset._shuffles_views = False
    dataset._set_uid_slot("user")
    dataset.set_merge_by_uid(True, 0)
    dataset.set_invalid_users({"", "5"})
    load(dataset, file)
    dataset.preprocess_instance()
    assert joined(dataset) == [[[1, 2, 3, 4, 5, 6], [8], [9]]]
    dataset.end_pass()


def test_ranges_of_times_choose_what_trains_and_what_is_tested(
    open_upstream: OpenUpstream, file: str
) -> None:
    dataset = opened(open_upstream)
    dataset._shuffles_views = False
    dataset.set_merge_by_uid(True, 0, user="user")
    dataset.set_train_timestamp_range((30, 60))
    dataset.set_test_timestamp_range((60, 61))
    load(dataset, file)
    dataset.preprocess_instance()
    assert joined(dataset) == [[[-1, -2, 3, 4, 5]]]
    dataset.end_pass()
    dataset.set_test_mode(True)
    load(dataset, file)
    dataset.preprocess_instance()
    assert joined(dataset) == [[[-1, -2, -3, -4, -5, 6]]]
    dataset.end_pass()


def shuffled(open_upstream: OpenUpstream, file: str, seed: int, sort: bool) -> list[list[int]]:
    dataset = opened(open_upstream, "PadBoxSlotDataset")
    dataset.options.load = replace(dataset.options.load, seed=seed)
    dataset.set_merge_by_uid(True, 1, 2, user="user")
    dataset.set_shuffle_and_sort(sort)
    load(dataset, file)
    (found,) = joined(dataset)
    dataset.end_pass()
    dataset._table.close()
    return found


def test_page_views_are_shuffled_apart_and_sorted_if_that_is_wanted(
    open_upstream: OpenUpstream, file: str
) -> None:
    pieces = [[1, 2], [3, 4], [5, 6]]
    apart, orders = set(), set()
    for seed in range(6):
        plain = shuffled(open_upstream, file, seed, False)
        assert sorted(plain) == [*pieces, [8, 9]]
        orders.add(str([piece for piece in plain if piece != [8, 9]]))
        found = shuffled(open_upstream, file, seed, True)
        assert [piece for piece in found if piece != [8, 9]] == pieces
        apart.add(found.index([8, 9]))
    assert len(orders) > 1
    assert apart & {1, 2}  # the user's page views are not side by side


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((3, 4, 2), "expected split method 0, 1 or 2, found 3"),
        ((2, 4, 5), r"expected a train size in \[1, 4\], found 5"),
        ((2, 1, 0), r"expected a train size in \[1, 1\], found 0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    open_upstream: OpenUpstream, arguments: tuple[int, int, int], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        opened(open_upstream).set_merge_by_uid(True, *arguments, user="user")


def test_what_is_missing_is_named(open_upstream: OpenUpstream, file: str) -> None:
    dataset = opened(open_upstream)
    dataset.set_merge_by_uid(True, 0)
    with pytest.raises(ConfigError, match="expected the slot of the user, found none"):
        load(dataset, file)
    dataset.set_merge_by_uid(True, 0, user="nobody")
    with pytest.raises(ConfigError, match="user: nobody: not a sparse slot"):
        load(dataset, file)
    for call in (dataset.set_train_timestamp_range, dataset.set_test_timestamp_range):
        with pytest.raises(ConfigError, match=r"expected 0 <= begin < end, found \(2, 1\)"):
            call((2, 1))
    dataset.set_merge_by_uid(False)
    dataset.set_sample_rate(0.5)
    dataset.set_merge_by_uid(True, 0, user="user")
    with pytest.raises(ConfigError, match="sampled or merged"):
        load(dataset, file)


def test_variables_that_use_var_does_not_list_are_fed(
    open_upstream: OpenUpstream, file: str
) -> None:
    dataset = open_upstream("InMemoryDataset", use_var=[var("words")], batch_size=100)
    dataset._shuffles_views = False
    dataset.set_ads_offset("offset")
    dataset.set_ads_train_mask("mask")
    dataset.set_ads_cur_timestamp("cur")
    dataset.set_enable_pv_merge(True)
    dataset.set_merge_by_uid(True, 2, 4, 2, user="user")
    load(dataset, file)
    dataset.preprocess_instance()
    (batch,) = dataset.batches()
    assert views_of(batch) == [[1, 2], [-1, -2, 3, 4], [-3, -4, 5, 6], [8, 9]]
    assert [batch[name].dtype for name in ("offset", "mask", "cur")] == [
        np.int32,
        np.int64,
        np.int64,
    ]
    assert batch["cur"][:2].tolist() == [[10], [20]]
    dataset.set_current_phase(0)
    dataset.postprocess_instance()
    (batch,) = dataset.batches()
    assert batch.keys() == {"words", "cur"}
    dataset.end_pass()


def test_an_idle_batch_has_one_page_view(open_upstream: OpenUpstream, file: str) -> None:
    dataset = opened(open_upstream)
    dataset.set_merge_by_uid(True, 0, user="user")
    load(dataset, file)
    dataset.preprocess_instance()
    current = dataset._stager.current
    packer = dataset._feeder._packer(current, current.open, ())
    idle = packer.idle_batch()
    assert (idle["offset"].tolist(), idle["offset"].dtype) == ([[0], [1]], np.int32)
    assert (idle["mask"].tolist(), idle["words"].tolist()) == ([[0]], [[0]])
    list(dataset.batches())
    dataset.end_pass()


PAGES = {2: [(1, 1), (2, 2)], 1: [(5, 1), (3, 2), (4, 3)]}  # search id -> (item, rank)


@pytest.fixture
def pages(write_lines: WriteLines) -> str:
    """Lines with log keys and times; item i has time 10 i."""
    lines = [
        f"1 {'k' * 11}0de{rank:02x}{page:016x} 1 {10 * item} 1 0 2 0 0 1 7 1 {item}"
        for page, items in PAGES.items()
        for item, rank in items
    ]
    return write_lines("pages.txt", lines)


@pytest.mark.parametrize("to_disk", [False, True], ids=["memory", "disk"])
def test_times_alone_leave_page_views_of_searches_as_they_are(
    open_upstream: OpenUpstream, pages: str, tmp_path: Path, to_disk: bool
) -> None:
    dataset = open_upstream("InMemoryDataset", use_var=[var("words"), var("show")], batch_size=3)
    dataset._shuffles_views = False
    dataset.set_parse_logkey(True)
    dataset.set_enable_pv_merge(True)
    dataset.set_merge_by_sid(True)
    dataset.set_rank_offset("rank_offset")
    dataset.set_pv_batch_size(1)
    dataset.set_ads_show_timestamp("show")
    dataset.set_need_time_info(True)
    dataset.set_filelist([pages])
    if to_disk:
        dataset.load_into_disk(str(tmp_path))
    else:
        dataset.load_into_memory()
    dataset.begin_pass()
    dataset.set_current_phase(1)
    dataset.preprocess_instance()
    assert dataset.get_pv_data_size() == 2
    first, second = dataset.batches()
    assert [batch["words"][:, 0].tolist() for batch in (first, second)] == [[5, 3, 4], [1, 2]]
    assert [batch["show"][:, 0].tolist() for batch in (first, second)] == [[50, 30, 40], [10, 20]]
    assert first["rank_offset"][:, 0].tolist() == [1, 2, 3]
    dataset.set_current_phase(0)
    dataset.postprocess_instance()
    for batch in dataset.batches():
        assert batch["show"].tolist() == (10 * batch["words"]).tolist()
    dataset.end_pass()


def test_times_alone_leave_slots_shuffle_as_it_is(open_upstream: OpenUpstream, file: str) -> None:
    dataset = open_upstream("InMemoryDataset", use_var=[var("words"), var("show")], batch_size=8)
    dataset.set_ads_show_timestamp("show")
    dataset.set_need_time_info(True)
    dataset.set_fea_eval(8, True)
    dataset.set_filelist([file])
    dataset.load_into_memory()
    dataset.slots_shuffle(["user"])
    dataset.begin_pass()
    (batch,) = dataset.batches()
    assert batch["show"][:, 0].tolist() == [time for _, _, time in EVENTS]
    dataset.end_pass()


def test_sampled_instances_have_no_times(open_upstream: OpenUpstream, file: str) -> None:
    dataset = open_upstream("InMemoryDataset", use_var=[var("words")], batch_size=8)
    dataset.set_sample_rate(0.5)
    dataset.set_need_time_info(True)
    with pytest.raises(ConfigError, match=r"set_need_time_info\): instances that are sampled"):
        load(dataset, file)


def test_the_size_in_memory_is_the_number_of_instances(
    open_upstream: OpenUpstream, file: str
) -> None:
    dataset = opened(open_upstream)
    dataset.set_merge_by_uid(True, 2, 4, 2, user="user")
    load(dataset, file)
    dataset.preprocess_instance()
    assert dataset.get_memory_data_size() == len(EVENTS)
    assert dataset._stager.current.loaded.size > len(EVENTS)
    list(dataset.batches())
    dataset.end_pass()


def test_page_views_are_placed_once(
    open_upstream: OpenUpstream, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed: list[int] = []
    place = loader.place

    def counted(instances: Any, order: np.ndarray, *ends: Any) -> None:
        placed.append(len(order))
        place(instances, order, *ends)

    monkeypatch.setattr(loader, "place", counted)
    dataset = opened(open_upstream)
    dataset.set_pv_batch_size(2)
    dataset.set_merge_by_uid(True, 1, 4, user="user")
    load(dataset, file)
    dataset.preprocess_instance()
    assert [len(views) for views in joined(dataset)] == [2, 1]
    assert placed == [len(EVENTS)]
    dataset.end_pass()


@pytest.mark.parametrize("ins_ids", [False, True])
def test_a_dump_has_a_line_for_each_trained_instance(
    open_upstream: OpenUpstream, write_lines: WriteLines, tmp_path: Path, ins_ids: bool
) -> None:
    lines = [f"1 {time} 1 {item % 2} 2 0 0 1 {user} 1 {item}" for user, item, time in EVENTS]
    if ins_ids:
        lines = [f"1 id{at} {line}" for at, line in enumerate(lines)]
    dataset = opened(open_upstream)
    dataset._shuffles_views = False
    dataset.set_parse_ins_id(ins_ids)
    dataset.set_pv_batch_size(2)
    dataset.set_merge_by_uid(True, 2, 4, 2, user="user")
    load(dataset, write_lines("b.txt", lines))
    dataset.preprocess_instance()
    samples = 0
    with TrainingDump(tmp_path / "dump", dataset, {"words": None}) as dump:
        for number, batch in enumerate(dataset.batches(), 1):
            samples += int(batch["mask"].sum())
            dump.take([batch["words"]])
            dump.write(number, samples)
    (path,) = (tmp_path / "dump").iterdir()
    items = [item for _, item, _ in EVENTS]
    head = "id" if ins_ids else ""
    assert path.read_text().splitlines() == [
        f"{head}{items.index(item)}\twords:1:{item}" for item in (1, 2, 3, 4, 5, 6, 8, 9)
    ]
    dataset.end_pass()


def test_drop_last_and_sequences_contradict_each_other(
    open_upstream: OpenUpstream, file: str
) -> None:
    dataset = opened(open_upstream, drop_last=True)
    dataset.set_merge_by_uid(True, 0, user="user")
    with pytest.raises(ConfigError, match="drop_last with sequences of users"):
        load(dataset, file)
