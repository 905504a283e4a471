"""Log keys, page views and the two phases over one pass, with numbers worked out by hand."""

from __future__ import annotations

import itertools
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from paddlebox.compat.upstream import UpstreamDataset
from paddlebox.errors import ConfigError, DataError, OutOfSpaceError, PassError
from tests.support.fixtures import OpenDataset, WriteLines
from tests.support.inside import head_of, table_of
from tests.support.instances import multislot_lines


def log_key(search: int, cmatch: int = 222, rank: int = 1) -> str:
    return f"{'k' * 11}{cmatch:03x}{rank:02x}{search:016x}"


def line(user: int, search: int, cmatch: int = 222, rank: int = 1) -> str:
    """An instance that its user tells from the others."""
    return f"1 {log_key(search, cmatch, rank)} 1 0 2 0.5 0.5 1 {user} 1 {user + 1000}"


# Users 1 to 6. Views: search 5 has users 2 and 5, 7 has 4, 9 has 1, 3 and 6.
LINES = [
    line(1, 9, 222, 1),
    line(2, 5, 223, 2),
    line(3, 9, 222, 3),
    line(4, 7, 100, 1),  # a cmatch without ranks
    line(5, 5, 222, 4),  # a rank too high
    line(6, 9, 223, 1),  # rank 1 a second time: the last counts
]


def var(name: str, width: int = 1, dtype: str = "int64") -> SimpleNamespace:
    return SimpleNamespace(name=name, shape=(-1, width), dtype=dtype, lod_level=0)


def users(dataset: UpstreamDataset) -> list[list[int]]:
    """The users of each batch."""
    return [batch["user"][:, 0].tolist() for batch in dataset.batches()]


@pytest.fixture
def opened(open_dataset: OpenDataset, write_lines: WriteLines) -> UpstreamDataset:
    dataset = open_dataset(batch_size=4, use_var=[var("user")])
    dataset.set_parse_logkey(True)
    dataset.set_enable_pv_merge(True)
    dataset.set_pv_batch_size(2)
    dataset.set_filelist([write_lines("a.txt", LINES)])
    dataset.load_into_memory()
    return dataset


def test_the_join_phase_has_batches_of_page_views_by_search_id(opened: UpstreamDataset) -> None:
    assert opened.get_pv_data_size() == 0
    opened.preprocess_instance()
    assert opened.get_pv_data_size() == 3
    opened.begin_pass()
    assert users(opened) == [[2, 5, 4], [1, 3, 6]]
    opened.end_pass()


def test_rank_offset_holds_the_ranks_within_the_page_view(opened: UpstreamDataset) -> None:
    opened.set_rank_offset("rank_offset")
    opened.begin_pass()
    opened.preprocess_instance()
    first, second = (batch["rank_offset"] for batch in opened.batches())
    none = [-1] * 7
    assert first.dtype == np.int32
    assert first.tolist() == [[2, -1, -1, 2, 0, -1, -1], none, none]
    ranked = [1, 2, -1, -1, 3, 1]  # rank 1 in row 2, rank 3 in row 1
    assert second.tolist() == [[1, *ranked], [3, *ranked], [1, *ranked]]
    opened.flip_phase()
    opened.postprocess_instance()
    assert all("rank_offset" not in batch for batch in opened.batches())
    opened.end_pass()


def test_rank_attention_takes_it_as_it_is(opened: UpstreamDataset) -> None:
    from paddlebox import ops
    from paddlebox._native import paddle

    paddle.disable_static()
    opened.set_rank_offset("rank_offset")
    opened.preprocess_instance()
    opened.begin_pass()
    # One input, the user; the matrix of own rank r and other rank q is 10 r + q.
    matrices = [[10.0 * own + other] for own in (1, 2, 3) for other in (1, 2, 3)]
    found = [
        ops.rank_attention(
            paddle.to_tensor(batch["user"].astype(np.float32)),
            paddle.to_tensor(batch["rank_offset"]),
            rank_param=paddle.to_tensor(matrices),
        )
        .numpy()[:, 0]
        .tolist()
        for batch in opened.batches()
    ]
    opened.end_pass()
    assert found[0] == [2 * 22, 0, 0]  # users 2, 5, 4; only 2 has a rank
    assert found[1] == [6 * 11 + 3 * 13, 6 * 31 + 3 * 33, 6 * 11 + 3 * 13]  # users 1, 3, 6


def test_the_update_phase_is_shuffled_instances_of_the_same_pass(opened: UpstreamDataset) -> None:
    opened.preprocess_instance()
    opened.begin_pass()
    users(opened)
    opened.flip_phase()
    opened.postprocess_instance()
    update = users(opened)
    opened.end_pass()
    assert [len(batch) for batch in update] == [4, 2]
    assert sorted(user for batch in update for user in batch) == [1, 2, 3, 4, 5, 6]
    assert update != [[1, 2, 3, 4], [5, 6]]
    assert opened._table.head is None or head_of(opened._table).version == 1  # one commit for both


