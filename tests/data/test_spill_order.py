"""Passes on local disk in any order: page views, groups, other slots; the batches of one in
memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paddlebox.errors import ConfigError, OutOfSpaceError, PassError
from tests.data.test_page_views import log_key
from tests.support.fixtures import OpenDataset, WriteLines
from tests.support.inside import loaded_pass

COUNT = 12_000
BUDGET = 4 << 20
USER = SimpleNamespace(name="user", shape=(-1, 1), dtype="int64", lod_level=0)
WORDS = SimpleNamespace(name="words", shape=(-1, 20), dtype="int64", lod_level=0)
KEYS = [
    SimpleNamespace(name=name, shape=(-1, 1), dtype="int64", lod_level=0)
    for name in ("box_search_id", "box_cmatch_rank")
]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Views of about four instances, a user of about ten, every third without one."""
    random = np.random.default_rng(1)
    lines = []
    for k in range(COUNT):
        user = f"1 {random.integers(1, 1200) if k % 3 else 0}"
        words = " ".join(map(str, random.integers(1, 5000, 20)))
        key = log_key(int(random.integers(3000)), 222, int(random.integers(5)))
        lines.append(f"1 {key} 1 {k % 2} 2 {k} 0 {user} 20 {words}\n")
    path = tmp_path_factory.mktemp("views") / "a.txt"
    path.write_text("".join(lines))
    return str(path)


@pytest.fixture
def opened(open_dataset: Any, file: str, tmp_path: Path) -> Callable[..., Any]:
    def make(where: str, budget: int = BUDGET, **options: Any) -> Any:
        init = {"budget_bytes": budget, "spill_dir": tmp_path} if where == "spilled" else {}
        dataset = open_dataset(
            {"fields": {"name": f"{where}{len(made)}"}},
            batch_size=100,
            use_var=[USER, WORDS, *KEYS],
            **{**init, **options},
        )
        made.append(dataset)
        dataset.set_parse_logkey(True)
        dataset.set_filelist([file])
        return dataset

    made: list[Any] = []
    return make


def fed(dataset: Any) -> list[Any]:
    return [(name, batch[name].tolist()) for batch in dataset.batches() for name in sorted(batch)]


def check_spilled(dataset: Any, where: str) -> None:
    chosen = dataset._stager.newest
    assert (chosen.loaded.spilled_bytes > 0) == (where != "memory")


ORDERS = [("ins_id", ""), ("search_id", ""), ("slot", "user"), ("instance", "")]


@pytest.mark.parametrize("when", ["before the load", "after"])
@pytest.mark.parametrize(("by", "slot"), ORDERS, ids=[by for by, _ in ORDERS])
def test_a_shuffle_is_that_of_a_pass_in_memory(
    opened: Callable[..., Any], by: str, slot: str, when: str
) -> None:
    found = []
    for where in ("memory", "spilled"):
        dataset = opened(where)
        if when == "before the load":
            dataset.local_shuffle(by, slot=slot)
        dataset.load_into_memory()
        if when == "after":
            dataset.local_shuffle(by, slot=slot)
        check_spilled(dataset, where)
        dataset.begin_pass()
        found.append(fed(dataset))
        dataset.end_pass()
    assert found[0] == found[1]
    times = [row for name, rows in found[0] if name == "user" for row in rows]
    assert len(times) == COUNT


@pytest.mark.parametrize("where", ["spilled", "disk"])
def test_both_phases_of_page_views(opened: Callable[..., Any], where: str) -> None:
    found = []
    for each in ("memory", where):
        dataset = opened(each)
        dataset.set_enable_pv_merge(True)
        dataset.set_rank_offset("rank_offset")
        dataset.set_pv_batch_size(7)
        if each == "disk":
            dataset.load_into_disk()
        else:
            dataset.load_into_memory()
        dataset.preprocess_instance()
        check_spilled(dataset, each)
        dataset.set_pv_batch_size(30)  # it is that of the moment when batches are asked for
        dataset.begin_pass()
        seen = [dataset.get_pv_data_size(), fed(dataset)]
        dataset.flip_phase()
        dataset.postprocess_instance()
        seen.append(fed(dataset))
        dataset.end_pass()
        found.append(seen)
    assert found[0] == found[1]
    assert found[0][0] > 2500
    assert sum(name == "rank_offset" for name, _ in found[0][1]) == -(-found[0][0] // 30)


@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "shuffled"])
def test_slots_shuffle_gives_the_same_values(opened: Callable[..., Any], shuffled: bool) -> None:
    found = []
    for where in ("memory", "spilled"):
        dataset = opened(where)
        dataset.set_test_mode(True)
        dataset.set_fea_eval(50)
        if shuffled:
            dataset.local_shuffle("search_id")
        dataset.load_into_memory()
        check_spilled(dataset, where)
        dataset.begin_pass()
        own = fed(dataset)
        seen = []
        for slots in (["words"], ["user", "words"], []):
            dataset.slots_shuffle(slots)
            seen.append(fed(dataset))
        dataset.end_pass()
        assert seen[2] == own  # restored
        assert seen[0] != own
        assert seen[1] != seen[0]
        found.append(seen)
    assert found[0] == found[1]


