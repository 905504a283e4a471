"""Parts of a file: read one by one, they are the file."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paddlebox.config import Format
from paddlebox.config.slots import Csv
from paddlebox.data.columnar import count_pieces, read_pieces
from paddlebox.data.reader import Head, read_chunks
from paddlebox.data.sources import FilePart
from paddlebox.errors import DataError
from tests.support.instances import SLOTS
from tests.support.options import load_options


def lines_of(path: Path, part: FilePart, chunk_bytes: int) -> list[bytes]:
    chunks = [chunk.data for chunk in read_chunks(str(path), chunk_bytes, part=part)]
    assert all(chunk.endswith(b"\n") for chunk in chunks[:-1])
    return b"".join(chunks).splitlines(keepends=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parts")


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.integers(0, 30), max_size=30), st.booleans(), st.integers(1, 9), st.integers(1, 40)
)
@example([3], True, 9, 1)  # more parts than bytes
@example([0, 0, 0], True, 2, 1)  # only line breaks
@example([30, 1], False, 5, 7)  # a line longer than a part
def test_each_line_is_in_one_part(
    folder: Path, lengths: list[int], ends: bool, parts: int, chunk_bytes: int
) -> None:
    path = folder / "text"
    lines = [bytes([97 + number % 26]) * length for number, length in enumerate(lengths)]
    content = b"\n".join(lines) + (b"\n" if ends and lines else b"")
    path.write_bytes(content)
    found = [lines_of(path, FilePart(str(path), n, parts), chunk_bytes) for n in range(parts)]
    assert b"".join(line for part in found for line in part) == content
    # A part has the lines that begin in it.
    begin = 0
    for number, part in enumerate(found):
        for line in part:
            assert len(content) * number // parts <= begin < len(content) * (number + 1) // parts
            begin += len(line)


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 12), st.integers(1, 6), st.integers(0, 3), st.booleans())
def test_each_part_of_csv_knows_the_header(
    folder: Path, rows: int, parts: int, skip: int, bom: bool
) -> None:
    path = folder / "rows.csv"
    head = ["# told", "# before", "# it"][:skip]
    body = [f"{n % 2},{n + 1},0.5|1.5,{n + 101}" for n in range(rows)]
    text = "\n".join([*head, "click,user,age,words", *body]) + "\n"
    path.write_text(text, encoding="utf-8-sig" if bom else "utf-8")
    slots = SLOTS.model_copy(update={"csv": Csv(skip=skip)})
    schema = load_options(Format.CSV, slots, 1).schema()
    found = []
    for number in range(parts):
        part = FilePart(str(path), number, parts)
        chunks = read_chunks(str(path), 16, head=Head(skip, schema), part=part)
        parsed = [chunk.parse(schema) for chunk in chunks]
        assert sum(one.bad_lines for one in parsed) == 0
        found.append(sum(one.instances for one in parsed))
    assert sum(found) == rows
    assert rows < 12 or max(found) - min(found) <= 2


def test_errors_name_the_part(folder: Path) -> None:
    path = folder / "bad"
    path.write_text("1 1\n" * 10)
    chunks = list(read_chunks(str(path), part=FilePart(str(path), 1, 2)))
    assert {chunk.path for chunk in chunks} == {f"{path} (part 2/2)"}
    path.write_bytes("click\n".encode("utf-16"))
    with pytest.raises(DataError, match="bad: expected text in UTF-8"):
        list(read_chunks(str(path), part=FilePart(str(path), 0, 2)))


def test_row_groups_are_dealt_to_the_parts(folder: Path) -> None:
    path = str(folder / "rows.parquet")
    columns = {
        "click": pa.array([0.0] * 10),
        "age": pa.array([[0.0, 1.0]] * 10),
        "user": pa.array(range(1, 11), pa.uint64()),
        "words": pa.array([[7]] * 10, pa.list_(pa.uint64())),
    }
    pq.write_table(pa.table(columns), path, row_group_size=2)
    assert count_pieces(path, Format.PARQUET) == 5
    schema = load_options(Format.PARQUET, SLOTS, 1).schema()
    numbers = [
        [
            piece.number
            for piece in read_pieces(path, Format.PARQUET, schema, 1, FilePart(path, n, 2))
        ]
        for n in range(2)
    ]
    assert numbers == [[0, 2, 4], [1, 3]]