@pytest.mark.parametrize("group", ["search_id", "user"])
def test_the_update_phase_shuffles_the_groups_of_a_loss(
    open_dataset: OpenDataset, write_lines: WriteLines, group: str
) -> None:
    dataset = open_dataset(batch_size=64, use_var=[var("user")])
    dataset.set_parse_logkey(True)
    dataset.set_enable_pv_merge(True)
    lines = [line(1 + number % 15, 100 + number % 15) for number in range(60)]
    dataset.set_filelist([write_lines("a.txt", lines)])
    dataset.load_into_memory()
    dataset.preprocess_instance()
    dataset.begin_pass()
    users(dataset)
    dataset.flip_phase()
    dataset.set_group(group)
    dataset.postprocess_instance()
    found = [next(same) for _, same in itertools.groupby(users(dataset)[0])]
    dataset.end_pass()
    assert sorted(found) == list(range(1, 16))  # no group is in two places
    assert found != sorted(found)


def test_log_keys_can_be_fed(opened: UpstreamDataset) -> None:
    opened.set_use_var([var("user"), var("box_search_id"), var("box_cmatch_rank")])
    opened.set_enable_pv_merge(False)
    opened.begin_pass()
    batch = next(opened.batches())
    assert batch["box_search_id"].tolist() == [[9], [5], [9], [7]]
    assert batch["box_cmatch_rank"][:2].tolist() == [[222 << 32 | 1], [223 << 32 | 2]]
    opened.abandon_pass()


def test_drop_last_drops_a_short_batch_of_page_views(
    open_dataset: OpenDataset, write_lines: WriteLines
) -> None:
    dataset = open_dataset(batch_size=4, use_var=[var("user")], drop_last=True)
    dataset.set_parse_logkey(True)
    dataset.set_enable_pv_merge(True)
    dataset.set_pv_batch_size(2)
    dataset.set_filelist([write_lines("a.txt", LINES)])
    dataset.load_into_memory()
    dataset.preprocess_instance()
    dataset.begin_pass()
    assert users(dataset) == [[2, 5, 4]]  # the third view is a batch of its own
    dataset.end_pass()


class TestPhasesWithoutPageViews:
    def test_a_pass_can_be_gone_through_once_a_phase(
        self, open_dataset: OpenDataset, write_lines: WriteLines, tmp_path: Path
    ) -> None:
        from tests.data.test_protocol import push_ones

        dataset = open_dataset({"folder": tmp_path / "store"}, batch_size=4)
        dataset.set_filelist([write_lines("a.txt", ["1 1 2 0 0 1 7 1 8"] * 3)])
        dataset.load_into_memory(is_shuffle=True)
        dataset.begin_pass()
        for _ in range(2):
            for batch in dataset.batches():
                push_ones(dataset, batch)
            dataset.flip_phase()
        with pytest.raises(PassError, match="end_pass is missing"):
            dataset.batches()
        dataset.end_pass()
        _, rows = table_of(dataset).read_all()
        assert rows[:, 1].tolist() == [3.0, 3.0]  # three shows in each phase: one counts

    def test_slots_are_counted_where_it_was_asked_for(
        self, open_dataset: OpenDataset, write_lines: WriteLines, tmp_path: Path
    ) -> None:
        from tests.data.test_protocol import push_ones

        dataset = open_dataset({"folder": tmp_path / "store"}, batch_size=4)
        dataset.set_filelist([write_lines("a.txt", ["1 1 2 0 0 1 7 1 8"] * 3)])
        dataset.load_into_memory()
        dataset.begin_pass()
        for slots in (["words"], ["user", "words"]):
            dataset.set_counted_slots(slots)
            for batch in dataset.batches():
                push_ones(dataset, batch)
            dataset.flip_phase()
        dataset.end_pass()
        feasigns, rows = table_of(dataset).read_all()
        assert dict(zip(feasigns.tolist(), rows[:, 1].tolist(), strict=True)) == {7: 3.0, 8: 6.0}
        with pytest.raises(ValueError, match="set_counted_slots: usr: not a sparse slot; expected"):
            dataset.set_counted_slots(["usr"])

    def test_slots_that_are_not_read_are_as_if_absent(
        self, open_dataset: OpenDataset, write_lines: WriteLines
    ) -> None:
        dataset = open_dataset(batch_size=4)
        dataset.set_filelist([write_lines("a.txt", ["1 1 2 0 0 1 7 2 8 9"] * 2)])
        dataset.load_into_memory()
        dataset.begin_pass()
        whole = next(dataset.batches())
        dataset.flip_phase()
        dataset.set_read_slots(["user"])
        part = next(dataset.batches())
        dataset.end_pass()
        assert part["box_offsets"].tolist() == whole["box_offsets"].tolist() == [0, 1, 3, 4, 6]
        assert [row == -1 for row in part["box_ids"]] == [False, True, True] * 2
        assert (whole["box_ids"] >= 0).all()

    def test_shared_lists_cannot_be_read_in_part(self, open_dataset: OpenDataset) -> None:
        dataset = open_dataset(dedup_slots="auto")
        with pytest.raises(ConfigError, match="dedup_slots is auto, but a model reads only user"):
            dataset.set_read_slots(["user"])

    def test_one_that_is_split_once_only(
        self, open_dataset: OpenDataset, write_lines: WriteLines
    ) -> None:
        dataset = open_dataset({"hbm_budget_bytes": 3 * 300 * 62})
        dataset.set_filelist([write_lines("a.txt", multislot_lines(400))])
        dataset.load_into_memory()
        dataset.begin_pass()
        list(dataset.batches())
        dataset.flip_phase()
        with pytest.raises(OutOfSpaceError, match="a second phase: the pass is over"):
            dataset.batches()
        dataset.end_pass()


