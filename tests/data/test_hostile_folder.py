"""A folder of hostile files, made here: what docs/data.md says of bad input, in every format.

A file holds two good instances and one line that is hostile, or as much as its row of the table is
about. Each loads to the documented instances and counts, or to a DataError that names it.
"""

from __future__ import annotations

import gzip
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from paddlebox.config import Format
from paddlebox.data import sharing
from paddlebox.data.loader import load
from paddlebox.data.options import LoadOptions
from paddlebox.errors import DataError
from tests.support.configs import make_slots
from tests.support.instances import SLOTS
from tests.support.options import load_options

CRITEO_SLOTS = make_slots(
    click={"type": "label", "column": "label"}, I1="dense", C1="sparse", C2="sparse"
)
BOM = b"\xef\xbb\xbf"
HUGE = str(2**64)  # one above the last feasign
Line = Callable[..., str]


def multislot(
    click: str = "1",
    age: Sequence[str] = ("0.5", "1.5"),
    user: Sequence[str] = ("7",),
    words: Sequence[str] = ("3", "4"),
) -> str:
    slots = ([click], age, user, words)
    return " ".join(f"{len(values)} {' '.join(values)}" for values in slots)


def feasign_slot(
    click: str = "1",
    age: Sequence[str] = ("0.5", "1.5"),
    user: Sequence[str] = ("7",),
    words: Sequence[str] = ("3", "4"),
) -> str:
    slots = {"click": [click], "age": age, "user": user, "words": words}
    return " ".join(f"{value}:{name}" for name, values in slots.items() for value in values)


def slot_value(
    click: str = "1",
    age: Sequence[str] = ("0.5", "1.5"),
    user: Sequence[str] = ("7",),
    words: Sequence[str] = ("3", "4"),
) -> str:
    slots = {"click": [click], "age": age, "user": user, "words": words}
    return " ".join(f"{name}:{value}" for name, values in slots.items() for value in values)


def csv(
    click: str = "1",
    age: Sequence[str] = ("0.5", "1.5"),
    user: Sequence[str] = ("7",),
    words: Sequence[str] = ("3", "4"),
) -> str:
    return ",".join([click, "|".join(age), "|".join(user), "|".join(words)])


def criteo(
    click: str = "1",
    age: Sequence[str] = ("5",),
    user: Sequence[str] = ("7",),
    words: Sequence[str] = ("3",),
) -> str:
    return "\t".join([click, *age, *[""] * 12, *user, *words, *["ab"] * 24])


LINES: dict[Format, Line] = {
    Format.MULTISLOT: multislot,
    Format.FEASIGN_SLOT: feasign_slot,
    Format.SLOT_VALUE: slot_value,
    Format.CSV: csv,
    Format.CRITEO_TSV: criteo,
}
LISTS = [Format.MULTISLOT, Format.FEASIGN_SLOT, Format.SLOT_VALUE, Format.CSV]  # not Criteo
TEXT = list(LINES)
COLUMNAR = [Format.PARQUET, Format.ARROW]


@dataclass(frozen=True)
class Case:
    """One hostile line between two good ones, and what becomes of it."""

    name: str
    line: Callable[[Line], str]
    instances: int  # of all three lines
    bad: int
    formats: list[Format]
    feasigns: int | None = None  # of all instances


def malformed(name: str, line: Callable[[Line], str], formats: list[Format] = TEXT) -> Case:
    return Case(name, line, 2, 1, formats)


def read(
    name: str,
    line: Callable[[Line], str],
    formats: list[Format] = TEXT,
    feasigns: int | None = None,
) -> Case:
    return Case(name, line, 3, 0, formats, feasigns)


