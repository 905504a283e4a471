"""Records of a folder: lines of files that grow, at offsets in bytes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from paddlebox.config.stream import StreamConfig
from paddlebox.data.streams import folder
from paddlebox.data.streams.folder import FolderStream
from paddlebox.data.streams.stream import Offsets, Range
from paddlebox.errors import DataError


def stream_of(root: Path) -> FolderStream:
    return FolderStream(StreamConfig(source=str(root)))


def records_of(stream: FolderStream, wanted: Range) -> list[tuple[int, bytes]]:
    return [
        pair
        for batch in stream.read(wanted)
        for pair in zip(batch.offsets, batch.values, strict=True)
    ]


def test_a_partition_is_a_file_and_its_offsets_are_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\ntwo\nthree\n")
    (tmp_path / "b").write_text("four\n")
    stream = stream_of(tmp_path)
    found = stream.look({}, None, 10)
    assert found.at == {"a": 0, "b": 0}
    assert found.lanes == [{"a": 3}, {"b": 1}]
    assert found.behind == 4
    assert stream.end("a", 0, 2) == 8
    assert records_of(stream, Range("a", 4, 14)) == [(4, b"two"), (8, b"three")]


def test_an_unfinished_last_line_waits_until_it_is_finished(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("one\ntw")
    stream = stream_of(tmp_path)
    assert stream.look({"a": 0}, None, 10).lanes == [{"a": 1}]
    assert stream.look({"a": 4}, None, 10).lanes == [{"a": 0}]
    file.write_text("one\ntwo\n")
    assert stream.look({"a": 4}, None, 10).lanes == [{"a": 1}]
    assert records_of(stream, Range("a", 4, 8)) == [(4, b"two")]


def test_files_of_a_subfolder_are_read_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    for name in ("1", "2"):
        (tmp_path / "p" / name).write_text("x\n" * 5)
    found = stream_of(tmp_path).look({"p/1": 4}, None, 4)
    assert found.lanes == [{"p/1": 3, "p/2": 5}]  # at least 4, counted by the block


def test_a_line_longer_than_a_block_is_one_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "_BLOCK_BYTES", 4)
    monkeypatch.setattr(folder, "RECORDS_BYTES", 4)
    (tmp_path / "a").write_text("0123456789\nx\n\nunfinished")
    stream = stream_of(tmp_path)
    assert stream.look({}, None, 10).lanes == [{"a": 3}]
    assert [stream.end("a", 0, n) for n in (1, 2, 3)] == [11, 13, 14]
    assert records_of(stream, Range("a", 0, 14)) == [(0, b"0123456789"), (11, b"x"), (13, b"")]
    assert stream.offsets("latest") == {"a": 14}


def test_hidden_and_temporary_files_are_no_partitions(tmp_path: Path) -> None:
    for name in (".a", "a.tmp", "_SUCCESS"):
        (tmp_path / name).write_text("x\n")
    assert stream_of(tmp_path).offsets("earliest") == {}


def test_a_file_that_shrinks_below_the_trained_offset_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\n")
    with pytest.raises(DataError, match=r"a: has 4 bytes, expected 8 at least"):
        stream_of(tmp_path).look({"a": 8}, None, 10)


def test_a_trained_file_may_be_removed_and_one_with_more_records_may_not(tmp_path: Path) -> None:
    stream, at = stream_of(tmp_path), Offsets()
    for name in ("a", "b"):
        (tmp_path / name).write_text("one\ntwo\n")
    at = {"a": 8, "b": 4}
    stream.look(at, None, 10)
    (tmp_path / "a").unlink()
    assert stream.look(at, None, 10).at == {"b": 4}
    (tmp_path / "b").unlink()
    with pytest.raises(DataError, match=r"b: disappeared with 1 records at least"):
        stream.look({"b": 4}, None, 10)


def test_a_file_that_is_cut_while_a_pass_reads_it_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\n")
    with pytest.raises(DataError, match=r"expected the records from byte 0 to 8.* ends at byte 4"):
        records_of(stream_of(tmp_path), Range("a", 0, 8))


def test_what_is_read_ends_at_until_and_other_partitions_are_not_read(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("one\ntwo\n")
    found = stream_of(tmp_path).look({}, {"a": 4}, 10)
    assert found.lanes == [{"a": 1}, {"b": 0}]
    assert found.behind == 1


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("c=0", "expected a file c"),
        ("a=2", "expected a line to begin at byte 2"),
        ("a=9", "byte 9"),
    ],
)
def test_an_offset_that_does_not_exist_is_an_error(tmp_path: Path, place: str, text: str) -> None:
    (tmp_path / "a").write_text("one\ntwo\n")
    with pytest.raises(DataError, match=text):
        stream_of(tmp_path).offsets(place)


def test_a_missing_folder_is_an_error_with_advice(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: cannot list the folder of data.stream: No such"):
        stream_of(tmp_path / "nowhere").look({}, None, 10)


def test_the_event_time_is_when_the_file_was_written_unless_it_is_in_the_future(
    tmp_path: Path,
) -> None:
    file = tmp_path / "a"
    file.write_text("one\ntwo\n")
    os.utime(file, (1000, 1000))
    (batch,) = stream_of(tmp_path).read(Range("a", 0, 8))
    assert (batch.newest, batch.ahead) == (1000, 0)
    os.utime(file, (time.time() + 3600,) * 2)
    (batch,) = stream_of(tmp_path).read(Range("a", 0, 8))
    assert (batch.newest, batch.ahead) == (0, 2)
