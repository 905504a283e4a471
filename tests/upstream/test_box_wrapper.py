"""BoxWrapper's calls besides saves and metrics, and BoxPS."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.errors import ConfigError, PassError
from tests.support.fixtures import OpenTable, WriteLines
from tests.support.instances import multislot_lines
from tests.upstream.conftest import OpenUpstream
from tests.upstream.test_orders import page_lines, var, with_pages


def box_of(dataset: Any) -> Any:
    from paddlebox import compat

    return compat.BoxWrapper(dataset._table, dataset)


def load(dataset: Any, *files: str) -> None:
    dataset.set_filelist(list(files))
    dataset.load_into_memory()
    dataset.begin_pass()


class TestAucRunner:
    @pytest.fixture
    def opened(self, open_upstream: OpenUpstream, write_lines: WriteLines) -> Any:
        variables = [var("user"), var("words")]
        dataset = open_upstream("PadBoxSlotDataset", batch_size=100, use_var=variables)
        dataset.disable_shuffle()
        dataset.set_test_mode(True)
        lines = [f"1 {n % 2} 2 0 0 1 {n + 1} 1 {n + 101}" for n in range(40)]
        dataset.set_filelist([write_lines("a.txt", lines)])
        return dataset

    def test_each_group_of_slots_is_a_phase(self, opened: Any) -> None:
        box = box_of(opened)
        groups = [["user"], ["words"], []]
        box.initialize_auc_runner(groups, 4, 1000, ["user", "words"])
        for number in range(3):
            box.init_metric("AucCalculator", f"group {number}", "y", "p", "", "", number, "", False)
        opened.load_into_memory()
        opened.begin_pass()
        (whole,) = opened.batches()
        changed = []
        for group in groups:
            opened.slots_shuffle(set(group))
            (batch,) = opened.batches()
            changed.append([n for n in batch if batch[n].tolist() != whole[n].tolist()])
            box.add_data({"y": np.zeros(40), "p": np.zeros(40, np.float32)})
        opened.end_pass()
        assert changed == groups
        assert [box.get_metric_msg(f"group {n}")[7] for n in range(3)] == [40, 40, 40]

    def test_the_next_pass_begins_with_the_first_group_again(self, opened: Any) -> None:
        box = box_of(opened)
        box.initialize_auc_runner([["user"], ["words"]], 4, 1000, [])
        assert box._phase() == 1
        for _ in range(2):
            opened.load_into_memory()
            opened.begin_pass()
            for number in range(2):
                opened.slots_shuffle(["user"])
                assert box._phase() == number
            list(opened.batches())
            opened.end_pass()
        box.set_phase(0)
        assert box._phase() == 0
        with pytest.raises(ValueError, match="set_phase: expected 0 to 1, found 2"):
            box.set_phase(2)

    def test_unknown_slots_and_other_datasets_are_errors(
        self, opened: Any, open_table: OpenTable
    ) -> None:
        from paddlebox import compat
        from paddlebox.compat.upstream import UpstreamDataset

        box = box_of(opened)
        with pytest.raises(ValueError, match="initialize_auc_runner: usr: not a sparse slot"):
            box.initialize_auc_runner([["usr"]], 4, 1000, [])
        with pytest.raises(ValueError, match="expected at least one group"):
            box.initialize_auc_runner([], 4, 1000, [])
        table = open_table(fields={"name": "other"})
        other = UpstreamDataset(table)
        with pytest.raises(PassError, match="initialize_auc_runner: expected a dataset with pass"):
            compat.BoxWrapper(table, other).initialize_auc_runner([["a"]], 1, 1, [])
        other.close()


def test_batches_of_page_views_are_counted_by_their_instances(
    open_upstream: OpenUpstream, write_lines: WriteLines
) -> None:
    dataset = with_pages(open_upstream, "PadBoxSlotDataset")
    box = box_of(dataset)
    assert box.show_batch_ins_info() == {}
    box.set_batch_max_ins_number(0)
    box.set_batch_max_ins_number(100)
    load(dataset, write_lines("a.txt", page_lines(11)))
    assert len(list(dataset.batches())) == 3
    dataset.flip_phase()
    list(dataset.batches())  # instances, which are not counted
    dataset.end_pass()
    assert box.show_batch_ins_info() == {15: 2, 3: 1}
    assert box.show_batch_ins_info() == {}


def test_the_last_pass_is_reported(
    open_upstream: OpenUpstream, write_lines: WriteLines, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = open_upstream("InMemoryDataset", batch_size=4)
    load(dataset, write_lines("a.txt", multislot_lines(5)))
    list(dataset.batches())
    dataset.end_pass()
    with caplog.at_level(logging.INFO, "paddlebox.compat"):
        box_of(dataset).print_device_info(1.5)
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("pass of 1.500 s: 5 instances; seconds waited: load ")
    assert "; rows found: hbm 0, mem 0, ssd 0, new " in said


def test_a_model_is_loaded_into_an_empty_table(
    open_upstream: OpenUpstream, open_table: OpenTable, write_lines: WriteLines, tmp_path: Path
) -> None:
    from paddlebox import compat
    from tests.data.test_protocol import push_ones

    dataset = open_upstream("BoxPSDataset", {"folder": tmp_path / "store"}, batch_size=4)
    load(dataset, write_lines("a.txt", multislot_lines(5)))
    for batch in dataset.batches():
        push_ones(dataset, batch)
    dataset.end_pass()
    box = box_of(dataset)
    with pytest.raises(ConfigError, match="expected no conf_file and no lr_map"):
        box.initialize_gpu_and_load_model("box.conf", [], [], "", {})
    path = f"{tmp_path}/out/20240101/0"  # with every row
    box.save_base(path, f"{tmp_path}/out/20240101/base", "")
    rows = len(dataset._table.read_all()[0])
    box.finalize()
    table = open_table(folder=tmp_path / "other")
    compat.BoxWrapper(table).initialize_gpu_and_load_model("", [1, 2], [], path, {})
    assert len(table.read_all()[0]) == rows > 0


def test_the_width_of_an_input_table(open_upstream: OpenUpstream) -> None:
    dataset = open_upstream("InputTableDataset")
    box_of(dataset).set_input_table_dim(7)
    assert dataset._dim == 7
    other = open_upstream("InMemoryDataset", {"fields": {"name": "other"}})
    with pytest.raises(PassError, match="expected an InputTableDataset, found InMemoryDataset"):
        box_of(other).set_input_table_dim(7)


def test_box_ps_is_the_protocol_of_a_pass(
    open_upstream: OpenUpstream, write_lines: WriteLines, tmp_path: Path
) -> None:
    from paddlebox import compat

    dataset = open_upstream("PadBoxSlotDataset", {"folder": tmp_path / "store"}, batch_size=4)
    box = compat.BoxPS(dataset)
    box.set_date(2024, 1, 2)
    dataset.set_fea_eval(10)
    file = write_lines("a.txt", multislot_lines(9))

    def preloaded() -> None:
        box.preload_into_memory()
        box.wait_feed_pass_done()

    for load_pass in (box.load_into_memory, box.read_ins_into_memory, preloaded):
        dataset.set_filelist([file])
        load_pass()
        box.begin_pass()
        box.slots_shuffle({"user"})
        assert sum(len(batch["box_label"]) for batch in dataset.batches()) == 9
        box.end_pass(True)
    dataset._table.wait_commit()
    assert dataset._table.head.version == 3
    assert dataset._table.head.day == (
        np.datetime64("2024-01-02") - np.datetime64("1970-01-01")
    ).astype(int)
    with pytest.raises(ValueError, match="day is out of range"):
        box.set_date(2024, 2, 30)
