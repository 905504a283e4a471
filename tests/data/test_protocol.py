"""The pass protocol: what each call does, and what a call out of order says."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.compat import QueueDataset
from paddlebox.compat.upstream import UpstreamDataset
from paddlebox.data.batches import PACKED
from paddlebox.errors import DataError, OutOfSpaceError, PassError
from paddlebox.store.table import Table, sorted_unique_keys
from tests.support.fixtures import OpenDataset, OpenTable, WriteLines
from tests.support.inside import head_of, table_of
from tests.support.instances import multislot_lines


def load(dataset: UpstreamDataset, *files: str) -> None:
    dataset.set_filelist(files)
    dataset.load_into_memory()
    dataset.begin_pass()


def push_ones(dataset: UpstreamDataset | QueueDataset, batch: dict[str, Any]) -> np.ndarray:
    """A push of gradient 0.01 for every segment, as a program's backward would do it."""
    from paddlebox import ops
    from paddlebox._native import paddle

    paddle.disable_static()
    names = ("box_ids", "box_offsets", "box_show_click", "box_plan")
    ids, offsets, show_click, plan = (paddle.to_tensor(batch[name]) for name in names)
    out = ops.fused_pull_seqpool_cvm(
        ids, offsets, show_click, plan, ops.create_anchor(), slots=2, embedx_dim=4
    )
    out.backward(paddle.full(out.shape, 0.01))
    return out.numpy()


def train(dataset: UpstreamDataset, *files: str) -> list[np.ndarray]:
    load(dataset, *files)
    outs = [push_ones(dataset, batch) for batch in dataset.batches()]
    dataset.end_pass()
    return outs


def test_batches_hold_the_lines_in_order(
    open_dataset: OpenDataset, write_lines: WriteLines
) -> None:
    dataset = open_dataset(batch_size=2)
    load(
        dataset,
        write_lines("a.txt", ["1 1 2 0.5 1.5 1 7 2 3 0", "1 0 2 1 2 1 9 1 3", "1 1 2 3 4 1 7 1 8"]),
    )
    assert dataset.get_memory_data_size() == 3
    first, last = dataset.batches()
    keys = sorted_unique_keys(np.array([7, 3, 9, 8], np.uint64)).tolist()
    row = {
        f: keys.index(int(sorted_unique_keys(np.array([f], np.uint64))[0])) for f in (7, 3, 9, 8)
    }
    assert first["box_ids"].tolist() == [row[7], row[3], row[9], row[3]]  # 0 is padding
    assert first["box_offsets"].tolist() == [0, 1, 2, 3, 4]
    assert first["box_dense"].tolist() == [[0.5, 1.5], [1, 2]]
    assert first["box_label"].tolist() == [[1], [0]]
    assert first["box_show_click"].tolist() == [[1, 1], [1, 0]]
    assert last["box_ids"].tolist() == [row[7], row[8]]
    dataset.end_pass()


class TestOutOfOrder:
    def test_each_call_names_the_one_that_is_missing(
        self, open_table: OpenTable, write_lines: WriteLines
    ) -> None:
        from paddlebox.compat.upstream import UpstreamDataset
        from tests.support.instances import SLOTS

        dataset = UpstreamDataset(open_table())
        with pytest.raises(PassError, match="init or set_use_var is missing"):
            dataset.preload_into_memory()
        dataset.init(slots=SLOTS, batch_size=8)
        with pytest.raises(PassError, match="set_filelist is missing"):
            dataset.preload_into_memory()
        with pytest.raises(PassError, match="preload_into_memory is missing"):
            dataset.wait_preload_done()
        with pytest.raises(PassError, match="preload_into_memory is missing"):
            dataset.begin_pass()
        with pytest.raises(PassError, match="begin_pass is missing"):
            dataset.end_pass()
        with pytest.raises(PassError, match="begin_pass is missing"):
            next(dataset.batches())
        dataset.set_filelist([write_lines("a.txt", multislot_lines(20))])
        dataset.preload_into_memory()
        with pytest.raises(PassError, match="begin_pass is missing"):
            dataset.preload_into_memory()
        dataset.begin_pass()
        with pytest.raises(PassError, match="end_pass is missing"):
            dataset.begin_pass()
        with pytest.raises(PassError, match="train_from_dataset is missing"):
            dataset.end_pass()
        with pytest.raises(PassError, match="end_pass is missing"):
            dataset.release_memory()
        list(dataset.batches())
        with pytest.raises(PassError, match="end_pass is missing"):
            next(dataset.batches())
        dataset.end_pass()
        dataset.release_memory()
        dataset.close()

    def test_a_date_in_another_form_is_refused(self, open_dataset: OpenDataset) -> None:
        with pytest.raises(ValueError, match="expected YYYYMMDD, found '2024-01-01'"):
            open_dataset().set_date("2024-01-01")