# A good line has three feasigns, a Criteo line of ours two.
CASES = [
    Case("empty line", lambda _: "", 2, 0, TEXT),
    Case("a byte order mark alone", lambda _: "\ufeff", 2, 0, TEXT),
    read("a byte order mark inside the file", lambda line: "\ufeff" + line()),
    read("CRLF", lambda line: line() + "\r"),
    malformed("two carriage returns", lambda line: line() + "\r\r"),
    malformed("a carriage return before a value", lambda line: line(click="\r1")),
    malformed("NUL in an id", lambda line: line(user=["7\0"])),
    malformed("NUL in the label", lambda line: line(click="1\0")),
    malformed("binary", lambda _: "\x01\x02\x03\x7f"),
    malformed("too many dense values", lambda line: line(age=["1", "2", "3"]), LISTS),
    malformed("too few dense values", lambda line: line(age=["1"]), LISTS),
    malformed("a label that is no number", lambda line: line(click="yes")),
    malformed("label above 1", lambda line: line(click="2")),
    malformed("label below 0", lambda line: line(click="-1")),
    malformed("label NaN", lambda line: line(click="nan")),
    malformed("NaN", lambda line: line(age=["nan", "1"]), LISTS),
    malformed("NaN of Criteo", lambda line: line(age=["nan"]), [Format.CRITEO_TSV]),
    malformed("infinity", lambda line: line(age=["-inf", "1"]), LISTS),
    malformed("hexadecimal float", lambda line: line(age=["0x10p1", "1"]), LISTS),
    malformed("beyond float", lambda line: line(age=["1e39", "1"]), LISTS),
    read("below float", lambda line: line(age=["1e-60", "1"]), LISTS),
    read("exponent", lambda line: line(age=["1e-3", "-2.5E+1"]), LISTS),
    malformed("negative feasign", lambda line: line(user=["-7"])),
    malformed("feasign with a plus", lambda line: line(user=["+7"])),
    malformed("feasign that is no number", lambda line: line(user=["seven"])),
    malformed("feasign with a point", lambda line: line(user=["7.0"])),
    malformed("feasign above 2^64 - 1", lambda line: line(user=[HUGE]), LISTS),
    malformed("token of 17 digits", lambda line: line(user=["0" * 17]), [Format.CRITEO_TSV]),
    malformed("integer beyond int64", lambda line: line(age=[HUGE]), [Format.CRITEO_TSV]),
    malformed(
        "integer beyond int64 in a column that no slot uses",
        lambda line: line().replace("\t\t", f"\t{HUGE}\t", 1),
        [Format.CRITEO_TSV],
    ),
    read("the last feasign", lambda line: line(user=[str(2**64 - 1)]), LISTS, 9),
    read("leading zeros", lambda line: line(user=["0" * 30 + "7"]), LISTS, 9),
    read("feasign 0 is padding", lambda line: line(user=["0"]), LISTS, 8),
    read("another number of ids", lambda line: line(words=["1"] * 50), LISTS, 57),
    read("an empty field", lambda line: line(age=[""], user=[""]), [Format.CRITEO_TSV], 5),
    read("an empty cell", lambda line: line(user=[]), [Format.CSV], 8),
    malformed("a slot too many", lambda line: line() + " 1 9", [Format.MULTISLOT]),
    malformed("a cell too many", lambda line: line() + ",9", [Format.CSV]),
    malformed("a column too many", lambda line: line() + "\t9", [Format.CRITEO_TSV]),
    malformed("a slot too few", lambda _: "1 1 2 0.5 1.5 1 7", [Format.MULTISLOT]),
    malformed("a cell too few", lambda _: "1,0.5|1.5,7", [Format.CSV]),
    malformed("a column too few", lambda line: line().rpartition("\t")[0], [Format.CRITEO_TSV]),
    read("a sparse slot missing", lambda line: line(user=[]), LISTS[1:3], 8),
    read("an unknown slot", lambda line: line() + " 9:9", LISTS[1:3], 9),
    malformed("no dense value", lambda line: line(age=[]), LISTS[1:3]),
    malformed("no label", lambda line: line().partition(" ")[2], LISTS[1:3]),
    malformed("count 0", lambda _: "1 1 2 0.5 1.5 0 2 3 4", [Format.MULTISLOT]),
    malformed("count too large", lambda _: "1 1 2 0.5 1.5 1 7 3 3 4", [Format.MULTISLOT]),
    malformed("a huge count", lambda _: f"1 1 2 0.5 1.5 {HUGE} 7", [Format.MULTISLOT]),
    malformed("a quote that does not end", lambda _: '1,0.5|1.5,"7,3', [Format.CSV]),
    malformed("longer than the limit", lambda line: line(user=["1" * 5000])),
]


