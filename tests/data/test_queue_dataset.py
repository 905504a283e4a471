"""The dataset that streams: windows of files, each a pass of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.compat import QueueDataset
from paddlebox.errors import DataError, PassError
from tests.data.test_protocol import push_ones, train
from tests.support.fixtures import OpenDataset, OpenTable, WriteLines
from tests.support.inside import head_of
from tests.support.instances import SLOTS, multislot_lines


@pytest.fixture
def open_stream(open_table: OpenTable) -> Iterator[Callable[..., QueueDataset]]:
    opened = []

    def make(**table: Any) -> QueueDataset:
        dataset = QueueDataset(open_table(**table), seed=1)
        dataset.init(slots=SLOTS, batch_size=32)
        opened.append(dataset)
        return dataset

    yield make
    for dataset in opened:
        dataset.close()


@pytest.fixture
def files(write_lines: WriteLines) -> list[str]:
    return [write_lines(f"{i}.txt", multislot_lines(80, seed=i)) for i in range(3)]


def test_a_stream_ends_as_a_pass_a_window_does(
    open_dataset: OpenDataset,
    open_stream: Callable[..., QueueDataset],
    files: list[str],
    tmp_path: Path,
) -> None:
    passes = open_dataset({"folder": tmp_path / "passes", "fields": {"name": "passes"}})
    expected = [out for group in (files[:2], files[2:]) for out in train(passes, *group)]
    digest = passes._table.digest()
    passes._table.close()
    stream = open_stream(folder=tmp_path / "stream", fields={"name": "stream"})
    stream.set_window_files(2)
    stream.set_filelist(files)
    found = [push_ones(stream, batch) for batch in stream.batches()]
    assert len(found) == len(expected) == 8
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, other)
    assert stream._table.digest() == digest
    assert head_of(stream._table).version == 2


def test_a_window_that_fails_leaves_the_one_before(
    open_stream: Callable[..., QueueDataset], files: list[str], tmp_path: Path
) -> None:
    stream = open_stream(folder=tmp_path / "stream")
    (tmp_path / "bad.txt").write_text("x\n")
    stream.set_filelist([files[0], str(tmp_path / "bad.txt")])
    with pytest.raises(DataError, match="1 of 1 lines are malformed"):
        for batch in stream.batches():
            push_ones(stream, batch)
    stream._table.wait_commit()
    assert head_of(stream._table).version == 1


def test_a_file_list_is_streamed_once_and_there_is_no_pass_to_load(
    open_stream: Callable[..., QueueDataset], files: list[str]
) -> None:
    stream = open_stream()
    with pytest.raises(PassError, match="set_filelist is missing"):
        stream.batches()
    stream.set_filelist(files)
    disk = ("preload_into_disk", "load_into_disk")
    for call in ("preload_into_memory", "load_into_memory", *disk, "begin_pass", "end_pass"):
        with pytest.raises(PassError, match=f"^{call}: a QueueDataset streams"):
            getattr(stream, call)()
    assert sum(len(batch["box_label"]) for batch in stream.batches()) == 240
    with pytest.raises(PassError, match="set_filelist is missing"):
        stream.batches()