def test_the_date_is_written_into_the_rows(
    open_dataset: OpenDataset, write_lines: WriteLines, tmp_path: Path
) -> None:
    dataset = open_dataset({"folder": tmp_path / "store"})
    dataset.set_date("19700201")
    train(dataset, write_lines("a.txt", multislot_lines(10)))
    _, rows = table_of(dataset).read_all()
    assert set(rows[:, 4].view(np.uint32).tolist()) == {31}


@pytest.mark.parametrize("date", ["20240231", "2024111", "19700101", ""])
def test_a_date_is_a_day_of_the_calendar(open_dataset: OpenDataset, date: str) -> None:
    with pytest.raises(ValueError, match=f"set_date: expected .*found '{date}'"):
        open_dataset().set_date(date)


def days_of(table: Table) -> list[int]:
    return [event["day"] for event in table.first.events if event["kind"] == "decay"]


def test_a_day_ends_before_the_first_pass_of_the_next_and_after_its_own_last(
    open_dataset: OpenDataset, write_lines: WriteLines, tmp_path: Path
) -> None:
    dataset = open_dataset({"folder": tmp_path / "store"})
    table = table_of(dataset)
    file = write_lines("a.txt", multislot_lines(10))
    dataset.set_date("19700201")
    load(dataset, file)
    dataset.set_date("19700202")  # while the last pass of the day before trains
    dataset.set_filelist([file])
    dataset.preload_into_memory()
    dataset.wait_preload_done()
    for batch in dataset.batches():
        push_ones(dataset, batch)
    dataset.end_pass()
    assert table.first.events == []
    dataset.begin_pass()
    assert days_of(table) == [31]
    assert [push_ones(dataset, batch) for batch in dataset.batches()]
    dataset.end_pass()
    # Few shows: all rows of the first day were deleted, and are new on the second.
    assert set(table.read_all()[1][:, 4].view(np.uint32).tolist()) == {32}
    train(dataset, file)  # the same day
    assert days_of(table) == [31]


def test_an_evaluation_ends_no_day(
    open_dataset: OpenDataset, write_lines: WriteLines, tmp_path: Path
) -> None:
    dataset = open_dataset({"folder": tmp_path / "store"})
    file = write_lines("a.txt", multislot_lines(10))
    dataset.set_date("19700201")
    train(dataset, file)
    dataset.set_date("19700202")
    dataset.set_test_mode(True)
    load(dataset, file)
    assert list(dataset.batches())
    dataset.end_pass()
    assert dataset._table.first.events == []


