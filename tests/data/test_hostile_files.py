"""Files that are not what they should be: counted, quoted with file and line, never silent."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import pytest

from paddlebox._native import core
from paddlebox.compat.upstream import UpstreamDataset
from paddlebox.config import Format
from paddlebox.data import reader
from paddlebox.data.loader import load as load_pass
from paddlebox.data.passes import PassStats
from paddlebox.errors import DataError
from tests.support.configs import make_slots
from tests.support.fixtures import OpenDataset, WriteLines
from tests.support.instances import SLOTS
from tests.support.options import load_options

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


def load(dataset: UpstreamDataset, *files: str | Path) -> PassStats:
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


def test_each_file_has_its_own_share_of_bad_lines(write_lines: WriteLines) -> None:
    def load(*files: str) -> tuple[int, int]:
        loaded = load_pass(
            list(files), load_options(Format.MULTISLOT, SLOTS, 2, max_bad_line_ratio=0.1), 1 << 20
        )
        return loaded.lines, loaded.bad_lines

    good = write_lines("good.txt", [GOOD] * 200)
    other = write_lines("README.md", ["Data of June.", "", "Read it."])
    after = write_lines("z.txt", [GOOD] * 50)
    with pytest.raises(DataError, match=rf"2 of 3 lines of {other} are mal(.|\n)*{other}:1: "):
        load(good, other, after)
    one = write_lines("one.txt", ["x"])
    with pytest.raises(DataError, match=rf"1 of 1 lines of {one} are malformed"):
        load(good, one)
    # A short file may have one bad line, if the pass may.
    short = write_lines("short.txt", [GOOD, "x"])
    assert load(good, short) == (202, 1)


NAMED = make_slots(click="label", city={"type": "sparse", "hash": True}, user="sparse")
NAMED_LINES = {
    Format.MULTISLOT: "1 1 1 {} 1 7",
    Format.FEASIGN_SLOT: "1:click {}:city 7:user 1:other",
    Format.SLOT_VALUE: "click:1 city:{} user:7",
    Format.CSV: "1,{},7",
}


@pytest.mark.parametrize("data_format", NAMED_LINES, ids=lambda one: one.value)
def test_text_that_is_not_utf_8_is_a_malformed_line_that_says_how_to_convert_it(
    write_lines: WriteLines, data_format: Format
) -> None:
    def load(text: bytes) -> Any:
        lines = [NAMED_LINES[data_format].encode().replace(b"{}", text)] * 4
        head = [b"click,city,user"] * (data_format is Format.CSV)
        path = write_lines("a.txt", [])
        Path(path).write_bytes(b"\n".join([*head, *lines]))
        return load_pass([path], load_options(data_format, NAMED, 2), 1 << 20)

    assert load("北京".encode()).bad_lines == 0
    for text in ("北京".encode("gbk"), "Köln".encode("latin-1"), "北京".encode()[:-1]):
        with pytest.raises(
            DataError, match=r"a\.txt:[12]: byte \d+ of the line, .* is not UTF-8"
        ) as e:
            load(text)
        assert "data.pipe_command: iconv" in str(e.value)


def test_what_is_utf_8_is_what_python_decodes() -> None:
    schema, rng = load_options(Format.MULTISLOT, NAMED, 2).schema(), random.Random(7)
    starts = ["a" * 40, "é", "北京", "\ud7ff", "\ue000", "😀", "\U0010ffff"]
    lines = []
    for _ in range(4000):
        text = bytearray("".join(rng.choices(starts, k=rng.randrange(1, 4))).encode())
        for _ in range(rng.randrange(3)):
            text[rng.randrange(len(text))] = rng.choice(
                b"A\x80\x8f\x90\x9f\xa0\xbf\xc1\xc2\xe0\xed\xf0\xf4\xf5"
            )
        lines.append(bytes(text))
    for line in lines:
        parsed = core.parse_chunk(schema, b"1 1 1 %s 1 7" % line)
        assert parsed.bad_lines == ("\ufffd" in line.decode("utf-8", "replace")), line


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