class TestOutOfOrder:
    def test_each_call_names_the_one_that_is_missing(
        self, open_dataset: OpenDataset, write_lines: WriteLines
    ) -> None:
        dataset = open_dataset()
        with pytest.raises(PassError, match="set_enable_pv_merge"):
            dataset.preprocess_instance()
        dataset.set_enable_pv_merge(True)
        with pytest.raises(PassError, match="load_into_memory is missing"):
            dataset.preprocess_instance()
        dataset.set_filelist([write_lines("b.txt", multislot_lines(20))])
        dataset.preload_into_memory()
        with pytest.raises(PassError, match="wait_preload_done is missing"):
            dataset.preprocess_instance()
        dataset.wait_preload_done()
        with pytest.raises(PassError, match=r"set_parse_logkey\(True\) is missing"):
            dataset.preprocess_instance()
        dataset.begin_pass()
        with pytest.raises(PassError, match="preprocess_instance is missing"):
            dataset.batches()
        with pytest.raises(PassError, match="preprocess_instance is missing"):
            dataset.postprocess_instance()

    def test_in_a_pass_of_page_views(self, opened: UpstreamDataset) -> None:
        opened.preprocess_instance()
        with pytest.raises(PassError, match="page views"):
            opened.local_shuffle()
        opened.begin_pass()
        opened.set_current_phase(0)
        with pytest.raises(PassError, match="postprocess_instance is missing"):
            opened.batches()
        opened.set_current_phase(1)
        batches = opened.batches()
        assert isinstance(batches, Generator)
        next(batches)
        with pytest.raises(PassError, match="a loop reads the batches"):
            opened.postprocess_instance()
        batches.close()
        with pytest.raises(PassError, match="flip_phase"):
            opened.batches()
        with pytest.raises(ValueError, match=r"1 \(join\) or 0 \(update\), found 2"):
            opened.set_current_phase(2)

    def test_a_pass_over_the_budget_has_no_page_views(
        self, open_dataset: OpenDataset, write_lines: WriteLines
    ) -> None:
        dataset = open_dataset({"hbm_budget_bytes": 3 * 100 * 62}, batch_size=8)
        dataset.set_parse_logkey(True)
        dataset.set_enable_pv_merge(True)
        lines = [line(user, user // 3) for user in range(1, 200)]
        dataset.set_filelist([write_lines("a.txt", lines)])
        dataset.load_into_memory()
        with pytest.raises(OutOfSpaceError, match=r"page views: .*hbm\.budget_bytes"):
            dataset.preprocess_instance()


@pytest.mark.parametrize(
    "key", ["short", "x" * 32, log_key(1)[:-1], "\0" * 32], ids=["short", "no hex", "cut", "NUL"]
)
def test_a_damaged_log_key_makes_a_malformed_line(
    open_dataset: OpenDataset, write_lines: WriteLines, key: str
) -> None:
    dataset = open_dataset()
    dataset.set_parse_logkey(True)
    file = write_lines("a.txt", [LINES[0], f"1 {key} 1 0 2 0 0 1 7 1 8"])
    dataset.set_filelist([file])
    with pytest.raises(DataError, match=rf"1 of 2 lines(.|\n)*{file}:2: "):
        dataset.load_into_memory()


def test_tags_are_of_formats_that_have_a_place_for_them(open_dataset: OpenDataset) -> None:
    dataset = open_dataset(data_format="slot_value")
    with pytest.raises(ConfigError, match="arrow and orc can have these, found slot_value"):
        dataset.set_parse_logkey(True)
