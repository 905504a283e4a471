"""Reading: text files, plain or compressed, as chunks of whole lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from paddlebox import _native
from paddlebox.data import csv_hints
from paddlebox.data.decompress import read_blocks
from paddlebox.data.sources import RETRIES, expand, open_source
from paddlebox.errors import DataError

__all__ = ["CHUNK_BYTES", "Chunk", "expand", "read_chunks"]

# Memory of this size is used again by the next chunk and stays in the cache; with 4 MiB the
# allocator takes new pages each time, and reading falls from 17 GB/s to 2.5.
CHUNK_BYTES = 1 << 20
_BOM = b"\xef\xbb\xbf"
_BOMS_16 = (b"\xff\xfe", b"\xfe\xff")  # of UTF-16, where every other byte is 0 in plain words


@dataclass(frozen=True)
class Chunk:
    """Whole lines of one file; the last line of a file may lack its end."""

    path: str
    data: bytes
    schema: Any = None  # the native FeedSchema of this file, where it has one of its own

    def parse(self, schema: Any) -> Any:
        """The native ParsedChunk. Any thread may call it."""
        return _native.core.parse_chunk(self.schema or schema, self.data)


def read_chunks(
    path: str,
    chunk_bytes: int = CHUNK_BYTES,
    line_bytes: int = 1 << 30,
    retries: int = RETRIES,
    header_for: Any = None,
    through: Callable[[Iterator[bytes]], Iterator[bytes]] | None = None,
    skip: int = 0,
    delimiter: str = ",",
) -> Iterator[Chunk]:
    """The lines of one file, in chunks of about chunk_bytes that end at a line's end.

    Of a line longer than line_bytes only a part is passed on, itself longer than line_bytes: no
    input can take all memory, and the parser counts it as malformed. A byte order mark is dropped.

    Args:
        header_for: a native FeedSchema: the first line names the columns of CSV, for a schema of
            this file's own. It is left empty, so that lines keep their numbers.
        through: a filter of the file's bytes, in blocks.
        skip: lines at the beginning of the file, before a header, that are left empty likewise.
        delimiter: of a header.

    Raises: DataError when the file cannot be opened or read, does not decompress, changes while it
        is read, or its header lacks a column.
    """
    chunks = _line_chunks(path, chunk_bytes, line_bytes, retries, through or iter)
    if skip:
        chunks = _emptied(chunks, path, skip)
    if header_for is None:
        yield from chunks
        return
    first = next(chunks, Chunk(path, b""))
    line, end, rest = first.data[skip:].partition(b"\n")
    line = line.removesuffix(b"\r")
    try:
        schema = header_for.with_csv_header(line)
    except UnicodeDecodeError as error:
        raise _not_utf8(path, f"byte {error.start} of the header is another") from error
    except ValueError as error:
        hint = csv_hints.of_header(line, header_for.column_names, delimiter)
        raise DataError(f"{path}: {error}{hint}") from error
    yield Chunk(path, first.data[:skip] + end + rest, schema)
    for chunk in chunks:
        yield Chunk(path, chunk.data, schema)


def _not_utf8(path: str, found: str) -> DataError:
    return DataError(
        f"{path}: expected text in UTF-8, found that {found}: write the file in UTF-8, or convert "
        "it with iconv"
    )


def _emptied(chunks: Iterator[Chunk], path: str, lines: int) -> Iterator[Chunk]:
    """Leaves so many lines at the beginning of a file empty; those behind keep their numbers. The
    first chunk holds all of them and, unless the file ends there, the line after them."""
    emptied, data = 0, b""
    while emptied < lines or not data:
        chunk = next(chunks, None)
        if chunk is None:
            break
        at = 0
        while emptied < lines and at < len(chunk.data):
            at = chunk.data.find(b"\n", at) + 1 or len(chunk.data)
            emptied += 1
        data = chunk.data[at:]
    if emptied:
        yield Chunk(path, b"\n" * emptied + data)
    yield from chunks


def _line_chunks(
    path: str,
    chunk_bytes: int,
    line_bytes: int,
    retries: int,
    through: Callable[[Iterator[bytes]], Iterator[bytes]],
) -> Iterator[Chunk]:
    rest = b""
    overlong = False  # inside a line whose beginning has been passed on
    beginning = True
    with open_source(path, retries) as source:
        for block in through(read_blocks(source, chunk_bytes)):
            if beginning:
                if block.startswith(_BOMS_16) and 0 in block[:64]:
                    raise _not_utf8(path, "it begins as UTF-16 does")
                block, beginning = block.removeprefix(_BOM), False
            if overlong:
                end = block.find(b"\n") + 1
                if end == 0:
                    continue
                block, overlong = block[end:], False
            end = block.rfind(b"\n") + 1
            if end == 0:
                rest += block
                if len(rest) > line_bytes:
                    yield Chunk(path, rest)
                    rest, overlong = b"", True
                continue
            yield Chunk(path, rest + memoryview(block)[:end])  # one copy, not two
            rest = block[end:]
    if rest:
        yield Chunk(path, rest)
