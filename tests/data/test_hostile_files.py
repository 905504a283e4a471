"""Files that are not what they should be: counted, quoted with file and line, never silent."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from paddlebox.data import reader
from paddlebox.data.dataset import InMemoryDataset
from paddlebox.data.passes import PassStats
from paddlebox.errors import DataError
from tests.support.fixtures import OpenDataset, WriteLines

GOOD = "1 1 2 0.5 1.5 1 7 2 3 4"

HOSTILE = {
    "NUL byte": "1 1 2 0.5 1.5 1 7 2 3 \0",
    "overlong": "1 1 2 0.5 1.5 1 7 3000 " + " ".join(["5"] * 3000),
    "count too large": "1 1 2 0.5 1.5 1 7 3 3 4",
    "count of zero": "1 1 2 0.5 1.5 1 7 0",
    "left over": GOOD + " 9",
    "slot missing": "1 1 2 0.5 1.5 1 7",
    "not a number": "1 1 2 0.5 1.5 1 seven 2 3 4",
    "negative": "1 1 2 0.5 1.5 1 -7 2 3 4",
    "above 2^64 - 1": "1 1 2 0.5 1.5 1 18446744073709551616 2 3 4",
    "NaN": "1 1 2 nan 1.5 1 7 2 3 4",
    "label of two": "1 2 2 0.5 1.5 1 7 2 3 4",
    "label NaN": "1 nan 2 0.5 1.5 1 7 2 3 4",
    "binary": "\x01\x02\x03\x7f",
}


def load(dataset: InMemoryDataset, *files: str | Path) -> PassStats:
    dataset.set_filelist([str(file) for file in files])
    dataset.load_into_memory()
    dataset.begin_pass()
    list(dataset.batches())
    dataset.end_pass()
    return dataset.stats


@pytest.mark.parametrize("line", HOSTILE.values(), ids=HOSTILE)
def test_a_malformed_line_is_counted_quoted_and_left_out(
    open_dataset: OpenDataset, write_lines: WriteLines, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = write_lines("a.txt", [GOOD, GOOD, line, GOOD])
    dataset = open_dataset(max_bad_line_ratio=0.5, max_line_bytes=2000)
    with caplog.at_level(logging.WARNING):
        stats = load(dataset, file)
    assert (stats.samples, stats.lines, stats.bad_lines) == (3, 4, 1)
    assert f"{file}:3: " in caplog.text


@pytest.mark.parametrize("line", HOSTILE.values(), ids=HOSTILE)
def test_a_pass_with_too_many_fails(
    open_dataset: OpenDataset, write_lines: WriteLines, line: str
) -> None:
    file = write_lines("a.txt", [GOOD] * 9 + [line])
    with pytest.raises(DataError, match=rf"1 of 10 lines are malformed(.|\n)*{file}:10: "):
        load(open_dataset(max_bad_line_ratio=0.09, max_line_bytes=2000), file)


def test_only_the_first_few_are_quoted(open_dataset: OpenDataset, write_lines: WriteLines) -> None:
    file = write_lines("a.txt", ["x"] * 1000)
    with pytest.raises(DataError, match="1000 of 1000") as error:
        load(open_dataset(), file)
    assert str(error.value).count(file) == 5


@pytest.mark.parametrize(
    "content", [f"{GOOD}\r\n{GOOD}\r\n", f"{GOOD}\n{GOOD}", f"\n{GOOD}\n\n{GOOD}\n"]
)
def test_line_ends_of_other_systems_are_fine(
    open_dataset: OpenDataset, tmp_path: Path, content: str
) -> None:
    (tmp_path / "a.txt").write_bytes(content.encode())
    stats = load(open_dataset(), tmp_path / "a.txt")
    assert (stats.samples, stats.bad_lines) == (2, 0)


def test_the_rest_of_an_overlong_line_is_not_taken_for_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * 5000 + f" {GOOD}\n{GOOD}\n".encode())
    chunks = [
        chunk.data for chunk in reader.read_chunks(str(path), chunk_bytes=100, line_bytes=1000)
    ]
    assert b"".join(chunks).count(GOOD.encode()) == 1
    assert 1000 < len(chunks[0]) <= 1100
