"""The orders of instances and page views, the phases and the epochs of PaddleBox's datasets."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paddlebox.errors import ConfigError, OutOfSpaceError, PassError
from paddlebox.store.group import Group
from tests.support.fixtures import WriteLines
from tests.support.inside import head_of, table_of
from tests.support.instances import SLOTS, multislot_lines
from tests.upstream.conftest import OpenUpstream

PAGES = 12
ADS = 3


def var(name: str, width: int = 1) -> SimpleNamespace:
    return SimpleNamespace(name=name, shape=(-1, width), dtype="int64", lod_level=0)


def page_lines(pages: int = PAGES, first: int = 1) -> list[str]:
    """Three ads a page, with the ranks 1 to 3; user 10 p + r has page p and rank r."""
    return [
        f"1 {'k' * 11}0de{rank:02x}{page:016x} 1 0 2 0 0 1 {10 * page + rank} 1 7"
        for page in range(first, first + pages)
        for rank in range(1, ADS + 1)
    ]


def users_of(pages: int) -> list[list[int]]:
    """The users of each page of `page_lines`."""
    return [[10 * page + rank for rank in range(1, ADS + 1)] for page in range(1, pages + 1)]


def users(dataset: Any) -> list[list[int]]:
    """The users of each batch."""
    return [batch["user"][:, 0].tolist() for batch in dataset.batches()]


def flat(batches: list[list[int]]) -> list[int]:
    return [user for batch in batches for user in batch]


def pages_of(batches: list[list[int]]) -> list[int]:
    """The page of each page view, in order; each of them must be whole, in the order of ranks."""
    found = flat(batches)
    views = [found[at : at + ADS] for at in range(0, len(found), ADS)]
    assert all(view == [view[0], view[0] + 1, view[0] + 2] for view in views)
    return [view[0] // 10 for view in views]


@pytest.fixture
def pages(write_lines: WriteLines) -> str:
    return write_lines("pages.txt", page_lines())


def load(dataset: Any, *files: str) -> None:
    dataset.set_filelist(list(files))
    dataset.load_into_memory()
    dataset.begin_pass()


def with_pages(open_upstream: OpenUpstream, name: str, **init: Any) -> Any:
    dataset = open_upstream(name, use_var=[var("user")], **init)
    dataset.set_parse_logkey(True)
    dataset.set_enable_pv_merge(True)
    dataset.set_pv_batch_size(5)
    return dataset


IN_ORDER = list(range(1, 41))


class TestPadBoxSlotDataset:
    @pytest.fixture
    def file(self, write_lines: WriteLines) -> str:
        return write_lines("a.txt", [f"1 0 2 0 0 1 {user} 1 7" for user in IN_ORDER])

    def test_instances_are_shuffled_by_the_seed(
        self, open_upstream: OpenUpstream, file: str
    ) -> None:
        orders = []
        for seed in (1, 1, 2):
            dataset = open_upstream("PadBoxSlotDataset", use_var=[var("user")])
            dataset.options.load = replace(dataset.options.load, seed=seed)
            load(dataset, file)
            orders.append(flat(users(dataset)))
            dataset.end_pass()
            dataset._table.close()
        assert sorted(orders[0]) == IN_ORDER
        assert orders[0] == orders[1] != IN_ORDER
        assert orders[0] != orders[2]

    def test_only_this_class_shuffles_by_itself(
        self, open_upstream: OpenUpstream, file: str
    ) -> None:
        for name in ("InMemoryDataset", "BoxPSDataset"):
            dataset = open_upstream(name, use_var=[var("user")])
            load(dataset, file)
            assert flat(users(dataset)) == IN_ORDER
            dataset.end_pass()
            dataset._table.close()

    @pytest.mark.parametrize("disable", [(True,), ()])
    def test_disable_shuffle_keeps_the_order_of_the_files(
        self, open_upstream: OpenUpstream, file: str, disable: tuple[bool, ...]
    ) -> None:
        dataset = open_upstream("PadBoxSlotDataset", use_var=[var("user")])
        dataset.disable_shuffle(*disable)
        load(dataset, file)
        assert flat(users(dataset)) == flat(users(dataset)) == IN_ORDER
        dataset.end_pass()
        dataset.disable_shuffle(False)
        load(dataset, file)
        assert flat(users(dataset)) != IN_ORDER
        dataset.end_pass()

    def test_each_epoch_has_another_order(self, open_upstream: OpenUpstream, file: str) -> None:
        dataset = open_upstream("PadBoxSlotDataset", use_var=[var("user")])
        load(dataset, file)
        orders = [tuple(flat(users(dataset))) for _ in range(4)]
        dataset.end_pass()
        assert {tuple(sorted(order)) for order in orders} == {tuple(IN_ORDER)}
        assert len(set(orders)) == 4

    def test_the_order_does_not_depend_on_the_epochs_of_earlier_passes(
        self, open_upstream: OpenUpstream, file: str
    ) -> None:
        orders = []
        for epochs in (1, 3):
            dataset = open_upstream("PadBoxSlotDataset", use_var=[var("user")])
            load(dataset, file)
            for _ in range(epochs):
                users(dataset)
            dataset.end_pass()
            load(dataset, file)
            orders.append([users(dataset), users(dataset)])
            dataset.end_pass()
            dataset._table.close()
        assert orders[0] == orders[1]

    def test_page_views_made_before_a_pass_do_not_depend_on_epochs_either(
        self, open_upstream: OpenUpstream, pages: str
    ) -> None:
        orders = []
        for epochs in (1, 2):
            dataset = with_pages(open_upstream, "BoxPSDataset")
            for reads in (epochs, 1):
                dataset.set_filelist([pages])
                dataset.load_into_memory()
                dataset.preprocess_instance()
                dataset.begin_pass()
                found = [users(dataset) for _ in range(reads)]
                dataset.end_pass()
            orders.append(found[0])
            dataset._table.close()
        assert orders[0] == orders[1]

    def test_page_views_of_join_are_shuffled_and_update_is_by_instance(
        self, open_upstream: OpenUpstream, pages: str
    ) -> None:
        dataset = with_pages(open_upstream, "PadBoxSlotDataset")
        load(dataset, pages)
        first, again = pages_of(users(dataset)), pages_of(users(dataset))
        assert sorted(first) == sorted(again) == list(range(1, PAGES + 1))
        assert first != sorted(first)
        assert first != again
        dataset.set_current_phase(0)
        update = users(dataset)
        assert [len(batch) for batch in update] == [4] * (PAGES * ADS // 4)
        assert flat(update) != sorted(flat(update))
        dataset.end_pass()
        dataset.set_current_phase(1)
        dataset.disable_shuffle()
        load(dataset, pages)
        assert pages_of(users(dataset)) == list(range(1, PAGES + 1))
        dataset.flip_phase()
        in_order = [10 * p + r for p in range(1, PAGES + 1) for r in range(1, ADS + 1)]
        assert flat(users(dataset)) == in_order
        dataset.end_pass()

    def test_both_phases_push_into_one_commit(
        self, open_upstream: OpenUpstream, pages: str, tmp_path: Path
    ) -> None:
        from tests.data.test_protocol import push_ones

        dataset = open_upstream("PadBoxSlotDataset", {"folder": tmp_path / "store"})
        dataset.init(slots=SLOTS, batch_size=4)
        dataset.set_parse_logkey(True)
        dataset.set_enable_pv_merge(True)
        load(dataset, pages)
        for phase in (1, 0):  # it makes and undoes the page views itself
            dataset.set_current_phase(phase)
            for batch in dataset.batches():
                push_ones(dataset, batch)
        dataset.end_pass()
        dataset._table.wait_commit()
        assert head_of(dataset._table).version == 1
        feasigns, rows = table_of(dataset).read_all()
        shows = dict(zip(feasigns.tolist(), rows[:, 1].tolist(), strict=True))
        assert shows == {7: PAGES * ADS, **{user: 1 for page in users_of(PAGES) for user in page}}

    def test_page_views_of_a_pass_on_disk_are_shuffled_in_the_same_way(
        self, open_upstream: OpenUpstream, pages: str
    ) -> None:
        orders = []
        for on_disk in (False, True):
            dataset = with_pages(open_upstream, "PadBoxSlotDataset")
            dataset.set_filelist([pages])
            (dataset.load_into_disk if on_disk else dataset.load_into_memory)()
            dataset.begin_pass()
            orders.append([users(dataset), users(dataset)])
            assert (dataset.stats.spilled_bytes > 0) == on_disk
            dataset.end_pass()
            dataset._table.close()
        assert orders[0] == orders[1]
        pages_of(orders[0][0])

    def test_preprocess_instance_without_page_views_does_nothing(
        self, open_upstream: OpenUpstream, file: str
    ) -> None:
        dataset = open_upstream("PadBoxSlotDataset", use_var=[var("user")])
        dataset.disable_shuffle()
        load(dataset, file)
        dataset.preprocess_instance()
        dataset.postprocess_instance()
        assert flat(users(dataset)) == IN_ORDER
        dataset.end_pass()

    def test_ranks_divide_the_list_of_files_unless_polling_is_disabled(
        self, open_upstream: OpenUpstream
    ) -> None:
        dataset = open_upstream("PadBoxSlotDataset")
        dataset._table.world = Group()
        dataset._table.world.rank, dataset._table.world.size = 1, 2
        dataset.set_filelist(["a", "b", "c", "d"])
        assert dataset._filelist == ["b", "d"]
        dataset.disable_polling(True)
        dataset.set_filelist(["a", "b", "c"])
        assert dataset._filelist == ["a", "b", "c"]


class TestMultiSlotDataset:
    def test_preprocess_and_postprocess_without_page_views_shuffle(
        self, open_upstream: OpenUpstream, pages: str
    ) -> None:
        dataset = open_upstream("BoxPSDataset", use_var=[var("user")])
        dataset.set_parse_logkey(True)
        dataset.set_filelist([pages])
        dataset.load_into_memory()
        dataset.preprocess_instance()
        dataset.begin_pass()
        first = flat(users(dataset))
        dataset.flip_phase()
        dataset.postprocess_instance()
        second = flat(users(dataset))
        dataset.end_pass()
        assert sorted(first) == sorted(second)
        assert sorted(first) != first != second

    def test_page_views_are_shuffled(self, open_upstream: OpenUpstream, pages: str) -> None:
        dataset = with_pages(open_upstream, "BoxPSDataset")
        load(dataset, pages)
        dataset.preprocess_instance()
        assert dataset.get_pv_data_size() == PAGES
        found = pages_of(users(dataset))
        dataset.end_pass()
        assert sorted(found) == list(range(1, PAGES + 1)) != found


class TestSinglePageViews:
    """set_merge_by_sid(False): each instance is a page view."""

    def test_batches_have_pv_batch_size_instances_each_alone_in_its_ranks(
        self, open_upstream: OpenUpstream, pages: str
    ) -> None:
        dataset = with_pages(open_upstream, "PadBoxSlotDataset")
        dataset.set_merge_by_sid(False)
        dataset.set_rank_offset("rank_offset")
        dataset.disable_shuffle()  # neighbours share their search id, and must not see each other
        load(dataset, pages)
        dataset.preprocess_instance()
        assert dataset.get_pv_data_size() == PAGES * ADS
        batches = list(dataset.batches())
        dataset.end_pass()
        assert [len(batch["user"]) for batch in batches] == [5] * 7 + [1]
        assert batches[0]["rank_offset"].tolist() == [
            [1, 1, 0, -1, -1, -1, -1],
            [2, -1, -1, 2, 1, -1, -1],
            [3, -1, -1, -1, -1, 3, 2],
            [1, 1, 3, -1, -1, -1, -1],
            [2, -1, -1, 2, 4, -1, -1],
        ]

    def test_they_are_shuffled(self, open_upstream: OpenUpstream, pages: str) -> None:
        dataset = with_pages(open_upstream, "BoxPSDataset")
        dataset.set_merge_by_sid(False)
        load(dataset, pages)
        dataset.preprocess_instance()
        found = flat(users(dataset))
        dataset.end_pass()
        assert sorted(found) != found

    def test_a_pass_on_disk_has_none(self, open_upstream: OpenUpstream, pages: str) -> None:
        dataset = with_pages(open_upstream, "BoxPSDataset")
        dataset.set_merge_by_sid(False)
        dataset.set_filelist([pages])
        dataset.load_into_disk()
        with pytest.raises(ConfigError, match=r"set_merge_by_sid\(False\): the pass is on disk"):
            dataset.preprocess_instance()


def test_the_rank_offset_of_update_has_no_ranks(open_upstream: OpenUpstream, pages: str) -> None:
    dataset = with_pages(open_upstream, "PadBoxSlotDataset")
    dataset.set_rank_offset("rank_offset")
    load(dataset, pages)
    join = next(iter(dataset.batches()))["rank_offset"]
    assert join.shape == (5 * ADS, 7)
    assert join[:, 0].tolist() == [1, 2, 3] * 5
    dataset.flip_phase()
    for batch in dataset.batches():
        assert batch["rank_offset"].dtype == np.int32
        assert batch["rank_offset"].tolist() == [[-1] * 7] * len(batch["user"])
    dataset.end_pass()


class TestEpochs:
    """Several loops over one load."""

    def test_ten_loops_train_and_count_once(
        self,
        open_upstream: OpenUpstream,
        write_lines: WriteLines,
        tmp_path: Any,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        from tests.data.test_protocol import push_ones

        dataset = open_upstream("InMemoryDataset", {"folder": tmp_path / "store"}, batch_size=4)
        load(dataset, write_lines("a.txt", ["1 1 2 0 0 1 7 1 8"] * 6))
        with caplog.at_level(logging.WARNING):
            for _ in range(10):
                for batch in dataset.batches():
                    push_ones(dataset, batch)
        dataset.end_pass()
        dataset._table.wait_commit()
        assert [r.getMessage() for r in caplog.records] == [
            "pass 1 trains again on the same instances: shows and clicks count the first time only "
            "(this is logged once)"
        ]
        _, rows = table_of(dataset).read_all()
        assert rows[:, 1].tolist() == [6.0, 6.0]
        assert head_of(dataset._table).version == 1

    def test_slots_that_are_named_as_counted_count_once_too(
        self, open_upstream: OpenUpstream, write_lines: WriteLines, tmp_path: Any
    ) -> None:
        from tests.data.test_protocol import push_ones

        dataset = open_upstream("InMemoryDataset", {"folder": tmp_path / "store"}, batch_size=4)
        dataset.set_counted_slots(["user"])
        load(dataset, write_lines("a.txt", ["1 1 2 0 0 1 7 1 8"] * 6))
        for _ in range(3):
            for batch in dataset.batches():
                push_ones(dataset, batch)
        dataset.end_pass()
        dataset._table.wait_commit()
        feasigns, rows = table_of(dataset).read_all()
        assert dict(zip(feasigns.tolist(), rows[:, 1].tolist(), strict=True)) == {7: 6.0, 8: 0.0}

    def test_a_pass_that_nobody_read_is_not_committed(
        self, open_upstream: OpenUpstream, write_lines: WriteLines, tmp_path: Any
    ) -> None:
        dataset = open_upstream("InMemoryDataset", {"folder": tmp_path / "store"}, batch_size=4)
        load(dataset, write_lines("a.txt", multislot_lines(6)))
        with pytest.raises(PassError, match="no batch of the pass was read"):
            dataset.end_pass()
        dataset.abandon_pass()
        assert dataset._table.head is None

    def test_an_evaluation_may_be_read_again_without_a_warning(
        self,
        open_upstream: OpenUpstream,
        write_lines: WriteLines,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        dataset = open_upstream("InMemoryDataset", batch_size=4)
        dataset.set_test_mode(True)
        load(dataset, write_lines("a.txt", multislot_lines(6)))
        with caplog.at_level(logging.WARNING):
            assert len(list(dataset.batches())) == len(list(dataset.batches())) == 2
        dataset.end_pass()
        assert caplog.records == []

    def test_not_while_a_loop_reads(
        self, open_upstream: OpenUpstream, write_lines: WriteLines
    ) -> None:
        dataset = open_upstream("InMemoryDataset", batch_size=4)
        load(dataset, write_lines("a.txt", multislot_lines(9)))
        first = dataset.batches()
        next(first)
        with pytest.raises(PassError, match="the pass has been trained already"):
            dataset.batches()
        first.close()
        assert len(list(dataset.batches())) == 3
        dataset.end_pass()

    def test_not_of_a_pass_that_was_split(
        self, open_upstream: OpenUpstream, write_lines: WriteLines
    ) -> None:
        small = {"hbm_budget_bytes": 3 * 300 * 62}
        for name in ("InMemoryDataset", "PadBoxSlotDataset"):
            dataset = open_upstream(name, small, batch_size=32)
            load(dataset, write_lines("a.txt", multislot_lines(400)))
            list(dataset.batches())
            with pytest.raises(OutOfSpaceError, match="a second phase: the pass is over"):
                dataset.batches()
            dataset.end_pass()
            dataset._table.close()


def test_two_datasets_that_are_preloaded_in_turn_train_one_table(
    open_upstream: OpenUpstream, write_lines: WriteLines, tmp_path: Any
) -> None:
    """The usual loop of PaddleBox: while one dataset trains, the other loads."""
    from paddlebox import compat
    from tests.data.test_protocol import push_ones

    files = [write_lines(f"{i}.txt", page_lines(3, first=1 + 2 * i)) for i in range(4)]
    one = with_pages(open_upstream, "PadBoxSlotDataset", table={"folder": tmp_path / "store"})
    other = compat.PadBoxSlotDataset(one._table, seed=1)
    other.init(slots=one.options.load.slots, batch_size=4)
    other.set_parse_logkey(True)
    other.set_enable_pv_merge(True)
    one.set_use_var(None)
    datasets = [one, other]
    datasets[0].set_filelist([files[0]])
    datasets[0].preload_into_memory()
    for number in range(4):
        dataset, following = datasets[number % 2], datasets[(number + 1) % 2]
        dataset.wait_preload_done()
        dataset.set_current_phase(1)
        dataset.begin_pass()
        if number < 3:
            following.set_filelist([files[number + 1]])
            following.preload_into_memory()
        for phase in (1, 0):
            dataset.set_current_phase(phase)
            for batch in dataset.batches():
                push_ones(dataset, batch)
        dataset.end_pass(True)
        dataset.release_memory()
    other.close()
    one._table.wait_commit()
    assert head_of(one._table).version == 4
    feasigns, rows = table_of(one).read_all()
    shows = dict(zip(feasigns.tolist(), rows[:, 1].tolist(), strict=True))
    # Pages 1 to 9: those of 3, 5 and 7 are in two files. All ads have the word 7.
    expected = {10 * p + r: 2.0 if p in (3, 5, 7) else 1.0 for p in range(1, 10) for r in (1, 2, 3)}
    assert shows == {**expected, 7: 4 * 9.0}