def options(data_format: Format, **more: Any) -> LoadOptions:
    slots = CRITEO_SLOTS if data_format is Format.CRITEO_TSV else SLOTS
    settings = {"max_bad_line_ratio": 0.5, "max_line_bytes": 4000, "threads": 2, **more}
    return load_options(data_format=data_format, slots=slots, batch_size=2, **settings)


def write_text(path: Path, data_format: Format, lines: list[str], end: str = "\n") -> str:
    header = ["click,age,user,words"] if data_format is Format.CSV else []
    path.parent.mkdir(exist_ok=True)
    path.write_bytes("".join(line + end for line in [*header, *lines]).encode())
    return str(path)


@pytest.mark.parametrize(
    ("data_format", "case"),
    [(data_format, case) for case in CASES for data_format in case.formats],
    ids=lambda value: value.name if isinstance(value, Case) else value.value,
)
def test_a_hostile_line_has_its_documented_result(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data_format: Format, case: Case
) -> None:
    line = LINES[data_format]
    path = write_text(tmp_path / "a.txt", data_format, [line(), case.line(line), line()])
    with caplog.at_level(logging.WARNING):
        loaded = load([path], options(data_format), 1000)
    header = data_format is Format.CSV  # left as an empty line
    assert (loaded.size, loaded.lines, loaded.bad_lines) == (case.instances, 3 + header, case.bad)
    if case.feasigns is not None:
        assert loaded.instances.occurrences == case.feasigns
    assert (f"{path}:{2 + header}: " in caplog.text) == bool(case.bad)
    if case.bad:
        with pytest.raises(DataError, match=f"{path}:{2 + header}: "):
            load([path], options(data_format, max_bad_line_ratio=0.2), 1000)


@pytest.mark.parametrize("data_format", TEXT, ids=lambda f: f.value)
def test_line_ends_and_their_absence_at_the_end_of_a_file(
    tmp_path: Path, data_format: Format
) -> None:
    line = LINES[data_format]
    path = write_text(tmp_path / "a.txt", data_format, [line()] * 3, end="\r\n")
    assert load([path], options(data_format), 1000).size == 3
    content = Path(path).read_bytes()
    for cut in (2, 1):  # no line break at all; a carriage return alone
        (tmp_path / "b.txt").write_bytes(content[:-cut])
        loaded = load([str(tmp_path / "b.txt")], options(data_format), 1000)
        assert (loaded.size, loaded.bad_lines) == (3, 0)
    (tmp_path / "c.txt").write_bytes(BOM + content)
    assert load([str(tmp_path / "c.txt")], options(data_format), 1000).size == 3


@pytest.mark.parametrize("data_format", TEXT, ids=lambda f: f.value)
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_is_malformed_lines(tmp_path: Path, data_format: Format, encoding: str) -> None:
    path = write_text(tmp_path / "a.txt", data_format, [LINES[data_format]()] * 3)
    text = "\ufeff" + Path(path).read_text()
    Path(path).write_bytes(text.encode(encoding))
    with pytest.raises(DataError, match=path):
        load([path], options(data_format), 1000)