def test_shrink_table_ends_the_day_between_passes(
    open_dataset: OpenDataset, write_lines: WriteLines, tmp_path: Path
) -> None:
    dataset = open_dataset({"folder": tmp_path / "store"})
    file = write_lines("a.txt", multislot_lines(10))
    dataset.set_date("19700201")
    load(dataset, file)
    with pytest.raises(PassError, match="end_pass is missing"):
        dataset.shrink_table()
    for batch in dataset.batches():
        push_ones(dataset, batch)
    dataset.end_pass()
    assert dataset.shrink_table()
    assert not dataset.shrink_table()
    dataset.set_date("19700202")
    train(dataset, file)
    assert days_of(table_of(dataset)) == [31]


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_batches_do_not_depend_on_the_thread_count(
    open_dataset: OpenDataset,
    write_lines: WriteLines,
    threads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("paddlebox.data.reader.CHUNK_BYTES", 1000)
    files = [write_lines(f"{i}.txt", multislot_lines(300, seed=i)) for i in range(3)]

    def batches(count: int) -> list[Any]:
        dataset = open_dataset({"fields": {"name": f"t{count}{len(files)}"}}, thread_num=count)
        dataset.local_shuffle()
        load(dataset, *files)
        found = list(dataset.batches())
        dataset.end_pass()
        dataset._table.close()
        return found

    expected, found = batches(1), batches(threads)
    assert len(found) == len(expected) == 29
    for one, other in zip(expected, found, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


class TestOversizePass:
    FILE_ROWS = 400

    def budget(self, rows: int) -> dict[str, int]:
        return {"hbm_budget_bytes": 3 * rows * 62}  # about 48 bytes a row and 14 beside it

    def test_a_split_pass_ends_as_an_unsplit_one(
        self, open_dataset: OpenDataset, write_lines: WriteLines, tmp_path: Path
    ) -> None:
        file = write_lines("a.txt", multislot_lines(self.FILE_ROWS))
        digests, outs, parts = [], [], []
        for name, table in (("whole", {}), ("split", self.budget(300))):
            dataset = open_dataset({"folder": tmp_path / name, "fields": {"name": name}, **table})
            outs.append([*train(dataset, file), *train(dataset, file)])
            parts.append(dataset.stats.parts)
            digests.append(dataset._table.digest())
            assert head_of(dataset._table).version == 2  # parts are not versions
            dataset._table.close()
        assert parts[0] == 1
        assert parts[1] > 2
        assert digests[0] == digests[1]
        for one, other in zip(*outs, strict=True):
            np.testing.assert_array_equal(one, other)

    def test_one_batch_that_does_not_fit(
        self, open_dataset: OpenDataset, write_lines: WriteLines
    ) -> None:
        dataset = open_dataset(self.budget(50), batch_size=400)
        dataset.set_filelist([write_lines("a.txt", multislot_lines(self.FILE_ROWS))])
        with pytest.raises(OutOfSpaceError, match=r"hbm\.budget_bytes"):
            dataset.load_into_memory()


def test_an_evaluation_changes_nothing_and_waits_for_the_pass_to_end(
    open_dataset: OpenDataset, write_lines: WriteLines, tmp_path: Path
) -> None:
    dataset = open_dataset({"folder": tmp_path / "store"})
    file, unseen = (write_lines(f"{s}.txt", multislot_lines(50, seed=s)) for s in (1, 2))
    train(dataset, file)
    digest = dataset._table.digest()
    dataset.set_test_mode(True)
    load(dataset, unseen)
    assert any((batch["box_ids"] == -1).any() for batch in dataset.batches())
    dataset.end_pass()
    assert dataset._table.digest() == digest


@pytest.mark.parametrize("content", [[], [""], ["", ""]], ids=["empty", "newline", "newlines"])
def test_an_empty_pass_is_a_warning_and_trains_nothing(
    open_dataset: OpenDataset,
    write_lines: WriteLines,
    tmp_path: Path,
    content: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    dataset = open_dataset({"folder": tmp_path / "store"})
    with caplog.at_level(logging.WARNING):
        assert train(dataset, write_lines("a.txt", content)) == []
    assert "the pass trains nothing" in caplog.text
    assert dataset._table.head is None
    assert len(train(dataset, write_lines("b.txt", multislot_lines(5)))) == 1


def test_missing_files_are_named(open_dataset: OpenDataset, tmp_path: Path) -> None:
    dataset = open_dataset()
    for path, message in (
        (tmp_path / "none.txt", "no such file"),
        (tmp_path / "*.none", "no file matches"),
        (tmp_path, "no file in this folder"),
    ):
        dataset.set_filelist([str(path)])
        with pytest.raises(DataError, match=message):
            dataset.load_into_memory()


def test_drop_last_leaves_out_a_short_batch_of_training_only(
    open_dataset: OpenDataset, write_lines: WriteLines
) -> None:
    dataset = open_dataset(batch_size=4, drop_last=True)
    load(dataset, write_lines("a.txt", multislot_lines(10)))
    assert [len(batch["box_label"]) for batch in dataset.batches()] == [4, 4]
    dataset.end_pass()
    dataset.set_test_mode(True)  # an evaluation takes every instance
    load(dataset, write_lines("a.txt", multislot_lines(10)))
    assert [len(batch["box_label"]) for batch in dataset.batches()] == [4, 4, 2]
    dataset.end_pass()


def test_a_pass_smaller_than_a_batch_is_warned_to_train_nothing(
    open_dataset: OpenDataset, write_lines: WriteLines, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = open_dataset(batch_size=4, drop_last=True)
    for number, lines in ((1, 4), (2, 3)):
        caplog.clear()
        load(dataset, write_lines("a.txt", multislot_lines(lines)))
        assert len(list(dataset.batches())) == lines // 4
        assert [record.getMessage().partition(",")[0] for record in caplog.records] == (
            []
            if number == 1
            else ["pass 2 trains nothing: its 3 instances are fewer than the batch size 4"]
        )
        dataset.end_pass()


def test_overlapped_passes_end_as_passes_one_after_the_other(
    open_dataset: OpenDataset, write_lines: WriteLines, tmp_path: Path
) -> None:
    files = [write_lines(f"{i}.txt", multislot_lines(200, seed=i)) for i in range(4)]
    alone = open_dataset({"folder": tmp_path / "a", "fields": {"name": "alone"}})
    for file in files:
        train(alone, file)
    expected = alone._table.digest()
    alone._table.close()
    dataset = open_dataset({"folder": tmp_path / "b", "fields": {"name": "overlapped"}})
    dataset.set_filelist(files[:1])
    dataset.preload_into_memory()
    for following in [*files[1:], None]:
        dataset.begin_pass()
        if following is not None:
            dataset.set_filelist([following])
            dataset.preload_into_memory()
        for batch in dataset.batches():
            push_ones(dataset, batch)
        dataset.end_pass()
    assert dataset._table.digest() == expected
    assert head_of(dataset._table).version == 4


class TestALoopOfOnesOwn:
    def test_it_has_each_batch_of_the_open_pass_once(
        self, open_dataset: OpenDataset, write_lines: WriteLines
    ) -> None:
        dataset = open_dataset(batch_size=4)
        with pytest.raises(PassError, match="begin_pass is missing"):
            iter(dataset)
        load(dataset, write_lines("a.txt", multislot_lines(10)))
        dataset.metric_columns = ["user"]  # as a train_from_dataset before leaves it
        labels = [batch["box_label"] for batch in dataset if set(batch) == set(PACKED)]
        assert [len(label) for label in labels] == [4, 4, 2]
        with pytest.raises(PassError, match="has been trained already: end_pass is missing"):
            iter(dataset)
        dataset.end_pass()

    def test_it_trains_as_a_loop_over_batches_does(
        self, open_dataset: OpenDataset, write_lines: WriteLines
    ) -> None:
        file, digests = write_lines("a.txt", multislot_lines(100)), []
        for through in (lambda dataset: dataset.batches(), iter):
            dataset = open_dataset()
            load(dataset, file)
            for batch in through(dataset):
                push_ones(dataset, batch)
            dataset.end_pass()
            dataset._table.wait_commit()
            digests.append(dataset._table.digest())
            dataset._table.close()
        assert digests[0] == digests[1]

    def test_leaving_it_early_leaves_what_becomes_of_the_pass_to_the_caller(
        self, open_dataset: OpenDataset, write_lines: WriteLines, tmp_path: Path
    ) -> None:
        file = write_lines("a.txt", multislot_lines(100))
        dataset = open_dataset({"folder": tmp_path / "store"})
        load(dataset, file)
        for batch in dataset:
            push_ones(dataset, batch)
            break
        dataset.end_pass()  # commits what was trained
        dataset._table.wait_commit()
        assert head_of(dataset._table).version == 1
        load(dataset, file)
        with pytest.raises(KeyError):
            for batch in dataset:
                batch["no such input"]
        dataset.abandon_pass()
        assert head_of(dataset._table).version == 1

    def test_ranks_are_sent_to_step(
        self, open_dataset: OpenDataset, write_lines: WriteLines, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dataset = open_dataset()
        load(dataset, write_lines("a.txt", multislot_lines(10)))
        monkeypatch.setattr(type(dataset), "ranks", 2)
        with pytest.raises(PassError, match=r"2 ranks.* dataset\.step\(batch\)"):
            iter(dataset)