class TestDisk:
    def test_a_small_pass_lies_there_too_and_trains_to_the_same_rows(
        self, open_dataset: OpenDataset, write_lines: WriteLines, tmp_path: Path
    ) -> None:
        from tests.data.test_protocol import push_ones
        from tests.support.instances import multislot_lines

        path = write_lines("a.txt", multislot_lines(500))
        digests = []
        for to_disk in (False, True):
            dataset = open_dataset()
            dataset.local_shuffle()
            for _ in range(2):  # the second is loaded while the first trains
                dataset.set_filelist([path])
                if to_disk:
                    dataset.preload_into_disk(str(tmp_path / "there"), 4)
                    dataset.wait_load_disk_done()
                else:
                    dataset.load_into_memory()
                dataset.begin_pass()
                assert (dataset.stats.spilled_bytes > 0) == to_disk
                for batch in dataset.batches():
                    push_ones(dataset, batch)
                dataset.end_pass()
            dataset._table.wait_commit()
            digests.append(dataset._table.digest())
            if not to_disk:
                dataset.close()
                dataset._table.close()
        assert digests[0] == digests[1]
        assert list((tmp_path / "there").iterdir()) == []  # files there have no names
        dataset.load_into_memory()
        assert loaded_pass(dataset).stats.spilled_bytes == 0  # the passes after it are as they were

    def test_an_empty_pass_is_one(self, open_dataset: OpenDataset, write_lines: WriteLines) -> None:
        dataset = open_dataset()
        dataset.set_filelist([write_lines("a.txt", [])])
        dataset.load_into_disk()
        dataset.begin_pass()
        assert list(dataset.batches()) == []
        dataset.end_pass()

    def test_what_is_merged_or_sampled_is_refused(
        self, open_dataset: OpenDataset, write_lines: WriteLines
    ) -> None:
        dataset = open_dataset()
        dataset.set_filelist([write_lines("a.txt", [])])
        dataset.set_merge_by_lineid()
        for call in ("preload_into_disk", "load_into_disk"):
            with pytest.raises(ConfigError, match=f"^{call}: .* sampled or merged stay in memory"):
                getattr(dataset, call)()


class TestTooSmall:
    def test_tags_over_the_budget_are_named_with_their_bytes(
        self, opened: Callable[..., Any]
    ) -> None:
        dataset = opened("spilled", 300_000)
        with pytest.raises(OutOfSpaceError, match=r"take \d+ bytes, feeder.budget_bytes is 300000"):
            dataset.load_into_memory()

    def test_a_pool_over_a_window_is_named_with_its_bytes(self, opened: Callable[..., Any]) -> None:
        dataset = opened("spilled")
        dataset.set_fea_eval(COUNT)
        dataset.load_into_memory()
        with pytest.raises(OutOfSpaceError, match=r"takes \d+ bytes.*multiply feeder.budget_bytes"):
            dataset.slots_shuffle(["words"])

    def test_an_order_without_its_tag_names_the_call_that_is_missing(
        self, open_dataset: OpenDataset, write_lines: WriteLines
    ) -> None:
        dataset = open_dataset()
        dataset.set_enable_pv_merge(True)
        dataset.set_filelist([write_lines("a.txt", ["1 0 2 0 0 1 7 1 8"] * 9)])
        dataset.load_into_disk()
        with pytest.raises(PassError, match=r"set_parse_logkey\(True\) is missing"):
            dataset.preprocess_instance()
