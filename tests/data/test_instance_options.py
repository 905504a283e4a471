"""Which instances a pass has, and in which order."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paddlebox.compat.upstream import UpstreamDataset
from paddlebox.data.reader import read_chunks
from paddlebox.errors import ConfigError, OutOfSpaceError, PassError
from tests.support.fixtures import OpenDataset, WriteLines
from tests.support.inside import loaded_pass
from tests.support.instances import multislot_lines

USER = SimpleNamespace(name="user", shape=(-1, 1), dtype="int64", lod_level=0)
WORDS = SimpleNamespace(name="words", shape=(-1, 3), dtype="int64", lod_level=0)


def lines_with_ids(count: int, ids: int) -> list[str]:
    """Instance k has id k % ids, user k + 1 and word k + 1001."""
    return [f"1 id{k % ids} 1 0 2 0 0 1 {k + 1} 1 {k + 1001}" for k in range(count)]


def users(dataset: UpstreamDataset) -> list[int]:
    found = [user for batch in dataset.batches() for user in batch["user"][:, 0].tolist()]
    dataset.end_pass()
    return found


def load(dataset: UpstreamDataset, *files: str) -> None:
    dataset.set_filelist(files)
    dataset.load_into_memory()


def opened(open_dataset: OpenDataset, name: str, **init: Any) -> UpstreamDataset:
    return open_dataset({"fields": {"name": name}}, use_var=[USER, WORDS], batch_size=16, **init)


class TestMerge:
    LINES = (
        "1 a 1 0 2 5 0 1 7 1 0",  # with the third: user 7, words 8 and 9
        "1 b 1 1 2 1 1 1 3 1 4",  # alone
        "1 a 1 1 2 0 0 1 0 2 8 9",
        "1 c 1 0 2 0 0 1 5 1 0",  # both have a user
        "1 c 1 0 2 0 0 1 6 1 0",
    )

    def test_two_lines_of_one_id_are_one_instance(
        self, open_dataset: OpenDataset, write_lines: WriteLines, caplog: pytest.LogCaptureFixture
    ) -> None:
        dataset = open_dataset()
        dataset.set_merge_by_lineid()
        load(dataset, write_lines("a.txt", self.LINES))
        assert "3 instances are dropped" in caplog.text
        assert dataset.get_memory_data_size() == dataset.get_shuffle_data_size() == 1
        dataset.begin_pass()
        (batch,) = dataset.batches()
        assert batch["box_dense"].tolist() == [[5, 0]]
        assert batch["box_label"].tolist() == [[1]]
        assert batch["box_offsets"].tolist() == [0, 1, 3]
        dataset.end_pass()
        assert dataset.stats.unique_feasigns == 3

    def test_any_number_of_one_id(self, open_dataset: OpenDataset, write_lines: WriteLines) -> None:
        dataset = opened(open_dataset, "any")
        dataset.set_merge_by_lineid(0)
        load(dataset, write_lines("a.txt", self.LINES))
        dataset.begin_pass()
        assert users(dataset) == [7, 3]  # in the order of the first lines

    def test_a_line_without_its_id_is_malformed(
        self, open_dataset: OpenDataset, write_lines: WriteLines
    ) -> None:
        dataset = open_dataset(max_bad_line_ratio=1)
        dataset.set_merge_by_lineid()
        load(dataset, write_lines("a.txt", [*self.LINES, "2 a b 1 0 2 0 0 1 5 1 0"]))
        assert dataset.get_memory_data_size() == 1
        dataset.begin_pass()
        assert dataset.stats.bad_lines == 1


@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize("setting", ["sample", "merge", "ins_id", "slot", "search_id"])
def test_instances_and_order_do_not_depend_on_the_thread_count(
    open_dataset: OpenDataset,
    write_lines: WriteLines,
    setting: str,
    threads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = "kkkkkkkkkkk0de01"
    files = [
        write_lines(
            f"{f}.txt",
            [
                f"1 {key}{k % 13:016x} 1 0 2 0 0 1 {k % 9 + 1} 1 {1001 + 1000 * f + k}"
                for k in range(300)
            ],
        )
        for f in range(3)
    ]
    found = []
    for count, chunk_bytes in ((1, 1 << 20), (threads, 500)):
        defaults = (chunk_bytes, *(read_chunks.__defaults__ or ())[1:])
        monkeypatch.setattr("paddlebox.data.loader.read_chunks.__defaults__", defaults)
        dataset = opened(open_dataset, f"{setting}{count}", thread_num=count)
        dataset.set_parse_logkey(True)
        if setting == "sample":
            dataset.set_sample_rate(0.5)
        elif setting == "merge":
            dataset.set_merge_by_lineid(0)
        else:
            dataset.local_shuffle(setting, slot="user" if setting == "slot" else "")
        load(dataset, *files)
        dataset.begin_pass()
        found.append([(b["user"].tolist(), b["words"].tolist()) for b in dataset.batches()])
        dataset.end_pass()
        dataset._table.close()
    assert found[0] == found[1]


def test_sampling_keeps_all_instances_of_an_id_or_none(
    open_dataset: OpenDataset, write_lines: WriteLines
) -> None:
    file = write_lines("a.txt", lines_with_ids(200, 20))
    dataset = opened(open_dataset, "sampled")
    dataset.set_parse_ins_id(True)
    dataset.set_sample_rate(0.5)
    load(dataset, file)
    dataset.begin_pass()
    kept = users(dataset)
    ids = {(user - 1) % 20 for user in kept}
    assert len(kept) == 10 * len(ids)
    assert 0 < len(ids) < 20
    assert kept == sorted(kept)  # in file order
    dataset.set_sample_rate(0)
    load(dataset, file)
    assert dataset.get_memory_data_size() == 0
    with pytest.raises(ValueError, match=r"a share in \[0, 1\], found 2"):
        dataset.set_sample_rate(2)


def test_the_ids_of_an_open_pass_are_as_it_was_parsed(
    open_dataset: OpenDataset, write_lines: WriteLines
) -> None:
    """Options that are set while it is open hold for the next pass."""
    file, place = write_lines("a.txt", lines_with_ids(3, 3)), np.arange(1)
    for parsed in (True, False):
        dataset = opened(open_dataset, f"ids-{parsed}")
        dataset.set_parse_ins_id(parsed)
        load(dataset, file if parsed else write_lines("b.txt", multislot_lines(3)))
        dataset.begin_pass()
        expected = dataset.ids_at(place)
        assert (expected == ["0"]) == (not parsed)
        dataset.set_parse_ins_id(not parsed)
        assert dataset.ids_at(place) == expected


class TestLocalShuffle:
    def test_groups_stay_together_and_the_seed_moves_them(
        self, open_dataset: OpenDataset, write_lines: WriteLines
    ) -> None:
        dataset = opened(open_dataset, "groups")
        dataset.set_parse_ins_id(True)
        dataset.local_shuffle("ins_id")
        found = []
        for _ in range(2):  # the number of the pass counts
            load(dataset, write_lines("a.txt", lines_with_ids(100, 10)))
            dataset.begin_pass()
            found.append(users(dataset))
        for order in found:
            groups = [order[at : at + 10] for at in range(0, 100, 10)]
            assert all(len({(user - 1) % 10 for user in group}) == 1 for group in groups)
            assert all(group == sorted(group) for group in groups)
        assert found[0] != found[1]
        assert sorted(found[0]) == list(range(1, 101))

    def test_a_loaded_pass_is_shuffled_as_if_it_had_been_asked_for_before(
        self, open_dataset: OpenDataset, write_lines: WriteLines
    ) -> None:
        file = write_lines("a.txt", [f"1 0 2 0 0 1 {k + 1} 1 0" for k in range(50)])
        orders = []
        for before in (True, False):
            dataset = opened(open_dataset, f"before{before}")
            if before:
                dataset.local_shuffle()
            load(dataset, file)
            if not before:
                dataset.global_shuffle(thread_num=3)
            dataset.begin_pass()
            orders.append(users(dataset))
        assert orders[0] == orders[1] != list(range(1, 51))

    def test_the_parts_of_a_loaded_pass_over_the_budget_are_cut_again(
        self, open_dataset: OpenDataset, write_lines: WriteLines
    ) -> None:
        lines = multislot_lines(400)
        orders = []
        for before in (True, False):
            dataset = open_dataset(
                {"hbm_budget_bytes": 3 * 300 * 62, "fields": {"name": f"b{before}"}}, batch_size=32
            )
            if before:
                dataset.local_shuffle()
            load(dataset, write_lines("a.txt", lines))
            if not before:
                dataset.local_shuffle()
            assert loaded_pass(dataset).stats.parts > 1
            dataset.begin_pass()
            orders.append([batch["box_dense"].tolist() for batch in dataset.batches()])
            dataset.end_pass()
        assert orders[0] == orders[1]

    def test_what_it_needs_is_named(
        self, open_dataset: OpenDataset, write_lines: WriteLines
    ) -> None:
        dataset = open_dataset()
        with pytest.raises(PassError, match=r"set_parse_logkey\(True\) is missing"):
            dataset.local_shuffle("search_id")
        with pytest.raises(PassError, match=r"set_parse_ins_id\(True\) is missing"):
            dataset.local_shuffle("ins_id")
        with pytest.raises(ValueError, match="usr: not a sparse slot; expected user, words"):
            dataset.local_shuffle("slot", slot="usr")
        with pytest.raises(ValueError, match="expected by instance"):
            dataset.local_shuffle("line")
        dataset.set_filelist([write_lines("a.txt", multislot_lines(9))])
        dataset.preload_into_memory()
        with pytest.raises(PassError, match="wait_preload_done is missing"):
            dataset.local_shuffle()

    def test_several_ranks_are_refused(
        self, open_dataset: OpenDataset, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dataset = open_dataset()
        with pytest.raises(ConfigError, match="the job has 2 ranks, but the table is one of 1"):
            dataset.global_shuffle(SimpleNamespace(worker_num=lambda: 2))
        monkeypatch.setenv("PADDLE_TRAINERS_NUM", "4")
        with pytest.raises(ConfigError, match="the job has 4 ranks"):
            dataset.global_shuffle()


class TestBudget:
    def test_instances_that_are_merged_or_sampled_stay_in_memory(
        self, open_dataset: OpenDataset, write_lines: WriteLines, tmp_path: Path
    ) -> None:
        init = {"budget_bytes": 10_000, "spill_dir": tmp_path / "spill"}
        found = []
        for name, extra in (("free", {}), ("budget", init)):
            dataset = opened(open_dataset, name, **extra)
            dataset.set_parse_ins_id(True)
            dataset.set_sample_rate(0.5)
            dataset.local_shuffle("ins_id")
            load(dataset, write_lines("a.txt", lines_with_ids(2000, 10)))
            assert loaded_pass(dataset).stats.spilled_bytes == 0
            dataset.begin_pass()
            found.append(users(dataset))
        assert found[0] == found[1]


def settled(path: str) -> str:
    """The file, as if it had been written a while ago: younger ones are not cached."""
    os.utime(path, ns=(time.time_ns(), time.time_ns() - 10**10))
    return path


class TestCache:
    def test_what_has_ids_is_not_taken_from_it(
        self, open_dataset: OpenDataset, write_lines: WriteLines, tmp_path: Path
    ) -> None:
        init = {"cache_bytes": 1 << 24, "cache_dir": tmp_path / "cache"}
        file = settled(write_lines("a.txt", lines_with_ids(100, 10)))
        for turn in range(2):
            dataset = opened(open_dataset, f"turn{turn}", **init)
            dataset.set_merge_by_lineid(10)
            load(dataset, file)
            assert dataset.get_memory_data_size() == 0  # all have the same slots
            assert loaded_pass(dataset).stats.files_from_cache == 0

    def test_sampling_and_order_do_not_part_it(
        self, open_dataset: OpenDataset, write_lines: WriteLines, tmp_path: Path
    ) -> None:
        init = {"cache_bytes": 1 << 24, "cache_dir": tmp_path / "cache"}
        file = settled(write_lines("a.txt", multislot_lines(100)))
        sizes = []
        for turn, rate in enumerate((1.0, 0.5)):
            dataset = opened(open_dataset, f"turn{turn}", **init)
            dataset.set_sample_rate(rate)
            load(dataset, file)
            sizes.append(dataset.get_memory_data_size())
            assert loaded_pass(dataset).stats.files_from_cache == turn
        assert sizes[0] == 100 > sizes[1]


class TestSlotsShuffle:
    def evaluation(
        self, open_dataset: OpenDataset, write_lines: WriteLines, **table: Any
    ) -> UpstreamDataset:
        dataset = open_dataset(table, use_var=[USER, WORDS], batch_size=16)
        dataset.set_test_mode(True)
        lines = [f"1 0 2 0 0 1 {k + 1} 2 {k + 101} {k + 201}" for k in range(40)]
        load(dataset, write_lines("a.txt", lines))
        return dataset

    def words(self, dataset: UpstreamDataset) -> list[Any]:
        batches = list(dataset.batches())
        assert [u for batch in batches for u in batch["user"][:, 0]] == list(range(1, 41))
        return [word for batch in batches for word in batch["words"].tolist()]

    def test_values_are_real_ones_and_the_next_call_restores_them(
        self, open_dataset: OpenDataset, write_lines: WriteLines
    ) -> None:
        dataset = self.evaluation(open_dataset, write_lines)
        own = [[k + 101, k + 201, 0] for k in range(40)]
        dataset.set_fea_eval(10)
        dataset.begin_pass()
        assert self.words(dataset) == own
        dataset.slots_shuffle(["words"])
        replaced = self.words(dataset)  # an evaluation may be gone through again
        assert replaced != own
        assert all(words in own for words in replaced)
        assert 2 <= len({words[0] for words in replaced}) <= 10
        dataset.slots_shuffle(["words"])
        assert self.words(dataset) != replaced  # other draws
        dataset.slots_shuffle([])
        assert self.words(dataset) == own
        dataset.end_pass()

    def test_out_of_order(self, open_dataset: OpenDataset, write_lines: WriteLines) -> None:
        dataset = open_dataset(use_var=[USER, WORDS])
        with pytest.raises(PassError, match="set_fea_eval is missing"):
            dataset.slots_shuffle(["words"])
        dataset.set_fea_eval(10)
        with pytest.raises(PassError, match="load_into_memory is missing"):
            dataset.slots_shuffle(["words"])
        with pytest.raises(ValueError, match="age: not a sparse slot; expected user, words"):
            dataset.slots_shuffle(["age"])
        load(dataset, write_lines("a.txt", [f"1 0 2 0 0 1 {k} 1 {k}" for k in range(1, 9)]))
        dataset.begin_pass()
        list(dataset.batches())
        with pytest.raises(PassError, match="end_pass is missing"):
            dataset.slots_shuffle(["words"])
        dataset.end_pass()

    def test_a_split_pass_is_refused(
        self, open_dataset: OpenDataset, write_lines: WriteLines
    ) -> None:
        dataset = self.evaluation(open_dataset, write_lines, hbm_budget_bytes=3 * 60 * 62)
        dataset.set_fea_eval(10)
        with pytest.raises(OutOfSpaceError, match="slots_shuffle"):
            dataset.slots_shuffle(["words"])


def test_paddle_3s_names_with_an_underscore_are_the_same(open_dataset: OpenDataset) -> None:
    dataset = open_dataset()
    dataset._set_parse_logkey(True)
    dataset._set_pv_batch_size(3)
    data = dataset.options.load.data
    assert (data.logkey, data.pv_batch_size) == (True, 3)