@pytest.mark.parametrize("data_format", TEXT, ids=lambda f: f.value)
@pytest.mark.parametrize("codec", ["gzip", "zstd"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "followed"])
def test_a_damaged_compressed_file_is_an_error_with_its_offset(
    tmp_path: Path, data_format: Format, codec: str, damage: str
) -> None:
    path = write_text(tmp_path / "a.txt", data_format, [LINES[data_format]()] * 300)
    plain = Path(path).read_bytes()
    packed = bytearray(
        gzip.compress(plain) if codec == "gzip" else pa.compress(plain, "zstd", asbytes=True)
    )
    if damage == "cut":
        del packed[-5:]
    elif damage == "flipped":
        if codec == "zstd":
            packed[:6] = packed[:4] + b"\xff\xff"  # without a checksum only its frame can tell
        else:
            packed[-6] ^= 1  # of gzip's checksum
    else:
        packed += b"left over"
    Path(path).write_bytes(packed)
    with pytest.raises(DataError, match=rf"{path}(.|\n)*[0-9]"):
        load([path], options(data_format, max_bad_line_ratio=1.0), 1000)


@pytest.mark.parametrize("suffix", ["gz", "zst", "bz2", "xz"])
def test_an_empty_file_is_an_error_only_with_the_name_of_a_compression(
    tmp_path: Path, suffix: str
) -> None:
    good = write_text(tmp_path / "a.txt", Format.MULTISLOT, [LINES[Format.MULTISLOT]()] * 3)
    for name in ("b.txt", f"b.txt.{suffix}"):
        (tmp_path / name).write_bytes(b"")
    assert load([good, str(tmp_path / "b.txt")], options(Format.MULTISLOT), 1000).size == 3
    with pytest.raises(
        DataError, match=rf"b.txt.{suffix}: expected a stream of .*, found an empty"
    ):
        load([good, str(tmp_path / f"b.txt.{suffix}")], options(Format.MULTISLOT), 1000)
    with pytest.raises(DataError, match="found an empty file"):  # as ranks that share it find it
        sharing._text(str(tmp_path / f"b.txt.{suffix}"), 1)


@pytest.mark.parametrize("data_format", [*TEXT, *COLUMNAR], ids=lambda f: f.value)
def test_hidden_and_temporary_files_are_left_out_and_missing_ones_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data_format: Format
) -> None:
    good = tmp_path / "in" / "a.txt"
    good.parent.mkdir()
    if data_format in LINES:
        write_text(good, data_format, [LINES[data_format]()])
    else:
        write_columns(good, data_format, columns())
    for name in (".a.txt", "_SUCCESS", "a.txt.tmp", "a.txt.crc"):
        (good.parent / name).write_bytes(b"\xff\x00 no data")
    with caplog.at_level(logging.INFO):
        loaded = load([str(good.parent)], options(data_format), 1000)
    assert loaded.files == [str(good)]
    assert "_SUCCESS" in caplog.text
    with pytest.raises(DataError, match=r"nowhere\.txt"):
        load([str(good), str(tmp_path / "nowhere.txt")], options(data_format), 1000)


@pytest.mark.slow
@pytest.mark.parametrize(("limit_mb", "size"), [(200, 3), (1, 2)])
def test_a_line_of_100_megabytes_is_read_or_malformed_by_the_limit(
    tmp_path: Path, limit_mb: int, size: int
) -> None:
    words = np.arange(10**19, 10**19 + 5_000_000, dtype=np.uint64)  # 20 digits and a space each
    long = multislot(words=[*map(str, words.tolist())])
    assert len(long) > 100e6
    path = write_text(tmp_path / "a.txt", Format.MULTISLOT, [multislot(), long, multislot()])
    loaded = load([path], options(Format.MULTISLOT, max_line_bytes=limit_mb << 20), 1 << 24)
    assert (loaded.size, loaded.bad_lines) == (size, 3 - size)
    assert loaded.instances.unique_keys == 3 + (5_000_000 if size == 3 else 0)


# ---- columns


def columns(**changed: Any) -> dict[str, Any]:
    """Three rows of the usual slots."""
    return {
        "click": pa.array([1.0, 0.0, 1.0], pa.float32()),
        "age": pa.array([[0.5, 1.5]] * 3, pa.list_(pa.float32())),
        "user": pa.array([7, 8, 2**64 - 1], pa.uint64()),
        "words": pa.array([[3, 4], [], [5]], pa.list_(pa.uint64())),
        **changed,
    }


def write_columns(path: Path, data_format: Format, arrays: dict[str, Any]) -> str:
    table = pa.table(arrays)
    if data_format is Format.PARQUET:
        pq.write_table(table, path)
    else:
        pyarrow.feather.write_feather(table, path, compression="uncompressed")
    return str(path)


F32 = pa.float32()
# One of three rows is hostile: instances, malformed rows.
COLUMNS = {
    "as it should be": ({}, 3, 0),
    "a null label": ({"click": pa.array([1, None, 0], F32)}, 2, 1),
    "a label above 1": ({"click": pa.array([1, 2, 0], F32)}, 2, 1),
    "a label NaN": ({"click": pa.array([1, float("nan"), 0], F32)}, 2, 1),
    "NaN": ({"age": pa.array([[1, 2], [float("nan"), 2], [1, 2]], pa.list_(F32))}, 2, 1),
    "beyond float": ({"age": pa.array([[1, 2], [1e39, 2], [1, 2]], pa.list_(pa.float64()))}, 2, 1),
    "below float": ({"age": pa.array([[1, 2], [1e-60, 2], [1, 2]], pa.list_(pa.float64()))}, 3, 0),
    "too many values": ({"age": pa.array([[1, 2], [1, 2, 3], [1, 2]], pa.list_(F32))}, 2, 1),
    "a null dense value": ({"age": pa.array([[1, 2], None, [1, 2]], pa.list_(F32))}, 2, 1),
    "a null sparse slot": ({"user": pa.array([7, None, 8], pa.uint64())}, 3, 0),
    "feasign 0": ({"user": pa.array([7, 0, 8], pa.uint64())}, 3, 0),
    "a negative int32 is its bits": ({"user": pa.array([7, -1, 8], pa.int32())}, 3, 0),
    "a negative int64 is its bits": ({"user": pa.array([7, -1, 8], pa.int64())}, 3, 0),
}


@pytest.mark.parametrize("data_format", COLUMNAR, ids=lambda f: f.value)
@pytest.mark.parametrize(("changed", "size", "bad"), COLUMNS.values(), ids=COLUMNS)
def test_a_hostile_row_has_its_documented_result(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    data_format: Format,
    changed: dict[str, Any],
    size: int,
    bad: int,
) -> None:
    path = write_columns(tmp_path / "a", data_format, columns(**changed))
    with caplog.at_level(logging.WARNING):
        loaded = load([path], options(data_format), 1000)
    assert (loaded.size, loaded.lines, loaded.bad_lines) == (size, 3, bad)
    assert (f"{path}:2: " in caplog.text) == bool(bad)


@pytest.mark.parametrize("data_format", COLUMNAR, ids=lambda f: f.value)
@pytest.mark.parametrize(
    "damage", ["missing column", "retyped column", "cut", "text", "empty", "head lost"]
)
def test_a_hostile_columnar_file_is_an_error_that_names_it(
    tmp_path: Path, data_format: Format, damage: str
) -> None:
    arrays = columns()
    if damage == "missing column":
        del arrays["user"]
    if damage == "retyped column":
        arrays["user"] = pa.array(["a", "b", "c"])
    path = write_columns(tmp_path / "a", data_format, arrays)
    content = Path(path).read_bytes()
    damaged = {
        "cut": content[: len(content) // 2],
        "text": multislot().encode() * 100,
        "empty": b"",
        "head lost": content[100:],
    }
    Path(path).write_bytes(damaged.get(damage, content))
    with pytest.raises(DataError, match=path):
        load([path], options(data_format, max_bad_line_ratio=1.0), 1000)
